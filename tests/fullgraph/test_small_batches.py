"""Small batches run as the user wrote the model, where its program would take longer; others do not."""

import copy
import inspect
import warnings
from itertools import chain

import pytest
import torch
import torch.nn.functional as F
from benchmarks.fullgraph.models import matrix, plain, propagation
from benchmarks.fullgraph.models.check import data_of
from benchmarks.fullgraph.models.listed import Sizes
from tests.beside_pyg import pyg
from torch import nn
from torch_geometric.utils import softmax

import graphbraid
from graphbraid.fullgraph.batches import fusing
from graphbraid.fullgraph.batches.fusing import BatchProgram
from graphbraid.fullgraph.reading.watch import ModelWatch
from graphbraid.loader import NeighborLoader

CHOOSES = BatchProgram.takes_longer  # a fixture of this folder replaces it, so that programs run
SIZES = Sizes(nodes=400, channels=6, hidden=8, dropout=0.0)
LISTED = {one.name: one for one in plain.MODELS}


class OfKeys(pyg.TransformerConv):
    """Edge features are a part of the keys alone, for which no kernel drops coefficients."""

    def message(self, query_i, key_j, value_j, edge_attr, index, ptr, size_i):
        key = key_j + self.lin_edge(edge_attr).view(-1, self.heads, self.out_channels)
        alpha = softmax((query_i * key).sum(-1) / 2.0, index, ptr, size_i)
        return value_j * F.dropout(alpha, self.dropout, self.training).unsqueeze(-1)


class Attends(nn.Module):
    """Two layers that read edge features and drop coefficients."""

    def __init__(self, _sizes):
        super().__init__()
        options = {"heads": 2, "edge_dim": SIZES.edge_channels, "dropout": 0.5}
        self.convs = nn.ModuleList(OfKeys(i, 4, **options) for i in (SIZES.channels, 8))

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


def counted(monkeypatch):
    """Count the looks at all that a model holds."""
    looks, has_changed = [], ModelWatch.has_changed
    monkeypatch.setattr(ModelWatch, "has_changed", lambda self: looks.append(self) or has_changed(self))
    return looks


@pytest.mark.parametrize("form", ["batch", "data"])
def test_small_batches_in_succession_look_at_the_modes_alone(form, monkeypatch):
    model, twin, engine = made("egnn, distances")
    looks = counted(monkeypatch)
    for number, batch in enumerate(batches()):
        data = batch.to_data()
        found = results(model, lambda batch=batch, data=data: engine(data if form == "data" else batch))
        expected = results(twin, lambda data=data: by_tensors(twin, data)[: data.batch_size])
        assert all(map(torch.equal, found, expected))
        assert engine.why.code == "small"
        if number == 0:
            looks.clear()
    assert number > 1
    assert not looks
    engine.eval()
    engine(data)
    assert looks


def doubled(_module, _args, out):
    return 2 * out


CHANGES = {
    "layer": lambda model: setattr(model, "head", nn.Linear(SIZES.classes, 3)),
    "hook": lambda model: model.register_forward_hook(doubled),
    "tuple": lambda model: model.register_forward_hook(lambda _m, _a, out: (out, out.sum())),
    "sum": lambda model: model.register_forward_hook(lambda _m, _a, out: out.sum(0, keepdim=True)),
    "none": lambda model: model.register_forward_hook(lambda *_: {"rows": None}),
}


class Headed(nn.Module):
    """A model with a last layer."""

    def __init__(self):
        super().__init__()
        self.body = MODELS["egnn, distances"](SIZES)
        self.head = nn.Linear(SIZES.classes, 3)

    def forward(self, x, edge_index):
        return self.head(self.body(x, edge_index))


@pytest.mark.parametrize("change", CHANGES)
def test_small_batches_follow_changes_of_the_model(change):
    torch.manual_seed(2)
    model = Headed()
    twin, engine = copy.deepcopy(model), graphbraid.compile(model)
    some = [batch.to_data() for batch in batches()][:3]
    for data in some[:2]:
        engine(data)
    assert engine.why.code == "small"
    for one in (model, twin):
        torch.manual_seed(3)
        CHANGES[change](one)
    data, expected = some[2], by_tensors(twin, some[2])
    found = engine(data)
    if change == "none":
        assert found == expected
        return
    several = isinstance(expected, tuple)
    for ours, theirs in zip(*((one if several else (one,)) for one in (found, expected)), strict=True):
        rows = theirs[: data.batch_size] if theirs.shape[:1] == (data.num_nodes,) else theirs
        assert torch.equal(ours, rows)


def test_a_larger_batch_looks_at_the_model_again_and_later_small_ones_know_its_program(monkeypatch):
    """Layers of known messages take no longer on any batch, so that the old program must not decide."""
    torch.manual_seed(2)
    model = Headed()
    engine, data = graphbraid.compile(model), data_of("nodes", SIZES, degree=20)
    small = next(batches()).to_data()
    engine(small)
    model.body = pyg.GraphSAGE(SIZES.channels, SIZES.classes, 2)
    engine(small)
    assert engine.why.code == "small"
    monkeypatch.setattr(fusing, "_MOST", 1 << 10)
    large = data.clone()
    large.num_sampled_edges, large.input_id, large.batch_size = small.num_sampled_edges, small.input_id, 3
    engine(large)
    assert engine.why is None
    engine(small)
    assert engine.why is None


@pytest.mark.parametrize("name, value", [("edge_index", torch.arange(6)), ("x", [1.0]), ("x", None)])
def test_a_small_batch_that_does_not_fit_fails_as_the_model_does(name, value):
    _, twin, engine = made("egnn, distances")
    data = next(batches()).to_data()
    engine(data)
    assert engine.why.code == "small"
    data[name] = value
    with pytest.raises(Exception) as expected:
        twin(data.x, data.edge_index)
    with warnings.catch_warnings(action="ignore"), pytest.raises(type(expected.value)) as found:
        engine(data)
    assert str(found.value) == str(expected.value)


def test_a_form_s_next_batch_may_have_no_sparse_matrix():
    torch.manual_seed(0)
    batch = data_of("matrix", Sizes(nodes=20, channels=6))
    model = next(one for one in matrix.MODELS if one.name == "pygcn, torch.spmm").make(SIZES)
    engine = graphbraid.compile(model)
    engine(batch)
    assert engine.why.code == "small"
    dense = copy.copy(batch)
    dense.adj_t = batch.adj_t.to_dense()
    with warnings.catch_warnings(action="ignore"):
        found = engine(dense)
    assert engine.why.code != "small"
    assert found.shape == (20, SIZES.classes)
