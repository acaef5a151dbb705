"""Gathering rows in Triton against indexing."""

import pytest
import torch


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
