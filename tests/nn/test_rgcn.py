"""R-GCN: equal to PyG's layer in outputs and gradients, over one node type and over several."""

import gc
import weakref
from typing import Any

import pytest
import scipy.sparse
import torch
from tests.extras import NO_PYG
from tests.train.typed_communities import CITES, WRITES, bibliography
from torch import Tensor

from graphbraid.errors import ConfigError, DataError
from graphbraid.graph.csc import coo_to_csc
from graphbraid.graph.interop.convert import as_features
from graphbraid.loader import NeighborLoader
from graphbraid.nn import RGCN, RGCNConv, make_typed_model
from graphbraid.nn.rgcn import relations_of
from graphbraid.ops.aggregation import Aggregation
from graphbraid.ops.relations import Relations, relation_columns, relation_sums

NUM_NODES, NUM_RELATIONS = 30, 4


def edges(seed: int = 0, num_edges: int = 200) -> tuple[Tensor, Tensor]:
    """Edges of four relations, of which one has none; repeats and loops occur."""
    draw = torch.Generator().manual_seed(seed)
    edge_index = torch.randint(NUM_NODES, (2, num_edges), generator=draw)
    edge_type = torch.randint(NUM_RELATIONS - 1, (num_edges,), generator=draw)
    return edge_index, edge_type + (edge_type >= 2)  # relation 2 has no edge


def gradients(model: torch.nn.Module, out: Tensor, *inputs: Tensor) -> list[Tensor]:
    weight = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).reshape(out.shape)
    return list(torch.autograd.grad((out * weight).sum(), [*inputs, *model.parameters()]))


@pytest.mark.parametrize("widths", [(5, 7), (7, 3)])  # aggregated first, transformed first
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_bases": 2},
        {"aggr": "sum"},
        {"root_weight": False, "bias": False},
        {"num_bases": 3, "aggr": "sum", "root_weight": False},
    ],
)
def test_the_layer_equals_pyg_s(widths, options):
    pyg = pytest.importorskip("torch_geometric.nn", reason=NO_PYG)
    torch.manual_seed(0)
    theirs = pyg.RGCNConv(*widths, NUM_RELATIONS, **options).double()
    ours = RGCNConv(*widths, NUM_RELATIONS, **options).double()
    ours.load_state_dict(theirs.state_dict())
    edge_index, edge_type = edges()
    x = torch.randn(NUM_NODES, widths[0], dtype=torch.float64, requires_grad=True)
    found, expected = (conv(x, edge_index, edge_type) for conv in (ours, theirs))
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-10)
    for a, b in zip(gradients(ours, found, x), gradients(theirs, expected, x), strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-10)


def test_the_same_seed_draws_pyg_s_weights():
    pyg = pytest.importorskip("torch_geometric.nn", reason=NO_PYG)
    layers = []
    for kind in (pyg.RGCNConv, RGCNConv):
        torch.manual_seed(3)
        layers.append(kind(6, 4, NUM_RELATIONS, num_bases=2))
    for (name, a), b in zip(layers[0].named_parameters(), layers[1].parameters(), strict=True):
        assert torch.equal(a, b), name


@pytest.mark.parametrize("own", [True, False])
def test_gradients_of_both_orders_are_those_of_finite_differences(own):
    """Two types; one source feeds two relations into one type, and one type has no relation into it."""
    draw = torch.Generator().manual_seed(0)

    def csc(num_src: int, num_dst: int) -> Any:
        ends = (torch.randint(most, (9,), generator=draw) for most in (num_src, num_dst))
        return coo_to_csc(*ends, num_src, num_dst)[0]

    relations = Relations(
        hows=(
            Aggregation(csc=csc(5, 3), mean=True),
            Aggregation(csc=csc(4, 3)),
            Aggregation(csc=csc(5, 3), mean=True),
        ),
        sources=(0, 1, 0),
        destinations=(1, 1, 1),
        num_dst=(2, 3),
    )
    xs = [torch.randn(n, 2, dtype=torch.float64, generator=draw).requires_grad_() for n in (5, 4)]
    assert torch.autograd.gradcheck(lambda *xs: relation_columns(relations, xs, own=own), xs)
    hs = [
        torch.randn(n, k * 2, dtype=torch.float64, generator=draw).requires_grad_()
        for n, k in ((5, 2), (4, 1))
    ]
    addends = [torch.randn(n, 2, dtype=torch.float64, generator=draw).requires_grad_() for n in (2, 3)]
    assert torch.autograd.gradcheck(
        lambda *given: relation_sums(relations, given[:2], given[2:]), [*hs, *addends]
    )


