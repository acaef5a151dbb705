"""Models without a lowered form run as they are written, with whatever they take, and never fail for it."""

import pytest
import torch
import torch.nn.functional as F
from tests.beside_pyg import Data, pyg
from tests.fullgraph.matrix.case import GCN
from tests.fullgraph.matrix.compare import LEFT_ALONE, LOWERED, PARTLY, engine_of, verdict
from tests.fullgraph.matrix.graphs import CHANNELS, CLASSES, data_of
from tests.fullgraph.matrix.models import Stack, calls
from torch import nn
from torch_geometric.transforms import Compose, GCNNorm, ToSparseTensor

import graphbraid
from graphbraid.errors import ConfigError, RunsAsWrittenWarning


def quiet(test):
    """Run a test without PyTorch's own warnings about sparse matrices."""
    for text in ("Sparse CSR", "Sparse invariant"):
        test = pytest.mark.filterwarnings(f"ignore:{text}")(test)
    return test


class Takes(nn.Module):
    """A forward with this signature, over one layer."""

    def __init__(self, conv):
        super().__init__()
        self.conv = conv


def full_data():
    data = data_of("untidy")
    count = data.num_edges
    data.edge_attr, data.edge_type = torch.randn(count, 3), torch.randint(2, (count,))
    data.batch, data.pos = torch.zeros(data.num_nodes, dtype=torch.int64), torch.randn(data.num_nodes, 2)
    return data


