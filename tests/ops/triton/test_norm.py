"""Layer and batch normalisation in Triton against their twins."""

import importlib

import pytest
import torch
from tests.ops.graphs import close, values

from graphbraid.ops import reference

CASES = [(width, torch.float32) for width in (33, 3, 1, 16, 100, 257)]
CASES += [(33, torch.bfloat16), (100, torch.float16)]
FACTORS = ((True, True), (True, False), (False, True), (False, False))  # weight, bias


def unwritten(*shapes, dtype=torch.float32):
    return [torch.full(shape, torch.nan, dtype=dtype) for shape in shapes]


def factors(width, which):
    return [values(width, seed=5 + i) if wanted else None for i, wanted in enumerate(which)]


@pytest.mark.parametrize(("width", "dtype"), CASES, ids=str)
def test_layer_norm_equals_its_twin(both, width, dtype):
    rows = 20
    x, grad = values(rows, width, dtype=dtype), values(rows, width, dtype=dtype, seed=2)
    for which in FACTORS if width == 33 else [FACTORS[width % 4]]:
        weight, bias = factors(width, which)
        outputs = unwritten((rows, width), dtype=dtype) + unwritten((rows,), (rows,))
        made = both("layer_norm", [x, weight, bias, 0.01], outputs)
        for pair in made:
            close(*pair)
        _, mean, rstd = (expected for _, expected in made)
        outputs = unwritten((rows, width), dtype=dtype) + unwritten((width,), (width,))
        for pair in both("layer_norm_backward", [grad, x, weight, mean, rstd], outputs):
            close(*pair, terms=2000)


@pytest.mark.parametrize(("width", "dtype"), CASES, ids=str)
def test_batch_norm_equals_its_twin(both, width, dtype):
    rows = 70
    x, grad = values(rows, width, dtype=dtype), values(rows, width, dtype=dtype, seed=2)
    moments = both("column_moments", [x], unwritten((width,), (width,)))
    for pair in moments:
        close(*pair)
    mean, rstd = moments[0][1], moments[1][1].add(0.01).rsqrt()
    for which in FACTORS if width == 33 else [FACTORS[width % 4]]:
        weight, bias = factors(width, which)
        made = both("batch_norm", [x, mean, rstd, weight, bias], unwritten((rows, width), dtype=dtype))
        close(*made[0])
        for from_rows in (True, False):
            outputs = unwritten((rows, width), dtype=dtype) + unwritten((width,), (width,))
            for pair in both("batch_norm_backward", [grad, x, mean, rstd, weight, from_rows], outputs):
                close(*pair, terms=400)


def test_rows_wider_than_a_tile_are_read_in_parts(both):
    x, grad = values(3, 2500), values(3, 2500, seed=2)
    made = both("layer_norm", [x, None, None, 0.01], unwritten((3, 2500), (3,), (3,)))
    for pair in made:
        close(*pair)
    outputs = unwritten((3, 2500), (2500,), (2500,))
    for pair in both("layer_norm_backward", [grad, x, None, made[1][1], made[2][1]], outputs):
        close(*pair, terms=400)


@pytest.mark.parametrize("parts", [4, 1024])
def test_variances_survive_large_means(kernels, monkeypatch, parts):
    """Also across many shares, whose means differ."""
    monkeypatch.setattr(importlib.import_module("graphbraid.ops.triton.epilogue"), "_PARTS", parts)
    x = values(1001, 3) + 1000
    x[500:] -= 3000
    exact = x.double()
    mean, var = unwritten((3,), (3,))
    kernels.column_moments(x, mean, var)
    torch.testing.assert_close(mean.double(), exact.mean(0), rtol=1e-6, atol=0)
    torch.testing.assert_close(var.double(), exact.var(0, correction=0), rtol=1e-6, atol=0)
    out, rows, rstd = unwritten((1001, 3), (1001,), (1001,))
    kernels.layer_norm(x, None, None, 1e-12, out, rows, rstd)
    torch.testing.assert_close(rows.double(), exact.mean(1), rtol=2e-7, atol=0)
    torch.testing.assert_close(rstd.double().pow(-2), exact.var(1, correction=0), rtol=1e-3, atol=1e-6)


def test_what_is_read_may_be_written_over_and_what_is_not_asked_for_is_not_written(kernels):
    x, grad, weight = values(30, 9), values(30, 9, seed=2), values(9, seed=3)
    mean, rstd = unwritten((30,), (30,))
    out, (again,) = x.clone(), unwritten((30, 9))
    kernels.layer_norm(out, weight, None, 0.01, out, None, None)
    kernels.layer_norm(x, weight, None, 0.01, again, mean, rstd)
    assert torch.equal(out, again)
    whole = unwritten((30, 9), (9,), (9,))
    kernels.layer_norm_backward(grad, x, weight, mean, rstd, *whole)
    over = grad.clone()
    sums = unwritten((9,), (9,))
    kernels.layer_norm_backward(over, x, weight, mean, rstd, over, *sums)
    for actual, expected in zip([over, *sums], whole, strict=True):
        assert torch.equal(actual, expected)
    (grad_x,) = unwritten((30, 9))
    kernels.layer_norm_backward(grad, x, weight, mean, rstd, grad_x, None, None)
    assert torch.equal(grad_x, whole[0])
    kernels.batch_norm_backward(grad, x, weight, weight.abs(), None, True, None, *sums)
    close(sums[1], grad.sum(0))


def test_no_rows_have_sums_of_zero(kernels):
    empty, numbers = torch.empty(0, 3), torch.empty(0)
    for module in (kernels, reference):
        moments, sums, batch_sums = (unwritten((3,), (3,)) for _ in range(3))
        module.layer_norm(empty, None, None, 0.1, empty, numbers, numbers)
        module.column_moments(empty, *moments)
        module.batch_norm(empty, *moments, None, None, empty)
        module.layer_norm_backward(empty, empty, None, numbers, numbers, empty, *sums)
        module.batch_norm_backward(empty, empty, *moments, None, True, empty, *batch_sums)
        assert all(vector.tolist() == [0, 0, 0] for vector in (*moments, *sums, *batch_sums))
