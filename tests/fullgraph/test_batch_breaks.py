"""Models with parts that run as written, on mini-batches: beside the models themselves, or refused."""

import copy
import re

import pytest
import torch
from tests.beside_pyg import pyg
from tests.fullgraph.matrix.case import GCN
from tests.fullgraph.matrix.compare import in_double
from tests.fullgraph.matrix.graphs import CLASSES, data_of
from tests.fullgraph.matrix.models import HIDDEN, calls
from tests.fullgraph.test_batches import CLOSE, AsWritten, run, sampled, sizes_of
from tests.fullgraph.test_breaks import (
    MODELS,
    Selecting,
    a_module,
    by_a_value,
    fewer_rows,
    looked_up,
    made,
    overwrites,
    rows_of_a_module,
    selected_rows,
)
from torch import nn

import graphbraid
from graphbraid.errors import ConfigError, RunsAsWrittenWarning
from graphbraid.loader import NeighborLoader

quiet = pytest.mark.filterwarnings("ignore::graphbraid.errors.RunsAsWrittenWarning")

OF_ONE_GRAPH = {"a table", "a layer that reads a table"}
"""Models that hold a row for each node of one graph."""
BY_ROW = {
    *("at the start", "gated", "gated, SAGE", "gated, GAT", "a frozen gate", "at the end"),
    *("residual over a break", "used twice", "levels weighed", "levels stacked", "heads", "RMSNorm"),
    *("weight of a layer", "by mode", "a result of two", "GroupNorm"),
}
"""Models all of whose breaks work row by row."""


@pytest.mark.parametrize("kind", ["whole", "sampled"])
@pytest.mark.parametrize("name", sorted(set(MODELS) - OF_ONE_GRAPH))
@quiet
def test_equals_the_model_itself_trimmed_only_where_rows_stand_alone(name, kind, monkeypatch):
    data = data_of("untidy")
    model = made(name).double()
    batch = in_double(data if kind == "whole" else sampled(data, num_neighbors=(2, 2, 1), as_pyg=True))
    twin, engine = AsWritten(copy.deepcopy(model)), graphbraid.compile(model)
    seen = sizes_of(monkeypatch)
    for _ in range(2):
        torch.testing.assert_close(run(engine, batch), run(twin, batch), **CLOSE)
        assert engine.why is None, engine.explain()
    for training in (False, True):
        twin.model.train(training)
        torch.testing.assert_close(engine.train(training)(batch), twin(batch), **CLOSE)
    if kind == "sampled":
        assert (seen[0][0] < batch.num_nodes or seen[0][1] < batch.num_nodes) == (name in BY_ROW)


@quiet
@pytest.mark.parametrize("name", ["gated", "heads", "mean of rows", "by value", "a layer of one's own"])
def test_one_program_runs_on_batches_of_any_size(name):
    model, data = made(name).double(), in_double(data_of("untidy"))
    engine, ids = (
        graphbraid.compile(model),
        torch.randperm(len(data.x), generator=torch.Generator().manual_seed(0)),
    )
    with NeighborLoader(data, num_neighbors=[3, 2], batch_size=5, input_nodes=ids, seed=1) as loader:
        batches = [*loader]
    programs = set()
    for batch in batches:
        expected = model(batch.x, batch.edge_index)
        torch.testing.assert_close(engine(batch), expected[: batch.batch_size], **CLOSE)
        torch.testing.assert_close(engine(batch.x, batch.edge_index), expected, **CLOSE)
        programs.add(engine._runner.last)
    assert len({batch.num_nodes for batch in batches}) > 1
    assert len(programs) == 1


