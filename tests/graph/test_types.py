"""Graphs of several node types and relations: how they are held, what comes back, and what is refused."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.extras import NO_PYG
from tests.graph.typed_cases import (
    ABOUT,
    AUTHORS,
    CITES,
    FIELDS,
    PAPERS,
    REVISES,
    WRITES,
    bibliography,
    lists,
)

import graphbraid
from graphbraid.distributed import Partition
from graphbraid.errors import DataError
from graphbraid.graph import EdgeSet, Graph, NodeSet, SparseFeatures, types
from graphbraid.graph.csc import Csc


def test_a_graph_says_what_types_it_has():
    graph = bibliography().validate()
    assert graph.node_types == ("paper", "author", "field")
    assert graph.edge_types == (WRITES, CITES, ABOUT, REVISES)
    assert (graph.num_nodes, graph.num_edges) == (PAPERS + AUTHORS + FIELDS, 150 + 300 + 150 + 30)
    papers = graph.nodes_of("paper")
    assert (papers.num_nodes, papers.x.shape) == (PAPERS, (PAPERS, 5))
    assert papers.splits["train"].tolist() == list(range(20))
    assert graph.nodes_of("field").x is None
    assert repr(graph) == "Graph(bibliography: 71 nodes, 630 edges in 3 types and 4 relations)"
    assert graph.nbytes > graph.csc.nbytes + papers.nbytes


@pytest.mark.parametrize("weighted", [False, True])
def test_each_relation_is_the_adjacency_of_its_list(weighted):
    graph = bibliography(weighted=weighted)
    back = graph.to_edge_indices()
    for edge_type, edges in lists().items():
        assert torch.equal(back[edge_type], edges)
        relation = graph.relation(edge_type)
        sizes = {"paper": PAPERS, "author": AUTHORS, "field": FIELDS}
        assert (relation.num_src, relation.num_dst) == (sizes[edge_type[0]], sizes[edge_type[2]])
        pairs = torch.stack([relation.indices.long(), relation.destinations().long()])
        order = (edges[1] * 100 + edges[0]).argsort(stable=True)
        assert torch.equal(pairs, edges[:, order])
        assert (relation.weight is None) == (not weighted or edge_type == CITES)


def test_the_whole_graph_has_every_type_after_the_other():
    graph, first = bibliography(), {"paper": 0, "author": PAPERS, "field": PAPERS + AUTHORS}
    whole = set(map(tuple, graph.to_edge_index().t().tolist()))
    expected = {
        (src + first[edge_type[0]], dst + first[edge_type[2]])
        for edge_type, edges in lists().items()
        for src, dst in edges.t().tolist()
    }
    assert whole == expected
    assert int(graph.csc.indptr[-1]) == graph.num_edges


def test_a_graph_of_one_type_has_one_of_each():
    graph = Graph.from_edge_index([[0, 1, 2], [2, 0, 0]], 3, x=torch.eye(3), edge_weight=[1.0, 2.0, 3.0])
    assert (graph.node_types, graph.edge_types) == (("node",), (("node", "to", "node"),))
    assert graph.nodes_of("node").x is graph.x
    assert graph.relation(("node", "to", "node")) is graph.csc
    assert graph.edges_of(("node", "to", "node")).num_edges == 3
    typed = graph.with_reverse_relations()
    assert typed.edge_types == (("node", "to", "node"), ("node", "rev_to", "node"))
    both = typed.to_edge_indices()
    assert torch.equal(both["node", "to", "node"], both["node", "rev_to", "node"].flip(0))


def test_reverse_relations_run_the_other_way_with_the_same_weights_and_features():
    graph = bibliography(weighted=True).with_reverse_relations().validate()
    back, edges = ("paper", "rev_writes", "author"), graph.to_edge_indices()
    assert len(graph.edge_types) == 8
    assert torch.equal(edges[back], edges[WRITES].flip(0))
    dense = [torch.zeros(AUTHORS, PAPERS), torch.zeros(AUTHORS, PAPERS)]
    for place, one in enumerate((WRITES, back)):
        csc = graph.relation(one)
        ends = (csc.indices.long(), csc.destinations().long())
        dense[place].index_put_(ends if place == 0 else ends[::-1], csc.weight, accumulate=True)
    torch.testing.assert_close(*dense)
    cited = graph.edges_of(("paper", "rev_cites", "paper"))
    assert cited.edge_attr is graph.edges_of(CITES).edge_attr
    assert graph.with_reverse_relations().edge_types == graph.edge_types


def test_edges_of_a_relation_are_found_without_placing_all_relations(monkeypatch):
    """Each relation, of hundreds, is asked for several times."""
    graph = bibliography()
    monkeypatch.setattr(types, "placed", lambda *_: pytest.fail("all relations were placed"))
    assert graph.edges_of(CITES).num_edges == 300
    with pytest.raises(DataError, match=r"no relation .*Did you mean 'paper__cites__paper'"):
        graph.edges_of(("paper", "cite", "paper"))


@given(st.data())
def test_any_lists_come_back(data):
    sizes = {name: data.draw(st.integers(0, 6)) for name in "abc"}
    ends = st.sampled_from("abc")
    edges = {}
    for number in range(data.draw(st.integers(0, 4))):
        src, dst = data.draw(ends), data.draw(ends)
        count = data.draw(st.integers(0, 12)) if sizes[src] and sizes[dst] else 0
        ids = [data.draw(st.integers(0, max(sizes[end] - 1, 0))) for end in (src, dst) for _ in range(count)]
        edges[src, f"r{number}", dst] = torch.tensor(ids, dtype=torch.int64).reshape(2, count)
    graph = Graph.from_relations(edges, sizes).validate()
    back = graph.to_edge_indices()
    assert list(back) == list(edges)
    for edge_type, pairs in edges.items():
        assert torch.equal(back[edge_type], pairs)


def test_hetero_data_comes_over_and_goes_back():
    hetero = pytest.importorskip("torch_geometric.data", reason=NO_PYG)
    graph = bibliography(weighted=True)
    data = graph.to_pyg()
    assert isinstance(data, hetero.HeteroData)
    assert data.validate()
    back = Graph.from_pyg(data, name="bibliography").validate()
    assert (back.node_types, back.edge_types) == (graph.node_types, graph.edge_types)
    assert torch.equal(back.csc.indices, graph.csc.indices)
    assert torch.equal(back.types.rows.indptr, graph.types.rows.indptr)
    assert torch.equal(back.csc.weight, graph.csc.weight)
    assert torch.equal(back.edges_of(CITES).edge_attr, graph.edges_of(CITES).edge_attr)
    assert torch.equal(back.edges_of(WRITES).time, graph.edges_of(WRITES).time)
    assert torch.equal(back.nodes_of("paper").x, graph.nodes_of("paper").x)
    assert back.nodes_of("paper").splits["test"].tolist() == list(range(30, 40))
    assert Graph.from_pyg(data, edge_weight=None).csc.weight is None


def test_sparse_features_go_over():
    pytest.importorskip("torch_geometric", reason=NO_PYG)
    x = SparseFeatures.from_dense(torch.eye(3))
    graph = Graph.from_relations({("a", "to", "b"): [[0, 1], [0, 0]]}, {"a": 3, "b": 1}, x={"a": x})
    back = Graph.from_pyg(graph.to_pyg())
    assert torch.equal(back.nodes_of("a").x.to_dense(), torch.eye(3))


EDGES = {("a", "to", "b"): [[0, 1], [0, 0]]}
WRONG = {
    "a relation without a name": (({("a", "b"): [[0], [0]]},), {}, "three strings.*got"),
    "no lists": ((3,), {}, "edges must be a mapping by type; got 3"),
    "an end that is no type": ((EDGES, {"a": 2}), {}, r"end that num_nodes does not name: 'b'"),
    "a source out of range": ((EDGES, {"a": 1, "b": 1}), {}, r"'to', 'b'\): sources, of type 'a',.*holds 1"),
    "a destination out of range": ((EDGES, {"a": 2, "b": 0}), {}, r"'to'.*destinations, of type 'b'"),
    "a negative id": (({("a", "to", "b"): [[-1], [0]]},), {}, r"'to'.*sources.*holds -1"),
    "features of no type": ((EDGES, {"a": 2, "b": 1}), {"x": {"c": torch.eye(2)}}, "x names a node.*'c'"),
    "features of another length": (
        (EDGES, {"a": 2, "b": 1}),
        {"x": {"a": torch.eye(3)}},
        "nodes of type 'a': x has 3 rows, but the graph has 2 nodes",
    ),
    "labels of another length": ((EDGES, {"a": 2, "b": 1}), {"y": {"b": [0, 1]}}, "type 'b': y has 2 rows"),
    "a mask of another length": (
        (EDGES, {"a": 2, "b": 1}),
        {"splits": {"a": {"train": [True]}}},
        "type 'a'.*mask of 1 nodes, but the graph has 2",
    ),
    "a split out of range": ((EDGES, {"a": 2, "b": 1}), {"splits": {"a": {"train": [2]}}}, "'a'.*train.*2"),
    "times of another length": ((EDGES,), {"node_time": {"a": [1]}}, r"'a': time must be .* \(2,\)"),
    "weights of no relation": (
        (EDGES,),
        {"edge_weight": {("a", "of", "b"): [1]}},
        "relation that the graph does",
    ),
    "weights of another length": (
        (EDGES,),
        {"edge_weight": {("a", "to", "b"): [1.0]}},
        r"'to'.*shape \(2,\)",
    ),
    "weights that are not numbers": (
        (EDGES,),
        {"edge_weight": {("a", "to", "b"): [1.0, float("nan")]}},
        r"'to'.*edge_weight\[1\] is nan",
    ),
    "edge features of another length": (
        (EDGES,),
        {"edge_attr": {("a", "to", "b"): torch.eye(3)}},
        "'to'.*edge_attr has 3 rows, but the graph has 2 edges",
    ),
    "edge times of another length": ((EDGES,), {"edge_time": {("a", "to", "b"): [1]}}, r"'to'.*time must be"),
    "an edge split out of range": (
        (EDGES,),
        {"edge_splits": {("a", "to", "b"): {"train": [2]}}},
        r"'to'.*split 'train'.*\[0, 2\)",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_does_not_fit_is_named(case):
    given_, options, message = WRONG[case]
    with pytest.raises(DataError, match=message):
        Graph.from_relations(*given_, **options)


def test_names_that_do_not_exist_are_refused():
    graph = bibliography()
    with pytest.raises(DataError, match=r"no node type 'papers'.*Did you mean 'paper'"):
        graph.nodes_of("papers")
    with pytest.raises(DataError, match=r"no relation \('author', 'write', 'paper'\)"):
        graph.relation(("author", "write", "paper"))
    with pytest.raises(DataError, match="its only one is"):
        Graph.from_edge_index([[0], [0]]).relation(WRITES)


def test_types_that_do_not_fit_the_topology_are_refused():
    graph = bibliography()
    other = bibliography(seed=5)
    with pytest.raises(DataError, match="not those of the topology"):
        graph.replace(csc=other.csc)
    with pytest.raises(DataError, match="has x by type"):
        graph.replace(x=torch.rand(graph.num_nodes, 2))
    with pytest.raises(DataError, match="editing edges takes graphs of one node type"):
        graph.symmetrized()


def test_sources_of_another_type_are_found():
    graph = bibliography()
    rows = graph.types.rows
    swapped = torch.full_like(rows.indices, graph.num_nodes - 1)  # a field, which no relation begins at
    csc = Csc(graph.csc.indptr, swapped, graph.num_nodes)
    types = type(graph.types)(
        nodes=graph.types.nodes,
        edges=graph.types.edges,
        rows=Csc(rows.indptr, swapped, rows.num_src),
    )
    with pytest.raises(DataError, match="sources must be of type 'author'; node 70 is not"):
        Graph(csc=csc, edge_id=graph.edge_id, types=types)


def test_validate_looks_at_every_value():
    nodes = {"a": NodeSet(num_nodes=2, time=torch.tensor([0.0, float("nan")])), "b": NodeSet(num_nodes=1)}
    graph = Graph.from_relations(EDGES, {"a": 2, "b": 1})
    timed = graph.replace(
        types=type(graph.types)(nodes=nodes, edges=graph.types.edges, rows=graph.types.rows)
    )
    with pytest.raises(DataError, match=r"type 'a': times must be finite; time\[1\] is nan"):
        timed.validate()
    edges = {("a", "to", "b"): EdgeSet(num_edges=2, edge_attr=torch.tensor([[0.0], [float("inf")]]))}
    attributed = graph.replace(
        types=type(graph.types)(nodes=graph.types.nodes, edges=edges, rows=graph.types.rows)
    )
    with pytest.raises(DataError, match=r"'to'.*edge_attr\[1, 0\] is inf"):
        attributed.validate()


def test_what_takes_one_type_says_so():
    graph = bibliography()
    part_of = torch.zeros(graph.num_nodes, dtype=torch.int32)
    partition = Partition(part_of=part_of, num_parts=1, strategy="simple", balance="nodes")
    for call in (
        lambda: graphbraid.features.reorder(graph, torch.arange(graph.num_nodes)),
        lambda: graphbraid.distributed.split(graph, partition),
        lambda: graphbraid.estimate(torch.nn.Linear(2, 2), graph),
    ):
        with pytest.raises(DataError, match="takes graphs of one node type and one relation so far"):
            call()
