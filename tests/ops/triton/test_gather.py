"""Gathering rows in Triton against indexing, from tiers against the twin."""

import importlib

import pytest
import torch
from hypothesis import given, settings
from tests.ops.tiers import tier_tables

from graphbraid.ops import reference
from graphbraid.ops.gather import Tier, TierTable, gather_tiered


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.uint8], ids=str)
@pytest.mark.parametrize("width", [1, 3, 16, 100, 257])
def test_rows_are_those_of_indexing(kernels, dtype, width):
    x = torch.randint(0, 200, (50, width)).to(dtype)
    ids = torch.randint(0, 50, (130,))
    out = x.new_empty(130, width)
    kernels.gather_rows(x.view(torch.uint8), ids, out.view(torch.uint8))
    assert torch.equal(out, x[ids])


def test_a_table_may_start_anywhere(kernels):
    table = torch.arange(85, dtype=torch.uint8)[5:].view(10, 8)  # rows of 8 bytes, not where 8 bytes begin
    out = torch.empty(3, 8, dtype=torch.uint8)
    kernels.gather_rows(table, torch.tensor([9, 0, 9]), out)
    assert torch.equal(out, table[[9, 0, 9]])


# ---- gathering rows from tiers in Triton against the twin


def on_device(table, device):
    tiers = [
        Tier(tuple(part.to(device) for part in tier.parts), tuple(scale.to(device) for scale in tier.scales))
        for tier in table.tiers
    ]
    return TierTable(tiers, table.positions, device=device)


def assert_as_the_twin(table, ids, dtype, device):
    kernels = importlib.import_module("graphbraid.ops.triton")
    expected = torch.empty(len(ids), table.width, dtype=dtype)
    reference.gather_tiered(table, ids, expected)
    out = torch.empty_like(expected, device=device)
    kernels.gather_tiered(on_device(table, device), ids.to(device), out)
    assert torch.equal(out.cpu(), expected)


def test_rows_are_those_of_the_twin(device):
    @settings(max_examples=60)
    @given(case=tier_tables())
    def check(case):
        table, _, ids = case
        assert_as_the_twin(table, ids, table.given_dtype, device)
        if table.dtype in (torch.float16, torch.bfloat16):
            assert_as_the_twin(table, ids, torch.float32, device)

    check()


@pytest.mark.parametrize("width", [1, 100, 257])
def test_rows_of_any_width(device, width):
    rows = torch.randn(300, width)
    table = TierTable(
        [Tier((rows[:50],)), Tier((rows[50:251:2].clone(), rows[51:251:2].clone())), Tier((rows[251:],))]
    )
    assert_as_the_twin(table, torch.randint(0, 300, (700,)), torch.float32, device)


@pytest.mark.gpu
@pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA device and its host's page-locked memory"
)
def test_the_device_reads_page_locked_rows_beside_its_own():
    rows = torch.randn(5000, 33)
    tiers = [Tier((rows[:700].cuda(),)), Tier((rows[700:].pin_memory(),))]
    ids = torch.randint(0, 5000, (9000,))
    assert torch.equal(gather_tiered(TierTable(tiers), ids.cuda()).cpu(), rows[ids])
