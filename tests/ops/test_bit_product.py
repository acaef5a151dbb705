"""bit_product, bit_gram: variants against dense products in double, any shape, any threads, bad arguments."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.ops.bits import packed, zeros_and_ones
from tests.ops.graphs import assert_same_bits_with_any_threads, close, values
from tests.ops.test_epilogue import EPILOGUES, epilogue_for, in_turn

from graphbraid.ops import reference
from graphbraid.ops.binary import bit_gram, bit_product

# Around a word, the rows that share tables, the share of a gram, and the panel of columns.
ROWS = (1, 31, 33, 511, 513, 1100)
DEPTHS = (1, 4, 31, 32, 33, 100, 1030)
WIDTHS = (1, 7, 8, 15, 16, 17, 31, 32, 33, 47, 64, 100)
PROPERTY = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("depth", DEPTHS)
def test_product_equals_a_dense_one(compiled, depth, width):
    for rows in ROWS:
        x, weight = zeros_and_ones(rows, depth), values(width, depth, seed=2)
        factors = values(rows, seed=3) if rows % 2 else None
        scaled = x.double() if factors is None else x.double() * factors.double()[:, None]
        expected, bits = scaled @ weight.double().t(), packed(x)
        for b in (weight.t(), weight.t().contiguous()):
            out = torch.full((rows, width), torch.nan)
            compiled.bit_product(bits, factors, b, out, False)
            close(out, expected.float(), terms=depth * 40)
            compiled.bit_product(bits, factors, b, out, True)
            close(out, (2 * expected).float(), terms=depth * 40)


@pytest.mark.parametrize("rows", [0, 1, 32, 33, 2050, 9000])
def test_gram_equals_a_dense_one(compiled, rows):
    for height, width in ((1, 1), (13, 33), (16, 14), (47, 15), (32, 520), (64, 100), (100, 31)):
        a, x = values(rows, height), zeros_and_ones(rows, width)
        factors = values(rows, seed=3) if width % 2 else None
        scaled = x.double() if factors is None else x.double() * factors.double()[:, None]
        out = torch.full((height, width), torch.nan)
        compiled.bit_gram(a, packed(x.t()), factors, out)
        close(out, (a.double().t() @ scaled).float(), terms=max(rows, 1) * 40)


@PROPERTY
@given(
    shape=st.tuples(st.integers(0, 70), st.integers(0, 70), st.integers(1, 70)),
    pad=st.integers(0, 3),
    density=st.sampled_from([0.0, 0.3, 1.0]),
    has_factors=st.booleans(),
)
def test_rows_that_stand_apart_and_the_twins(compiled, shape, pad, density, has_factors):
    rows, depth, width = shape
    x = zeros_and_ones(rows, depth, density=density)
    factors = values(rows, seed=5) if has_factors else None
    b = values(depth, width + pad, seed=2)[:, :width]
    around = torch.full((rows, width + 2 * pad), 7.0)
    out = bit_product(packed(x), b, out=around[:, pad : pad + width], factors=factors)
    twin = torch.empty(rows, width)
    reference.bit_product(packed(x), factors, b, twin)
    close(out, twin, terms=400)
    assert (around[:, :pad] == 7).all()
    assert (around[:, pad + width :] == 7).all()
    grad = values(rows, width + pad, seed=3)[:, :width]
    by_column = packed(x.t())
    found, expected = torch.empty(width, depth), torch.empty(width, depth)
    bit_gram(grad, by_column, out=found, factors=factors)
    reference.bit_gram(grad, by_column, factors, expected)
    close(found, expected, terms=400)


@PROPERTY
@given(rows=st.integers(1, 1100), width=st.integers(1, 70), how=EPILOGUES)
def test_with_an_epilogue_equals_both_in_turn(compiled, rows, width, how):
    bits, b = packed(zeros_and_ones(rows, 40)), values(40, width, seed=2)
    after = epilogue_for(rows, width, torch.float32, **how)
    joined, apart, twin = (torch.full((rows, width), torch.nan) for _ in range(3))
    compiled.bit_product(bits, None, b, joined, False, after)
    compiled.bit_product(bits, None, b, apart, False)
    in_turn(compiled, apart, after)
    assert torch.equal(joined, apart)
    reference.bit_product(bits, None, b, twin, False, after)
    close(joined, twin, terms=400)


def test_what_is_not_finite_reaches_only_the_sums_that_take_it(compiled):
    x, b = zeros_and_ones(600, 70), values(70, 33, seed=2)
    b[37, 3] = torch.nan
    out = bit_product(packed(x), b, out=torch.empty(600, 33))
    assert torch.equal(out[:, 3].isnan(), x[:, 37] != 0)
    assert not out[:, :3].isnan().any()
    a = values(600, 33)
    a[41] = torch.inf
    found = bit_gram(a, packed(x.t()), out=torch.empty(33, 70))
    assert torch.equal(found.isinf().any(0), x[41] != 0)


def test_bits_do_not_depend_on_threads(compiled):
    x, weight, grad = zeros_and_ones(3000, 600), values(40, 600, seed=2), values(3000, 40, seed=3)
    by_row, by_column = packed(x), packed(x.t())
    assert_same_bits_with_any_threads(
        lambda: [
            bit_product(by_row, weight.t(), out=torch.empty(3000, 40)),
            bit_gram(grad, by_column, out=torch.empty(40, 600)),
        ]
    )
