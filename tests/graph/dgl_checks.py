"""What conversions from and to DGL must give: the same checks for the stand-in and for the package itself."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from tests.graph.edge_cases import EDGE_CASES, random_edges
from tests.graph.typed_cases import bibliography
from torch import Tensor

from graphbraid.errors import DataError
from graphbraid.graph import Graph, SparseFeatures


def comes_over_with_its_edge_order(dgl: ModuleType) -> None:
    """A graph of DGL's from a list of edges, with ids of either width."""
    for idtype in (torch.int32, torch.int64):
        edges = random_edges(20, 90).to(idtype)
        source = dgl.graph((edges[0], edges[1]), num_nodes=20)
        source.ndata["feat"] = torch.rand(20, 3)
        source.ndata["label"] = torch.randint(4, (20,))
        source.ndata["train_mask"] = torch.arange(20) < 5
        source.edata["w"] = torch.rand(90)
        graph = Graph.from_dgl(source, weight="w", name="d").validate()
        assert torch.equal(graph.to_edge_index(original_order=True), edges.long())
        assert torch.equal(graph.in_original_order(graph.csc.weight), source.edata["w"])
        assert graph.x.data_ptr() == source.ndata["feat"].data_ptr()
        assert torch.equal(graph.y, source.ndata["label"])
        assert graph.split("train").tolist() == [0, 1, 2, 3, 4]
        assert list(graph.splits) == ["train"]


def goes_over_and_comes_back(dgl: ModuleType) -> None:
    """Every edge case, with weights and without, and a graph whose edges were edited."""
    for graph in _graphs():
        converted = graph.to_dgl()
        assert converted.num_nodes() == graph.num_nodes
        src, dst = converted.edges()
        assert torch.equal(torch.stack([src, dst]), graph.to_edge_index(original_order=True))
        weight = graph.csc.weight
        back = Graph.from_dgl(converted, weight=None if weight is None else "weight").validate()
        assert torch.equal(back.csc.indices, graph.csc.indices)
        assert torch.equal(back.csc.indptr, graph.csc.indptr)
        if weight is not None:
            assert torch.equal(converted.edata["weight"], graph.in_original_order(weight))
            assert torch.equal(back.csc.weight, weight)


def gets_features_labels_and_masks(dgl: ModuleType) -> None:
    """Node data of a graph with sparse features; edge data of one with rows for edges."""
    x, rows = SparseFeatures.from_dense(torch.eye(3)), torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    graph = Graph.from_edge_index([[1, 0], [2, 1]], 3, x=x, y=[0, 1, 1], splits={"test": [2]}, edge_attr=rows)
    converted = graph.to_dgl()
    assert torch.equal(converted.ndata["feat"], torch.eye(3))
    assert converted.ndata["label"].tolist() == [0, 1, 1]
    assert converted.ndata["test_mask"].tolist() == [False, False, True]
    assert torch.equal(converted.edata["feat"], rows)


def graphs_restricted_to_any_format_come_over(dgl: ModuleType) -> None:
    """DGL gives no CSC of a graph that is restricted to another format."""
    edges = random_edges(30, 120)
    source = dgl.graph((edges[0], edges[1]), num_nodes=30)
    source.edata["w"] = torch.rand(120)
    for form in ("coo", "csr", "csc"):
        graph = Graph.from_dgl(source.formats(form), weight="w").validate()
        assert torch.equal(graph.to_edge_index(original_order=True), edges), form
        assert torch.equal(graph.in_original_order(graph.csc.weight), source.edata["w"]), form


def graphs_that_do_not_fit_are_named(dgl: ModuleType) -> None:
    """Data that is missing."""
    source = dgl.graph((torch.tensor([0]), torch.tensor([1])), num_nodes=2)
    assert Graph.from_dgl(source).x is None
    _refused("feature='h' is not in the graph's data; it has []", lambda: Graph.from_dgl(source, feature="h"))
    _refused("weight='w' is not in the graph's data", lambda: Graph.from_dgl(source, weight="w"))


def graphs_of_several_types_go_over_and_come_back(dgl: ModuleType) -> None:
    """Relations with weights and features, node data of some types only, a type without edges into it."""
    graph = bibliography(weighted=True)
    converted = graph.to_dgl()
    assert set(converted.canonical_etypes) == set(graph.edge_types)
    lists = graph.to_edge_indices()
    for edge_type, pairs in lists.items():
        src, dst = converted.edges(etype=edge_type, order="eid")
        assert torch.equal(torch.stack([src, dst]), pairs)
    back = Graph.from_dgl(converted, weight="weight").validate()
    assert set(back.node_types) == set(graph.node_types)
    for edge_type, pairs in back.to_edge_indices().items():
        assert torch.equal(pairs, lists[edge_type])
        ours, theirs = graph.relation(edge_type).weight, back.relation(edge_type).weight
        assert (ours is None) == (theirs is None)
        assert ours is None or torch.equal(ours, theirs)
    papers = back.nodes_of("paper")
    assert torch.equal(papers.x, graph.nodes_of("paper").x)
    assert torch.equal(papers.y, graph.nodes_of("paper").y)
    assert papers.splits["test"].tolist() == list(range(30, 40))
    assert back.nodes_of("field").x is None
    _refused("feature='nope' is not in the graph's data", lambda: Graph.from_dgl(converted, feature="nope"))


def messages_pass_along_the_same_edges(dgl: ModuleType) -> None:
    """Only DGL itself computes: a weighted sum over in-edges."""
    edges = random_edges(30, 120)
    graph = Graph.from_edge_index(edges, 30, x=torch.rand(30, 4), edge_weight=torch.rand(120))
    converted = graph.to_dgl()
    converted.update_all(dgl.function.u_mul_e("feat", "weight", "m"), dgl.function.sum("m", "out"))
    weight = graph.in_original_order(graph.csc.weight)
    expected = torch.zeros(30, 4).index_add_(0, edges[1], weight[:, None] * graph.x[edges[0]])
    torch.testing.assert_close(converted.ndata["out"], expected)


Check = Callable[[ModuleType], None]
OF_BOTH: tuple[Check, ...] = (
    comes_over_with_its_edge_order,
    goes_over_and_comes_back,
    gets_features_labels_and_masks,
    graphs_restricted_to_any_format_come_over,
    graphs_that_do_not_fit_are_named,
)
OF_DGL_ITSELF: tuple[Check, ...] = (
    graphs_of_several_types_go_over_and_come_back,
    messages_pass_along_the_same_edges,
)


def _graphs() -> list[Graph]:
    graphs = []
    for num_nodes, src, dst in EDGE_CASES.values():
        edges: Tensor = torch.tensor([src, dst], dtype=torch.int64)
        for weight in (None, torch.arange(1.0, len(src) + 1)):
            graphs.append(Graph.from_edge_index(edges, num_nodes, edge_weight=weight))
    drawn = Graph.from_edge_index(random_edges(40, 300), 40, edge_weight=torch.rand(300))
    return [*graphs, drawn, drawn.symmetrized(), drawn.without_duplicates(), drawn.with_self_loops()]


def _refused(message: str, convert: Callable[[], Any]) -> None:
    try:
        convert()
    except DataError as error:
        assert message in str(error), error
    else:
        raise AssertionError(f"not refused: {message}")
