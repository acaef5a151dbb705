"""gather_tiered and its twin against indexing the rows that the tiers were cut from; what does not fit."""

import pytest
import torch
from hypothesis import given, settings
from tests.ops.tiers import tier_tables

from graphbraid.errors import DataError
from graphbraid.ops.gather import Tier, TierTable, gather_tiered

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
