"""Rows spread to their places, beside the twin and PyTorch's own way."""

import pytest
import torch
from tests.kernels import needs_kernels
from tests.ops.graphs import assert_same_bits_with_any_threads, values

from graphbraid.ops import reference
from graphbraid.ops.gather import add_rows, places_of, put_rows, spread_rows, take_rows


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