def homogeneous(graph: Any, xs: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Return the rows, edges and relations of all types' nodes, one type's after the other's."""
    first, total = {}, 0
    for name in graph.node_types:
        first[name] = total
        total += graph.nodes_of(name).num_nodes
    pairs = graph.to_edge_indices()
    shifted = [p + torch.tensor([[first[one[0]]], [first[one[2]]]]) for one, p in pairs.items()]
    numbers = [torch.full((p.shape[1],), i) for i, p in enumerate(pairs.values())]
    return torch.cat([xs[name] for name in graph.node_types]), torch.cat(shifted, 1), torch.cat(numbers)


@pytest.mark.parametrize("num_layers", [1, 2])
def test_a_model_over_types_equals_pyg_s_layers_over_all_nodes(num_layers):
    pyg = pytest.importorskip("torch_geometric.nn", reason=NO_PYG)
    graph = bibliography()
    torch.manual_seed(0)
    model = RGCN.of(graph, 8, num_layers=num_layers, dropout=0.0).double()
    convs = [pyg.RGCNConv(c.in_channels, c.out_channels, len(graph.edge_types)).double() for c in model.convs]
    for theirs, ours in zip(convs, model.convs, strict=True):
        theirs.load_state_dict(ours.state_dict())
    x_dict = {"paper": graph.nodes_of("paper").x.double(), "author": graph.nodes_of("author").x.double()}
    rows = {
        "author": model.inputs[0](x_dict["author"]).relu(),
        "paper": model.inputs[1](x_dict["paper"]).relu(),
        "venue": model.inputs[2].weight,
    }
    x, edge_index, edge_type = homogeneous(graph, rows)
    for i, conv in enumerate(convs):
        x = conv(x, edge_index, edge_type)
        x = x.relu() if i < num_layers - 1 else x
    first = graph.nodes_of("author").num_nodes
    expected = x[first : first + graph.nodes_of("paper").num_nodes]
    found = model(x_dict, {one: graph.relation(one) for one in graph.edge_types})
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-10)
    weights = [p for conv in model.convs for p in conv.parameters()]
    theirs_weights = [p for conv in convs for p in conv.parameters()]
    ours_g = torch.autograd.grad(found.square().sum(), [*model.inputs.parameters(), *weights])
    theirs_g = torch.autograd.grad(expected.square().sum(), [*model.inputs.parameters(), *theirs_weights])
    for a, b in zip(ours_g, theirs_g, strict=True):
        torch.testing.assert_close(a, b, atol=1e-9, rtol=1e-8)
    of_lists = model(x_dict, graph.to_edge_indices())
    torch.testing.assert_close(of_lists, found, atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize("layout", ["subgraph", "blocks"])
@pytest.mark.parametrize("node_type", ["paper", "venue", None])
def test_blocks_of_all_neighbours_give_the_rows_of_the_whole_graph(layout, node_type):
    graph = bibliography()
    torch.manual_seed(0)
    model = RGCN.of(graph, 8, 3, node_type="paper").eval()
    model.node_type = node_type
    seeds = torch.tensor([4, 1, 3])
    kind = node_type or "paper"
    loader = NeighborLoader(graph, [-1, -1], input_nodes=(kind, seeds), batch_size=3, layout=layout)
    loader._to_user_batch = lambda batch: batch  # type: ignore[method-assign]
    batch = next(iter(loader))
    with torch.no_grad():
        whole = model(
            {name: graph.nodes_of(name).x for name in ("author", "paper")},
            {one: graph.relation(one) for one in graph.edge_types},
        )
        found = model(batch.x_dict, batch.blocks, batch.n_id_dict)
    if node_type is None:
        whole, found = whole[kind], found[kind]
    torch.testing.assert_close(found[:3], whole[seeds], atol=1e-5, rtol=1e-5)


def test_sparse_features_give_what_dense_ones_give():
    graph = bibliography()
    torch.manual_seed(0)
    model = RGCN.of(graph, 8).eval()
    dense = {name: graph.nodes_of(name).x for name in ("author", "paper")}
    sparse = {name: as_features(scipy.sparse.csr_matrix(x.numpy())) for name, x in dense.items()}
    relations = {one: graph.relation(one) for one in graph.edge_types}
    torch.testing.assert_close(model(sparse, relations), model(dense, relations), atol=1e-5, rtol=1e-5)


def test_adjacencies_are_made_once_and_forgotten_with_their_tensors():
    conv, x = RGCNConv(3, 3, NUM_RELATIONS), torch.randn(NUM_NODES, 3)
    edge_index, edge_type = edges()
    first = conv(x, edge_index, edge_type)
    kept = relations_of(edge_index, edge_type, NUM_NODES, NUM_RELATIONS)
    assert torch.equal(conv(x, edge_index, edge_type), first)
    assert relations_of(edge_index, edge_type, NUM_NODES, NUM_RELATIONS) is kept
    edge_type[:50] = 3  # in place
    assert not torch.equal(conv(x, edge_index, edge_type), first)
    array = weakref.ref(relations_of(edge_index, edge_type, NUM_NODES, NUM_RELATIONS)[0].indptr)
    assert array() is not None
    del edge_type
    gc.collect()
    assert array() is None


def test_wrong_arguments_are_named():
    graph = bibliography()
    edge_index, edge_type = edges()
    conv, x = RGCNConv(3, 4, NUM_RELATIONS), torch.randn(NUM_NODES, 3)
    with pytest.raises(DataError, match=r"edge_type must be in \[0, 4\).*edge_type\[7\] is 9"):
        conv(x, edge_index, edge_type.index_fill(0, torch.tensor([7]), 9))
    with pytest.raises(DataError, match="one relation per edge"):
        conv(x, edge_index, edge_type[1:])
    with pytest.raises(DataError, match="x must have 3 columns"):
        conv(x[:, 1:], edge_index, edge_type)
    with pytest.raises(ConfigError, match="aggr must be one of"):
        RGCNConv(3, 4, 2, aggr="max")
    with pytest.raises(ConfigError, match="num_bases"):
        RGCNConv(3, 4, 2, num_bases=0)
    with pytest.raises(ConfigError, match=r"give num_nodes\['venue'\]"):
        RGCN({"paper": 3, "venue": 0}, 8, 2, [CITES])
    with pytest.raises(ConfigError, match="the type 'author', which in_channels does not name"):
        RGCN({"paper": 3}, 8, 2, [WRITES])
    with pytest.raises(ConfigError, match=r"node_type='papers'.*Did you mean 'paper'"):
        RGCN({"paper": 3}, 8, 2, [CITES], node_type="papers")
    with pytest.raises(ConfigError, match="at least one relation"):
        RGCN({"paper": 3}, 8, 2, [])
    with pytest.raises(ConfigError, match=r"has no option 'hidden'.*hidden_channels"):
        make_typed_model("rgcn", graph, hidden=3)
    model = RGCN.of(graph, 8)
    x_dict = {name: graph.nodes_of(name).x for name in ("author", "paper")}
    relations = {one: graph.relation(one) for one in graph.edge_types}
    with pytest.raises(DataError, match=r"needs 2 blocks, outermost first; got 3"):
        model(x_dict, [relations] * 3)
    with pytest.raises(DataError, match=r"'rev_cites'.* is missing"):
        model(x_dict, {one: csc for one, csc in relations.items() if one[1] != "rev_cites"})
    with pytest.raises(
        DataError, match=r"nodes of type 'author' need features of shape \(num_rows, 7\); got none"
    ):
        model({"paper": x_dict["paper"]}, relations)
    with pytest.raises(DataError, match="of type 'paper', but there are 10 rows"):
        model(x_dict | {"paper": x_dict["paper"][:10]}, relations)
