"""``layer(x, edge_index, edge_weight)`` as PyG's are called: equal to them, or refused with the reason."""

import gc
import weakref

import pytest
import torch
from tests.extras import NO_PYG
from tests.nn.cases import graph_with_weights
from tests.ops.graphs import values

from graphbraid import nn
from graphbraid.errors import ConfigError, DataError
from graphbraid.loader import NeighborLoader
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