@quiet
@pytest.mark.parametrize("num_nodes", [0, 1, 2, HIDDEN])
@pytest.mark.parametrize("name", ["gated", "heads", "levels stacked", "square"])
def test_few_rows_are_no_columns(name, num_nodes):
    """With as many rows as columns, a product of columns has the shape of node rows."""

    def square(self, x, edge_index):
        h = self.first(x, edge_index)
        return self.head(self.second(h @ (h.t() @ h).softmax(1), edge_index))

    torch.manual_seed(5)
    model = (calls(square)(GCN) if name == "square" else made(name)).double()
    engine, edges = graphbraid.compile(model), torch.zeros(2, 0, dtype=torch.long)
    data = in_double(data_of("untidy"))
    for x, ends in ((data.x[:num_nodes], edges), (data.x, data.edge_index), (data.x[:HIDDEN], edges)):
        expected = model(x, ends) if len(x) else x.new_zeros(0, CLASSES)
        torch.testing.assert_close(engine(x, ends), expected, **CLOSE)
        assert engine.breaks


@quiet
@pytest.mark.parametrize("name", ["squeezed", "squeezed messages", "attention as products"])
def test_one_seed_and_one_edge_alone(name):
    """The last level has one row and one edge, and PyG's has more."""
    one = {"input_nodes": torch.tensor([5]), "batch_size": 1, "num_neighbors": (1, 2, 2), "seed": 9}
    batch = in_double(sampled(data_of("untidy"), as_pyg=True, **one))
    assert batch.num_sampled_edges[0] == 1
    model = made(name).double()
    engine = graphbraid.compile(model)
    torch.testing.assert_close(engine(batch), model(batch.x, batch.edge_index)[:1], **CLOSE)
    assert engine.why is None


# ---- what is refused, and what is said


def every_second_row(self, x, edge_index):
    h = self.second(self.first(x, edge_index).sin(), edge_index)
    return self.head(h[::2])


def columns_for_rows(self, x, edge_index):
    h = self.second(self.first(x, edge_index), edge_index)
    return h.t() @ h


