"""Orders of nodes: permutations, the same as their twins', and what is no permutation is refused by place."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.graph.cases import edge_lists, reference_kernels
from tests.kernels import needs_kernels
from tests.ops.graphs import assert_same_bits_with_any_threads, square, threads
from tests.suites import examples

from graphbraid import Graph, SparseFeatures
from graphbraid.errors import DataError
from graphbraid.graph import orders_reference
from graphbraid.graph.csc import Csc, coo_to_csc
from graphbraid.graph.orders import ORDERS, community_order, degree_order, inverse_of, order_by, rcm_order
from graphbraid.graph.scans import first_below, first_fall, first_unsound_weight


@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize("indices", [torch.int32, torch.int64])
@pytest.mark.parametrize("num_edges", [0, 40, 900])
def test_an_order_is_a_permutation_of_any_graph(name, indices, num_edges):
    draw = torch.Generator().manual_seed(num_edges)
    src, dst = torch.randint(0, 50, (2, num_edges), generator=draw)
    csc, _ = coo_to_csc(src, dst, 50, 50)
    order = ORDERS[name](Csc(csc.indptr, csc.indices.to(indices), 50))
    assert order.dtype == torch.int64
    assert torch.equal(order.sort().values, torch.arange(50))


@pytest.mark.parametrize("name", ORDERS)
def test_a_graph_without_nodes_has_an_order(name):
    empty = Csc(torch.zeros(1, dtype=torch.int64), torch.zeros(0, dtype=torch.int32), 0)
    assert ORDERS[name](empty).tolist() == []


@needs_kernels
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("num_nodes", [1, 80, 3000])  # the last fills the pool, which is then cleared
def test_communities_are_those_of_the_twin(num_nodes, seed):
    csc = square(num_nodes, seed=seed) if num_nodes > 1 else Csc(torch.tensor([0, 1]), torch.tensor([0]), 1)
    expected = torch.empty(num_nodes, dtype=torch.int64)
    orders_reference.community_order(csc.indptr, csc.indices, expected)
    assert torch.equal(community_order(csc), expected)


def test_by_degree_those_read_most_often_come_first_and_equal_ones_as_they_stood():
    csc, _ = coo_to_csc(torch.tensor([3, 3, 1, 2, 3, 1]), torch.tensor([0, 1, 0, 2, 2, 3]), 5, 5)
    assert degree_order(csc).tolist() == [3, 1, 2, 0, 4]


def test_rcm_puts_neighbours_close_together():
    ids = torch.randperm(200, generator=torch.Generator().manual_seed(0))
    csc, _ = coo_to_csc(ids[:-1], ids[1:], 200, 200)  # a path, one way
    place = inverse_of(rcm_order(csc)).long()
    assert (place[ids[:-1]] - place[ids[1:]]).abs().max() == 1


def test_rcm_counts_an_edge_stored_256_times_as_an_edge():
    csc, _ = coo_to_csc(torch.zeros(256, dtype=torch.int64), torch.full((256,), 2), 3, 3)
    place = inverse_of(rcm_order(csc))
    assert abs(int(place[0]) - int(place[2])) == 1


def test_order_by_is_descending_and_stable():
    assert order_by(torch.tensor([0.1, 0.4, 0.2, 0.4])).tolist() == [1, 3, 2, 0]
    assert order_by(torch.tensor([2, 2, 5])).tolist() == [2, 0, 1]
    assert order_by(torch.tensor([0.0, torch.inf, -torch.inf])).tolist() == [1, 0, 2]
    with pytest.raises(DataError, match="values must be numbers, which have an order; that of node 1 is nan"):
        order_by(torch.tensor([1.0, torch.nan]))
    with pytest.raises(DataError, match=r"values must be 1-d real numbers.*shape \(2, 1\)"):
        order_by(torch.zeros(2, 1))


@settings(max_examples=examples(60))
@given(order=st.permutations(range(9)), wide=st.booleans())
def test_the_inverse_is_each_nodes_place(order, wide):
    order = torch.tensor(order, dtype=torch.int64 if wide else torch.int32)
    inverse = inverse_of(order)
    assert inverse.dtype == torch.int32
    assert torch.equal(inverse[order.long()], torch.arange(9, dtype=torch.int32))
    with reference_kernels():
        assert torch.equal(inverse_of(order), inverse)


@settings(max_examples=examples(60))
@given(entries=st.lists(st.integers(-2, 9), min_size=1, max_size=9), twin=st.booleans())
def test_the_first_entry_that_is_wrong_is_named(entries, twin):
    order, count = torch.tensor(entries), len(entries)
    wild = [i for i, node in enumerate(entries) if not 0 <= node < count]
    again = [i for i, node in enumerate(entries) if node in entries[:i]]

    def check():
        if not wild and not again:
            assert torch.equal(inverse_of(order)[order], torch.arange(count, dtype=torch.int32))
            return
        first = (wild or again)[0]
        with pytest.raises(DataError) as raised:
            inverse_of(order)
        said = f"order must name each of the {count} nodes once; order[{first}] is {entries[first]}, "
        if wild:
            assert str(raised.value) == said + "which is none of them"
        else:
            earlier = entries.index(entries[first])
            missing = min(set(range(count)) - set(entries))
            assert str(raised.value) == (f"{said}as order[{earlier}] is, and node {missing} is missing")

    if twin:
        with reference_kernels():
            check()
    else:
        check()


def test_a_repeated_node_is_found_by_any_number_of_threads():
    draw = torch.Generator().manual_seed(0)
    order = torch.randperm(200_000, generator=draw)
    assert_same_bits_with_any_threads(lambda: [inverse_of(order)])
    order[[150_000, 170_000]] = order[[20, 100_000]]
    with pytest.raises(DataError, match=r"order\[150000\] is \d+, as order\[20\] is"):
        inverse_of(order)


@pytest.mark.parametrize("order", [torch.zeros(2, 2, dtype=torch.int64), torch.tensor([0.0, 1.0])])
def test_an_order_is_a_list_of_ids(order):
    with pytest.raises(DataError, match="order must be a 1-d int32 or int64 tensor"):
        inverse_of(order)


@settings(max_examples=examples(40))
@given(edges=edge_lists())
def test_degree_order_sorts_by_how_often_a_node_is_read(edges):
    num_nodes, (src, dst) = edges[0], edges[1]
    csc, _ = coo_to_csc(src, dst, num_nodes, num_nodes)
    reads = [src.tolist().count(node) for node in degree_order(csc).tolist()]
    assert reads == sorted(reads, reverse=True)


INDPTR, INDICES = torch.tensor([0, 1, 2, 3]), torch.tensor([0, 1, 2], dtype=torch.int32)
NAN, INF = float("nan"), float("inf")


def both_ways(scan):
    """A scan's answer, the same from the kernel with any threads and from its twin."""
    found = set()
    for count in (1, 3):
        with threads(count):
            found.add(scan())
    with reference_kernels():
        found.add(scan())
    (answer,) = found
    return answer


