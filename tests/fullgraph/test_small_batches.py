"""Small batches run as the user wrote the model, where its program would take longer; others do not."""

import copy
import inspect
import warnings
from itertools import chain

import pytest
import torch
from benchmarks.fullgraph.models import plain, propagation
from benchmarks.fullgraph.models.check import data_of
from benchmarks.fullgraph.models.listed import Sizes
from tests.beside_pyg import pyg
from torch import nn

import graphbraid
from graphbraid.fullgraph.batches import fusing
from graphbraid.fullgraph.batches.fusing import BatchProgram
from graphbraid.loader import NeighborLoader

CHOOSES = BatchProgram.takes_longer  # a fixture of this folder replaces it, so that programs run
SIZES = Sizes(nodes=400, channels=6, hidden=8, dropout=0.0)
LISTED = {one.name: one for one in plain.MODELS}


class Attends(nn.Module):
    """Two layers that read edge features and drop coefficients."""

    def __init__(self, _sizes):
        super().__init__()
        options = {"heads": 2, "edge_dim": SIZES.edge_channels, "dropout": 0.5}
        self.convs = nn.ModuleList(pyg.TransformerConv(i, 4, **options) for i in (SIZES.channels, 8))

    def forward(self, x, edge_index, edge_attr):
        for conv in self.convs:
            x = conv(x, edge_index, edge_attr).relu()
        return x


MODELS = {name: LISTED[name].make for name in ("egnn, distances", "meshgraphnets")}
MODELS["PNA, two towers"] = lambda sizes: propagation.PrincipalNet(sizes, towers=2, edges=True)
MODELS["TransformerConv"] = Attends


@pytest.fixture(autouse=True)
def the_rule(monkeypatch):
    """Let small batches run as written, as they do outside of the tests."""
    monkeypatch.setattr(BatchProgram, "takes_longer", CHOOSES)


def made(name, **options):
    torch.manual_seed(2)
    model = MODELS[name](SIZES)
    return model, copy.deepcopy(model), graphbraid.compile(model, **options)


def batches(**options):
    options = {"num_neighbors": [2, 2], "batch_size": 3, "input_nodes": torch.arange(60), "seed": 1} | options
    with NeighborLoader(data_of("edges", SIZES), **options) as loader:
        yield from loader


def by_tensors(run, data):
    """Call a model or an engine with what the model's ``forward`` takes."""
    names = inspect.signature(getattr(run, "model", run).forward).parameters
    return run(*(data[name] for name in names))


def results(model, run):
    """Outputs, gradients, buffers and torch's state after a step that begins with one state."""
    torch.manual_seed(4)
    model.zero_grad()
    out = run()
    out.square().mean().backward()
    grads = (torch.zeros(0) if p.grad is None else p.grad for p in model.parameters())
    return [out, *grads, *model.buffers(), torch.get_rng_state()]


@pytest.mark.parametrize("kind", ["batch", "data", "tensors"])
@pytest.mark.parametrize("name", MODELS)
def test_a_small_batch_has_the_bits_of_the_model(name, kind):
    model, twin, engine = made(name)
    for batch, _ in zip(batches(), range(2), strict=False):
        data = batch.to_data()
        ours = {
            "batch": lambda batch=batch: engine(batch),
            "data": lambda data=data: engine(data),
            "tensors": lambda data=data: by_tensors(engine, data)[: data.batch_size],
        }[kind]
        found = results(model, ours)
        expected = results(twin, lambda data=data: by_tensors(twin, data)[: data.batch_size])
        assert all(map(torch.equal, found, expected))
        assert engine.why.code == "small"
        assert f"on {batch.num_edges} edges" in engine.explain()


@pytest.mark.parametrize("name", MODELS)
def test_many_edges_run_by_the_program_in_each_mode(name, monkeypatch):
    monkeypatch.setattr(fusing, "_MOST", 1 << 13)
    _, twin, engine = made(name)
    data = data_of("edges", SIZES, degree=20)
    for training in (True, False):
        for count, is_small in ((200, True), (data.num_edges, False)):
            part = copy.copy(data)
            part.edge_index, part.edge_attr = data.edge_index[:, :count], data.edge_attr[:count]
            found = [by_tensors(run.train(training), part) for run in (engine, twin)]
            is_segment = name == "TransformerConv" and not training  # it drops nothing then
            assert (engine.why is not None) == (is_small and not is_segment)
            if not training:
                torch.testing.assert_close(*found, rtol=1e-3, atol=1e-4)


def test_the_number_of_workers_changes_no_bit_where_both_ways_run(monkeypatch):
    monkeypatch.setattr(fusing, "_MOST", 1 << 11)
    options = {"batch_size": 24, "num_neighbors": [25, 25], "input_nodes": torch.arange(100)}
    runs = []
    for workers in (0, 1, 2):
        _, _, engine = made("TransformerConv")
        torch.manual_seed(3)
        runs.append([])
        for batch in batches(num_workers=workers, **options):
            runs[-1].append((engine(batch), torch.tensor(engine.why is None)))
    assert {bool(by_program) for _, by_program in runs[0]} == {True, False}
    for other in runs[1:]:
        assert all(map(torch.equal, chain(*runs[0]), chain(*other)))


class Pair(nn.Module):
    """Returns node rows twice."""

    def __init__(self):
        super().__init__()
        self.model = MODELS["egnn, distances"](SIZES)

    def forward(self, x, edge_index):
        out = self.model(x, edge_index)
        return out, out.relu()


@pytest.mark.parametrize("why", ["strict", "blocks", "pair", "known messages"])
def test_a_program_runs_on_small_batches(why):
    model = {"pair": Pair, "known messages": lambda: pyg.GraphSAGE(SIZES.channels, 8, 2)}.get(
        why, lambda: MODELS["egnn, distances"](SIZES)
    )()
    batch = next(batches(layout="blocks" if why == "blocks" else "subgraph"))
    engine = graphbraid.compile(model, strict=why == "strict")
    engine(batch)
    assert engine.why is None


def test_explain_describes_the_program_of_a_small_batch_too():
    _, _, engine = made("egnn, distances")
    with warnings.catch_warnings(action="error"):
        text = engine.explain(next(batches()))
    assert "takes less time" in text
    assert "on blocks of edges" in text
