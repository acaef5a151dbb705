"""bit_product and bit_gram in Triton against their twins."""

import pytest
import torch
from tests.ops.bits import packed, zeros_and_ones
from tests.ops.graphs import close, values
from tests.ops.test_epilogue import epilogue_for

from graphbraid.ops import reference

SHAPES = [(70, 33, 17), (65, 100, 33), (1, 1, 1), (40, 32, 65), (130, 1, 7)]


@pytest.mark.parametrize("has_factors", [False, True])
@pytest.mark.parametrize(("rows", "depth", "width"), SHAPES)
def test_product_equals_its_twin(both, rows, depth, width, has_factors):
    bits, weight = packed(zeros_and_ones(rows, depth)), values(width, depth, seed=2)
    factors = values(rows, seed=3) if has_factors else None
    for b in (weight.t(), weight.t().contiguous()):
        close(*both("bit_product", [bits, factors, b], [torch.full((rows, width), torch.nan)])[0], terms=400)


@pytest.mark.parametrize("has_factors", [False, True])
@pytest.mark.parametrize(("rows", "width", "height"), [*SHAPES, (2100, 20, 9), (0, 3, 4)])
def test_gram_equals_its_twin(both, rows, width, height, has_factors):
    a, bits = values(rows, height), packed(zeros_and_ones(rows, width).t())
    factors = values(rows, seed=3) if has_factors else None
    out = torch.full((height, width), torch.nan)
    close(*both("bit_gram", [a, bits, factors], [out])[0], terms=40 * max(rows, 1))


def test_adds_to_strided_rows_and_ends_in_an_epilogue(kernels):
    bits, b, after = (
        packed(zeros_and_ones(70, 40)),
        values(40, 20, seed=2),
        epilogue_for(70, 20, torch.float32),
    )
    found, expected = values(70, 30)[:, 5:25], values(70, 30)[:, 5:25].clone()
    kernels.bit_product(bits, None, b, found, True, after)
    reference.bit_product(bits, None, b, expected, True, after)
    close(found, expected, terms=400)


def test_no_rows_and_no_columns_write_nothing_and_no_depth_writes_zeros(both, kernels):
    around = torch.full((4, 5), 7.0)
    kernels.bit_product(torch.empty(1, 0, dtype=torch.int32), None, values(5, 3), around[2:2, 1:4])
    kernels.bit_gram(values(5, 0), torch.zeros(1, 4, dtype=torch.int32), None, around[2:2, :4])
    assert (around == 7).all()
    without_depth = [torch.empty(0, 6, dtype=torch.int32), None, values(0, 3)]
    ours, twins = both("bit_product", without_depth, [torch.full((6, 3), torch.nan)])[0]
    assert (ours == 0).all()
    assert torch.equal(ours, twins)


@pytest.mark.parametrize("strides", [(1 << 30, 1), (1, 1 << 30)])
def test_a_weight_of_more_than_two_to_the_31_elements_is_read_where_it_is(kernels, tmp_path, strides):
    """It lies in a file with holes, twice as long, so that an offset that wraps around finds a zero."""
    with (tmp_path / "b").open("wb") as file:
        file.truncate(4 * (4 * (1 << 30) + 4))
    whole = torch.from_file(str(tmp_path / "b"), shared=True, size=4 * (1 << 30) + 4)
    b, out = torch.as_strided(whole, (3, 3), strides, 1 << 31), torch.empty(1, 3)
    b[2, 2] = 7
    kernels.bit_product(packed(torch.ones(1, 3)), None, b, out)
    assert out.tolist() == [[0, 0, 7]]
