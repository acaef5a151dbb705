"""``model(x, edge_index)`` with PyG's plain tensor: the bits of the Csc form, checked, made once."""

import gc
import weakref

import pytest
import torch
from tests.extras import NO_PYG
from tests.ops.graphs import square, values
from torch import nn

from graphbraid.errors import DataError
from graphbraid.graph.csc import coo_to_csc
from graphbraid.graph.sparse_features import SparseFeatures
from graphbraid.nn import MODELS, GATConv, GATv2Conv, GCNConv, GINConv, SAGEConv, adjacency, make_model

LAYERS = {
    "gcn": lambda: GCNConv(5, 8),
    "sage": lambda: SAGEConv(5, 8),
    "sage max": lambda: SAGEConv(5, 8, aggr="max"),
    "gat": lambda: GATConv(5, 4, heads=2),
    "gatv2": lambda: GATv2Conv(5, 4, heads=2),
    "gin": lambda: GINConv(nn.Linear(5, 8)),
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
