"""Features on disk train the whole graph: block by block, with the bits of a run that has them in memory."""

import os

import pytest
import torch
from tests.features.tables import flip_a_byte, stored_graph
from tests.kernels import needs_kernels
from tests.modules import module_of
from tests.ops.graphs import threads
from tests.suites import few_of

import graphbraid
from graphbraid import Trainer
from graphbraid import nn as gnn
from graphbraid.datasets import open_store, save_store
from graphbraid.errors import ConfigError, DataError
from graphbraid.features import TieredFeatures
from graphbraid.features.rows.row_stream import RowStream
from graphbraid.fullgraph.lowering import levels, lower_program
from graphbraid.fullgraph.rates import MeasuredRates
from graphbraid.machine.hardware import Rates

WIDTH, NODES = 37, 2300
SMALL = 96_000
"""Bytes for features: a quarter of them."""


@pytest.fixture(autouse=True)
def typical_rates(monkeypatch):
    rates = MeasuredRates(rates=Rates())
    monkeypatch.setattr("graphbraid.fullgraph.rates.measured_rates", lambda _: rates)


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return stored_graph(tmp_path_factory.mktemp("s"), num_nodes=NODES, width=WIDTH)


def gcn(graph, hidden=16):
    return gnn.GCN(WIDTH, hidden, graph.num_classes, 2, dropout=0.4)


MODELS = {
    "GCN": gcn,
    "wide GCN": lambda graph: gcn(graph, 64),
    "SAGE": lambda graph: gnn.GraphSAGE(WIDTH, 16, graph.num_classes, 2, dropout=0.4),
    "GIN": lambda graph: gnn.GIN(WIDTH, 16, graph.num_classes, 2),
    "GAT": lambda graph: gnn.GAT(WIDTH, 4, graph.num_classes, 2, heads=2),
}


def trained(graph, make, steps=3, **options):
    """Losses of some steps, outputs of all nodes, and the engine."""
    torch.manual_seed(0)
    model = make(graph)
    engine = graphbraid.compile(model, graph, **options)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(engine(), graph.y[graph.split("train")])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, engine.predict(), engine


@needs_kernels
@pytest.mark.parametrize("name", few_of(MODELS, {"SAGE", "GAT"}))
def test_losses_and_outputs_have_the_bits_of_features_in_memory(graph, name):
    expected, outputs, _ = trained(graph, MODELS[name])
    for host in (SMALL, "all"):
        losses, found, engine = trained(graph, MODELS[name], host=host)
        assert losses == expected
        assert torch.equal(found, outputs)
        assert "streamed" in engine.explain()


@needs_kernels
@pytest.mark.parametrize("passes", [("hoist",), ("locality",), ("prune", "order"), ()])
def test_other_passes_have_the_bits_too(graph, passes):
    wanted = graphbraid.fullgraph.ALL - {"input_path"} - set(passes)
    if not passes:
        wanted = frozenset({"order"})
    expected, outputs, _ = trained(graph, gcn, passes=wanted)
    losses, found, _ = trained(graph, gcn, passes=wanted, host=SMALL)
    assert losses == expected
    assert torch.equal(found, outputs)


@needs_kernels
@pytest.mark.parametrize("left_out", [{"hoist"}, {"hoist", "prune"}])
def test_nodes_of_one_degree_stand_together_as_in_memory(graph, left_out, monkeypatch):
    for module in (levels, lower_program):
        monkeypatch.setattr(module, "STRETCH", 512)
    passes = graphbraid.fullgraph.ALL - {"input_path"} - left_out
    expected, outputs, _ = trained(graph, gcn, passes=passes)
    losses, found, engine = trained(graph, gcn, passes=passes, host=SMALL)
    assert "those of one degree stand together" in engine.explain()
    assert losses == expected
    assert torch.equal(found, outputs)


def skipping(self, x, edge_index):
    """Add two functions of the nodes' own rows to a maximum over neighbours, twice."""
    for lin, own, gate, conv in zip(self.lin, self.own, self.gate, self.conv, strict=True):
        x = conv(lin(x), edge_index) + own(x).relu() + gate(x).tanh()
    return x


def skips(graph):
    widths = ((WIDTH, 16), (16, graph.num_classes))
    maps = {
        name: torch.nn.ModuleList(torch.nn.Linear(*pair) for pair in widths)
        for name in ("lin", "own", "gate")
    }
    conv = torch.nn.ModuleList(gnn.SAGEConv(out, out, aggr="max") for _, out in widths)
    return module_of(skipping, **maps, conv=conv)


@needs_kernels
def test_own_rows_alone_are_mapped_as_in_memory(graph, monkeypatch):
    few, passes = graph.replace(splits={"train": torch.arange(700, 720)}), {"prune", "order", "fuse"}
    expected, outputs, _ = trained(few, skips, passes=passes)
    read, rows_of = [], RowStream._read
    monkeypatch.setattr(RowStream, "_read", lambda *given: read.append(given[2]) or rows_of(*given))
    losses, found, engine = trained(few, skips, passes=passes, host=0)
    assert "linear(x own)" in engine.explain()
    assert losses == expected
    assert torch.equal(found, outputs)
    engine().sum().backward()
    read.clear()
    engine()
    step = engine.runner.training_step
    assert step.plan.streams.pass_bytes == 4 * WIDTH * sum(part.num_rows for part in read)
    assert len(read) == 3, "each product reads its rows"


@pytest.mark.slow
@needs_kernels
def test_threads_change_no_bit(graph):
    found = []
    for count in (1, 3):
        with threads(count):
            found.append(trained(graph, MODELS["SAGE"], host=SMALL)[0])
    assert found[0] == found[1]


