"""``layer(x, edge_index, edge_weight)`` as PyG's are called: equal, the bits of the Csc form, or refused."""

import gc
import weakref

import pytest
import torch
from tests.extras import NO_PYG
from tests.nn.cases import graph_with_weights
from tests.ops.graphs import square, values

from graphbraid import nn
from graphbraid.errors import ConfigError, DataError
from graphbraid.graph.csc import coo_to_csc
from graphbraid.graph.sparse_features import SparseFeatures
from graphbraid.loader import NeighborLoader
from graphbraid.nn import MODELS, GATConv, GATv2Conv, GCNConv, SAGEConv, adjacency, make_model
from graphbraid.nn.adjacency import as_csc

KINDS = {
    "plain": {},
    "without loops": {"add_self_loops": False},
    "improved": {"improved": True},
    "plain sum": {"normalize": False, "add_self_loops": False},
}


def weighted_edges(num_nodes=50):
    """Edges in an order of the user's, with loops and repeated ones, and their weights."""
    csc = graph_with_weights(num_nodes)
    order = torch.randperm(csc.num_edges, generator=torch.Generator().manual_seed(1))
    edges = torch.stack((csc.indices.long(), csc.destinations().long()))[:, order]
    return edges, csc.weight[order]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gcn_equals_pyg(kind, dtype):
    pyg = pytest.importorskip("torch_geometric.nn", reason=NO_PYG)
    edges, weight = weighted_edges()
    layer, twin = nn.GCNConv(5, 7, **KINDS[kind]).to(dtype), pyg.GCNConv(5, 7, **KINDS[kind]).to(dtype)
    twin.load_state_dict(layer.state_dict())
    x = values(50, 5, dtype=dtype).requires_grad_()
    found = layer(x, edges, edge_weight=weight.to(dtype))
    wanted = twin(x, edges, edge_weight=weight.to(dtype))
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    assert torch.equal(layer(x, edges, weight), found)  # by position, as PyG's
    grad = values(50, 7, dtype=dtype)
    for a, b in zip(
        torch.autograd.grad(found, [x, *layer.parameters()], grad),
        torch.autograd.grad(wanted, [x, *twin.parameters()], grad),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(layer(x, edges), found)


def test_a_stack_equals_pygs_on_a_graph_and_on_its_loaders_batches():
    pyg = pytest.importorskip("torch_geometric", reason=NO_PYG)
    from torch_geometric.nn import GCN

    edges, weight = weighted_edges()
    model = nn.GCN(5, 8, 3, dropout=0.0)
    twin = GCN(5, 8, 2, 3, dropout=0.0)
    twin.load_state_dict(model.state_dict())
    x = values(50, 5)
    torch.testing.assert_close(
        model(x, edges, weight), twin(x, edges, edge_weight=weight), rtol=1e-4, atol=1e-5
    )
    data = pyg.data.Data(x=x, edge_index=edges, edge_weight=weight)
    for batch in NeighborLoader(data, [3, 3], batch_size=20, seed=0):
        found = model(batch.x, batch.edge_index, edge_weight=batch.edge_weight)
        wanted = twin(batch.x, batch.edge_index, edge_weight=batch.edge_weight)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_the_adjacency_is_made_once_and_goes_with_either_tensor():
    (edges, weight), x, layer = weighted_edges(), values(50, 5), nn.GCNConv(5, 4)
    first, out = as_csc(edges, 50, weight), layer(x, edges, weight)
    assert as_csc(edges, 50, weight) is first
    weight.mul_(2)
    second = as_csc(edges, 50, weight)
    assert second is not first
    assert not torch.equal(layer(x, edges, weight), out)
    edges[:, 0] = edges[:, 1]
    assert as_csc(edges, 50, weight) is not second
    assert as_csc(edges.clone(), 50, weight) is not as_csc(edges, 50, weight)
    array = weakref.ref(as_csc(edges, 50, weight).indptr)
    assert array() is not None
    del edges, weight
    gc.collect()
    assert array() is None
    with torch.inference_mode():
        layer(x, *weighted_edges())


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.SAGEConv(5, 4),
        lambda: nn.GATConv(5, 4),
        lambda: nn.GATv2Conv(5, 4),
        lambda: nn.GINConv(torch.nn.Linear(5, 4)),
        lambda: nn.GraphSAGE(5, 8, 3),
        lambda: nn.GAT(5, 8, 3),
        lambda: nn.MLP(5, 8, 3),
    ],
)
def test_layers_that_take_none_say_so(make):
    edges, weight = weighted_edges()
    with pytest.raises(ConfigError, match="takes no edge weights, which would change nothing"):
        make()(values(50, 5), edges, edge_weight=weight)
    make()(values(50, 5), edges, edge_weight=None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w[1:], r"one number per edge \(\d+\); got \d+"),
        (lambda w: w[:, None], "edge_weight must have 1 dimensions"),
        (lambda w: w.tolist(), "edge_weight must be"),
        (lambda w: w.clone().requires_grad_(), "requires a gradient"),
        (lambda w: w.double() + 1e-9, r"edge_weight\[0\] is .* which is none. Pass edge_weight.float\(\)"),
        (lambda w: torch.where(torch.arange(len(w)) == 3, torch.nan, w), "must be finite"),
        (lambda w: torch.where(torch.arange(len(w)) == 3, torch.inf, w), "must be finite"),
    ],
)
def test_weights_that_cannot_be_meant_are_named(change, message):
    edges, weight = weighted_edges()
    for model in (nn.GCNConv(5, 4), nn.GCN(5, 8, 3)):
        with pytest.raises(DataError, match=message):
            model(values(50, 5), edges, change(weight))