@pytest.mark.parametrize("at", [0, 1023, 1024, 70_003, 1_199_999])
def test_the_first_fall_is_found_wherever_it_is(at):
    indptr = torch.arange(1_200_001)
    assert both_ways(lambda: first_fall(indptr)) == -1
    indptr[at] += 2
    indptr[1_199_999] += 2
    assert both_ways(lambda: first_fall(indptr)) == at


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_weights_that_are_not_finite_are_found(bad):
    weight = torch.ones(50_000)
    weight[[40_000, 30_001]] = bad
    assert both_ways(lambda: first_unsound_weight(weight)) == 30_001
    assert both_ways(lambda: first_unsound_weight(weight[:30_001])) == -1


def test_negative_weights_are_found_where_they_are_wrong():
    weight = torch.zeros(5_000)
    weight[[7, 4_000]] = torch.tensor([-0.0, -1e-30])
    assert both_ways(lambda: first_unsound_weight(weight)) == -1
    assert both_ways(lambda: first_unsound_weight(weight, may_be_negative=False)) == 4_000


def test_values_below_a_bound_are_found():
    ids = torch.full((50_000,), -1)
    assert both_ways(lambda: first_below(ids, -1)) == -1
    ids[[9, 40_000]] = -2
    assert both_ways(lambda: first_below(ids, -1)) == 9


