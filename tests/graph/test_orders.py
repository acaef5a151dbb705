"""Orders of nodes: permutations, the same as their twins', and what is no permutation is refused by place."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.graph.cases import edge_lists, reference_kernels
from tests.kernels import needs_kernels
from tests.ops.graphs import assert_same_bits_with_any_threads, square
from tests.suites import examples

from graphbraid.errors import DataError
from graphbraid.graph import orders_reference
from graphbraid.graph.csc import Csc, coo_to_csc
from graphbraid.graph.orders import ORDERS, community_order, degree_order, inverse_of, order_by, rcm_order


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
