"""Rows gathered and spread: against indexing, twins, the rows that tiers were cut from, and PyTorch."""

import pytest
import torch
from hypothesis import given, settings
from tests.kernels import needs_kernels
from tests.ops.graphs import assert_same_bits_with_any_threads, values
from tests.ops.tiers import tier_tables

from graphbraid.errors import DataError
from graphbraid.ops import gather_rows, reference
from graphbraid.ops.gather import (
    Tier,
    TierTable,
    add_rows,
    copy_rows,
    gather_tiered,
    places_of,
    put_rows,
    spread_rows,
    take_rows,
)
from graphbraid.ops.kernels import backend
from graphbraid.ops.rng import keep_mask

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.uint8]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "width", [1, 3, 16, 31, 32, 100, 128, 257]
)  # 32 and 128 floats take streaming stores
def test_rows_are_those_of_indexing(dtype, width):
    x = torch.randint(0, 200, (500, width)).to(dtype)
    ids = torch.randint(0, 500, (1300,))
    assert torch.equal(gather_rows(x, ids), x[ids])


@pytest.mark.parametrize(("rows", "count"), [(0, 0), (5, 0), (1, 1), (1, 900), (3, 2)])
def test_few_rows_and_few_ids(rows, count):
    x = torch.randn(rows, 40)
    ids = torch.randint(0, max(rows, 1), (count,))
    assert torch.equal(gather_rows(x, ids), x[ids])


def test_a_view_and_a_parameter_are_read_as_they_are():
    x = torch.randn(50, 20)
    ids = torch.arange(49, -1, -2)
    assert torch.equal(gather_rows(x[:, 5:9], ids), x[ids, 5:9])
    assert torch.equal(gather_rows(torch.nn.Parameter(x), ids), x[ids])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("width", [1, 3, 16, 31, 100])
def test_short_rows_are_widened(dtype, width):
    x = torch.randn(500, width).to(dtype)
    x[0, 0], x[1, -1], x[2, 0] = float("inf"), 1e-7, -0.0  # and a subnormal number of float16
    ids = torch.cat([torch.randint(0, 500, (1300,)), torch.arange(3)])
    assert torch.equal(gather_rows(x, ids, dtype=torch.float32), x[ids].float())
    assert gather_rows(x, ids, dtype=dtype).dtype == dtype


@pytest.mark.parametrize("width", [1, 31, 100])
def test_rows_of_int8_are_multiples_of_their_scale(width):
    x, scale = torch.randint(-128, 128, (500, width)).to(torch.int8), torch.rand(500)
    ids = torch.randint(0, 500, (1300,))
    assert torch.equal(gather_rows(x, ids, scale=scale), x[ids] * scale[ids, None])
    assert gather_rows(x, ids[:0], scale=scale).shape == (0, width)


def test_conversions_that_there_are_not_are_refused():
    ids, x = torch.tensor([0]), torch.ones(2, 3)
    for rows, options, message in (
        (x, {"dtype": torch.float16}, "float32 are given as .* asked for was torch.float16"),
        (x.double(), {"dtype": torch.float32}, "float64 are given as .* asked for was torch.float32"),
        (x.to(torch.int8), {"dtype": torch.float32}, "int8 are given as .* asked for was torch.float32"),
        (x, {"scale": torch.ones(2)}, "float32 with scales are .* scales are for int8"),
        (x.half(), {"scale": torch.ones(2)}, "float16 with scales are .* scales are for int8"),
        (x.to(torch.int8), {"scale": torch.ones(2), "dtype": torch.float16}, "asked for was torch.float16"),
        (x.to(torch.int8), {"scale": torch.ones(3)}, r"one for each of 2 rows; got .* \(3,\)"),
    ):
        with pytest.raises(DataError, match=message):
            gather_rows(rows, ids, **options)


@pytest.mark.parametrize(
    ("x", "ids", "message"),
    [
        (torch.ones(3, 2), torch.tensor([0], dtype=torch.int32), "int64 ids"),
        (torch.ones(3, 2), torch.tensor([0, 3]), r"in \[0, 3\); ids\[1\] is 3"),
        (torch.ones(3, 2), torch.tensor([0, 1, -1]), r"ids\[2\] is -1"),
        (torch.ones(3, 2), torch.tensor([2**62]), r"ids\[0\] is 4611686018427387904"),
    ],
)
def test_what_does_not_fit_is_named(x, ids, message):
    with pytest.raises(DataError, match=message):
        gather_rows(x, ids)


# ---- gather_tiered and its twin against indexing the rows that the tiers were cut from; what does not fit


X = torch.arange(12.0).view(6, 2)


@settings(max_examples=150)
@given(case=tier_tables())
def test_rows_are_those_that_the_tiers_were_cut_from(case):
    table, rows, ids = case
    assert table.num_rows == len(rows)
    found = gather_tiered(table, ids)
    assert (found.dtype, found.shape) == (rows.dtype, (len(ids), rows.shape[1]))
    assert torch.equal(found, rows[ids])
    if rows.dtype in (torch.float16, torch.bfloat16):
        assert torch.equal(gather_tiered(table, ids, dtype=torch.float32), rows[ids].float())