WRONG = {
    "falls": ({"indptr": torch.tensor([0, 2, 1, 3])}, "indptr must never fall; it goes from 2 at position 1"),
    "starts": ({"indptr": torch.tensor([1, 1, 2, 3])}, "it runs from 1 to 3"),
    "ends": ({"indptr": torch.tensor([0, 1, 2, 5])}, "it runs from 0 to 5"),
    "source": ({"indices": torch.tensor([0, 3, 1])}, "indices[1], an in-edge of node 1, is 3"),
    "negative": ({"indices": torch.tensor([0, 1, -1])}, "indices[2], an in-edge of node 2, is -1"),
    "floats": ({"indices": torch.tensor([0.0, 1.0, 2.0])}, "indices must be 1-d int32 or int64"),
    "strided": ({"indices": torch.arange(6, dtype=torch.int32)[::2]}, "must be contiguous"),
    "list": ({"indices": [0, 1, 2]}, "indices must be a torch.Tensor; got [0, 1, 2]"),
    "sparse": ({"indices": torch.tensor([0, 1, 2]).to_sparse()}, "indices must be a dense tensor"),
    "meta": ({"indptr": INDPTR.to("meta")}, "indptr must be a dense tensor that holds values"),
    "narrow": ({"indptr": INDPTR.int()}, "indptr must be a non-empty 1-d int64 tensor; got torch.int32"),
    "count": ({"num_src": -1}, "num_src must be a whole number in"),
    "true": ({"num_src": True}, "num_src must be a whole number in [0, 1099511627776]; got True"),
    "nan": ({"weight": torch.tensor([1.0, NAN, 1.0])}, "edge weights must be finite; weight[1] is nan"),
    "double": ({"weight": torch.ones(3, dtype=torch.float64)}, "edge weights must be torch.float32"),
    "few": ({"weight": torch.ones(2)}, "edge weights must be torch.float32 of shape (3,)"),
    "degree": ({"src_degree": torch.ones(2)}, "src_degree must have shape (3,); got (2,)"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_an_adjacency_is_looked_at_when_it_is_made(kind):
    fields, message = WRONG[kind]
    sound = {"indptr": INDPTR, "indices": INDICES, "num_src": 3}
    Csc(**sound)
    with pytest.raises(DataError) as error:
        Csc(**{**sound, **fields})
    assert message in str(error.value)
    Csc(**{**sound, **fields}, trusted=True)


def test_sparse_features_are_looked_at_when_they_are_made():
    sound = {"indptr": INDPTR, "indices": INDICES, "values": torch.ones(3), "num_cols": 3}
    SparseFeatures(**sound)
    with pytest.raises(DataError, match=r"columns of the sparse features must be in \[0, 2\)"):
        SparseFeatures(**{**sound, "num_cols": 2})
    with pytest.raises(DataError, match="indptr of the sparse features must never fall"):
        SparseFeatures(**{**sound, "indptr": torch.tensor([0, 2, 1, 3])})


@pytest.mark.parametrize("ids", [[0, 3], [-1], [2**32]])
def test_splits_are_held_to_the_nodes_wherever_they_enter(ids):
    csc, wrong = Csc(INDPTR, INDICES, 3), {"train": torch.tensor(ids)}
    with pytest.raises(DataError, match=r"split 'train' must be node ids in \[0, 3\)"):
        Graph(csc=csc, splits=wrong)
    with pytest.raises(DataError, match=r"split 'train' must be node ids in \[0, 3\)"):
        Graph(csc=csc).replace(splits=wrong)
    with pytest.raises(DataError, match=r"split 'train' must be node ids in \[0, 3\)"):
        Graph.from_edge_index([[0, 1], [1, 0]], 3, splits=wrong)


def test_splits_are_looked_at_again_where_the_nodes_become_fewer():
    graph = Graph(csc=Csc(INDPTR, INDICES, 3), splits={"train": torch.tensor([2])})
    with pytest.raises(DataError, match=r"split 'train' must be node ids in \[0, 2\)"):
        graph.replace(csc=Csc(torch.tensor([0, 1, 2]), INDICES[:2], 2))


def test_edge_ids_below_minus_one_are_refused():
    with pytest.raises(DataError, match=r"edge_id\[1\] is -2"):
        Graph(csc=Csc(INDPTR, INDICES, 3), edge_id=torch.tensor([0, -2, 1]))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"csc": None}, "csc must be a graphbraid.Csc; got None"),
        ({"x": [[1.0]]}, "x must be a torch.Tensor; got [[1.0]]"),
        ({"y": "labels"}, "y must be a torch.Tensor; got 'labels'"),
        ({"splits": [1]}, "splits must be a mapping"),
        ({"splits": {"train": [0]}}, "split 'train' must be a torch.Tensor; got [0]"),
        ({"splits": {0: torch.tensor([0])}}, "a split's name must be a string; got 0"),
        ({"name": 3}, "name must be a string; got 3"),
    ],
)
def test_fields_of_another_type_are_refused(fields, message):
    with pytest.raises(DataError) as error:
        Graph(**{"csc": Csc(INDPTR, INDICES, 3), **fields})
    assert message in str(error.value)


def test_a_graph_without_edges_or_nodes_can_be_made_and_edited():
    for num_nodes in (0, 1, 4):
        graph = Graph.from_edge_index(torch.empty(2, 0, dtype=torch.int64), num_nodes)
        edited = graph.symmetrized().without_duplicates().without_self_loops().validate()
        assert (edited.num_nodes, edited.num_edges) == (num_nodes, 0)
        assert graph.with_self_loops().num_edges == num_nodes
        assert graph.csc.transpose()[0].num_edges == 0