@quiet
@pytest.mark.parametrize(
    ("run", "parts", "code"),
    [
        (overwrites, dict, "in-place"),
        (by_a_value, dict, "reads-values"),
        (selected_rows, dict, "form"),
        (rows_of_a_module, lambda: {"part": Selecting()}, "form"),
        (looked_up, lambda: {"part": nn.Embedding(HIDDEN, HIDDEN, max_norm=0.5)}, "state"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_what_cannot_stand_between_lowered_operations_runs_as_written(run, parts, code):
    torch.manual_seed(5)
    model, data = calls(run)(GCN, **parts()), data_of("untidy")
    engine = graphbraid.compile(model)
    torch.testing.assert_close(engine(data.x, data.edge_index), model(data.x, data.edge_index))
    assert engine.why is not None
    assert engine.why.code == code, engine.explain()
    assert not engine.breaks


@pytest.mark.parametrize(
    "run", [fewer_rows, every_second_row, columns_for_rows], ids=lambda run: run.__name__
)
@quiet
def test_results_that_are_no_node_rows_are_returned(run):
    torch.manual_seed(5)
    model, data = calls(run)(GCN).double(), in_double(data_of("untidy"))
    engine = graphbraid.compile(model)
    for rows in (HIDDEN, CLASSES, len(data.x)):  # as many rows as columns, too
        x, edges = data.x[:rows], data.edge_index[:, (data.edge_index < rows).all(0)]
        torch.testing.assert_close(engine(x, edges), model(x, edges), **CLOSE)
        assert engine.breaks, engine.explain()


def test_a_model_whose_layers_all_run_as_written_has_no_breaks():
    batch = sampled(data_of("untidy"))

    class ByValue(pyg.SAGEConv):
        def forward(self, x, edge_index):
            return super().forward(x if x.sum() > -1e9 else -x, edge_index)

    model = calls(lambda self, x, e: self.head(self.second(self.first(x, e).sin(), e)))(ByValue)
    with pytest.warns(RunsAsWrittenWarning, match=r"runs as it is written.*first"):
        graphbraid.compile(model)(batch)


def test_a_break_whose_result_loses_rows_later_is_an_error():
    class Falling(torch.nn.Module):
        def forward(self, x):
            return x[:1] if x.mean() > 100 else x

    data, model = data_of("untidy"), calls(a_module)(GCN, part=Falling())
    engine = graphbraid.compile(model)
    with pytest.warns(RunsAsWrittenWarning, match="part"):
        engine(data.x, data.edge_index)
    model.first.bias.data.fill_(1e3)
    with pytest.raises(ConfigError, match=r"returned \(1, 8\) where \(24, 8\) is expected"):
        engine(data.x, data.edge_index)


def test_one_warning_lists_the_parts_with_file_and_line_and_strict_refuses_them():
    batch, model = sampled(data_of("untidy")), made("by value")
    engine = graphbraid.compile(model)
    with pytest.warns(
        RunsAsWrittenWarning, match=r"parts of the model run(.|\n)*test_breaks.py:\d+: part"
    ) as seen:
        engine(batch)
        engine(batch)
    assert [one.filename for one in seen] == [__file__]
    assert "between lowered operations: 1 graph break" in engine.explain()
    assert "test_breaks.py:" in engine.explain()
    for name in ("gated", "by value"):
        with pytest.raises(ConfigError, match=r"strict=True, .*test_breaks\.py:\d+"):
            graphbraid.compile(made(name), strict=True)(batch)


@quiet
def test_a_break_that_reads_the_edges_gets_those_of_its_batch():
    model, data = made("a layer of one's own").double(), in_double(data_of("untidy"))
    engine = graphbraid.compile(model)
    first, second = (sampled(data, seed=seed, as_pyg=True) for seed in (1, 2))
    for batch in (first, second, first):
        torch.testing.assert_close(
            engine(batch), model(batch.x, batch.edge_index)[: batch.batch_size], **CLOSE
        )
    assert all(not op.given for op in engine.breaks)  # no batch is kept
    blocks = sampled(data, layout="blocks")
    with pytest.raises(ConfigError, match="layout='subgraph'"):
        engine(blocks)


@quiet
def test_what_a_break_reads_may_change_and_a_copy_reads_its_own():
    batch = sampled(data_of("untidy"), as_pyg=True)

    def scaled(self, x, edge_index):
        h = self.first(x, edge_index)
        return self.head(self.second(h.sin() * self.factor, edge_index))

    torch.manual_seed(5)
    model = calls(scaled)(GCN, factor=2.0)
    engine = graphbraid.compile(model)
    engine(batch)
    other = copy.deepcopy(engine)
    for change in (
        lambda: setattr(model, "factor", 3.0),
        lambda: setattr(model, "factor", torch.nn.Parameter(torch.rand(HIDDEN))),
        lambda: model.factor.data.mul_(2),
    ):
        before = other(batch)
        change()
        torch.testing.assert_close(engine(batch), model(batch.x, batch.edge_index)[: batch.batch_size])
        torch.testing.assert_close(other(batch), before)


@quiet
@pytest.mark.parametrize("name", ["gated", "batch norm of one's own", "a layer of one's own"])
def test_a_timed_step_says_what_share_is_as_written_and_changes_nothing(name):
    batch, model = sampled(data_of("untidy"), as_pyg=True), made(name)
    engine, held = graphbraid.compile(model), copy.deepcopy(model.state_dict())
    state = torch.get_rng_state()
    with torch.no_grad():
        text = engine.explain(batch)
    assert torch.equal(state, torch.get_rng_state())
    torch.testing.assert_close(model.state_dict(), held, rtol=0, atol=0)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert re.search(r"A step on this batch: [\d.]+ ms\n  level 0: \d+ rows, \d+ edges to the next", text)
    assert re.search(r"ms of it, \d+%, in parts that run as written\n    [\d.]+ ms in v\d+", text)
    assert "between lowered operations: 1 graph break" in engine.explain(batch.x, batch.edge_index)