def test_a_row_of_a_tier_is_in_the_part_that_its_offset_names():
    table = TierTable([Tier((X[:1],)), Tier((X[[1, 3, 5]], X[[2, 4]]))])
    assert table.bounds == (1, 6)
    assert torch.equal(gather_tiered(table, torch.arange(6)), X)


@pytest.mark.parametrize(
    ("tiers", "positions", "message"),
    [
        ([], None, "at least one tier"),
        ([Tier((X, X[0]))], None, "must be 2-d"),
        ([Tier((X,)), Tier((X.half(),))], None, r"of one dtype, torch\.float32"),
        ([Tier((X[:, :1],))], None, "with gaps"),
        ([Tier((X,)), Tier((X[:, :1].contiguous(),))], None, "of one width; got 2 and 1"),
        ([Tier((X[:1], X[:3]))], None, r"make parts of \[2, 2\] rows; got \[1, 3\]"),
        ([Tier((X,))], torch.arange(7), r"in \[0, 6\); positions\[6\] is 6"),
        ([Tier((X,))], torch.arange(6.0), "int32 or int64"),
        ([Tier((X,), (torch.ones(6),))], None, "belong to rows of int8"),
        ([Tier((X,), (torch.ones(5),))], None, "a scale for each of its rows"),
        ([Tier((X.to(torch.int8),), (torch.ones(6).double(),))], None, "contiguous float32"),
    ],
)
def test_tables_that_do_not_fit_are_refused(tiers, positions, message):
    with pytest.raises(DataError, match=message):
        TierTable(tiers, positions)


@pytest.mark.parametrize(
    ("ids", "dtype", "message"),
    [
        (torch.tensor([6]), None, r"in \[0, 6\); ids\[0\] is 6"),
        (torch.tensor([0, -1]), None, r"ids\[1\] is -1"),
        (torch.tensor([0], dtype=torch.int32), None, "ids must be int64 on cpu"),
        (torch.tensor([0]), torch.float16, "asked for was torch.float16"),
    ],
)
def test_ids_and_dtypes_that_do_not_fit_are_refused(ids, dtype, message):
    with pytest.raises(DataError, match=message):
        gather_tiered(TierTable([Tier((X,))]), ids, dtype=dtype)


def test_numbers_without_a_scale_stay_what_they_are():
    table = TierTable([Tier((X.to(torch.int8),))])
    assert gather_tiered(table, torch.tensor([5])).tolist() == [[10, 11]]
    with pytest.raises(DataError, match=r"asked for was torch\.float32"):
        gather_tiered(table, torch.tensor([5]), dtype=torch.float32)


# ---- rows to their places


@pytest.mark.parametrize("count", [0, 1, 50, 70_000])  # the last is worth two threads
@pytest.mark.parametrize("width", [1, 5, 16, 40])
def test_copied_rows_are_the_same_numbers(count, width):
    x = values(count, width + 2)
    wide = x.double()[:, :width]
    cases = (
        x[:, :width],
        x[:, :width].contiguous().requires_grad_(),
        wide,
        wide.t().contiguous().t(),
        x[:, :1].expand(-1, width),
    )
    for rows in cases:
        for dtype in (torch.float32, torch.float64):
            out = torch.full((count, width), torch.nan, dtype=dtype)
            assert copy_rows(rows, out) is out
            assert torch.equal(out, rows.to(dtype))


@pytest.mark.parametrize("num_out", [0, 1, 7, 20_000])  # the last is worth two threads
@pytest.mark.parametrize("width", [0, 1, 5, 32])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_spread_rows_equals_its_twin_and_index_copy(num_out, width, share):
    ids = torch.randperm(num_out, generator=torch.Generator().manual_seed(0))[: int(share * num_out)]
    rows = values(ids.numel(), width)
    out, twin = torch.full((2, num_out, width), torch.nan)
    spread_rows(rows, places_of(ids, num_out), out)
    reference.spread_rows(rows, places_of(ids, num_out), twin)
    expected = torch.zeros(num_out, width).index_copy_(0, ids, rows)
    assert torch.equal(out, expected)
    assert torch.equal(twin, expected)


def test_rows_of_any_strides_are_spread():
    ids = torch.tensor([4, 0, 2])
    rows, out = values(5, 3).t()[:, :3], torch.full((6, 3), torch.nan)
    spread_rows(rows, places_of(ids, 6), out)
    assert torch.equal(out, torch.zeros(6, 3).index_copy_(0, ids, rows))


def test_bits_do_not_depend_on_the_number_of_threads():
    ids, rows = torch.randperm(30_000)[:9_000], values(9_000, 16)

    def run():
        out = torch.full((30_000, 16), torch.nan)
        spread_rows(rows, places_of(ids, 30_000), out)
        return [out]

    assert_same_bits_with_any_threads(run)