def check(forward, conv, data, expected, call):
    model = type("Takes", (Takes,), {"forward": forward})(conv)
    engine = engine_of(model, data)
    assert verdict(engine) == expected, engine.explain()
    close = {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(engine(), call(model)[data.train_mask], **close)
    engine().sum().backward()
    torch.testing.assert_close(engine.predict(), call(model.eval()).detach(), **close)


def test_edge_features():
    data = full_data()
    check(
        lambda self, x, edge_index, edge_attr: self.conv(x, edge_index, edge_attr),
        pyg.TransformerConv(CHANNELS, CLASSES, edge_dim=3),
        data,
        LOWERED,
        lambda model: model(data.x, data.edge_index, data.edge_attr),
    )


def test_edge_types_by_any_name_order_and_keyword():
    data = full_data()
    check(
        lambda self, edge_index, x, *, edge_type: self.conv(x, edge_index, edge_type),
        pyg.RGCNConv(CHANNELS, CLASSES, 2),
        data,
        LOWERED,
        lambda model: model(data.edge_index, data.x, edge_type=data.edge_type),
    )


def with_positions(self, x, edge_index, pos, batch=None):
    return self.conv(x, edge_index) + pos.sum() + batch.sum()


def test_positions_and_batches():
    data = full_data()
    check(
        with_positions,
        pyg.GCNConv(CHANNELS, CLASSES),
        data,
        PARTLY,
        lambda model: model(data.x, data.edge_index, data.pos, data.batch),
    )


def of_data(self, data):
    x, edge_index = data.x, data.edge_index
    return self.conv(x, edge_index)


def weighted_of_data(self, data):
    return self.conv(data.x, data.edge_index, data.edge_weight)


def more_of_data(self, data):
    return self.conv(data.x, data.edge_index) * data.num_nodes


def of_data_by_class(self, data):
    return self.conv(data.x, data.edge_index) if isinstance(data, Data) else None


@pytest.mark.parametrize(
    ("forward", "expected"),
    [(of_data, LOWERED), (weighted_of_data, LOWERED), (more_of_data, PARTLY), (of_data_by_class, LOWERED)],
)
def test_the_whole_of_the_data(forward, expected):
    data = full_data()
    check(forward, pyg.GCNConv(CHANNELS, CLASSES), data, expected, lambda model: model(data))


def test_edges_before_features_are_lowered_too():
    data = data_of("directed")
    check(
        lambda self, edge_index, x: self.conv(x, edge_index),
        pyg.GCNConv(CHANNELS, CLASSES),
        data,
        LOWERED,
        lambda model: model(data.edge_index, data.x),
    )


@pytest.mark.parametrize("make", [tuple, list, lambda pair: {"out": pair[0], "hidden": pair[1]}])
def test_several_results_keep_their_arrangement(make):
    data = data_of("untidy")
    model = calls(lambda self, x, e: make((self.first(x, e), self.skip(x))))(GCN)
    engine = engine_of(model, data)
    assert verdict(engine) == LOWERED, engine.explain()
    expected = model(data.x, data.edge_index)
    ours = engine()
    assert type(ours) is type(expected)
    if isinstance(ours, dict):
        ours, expected = ours.values(), expected.values()
    for a, b in zip(ours, expected, strict=True):
        torch.testing.assert_close(a, b[data.train_mask])


def wants_time(self, x, edge_index, time):
    return x + time


def test_something_missing_is_named():
    model = type("Takes", (Takes,), {"forward": wants_time})(GCN(2, 2))
    with pytest.raises(ConfigError, match="takes 'time'"):
        engine_of(model, data_of("untidy"))


def test_layers_made_by_their_first_run():
    data = data_of("untidy")
    model = Stack(lambda i, o: pyg.GCNConv(-1, o))
    engine = engine_of(model, data)
    assert "first run" in engine.explain()
    out = engine()
    torch.testing.assert_close(out, model(data.x, data.edge_index)[data.train_mask])
    assert verdict(engine_of(model, data)) == LOWERED


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_precisions(dtype):
    data = data_of("untidy")
    model = Stack(GCN).to(dtype)
    data.x = data.x.to(dtype)
    for given in (data, graphbraid.Graph.from_pyg(data)):
        engine = graphbraid.compile(model, given, nodes=data.train_mask)
        assert verdict(engine) == LEFT_ALONE
        out = engine()
        assert out.dtype == dtype
        torch.testing.assert_close(out, model(data.x, data.edge_index)[data.train_mask], rtol=1e-2, atol=1e-2)


def test_spectral_and_weight_norm_train_several_steps():
    data = data_of("untidy")
    model = Stack(GCN)
    nn.utils.parametrizations.weight_norm(model.first.lin)
    nn.utils.parametrizations.spectral_norm(model.second.lin)
    engine = engine_of(model, data)
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = F.cross_entropy(engine(), data.y[data.train_mask])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[2] < losses[0]


# ---- sparse matrices


def tidy(weighted):
    """No loops, no edge twice: as PyG's transforms leave them."""
    data = data_of("undirected")
    if not weighted:
        del data.edge_weight
    return data


class Sparse(Stack):
    def forward(self, x, adj_t):
        return self.second(self.between(self.first(x, adj_t)), adj_t)


@pytest.mark.parametrize(
    ("conv", "weighted", "expected"),
    [
        (lambda i, o: pyg.GCNConv(i, o, normalize=False), True, LOWERED),
        (pyg.GCNConv, True, LOWERED),
        (lambda i, o: pyg.GCNConv(i, o, improved=True), True, LOWERED),
        (pyg.GCNConv, False, LOWERED),
        (lambda i, o: pyg.GCNConv(i, o, improved=True), False, LOWERED),
        (pyg.SAGEConv, False, LOWERED),
        (pyg.SAGEConv, True, LEFT_ALONE),
        (lambda i, o: pyg.GINConv(nn.Linear(i, o)), False, LOWERED),
    ],
)
@quiet
def test_sparse_matrices(conv, weighted, expected):
    data = tidy(weighted)
    data = ToSparseTensor(attr="edge_weight" if weighted else None)(data)
    model = Sparse(conv)
    engine = engine_of(model, data)
    assert verdict(engine) == expected, engine.explain()
    close = {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(engine(), model(data.x, data.adj_t)[data.train_mask], **close)
    torch.testing.assert_close(engine.predict(), model(data.x, data.adj_t).detach(), **close)


@pytest.mark.parametrize("graph", ["untidy", "directed"])
@quiet
def test_normalised_by_a_transform(graph):
    data = Compose([GCNNorm(), ToSparseTensor(attr="edge_weight")])(data_of(graph))
    model = Sparse(lambda i, o: pyg.GCNConv(i, o, normalize=False))
    engine = engine_of(model, data)
    torch.testing.assert_close(engine(), model(data.x, data.adj_t)[data.train_mask], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("conv", [pyg.GCNConv, pyg.SAGEConv, lambda i, o: pyg.SAGEConv(i, o, aggr="max")])
@quiet
def test_repeated_edges_of_a_sparse_matrix(conv):
    data = data_of("untidy")
    order = (data.edge_index[1] * data.num_nodes + data.edge_index[0]).argsort()
    src, dst = data.edge_index[:, order]
    counts = torch.bincount(dst, minlength=data.num_nodes)
    indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    size = (data.num_nodes, data.num_nodes)
    data.adj_t = torch.sparse_csr_tensor(indptr, src, torch.ones(len(src)), size, check_invariants=False)
    del data.edge_index, data.edge_weight
    model = Sparse(conv)
    engine = engine_of(model, data)
    torch.testing.assert_close(engine(), model(data.x, data.adj_t)[data.train_mask], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("conv", [pyg.GCNConv, pyg.SAGEConv])
@quiet
def test_a_sparse_matrix_under_the_name_of_a_list(conv):
    data = ToSparseTensor(attr="edge_weight")(tidy(True))
    model = Stack(conv)
    engine = engine_of(model, data)
    expected = model(data.x, data.adj_t)[data.train_mask]
    torch.testing.assert_close(engine(), expected, rtol=1e-4, atol=1e-5)


def test_a_failure_to_lower_is_no_failure(monkeypatch):
    from graphbraid.fullgraph import engine as home

    def fail(*_, **__):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(home, "lower_program", fail)
    data, model = data_of("untidy"), Stack(GCN)
    engine = engine_of(model, data)
    assert "lowering it failed (ZeroDivisionError: a bug)" in engine.explain()
    torch.testing.assert_close(engine(), model(data.x, data.edge_index)[data.train_mask])


def test_a_part_that_is_left_alone_follows_data_that_grow():
    data = data_of("untidy")
    model = calls(lambda self, x, edges: self.head(self.first(x, edges).sin()))(GCN)
    engine = engine_of(model, data)
    assert verdict(engine) != LEFT_ALONE
    nodes = data.train_mask.nonzero().flatten()
    data.x = torch.cat([data.x, torch.ones(3, CHANNELS)])
    data.edge_index = torch.cat([data.edge_index, torch.tensor([[25, 26], [1, 2]])], dim=1)
    data.num_nodes += 3
    torch.testing.assert_close(engine(), model(data.x, data.edge_index)[nodes])


def learned_rows(self, edge_index, x=None):
    return self.conv(self.rows.weight if x is None else x, edge_index)


@pytest.mark.parametrize("has_features", [True, False])
def test_features_that_may_be_left_out(has_features):
    data = data_of("untidy")
    model = type("Takes", (Takes,), {"forward": learned_rows})(pyg.GCNConv(CHANNELS, CLASSES))
    model.rows = nn.Embedding(data.num_nodes, CHANNELS)
    if not has_features:
        data.x = None
    engine = engine_of(model, data)
    assert (verdict(engine) == LOWERED) == has_features
    expected = model(data.edge_index, data.x)[data.train_mask]
    torch.testing.assert_close(engine(), expected, rtol=1e-4, atol=1e-5)


class Summed(nn.Module):
    """A layer of sums, without PyG's, for TorchScript."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(CHANNELS, CLASSES)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor):
        h = self.linear(x)
        return h.index_add(0, edge_index[1], h[edge_index[0]])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("traced", [True, False])
def test_torchscript(traced):
    data, model = data_of("untidy"), Summed()
    call = data.x, data.edge_index
    model = torch.jit.trace(model, call) if traced else torch.jit.script(model)
    engine = graphbraid.compile(model, data, nodes=torch.arange(data.num_nodes))
    batches = graphbraid.compile(model)
    assert list(batches.state_dict()) == ["linear.weight", "linear.bias"]
    with pytest.warns(RunsAsWrittenWarning):
        batches(*call)
    for _ in range(2):
        torch.testing.assert_close(engine(), model(*call))
        torch.testing.assert_close(batches(*call), model(*call))
        with torch.no_grad():
            model.linear.weight.mul_(2)
