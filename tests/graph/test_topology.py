"""coo_to_csc, transpose and the scans: against brute force, the reference twins and other thread counts."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.extras import NO_KERNELS
from tests.graph.cases import reference_kernels
from tests.graph.edge_cases import EDGE_CASES, random_edges
from tests.ops.graphs import threads

from graphbraid import native
from graphbraid.errors import DataError
from graphbraid.graph.csc import Csc, KeyLookup, coo_to_csc, first_out_of_order, index_dtype, transpose_of
from graphbraid.graph.scans import check_csc, check_ids, first_out_of_range


def brute_force(src, dst, num_dst):
    """indptr, sources and positions of the edges ordered by (destination, source, position)."""
    order = sorted(range(len(src)), key=lambda e: (dst[e], src[e], e))
    indptr = [sum(d < v for d in dst) for v in range(num_dst + 1)]
    return indptr, [src[e] for e in order], order


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("case", EDGE_CASES)
def test_coo_to_csc_orders_by_destination_source_and_position(case, dtype):
    num_nodes, src, dst = EDGE_CASES[case]
    csc, perm = coo_to_csc(
        torch.tensor(src, dtype=dtype), torch.tensor(dst, dtype=dtype), num_nodes, num_nodes
    )
    indptr, indices, order = brute_force(src, dst, num_nodes)
    assert csc.indptr.tolist() == indptr
    assert csc.indices.tolist() == indices
    assert csc.indices.dtype == torch.int32
    if perm is None:  # only where the list was in order
        perm = torch.arange(len(src))
    assert perm.tolist() == order


@pytest.mark.parametrize("keep_perm", [True, False])
@pytest.mark.parametrize(("num_src", "num_dst"), [(300, 300), (1000, 40), (40, 1000), (1, 500), (500, 1)])
def test_coo_to_csc_equals_reference(num_src, num_dst, keep_perm):
    edges = random_edges(max(num_src, num_dst), 5000)
    src, dst = edges[0] % num_src, edges[1] % num_dst
    csc, perm = coo_to_csc(src, dst, num_src, num_dst, keep_perm=keep_perm)
    with reference_kernels():
        expected, expected_perm = coo_to_csc(src, dst, num_src, num_dst, keep_perm=keep_perm)
    assert torch.equal(csc.indptr, expected.indptr)
    assert torch.equal(csc.indices, expected.indices)
    assert (perm is None) == (expected_perm is None)
    assert perm is None or torch.equal(perm, expected_perm)


@pytest.mark.parametrize("order", ["any", "by source", "by destination and source"])
def test_coo_to_csc_takes_each_order_of_the_list(order):
    # Lists in order of source skip a pass and lists in full order skip both: each must give the same result.
    src, dst = random_edges(200, 20_000)
    if order != "any":
        first = torch.argsort(src, stable=True)
        src, dst = src[first], dst[first]
    if order == "by destination and source":
        second = torch.argsort(dst, stable=True)
        src, dst = src[second], dst[second]
    csc, perm = coo_to_csc(src, dst, 200, 200)
    assert (perm is None) == (order == "by destination and source")
    perm = torch.arange(src.numel()) if perm is None else perm
    assert torch.equal(src[perm], csc.indices.long())
    assert torch.equal(dst[perm], csc.destinations().long())
    assert first_out_of_order(csc.indices, csc.destinations()) == -1
    same_edge = (csc.indices[1:] == csc.indices[:-1]) & (csc.destinations()[1:] == csc.destinations()[:-1])
    assert bool((perm[1:] > perm[:-1])[same_edge].all())


@pytest.mark.slow
def test_results_do_not_depend_on_threads():
    src, dst = random_edges(3000, 2_000_000)  # enough edges for seven chunks
    results = []
    for count in (1, 2, 3, 7):
        with threads(count):
            csc, perm = coo_to_csc(src, dst, 3000, 3000)
            results.append((csc.indptr, csc.indices, perm, *transpose_of(csc), csc.destinations()))
    for alone, *together in zip(*results, strict=True):
        assert all(torch.equal(alone, other) for other in together)


@pytest.mark.parametrize("node_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("sort_by_source", [True, False])
@pytest.mark.parametrize("keep_perm", [True, False])
def test_wide_counters_give_the_same(keep_perm, sort_by_source, node_dtype):
    # 2^32 edges do not fit a test; the kernels that count in 64 bits are asked for by name.
    kernels = native.kernels()
    if kernels is None:
        pytest.skip(NO_KERNELS)
    src, dst = random_edges(500, 40_000)
    if sort_by_source:
        src = src.sort().values
    results = []
    for wide in (False, True):
        indptr = torch.empty(501, dtype=torch.int64)
        indices = torch.empty(40_000, dtype=node_dtype)
        perm = torch.empty(40_000, dtype=torch.int64) if keep_perm else None
        kernels.coo_to_csc(src, dst, 500, indptr, indices, perm, wide)
        back = torch.empty(501, dtype=torch.int64), torch.empty_like(indices)
        back_perm = torch.empty(40_000, dtype=torch.int64) if keep_perm else None
        kernels.transpose_csc(indptr, indices, *back, back_perm, wide)
        results.append([indptr, indices, *back] + ([perm, back_perm] if keep_perm else []))
    for narrow, wide_result in zip(*results, strict=True):
        assert torch.equal(narrow, wide_result)
    assert torch.equal(results[0][1].sort().values, src.sort().values.to(node_dtype))


@pytest.mark.parametrize("case", EDGE_CASES)
def test_transpose_equals_reference_on_edge_cases(case):
    num_nodes, src, dst = EDGE_CASES[case]
    csc, _ = coo_to_csc(
        torch.tensor(src, dtype=torch.int64), torch.tensor(dst, dtype=torch.int64), num_nodes, num_nodes
    )
    indptr, destinations, perm = transpose_of(csc)
    with reference_kernels():
        expected = transpose_of(csc)
    for got, want in zip((indptr, destinations, perm), expected, strict=True):
        assert torch.equal(got, want)


@pytest.mark.parametrize(("num_src", "num_dst"), [(700, 90), (90, 700), (1, 10), (10, 1)])
def test_transpose_of_a_block_reverses_each_edge(num_src, num_dst):
    edges = random_edges(max(num_src, num_dst), 3000)
    csc, _ = coo_to_csc(edges[0] % num_src, edges[1] % num_dst, num_src, num_dst)
    csc.weight = torch.rand(3000)
    back, perm = csc.transpose()
    assert (back.num_dst, back.num_src) == (num_src, num_dst)
    assert torch.equal(csc.indices[perm], back.destinations())
    assert torch.equal(csc.destinations()[perm], back.indices)
    assert torch.equal(csc.weight[perm], back.weight)
    assert first_out_of_order(back.indices, back.destinations()) == -1
    assert csc.transpose()[0] is back  # made once


@pytest.mark.parametrize(
    ("keep_perm", "narrow", "dtype"), [(True, True, torch.int32), (True, False, torch.int64)]
)
@pytest.mark.parametrize("reference", [False, True])
def test_transpose_gives_the_permutation_asked_for(keep_perm, narrow, dtype, reference):
    src, dst = random_edges(50, 300)
    csc, _ = coo_to_csc(src, dst, 50, 50)
    if reference:
        with reference_kernels():
            perm = transpose_of(csc, narrow_perm=narrow)[2]
            none = transpose_of(csc, keep_perm=False)[2]
    else:
        perm, none = transpose_of(csc, narrow_perm=narrow)[2], transpose_of(csc, keep_perm=False)[2]
    assert perm.dtype == dtype
    assert sorted(perm.tolist()) == list(range(300))
    assert none is None


@pytest.mark.parametrize("reference", [False, True])
def test_sort_rows_moves_weights_with_their_edges(reference):
    csc = Csc(
        torch.tensor([0, 3, 3, 5]), torch.tensor([2, 0, 1, 2, 2], dtype=torch.int32), 3, torch.arange(5.0)
    )
    if reference:
        with reference_kernels():
            ordered, perm = csc.sort_rows()
    else:
        ordered, perm = csc.sort_rows()
    assert ordered.indices.tolist() == [0, 1, 2, 2, 2]
    assert ordered.weight.tolist() == [1, 2, 0, 3, 4]
    assert perm.tolist() == [1, 2, 0, 3, 4]
    assert ordered.sort_rows() == (ordered, None)


@pytest.mark.parametrize("reference", [False, True])
@pytest.mark.parametrize("bad", [-1, 100, 2**31 - 1])
def test_first_out_of_range_finds_the_first(bad, reference):
    for dtype in (torch.int32, torch.int64):
        ids = torch.randint(100, (200_000,)).to(dtype)
        ids[[150_001, 70_003, 199_999]] = bad
        if reference:
            with reference_kernels():
                assert first_out_of_range(ids, 100) == 70_003
        else:
            assert first_out_of_range(ids, 100) == 70_003
        assert first_out_of_range(ids[:70_003], 100) == -1


def test_first_out_of_order_finds_the_first():
    src, dst = torch.tensor([0, 1, 0, 5, 4, 0]), torch.tensor([0, 0, 1, 1, 1, 0])
    assert first_out_of_order(src, dst) == 4
    with reference_kernels():
        assert first_out_of_order(src, dst) == 4
    for empty in (torch.empty(0, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)):
        assert first_out_of_order(empty, empty) == -1
        assert first_out_of_range(empty, 1) == -1
        with reference_kernels():
            assert first_out_of_order(empty, empty) == -1
            assert first_out_of_range(empty, 1) == -1


def test_ids_beyond_int32_are_found_not_wrapped():
    # 2^32 + 1 is 1 when cut to 32 bits.
    with pytest.raises(DataError, match=r"sources must be node ids in \[0, 5\); position 1 holds 4294967297"):
        coo_to_csc(torch.tensor([0, 2**32 + 1]), torch.tensor([0, 0]), 5, 5)


@pytest.mark.parametrize(
    ("src", "dst", "message"),
    [
        ([0, 1], [0, -1], "destinations must be node ids in [0, 5); position 1 holds -1"),
        ([0, 1], [0], "one dtype and length; got torch.int64 of 2 and torch.int64 of 1"),
        ([0.5], [1.0], "sources must be a 1-d int32 or int64 tensor; got torch.float32"),
        ([[0]], [[0]], "of shape (1, 1)"),
    ],
)
def test_coo_to_csc_names_what_is_wrong(src, dst, message):
    with pytest.raises(DataError) as error:
        coo_to_csc(torch.tensor(src), torch.tensor(dst), 5, 5)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("indptr", "indices", "num_src", "message"),
    [
        (
            torch.zeros(2, dtype=torch.int32),
            torch.empty(0, dtype=torch.int32),
            1,
            "int64 tensor; got torch.int32",
        ),
        (torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int32), 1, "non-empty"),
        (torch.zeros(2, 2, dtype=torch.int64), torch.empty(0, dtype=torch.int32), 1, "shape (2, 2)"),
        (torch.zeros(2, dtype=torch.int64), torch.empty(0), 1, "int32 or int64; got torch.float32"),
        (torch.tensor([1, 2]), torch.zeros(2, dtype=torch.int32), 1, "it runs from 1 to 2"),
        (torch.tensor([0, 0]), torch.empty(0, dtype=torch.int32), -1, "num_src must not be negative; got -1"),
    ],
)
def test_check_csc_names_what_is_wrong(indptr, indices, num_src, message):
    with pytest.raises(DataError) as error:
        check_csc(indptr, indices, num_src=num_src)
    assert message in str(error.value)


def test_a_negative_number_of_nodes_is_refused():
    none = torch.empty(0, dtype=torch.int64)
    with pytest.raises(DataError, match=r"number of destinations must be a whole number in .*; got -1"):
        coo_to_csc(none, none, 3, -1)


def test_ids_are_int32_while_every_id_fits():
    assert index_dtype(2**31 - 1) == torch.int32
    assert index_dtype(2**31) == torch.int64


def test_check_ids_takes_good_ids():
    check_ids(torch.tensor([0, 4, 4], dtype=torch.int32), 5, "ids")
    check_ids(torch.empty(0, dtype=torch.int64), 0, "ids")


def test_bytes_and_degrees():
    csc = Csc(torch.tensor([0, 2, 2]), torch.tensor([0, 1], dtype=torch.int32), 2, torch.ones(2))
    assert csc.nbytes == 3 * 8 + 2 * 4 + 2 * 4
    assert csc.degrees().tolist() == [2, 0]
    assert (csc.num_dst, csc.num_edges) == (2, 2)


# ---- keyLookup: each pair of a wanted key and an equal one of the list, once, in order


KEYS = st.lists(st.integers(-3, 5), max_size=12)


@given(KEYS, KEYS)
def test_places_are_all_pairs_of_equal_keys(keys, wanted):
    lookup = KeyLookup(torch.tensor(keys, dtype=torch.int64))
    row, place = lookup.places(torch.tensor(wanted, dtype=torch.int64))
    expected = [(i, j) for i, one in enumerate(wanted) for j, other in enumerate(keys) if one == other]
    assert list(zip(row.tolist(), place.tolist(), strict=True)) == expected