@needs_kernels
@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_narrow_rows_are_widened_block_by_block(graph, tmp_path, dtype):
    narrow = open_store(save_store(graph, tmp_path / dtype, features_dtype=dtype))
    assert trained(narrow, gcn, host=SMALL)[0] == trained(narrow, gcn)[0]


@pytest.mark.slow
def test_without_kernels_losses_are_close(graph):
    losses, found, _ = trained(graph, gcn, host=SMALL)
    expected, outputs, _ = trained(graph, gcn)
    assert losses == pytest.approx(expected, rel=1e-4)
    torch.testing.assert_close(found, outputs, rtol=1e-3, atol=1e-4)


def test_what_is_no_source_of_rows_is_refused(graph):
    for tiers in ("rows", 3, torch.ones(2, 2)):
        with pytest.raises(ConfigError, match="tiers must be TieredFeatures"):
            graphbraid.compile(gcn(graph), graph, tiers=tiers)


def test_tiers_are_read_block_by_block(graph):
    score = torch.arange(NODES).flip(0)
    tiers = TieredFeatures.build(graph, host="350KB", policy="static", score=score)
    losses, _, _ = trained(graph, gcn, tiers=tiers)
    assert losses == pytest.approx(trained(graph, gcn)[0], rel=1e-4)
    assert tiers.counts.host_rows > 0
    assert tiers.counts.disk_rows > 0


@pytest.mark.slow
def test_memory_for_features_stays_within_the_budget(graph):
    for host in (64_000, SMALL, 4 * NODES * WIDTH):
        step = trained(graph, gcn, host=host)[2].runner.training_step
        kept = [
            *(rows for stream in step.plan.streams.streams.values() for rows in stream._kept.values()),
            *(rows for stream in step.plan.streams.streams.values() for rows in stream._buffers),
        ]
        assert (
            sum(rows.nbytes for rows in kept)
            <= step.plan.streams.nbytes
            <= max(host * 5 // 8, 4 * WIDTH * 24)
        )
        assert step.plan.streams.pass_bytes < 4 * NODES * WIDTH or host < 4 * NODES * WIDTH


def test_explain_says_what_is_read(graph):
    said = trained(graph, gcn, host=SMALL)[2].explain()
    assert "input path" in said
    assert "Streamed features" in said
    assert "in memory from the second pass on" in said


def test_a_damaged_block_is_told(graph, tmp_path):
    broken = open_store(save_store(graph, tmp_path / "store"))
    flip_a_byte(tmp_path / "store" / "x.npy", 50_000)
    with pytest.raises(DataError, match=r"x\.npy has changed since it was written: block 12"):
        trained(broken, MODELS["GAT"], host=SMALL)


def test_a_damaged_temporary_file_is_told(graph):
    engine = trained(graph, gcn, steps=1, host=SMALL)[2]
    (table,) = engine.runner.training_step.plan.streams._tables.values()
    last = 4 * table.shape.numel() - 1  # of rows that the memory for features does not hold
    byte = os.pread(table._file.fileno(), 1, last)
    os.pwrite(table._file.fileno(), bytes([byte[0] ^ 1]), last)
    with pytest.raises(DataError, match=r"full-graph training .* temporary file .* not what was written"):
        engine()


def dropped(self, x, edge_index):
    """Drop out the features, which makes as many new numbers."""
    return self.conv(torch.nn.functional.dropout(x, 0.5, self.training), edge_index)


class Sine(torch.nn.Module):
    """What no operation stands for."""

    def forward(self, x, edge_index):
        return x.sin()


def test_what_cannot_be_streamed_is_refused(graph, tmp_path):
    other = stored_graph(tmp_path, num_nodes=30, width=WIDTH)
    for make, options, error, said in (
        (
            lambda _: module_of(dropped, conv=gnn.GCNConv(WIDTH, 4)),
            {"host": 0},
            ConfigError,
            "before any product with weights",
        ),
        (lambda _: Sine(), {"host": 0}, ConfigError, "read by a lowered program alone"),
        (gcn, {"host": "no"}, ConfigError, "host must be a number of bytes"),
        (gcn, {"tiers": TieredFeatures.build(other, host=0)}, ConfigError, "the features of this graph"),
        (gcn, {"tiers": TieredFeatures.build(graph, hot="10KB")}, ConfigError, "some on devices"),
    ):
        with pytest.raises(error, match=said):
            trained(graph, make, **options)
    with pytest.raises(DataError, match="lies in memory only"):
        trained(graph.replace(x=graph.x.clone()), gcn, host=0)


def run(graph, folder=None, **options):
    torch.manual_seed(0)
    made = Trainer(gcn(graph), graph, mode="full", lr=0.01, out_dir=folder, seed=1, **options)
    made.fit()
    return made, [(row["train_loss"], row["val_loss"]) for row in made.progress.history]


@pytest.mark.slow
@needs_kernels
def test_a_trainer_streams_by_its_option_and_resumes_with_another(graph, tmp_path):
    expected = run(graph, epochs=4)
    whole = run(graph, epochs=4, host=SMALL)
    assert whole[1] == expected[1]
    assert whole[0].evaluate("test") == expected[0].evaluate("test")
    assert torch.equal(whole[0].predict([3, 1]), expected[0].predict([3, 1]))
    run(graph, tmp_path / "run", epochs=2, host=SMALL)
    resumed = run(graph, tmp_path / "run", epochs=4, host=2 * SMALL, resume=True)
    assert resumed[1][-2:] == expected[1][-2:]


def test_before_a_run_a_trainer_predicts_by_layers(graph):
    torch.manual_seed(0)
    model = gcn(graph)
    before = Trainer(model, graph, mode="full", host=SMALL).predict([0, 5])
    torch.testing.assert_close(before, Trainer(model, graph, mode="full").predict([0, 5]))