def test_a_csc_and_blocks_have_their_own():
    csc = graph_with_weights()
    for model, edges in ((nn.GCNConv(5, 4), csc), (nn.GCN(5, 8, 3), csc), (nn.GCN(5, 8, 3), [csc, csc])):
        with pytest.raises(DataError, match="edge_weight goes with an edge_index"):
            model(values(50, 5), edges, csc.weight)


def test_weights_that_learn_are_taken_as_constants_where_nothing_is_learned():
    edges, weight = weighted_edges()
    layer, x = nn.GCNConv(5, 4), values(50, 5)
    with torch.no_grad():
        assert torch.equal(layer(x, edges, weight.clone().requires_grad_()), layer(x, edges, weight))


# ---- without weights


LAYERS = {
    "gcn": lambda: GCNConv(5, 8),
    "sage": lambda: SAGEConv(5, 8),
    "sage max": lambda: SAGEConv(5, 8, aggr="max"),
    "gat": lambda: GATConv(5, 4, heads=2),
    "gatv2": lambda: GATv2Conv(5, 4, heads=2),
    "gin": lambda: nn.GINConv(torch.nn.Linear(5, 8)),
}
MAKE = LAYERS | {
    f"model {name}": lambda name=name: make_model(name, 5, 3, hidden_channels=8) for name in MODELS
}


def shuffled_edges(num_nodes=50):
    csc = square(num_nodes)
    order = torch.randperm(csc.num_edges, generator=torch.Generator().manual_seed(1))
    return torch.stack((csc.indices.long(), csc.destinations().long()))[:, order]


def run(model, x, edges):
    torch.manual_seed(3)  # of dropout
    rows = x.clone().requires_grad_()
    out = model(rows, edges)
    out.sum().backward()
    return [out, rows.grad, *(p.grad for p in model.parameters())]


@pytest.mark.parametrize("name", MAKE)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_a_plain_edge_index_gives_the_bits_of_the_csc(name, dtype):
    edge_index, x = shuffled_edges(), values(50, 5)
    csc, _ = coo_to_csc(edge_index[0], edge_index[1], 50, 50)
    torch.manual_seed(0)
    model = MAKE[name]()
    expected = run(model, x, csc)
    model.zero_grad()
    for seen, wanted in zip(run(model, x, edge_index.to(dtype)), expected, strict=True):
        assert (seen is None) == (wanted is None)
        assert seen is None or torch.equal(seen, wanted)