@needs_kernels
def test_a_place_that_names_no_row_is_refused():
    with pytest.raises(ValueError, match="must name rows"):
        spread_rows(torch.zeros(2, 3), torch.tensor([0, 2], dtype=torch.int32), torch.zeros(2, 3))


def stored_values(num_rows, degree):
    """CSR rows, their values, an order of these, and memory for both orders."""
    draw = torch.Generator().manual_seed(0)
    count = num_rows * degree
    indptr, columns = torch.arange(0, count + 1, degree), torch.randint(0, 90, (count,), generator=draw)
    return indptr, columns, values(count, 1).flatten(), torch.randperm(count, generator=draw)


@pytest.mark.parametrize("nodes", [None, 1 << 40])
@pytest.mark.parametrize("num_rows", [1, 7, 20_000])  # the last is worth two threads
def test_values_dropped_are_those_of_their_cells(num_rows, nodes):
    indptr, columns, given, places = stored_values(num_rows, 5)
    ids = None if nodes is None else torch.arange(num_rows) * 3 + nodes
    results = torch.full((2, 2, len(given)), torch.nan)
    for kernels, out in zip((backend(given), reference), results, strict=True):
        kernels.drop_values(indptr, columns, given, places, 0.3, 5, *out, ids)
    by_row, by_column = results[0]
    assert torch.equal(results[0], results[1])
    assert torch.equal(by_column[places], by_row)
    rows = torch.arange(num_rows) if ids is None else ids
    kept = keep_mask(rows, 90, 0.3, 5).repeat_interleave(5, 0).gather(1, columns[:, None]).squeeze(1)
    assert torch.equal(by_row != 0, kept & (given != 0))
    torch.testing.assert_close(by_row[kept], given[kept] / 0.7)

    def run():
        out = torch.full((2, len(given)), torch.nan)
        backend(given).drop_values(indptr, columns, given, places, 0.3, 5, *out, ids)
        return [out]

    assert_same_bits_with_any_threads(run)


@needs_kernels
def test_values_that_cannot_be_dropped_are_refused():
    indptr, columns, given, places = stored_values(2, 5)
    out = torch.empty(2, 10)
    with pytest.raises(ValueError, match="places must name values"):
        backend(given).drop_values(indptr, columns, given, places + 1, 0.3, 5, *out)
    with pytest.raises(ValueError, match="below 1"):
        backend(given).drop_values(indptr, columns, given, places, 1.0, 5, *out)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(("count", "width"), [(0, 4), (7, 1), (900, 5), (9_000, 64)])  # the last: two threads
def test_rows_are_added_in_order_by_any_number_of_threads(count, width, dtype):
    ids = torch.randint(0, 40, (count,), generator=torch.Generator().manual_seed(1)).to(dtype)
    rows, before = values(count, width), values(40, width)
    twin = before.clone()
    reference.add_rows(rows, ids, twin)

    def run():
        out = before.clone()
        add_rows(rows, ids, out)
        return [out]

    assert_same_bits_with_any_threads(run)
    assert torch.equal(run()[0], twin)


@needs_kernels
@pytest.mark.parametrize("ids", [[0, 3], [-1, 0]])
def test_rows_are_added_only_to_rows_that_are_there(ids):
    with pytest.raises(ValueError, match="ids must name rows"):
        add_rows(torch.zeros(2, 3), torch.tensor(ids), torch.zeros(3, 3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize(("count", "width"), [(0, 3), (7, 1), (7, 0), (900, 5), (3_000, 64)])
def test_rows_are_taken_from_several_tables_and_put_back(count, width, dtype):
    draw = torch.Generator().manual_seed(0)
    tables = [values(num_rows, width).mul(40).to(dtype) for num_rows in (50, 1, 200)]
    chosen = torch.randint(3, (count,), generator=draw)
    found, twin = torch.zeros(2, count, width, dtype=dtype)
    for number, table in enumerate(tables):
        slots = torch.randint(len(table), (count,), generator=draw).int().where(chosen == number, -1)
        take_rows(table, slots, found)
        if width:
            reference.take_rows(table.view(torch.uint8), slots, twin.view(torch.uint8))
        assert torch.equal(found[chosen == number], table[slots[chosen == number].long()])
        kept, of_twin = table.clone(), table.clone()
        put_rows(found, slots, kept)  # a slot that is there twice has the last row
        if width:
            reference.put_rows(found.view(torch.uint8), slots, of_twin.view(torch.uint8))
        assert torch.equal(kept, of_twin)
    assert torch.equal(found, twin)


@needs_kernels
def test_slots_beyond_the_table_are_refused():
    slots = torch.tensor([0, 2], dtype=torch.int32)
    with pytest.raises(ValueError, match="slots must name rows"):
        take_rows(torch.zeros(2, 3), slots, torch.zeros(2, 3))
    with pytest.raises(ValueError, match="slots must name rows"):
        put_rows(torch.zeros(2, 3), slots, torch.zeros(2, 3))