@pytest.mark.parametrize("name", MAKE)
def test_called_by_pygs_names_and_with_sparse_features(name):
    edge_index, x = shuffled_edges(), values(50, 5)
    model = MAKE[name]().eval()
    expected = model(x, edge_index)
    assert torch.equal(model(x=x, edge_index=edge_index), expected)
    sparse = SparseFeatures.from_dense(x)
    torch.testing.assert_close(model(sparse, edge_index), expected, rtol=1e-4, atol=1e-5)


def test_nodes_come_from_x_so_that_isolated_ones_have_rows():
    out = GCNConv(5, 4)(values(9, 5), torch.tensor([[0, 1], [1, 0]]))
    assert out.shape == (9, 4)
    assert GCNConv(5, 4)(values(9, 5), torch.zeros(2, 0)).shape == (9, 4)  # an empty list is of any dtype


@pytest.mark.parametrize(
    ("edge_index", "message"),
    [
        (torch.tensor([[0, 50], [1, 0]]), r"sources must be node ids in \[0, 50\); position 1 holds 50"),
        (torch.tensor([[0, 1], [1, -1]]), r"destinations must be node ids .*position 1 holds -1"),
        (torch.tensor([[0.0, 1.0], [1.0, 0.0]]), "int32 or int64"),
        (torch.tensor([[True], [False]]), "int32 or int64"),
        (
            torch.tensor([[0, 1], [1, 0], [2, 2]]),
            r"shape \(2, num_edges\); got torch.strided of shape \(3, 2",
        ),
        (torch.tensor([0, 1]), r"shape \(2, num_edges\)"),
        (torch.eye(50).to_sparse(), "dense tensor .*got torch.sparse_coo"),
        ("edges", "an edge_index .*, a Csc, or the blocks of a mini-batch; got str"),
        (None, "got NoneType"),
    ],
)
@pytest.mark.parametrize("name", ["gcn", "gin", "model sage"])
def test_edges_that_are_none_are_named(name, edge_index, message):
    with pytest.raises(DataError, match=message):
        MAKE[name]()(values(50, 5), edge_index)


def test_an_mlp_looks_at_the_edges_it_does_not_use():
    with pytest.raises(DataError, match="position 0 holds 77"):
        MAKE["model mlp"]()(values(50, 5), torch.tensor([[77], [0]]))


def test_x_of_another_number_of_rows_is_named():
    with pytest.raises(DataError, match="GINConv needs x with 50 rows, one per source node; got 49"):
        MAKE["gin"]()(values(49, 5), square())


def test_the_adjacency_is_kept_until_the_tensor_changes_or_goes():
    edge_index = shuffled_edges()
    first = adjacency.as_csc(edge_index, 50)
    assert adjacency.as_csc(edge_index, 50) is first
    assert adjacency.as_csc(edge_index, 51).num_dst == 51
    edge_index[0, 0] = (edge_index[0, 0] + 1) % 50  # in place: the same tensor, another graph
    changed = adjacency.as_csc(edge_index, 50)
    assert not torch.equal(changed.indices, first.indices)
    array = weakref.ref(changed.indptr)
    del edge_index, changed
    gc.collect()
    assert array() is None


def test_inference_mode_and_pygs_edge_index():
    edge_index, x = shuffled_edges(), values(50, 5)
    model = MAKE["gcn"]().eval()
    expected = model(x, edge_index)
    with torch.inference_mode():
        assert torch.equal(model(x, shuffled_edges()), expected)
    geometric = pytest.importorskip("torch_geometric", reason=NO_PYG)
    typed = geometric.EdgeIndex(edge_index, sparse_size=(50, 50))
    assert torch.equal(model(x, typed), expected)
