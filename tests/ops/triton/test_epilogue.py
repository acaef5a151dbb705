"""Bias, activation and dropout in Triton against their twins, and the mask bit for bit."""

import importlib

import pytest
import torch
from tests.ops.graphs import close, values

from graphbraid.ops import reference
from graphbraid.ops.epilogue import LEAKY_SLOPE
from graphbraid.ops.rng import keep_mask

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
HOW = ((0.0, True), (0.3, True), (0.6, False))  # dropout, bias
WIDTHS = (33, 7, 1, 3, 16, 64, 100, 257)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", WIDTHS)
def test_kernels_equal_twins(both, width, dtype):
    rows = 20
    x, grad = values(rows, width, dtype=dtype), values(rows, width, dtype=dtype, seed=2)
    for act in range(4):
        # All at one width, at the others one of them.
        for p, with_bias in HOW if width == 33 else [HOW[(act + width) % 3]]:
            bias = values(width) if with_bias else None
            how = (act, LEAKY_SLOPE, p, 77)
            empty = torch.full_like(x, torch.nan)
            pair = both("epilogue", [x, bias, *how], [empty])[0]
            close(*pair)
            outputs = [empty, torch.full((width,), torch.nan) if with_bias else None]
            grads = both("epilogue_backward", [grad, pair[1], *how], outputs)
            close(*grads[0])
            if with_bias:
                close(*grads[1], terms=400)


@pytest.mark.parametrize("p", [0.001, 0.25, 0.5, 0.9])
@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**63 - 2])
def test_the_mask_has_the_bits_of_every_other_device(kernels, p, seed):
    x, out = torch.ones(130, 33), torch.empty(130, 33)
    kernels.epilogue(x, None, 0, LEAKY_SLOPE, p, seed, out)
    mask = keep_mask(torch.arange(130), 33, p, seed)
    assert torch.equal(out != 0, mask)
    torch.testing.assert_close(out[mask], torch.full((int(mask.sum()),), 1 / (1 - p)))


@pytest.mark.parametrize("seed", [0, 77, 2**31, 2**63 - 2])
def test_a_seed_in_memory_draws_the_masks_of_its_value(kernels, seed):
    x, grad = values(40, 33), values(40, 33, seed=2)
    results = []
    for given in (seed, torch.tensor([seed])):
        how = (1, LEAKY_SLOPE, 0.4, given)
        out, grad_x = torch.empty_like(x), torch.empty_like(x)
        kernels.epilogue(x, None, *how, out)
        kernels.epilogue_backward(grad, out, *how, grad_x, None)
        results.append((out, grad_x))
    for by_value, by_place in zip(*results, strict=True):
        assert torch.equal(by_value, by_place)


def test_masks_may_be_drawn_for_other_rows(kernels):
    x, grad, bias = values(130, 33), values(130, 33, seed=2), values(33)
    ids = torch.randint(0, 2**40, (130,), generator=torch.Generator().manual_seed(0))
    how = (2, LEAKY_SLOPE, 0.4, 77)
    results = []
    for module in (kernels, reference):
        out, grad_x, grad_bias = torch.empty(130, 33), torch.empty(130, 33), torch.empty(33)
        module.epilogue(x, bias, *how, out, ids)
        module.epilogue_backward(grad, out, *how, grad_x, grad_bias, ids)
        results.append((out, grad_x, grad_bias))
    assert torch.equal(results[0][0] != 0, keep_mask(ids, 33, 0.4, 77))
    for actual, expected in zip(*results, strict=True):
        close(actual, expected, terms=400)


def test_many_rows_sum_in_a_fixed_order(kernels, monkeypatch):
    monkeypatch.setattr(importlib.import_module("graphbraid.ops.triton.epilogue"), "_PARTS", 4)
    grad = values(1000, 3)
    out = torch.ones(1000, 3)
    sums = []
    for _ in range(2):
        grad_x, grad_bias = torch.empty_like(grad), torch.empty(3)
        kernels.epilogue_backward(grad, out, 0, LEAKY_SLOPE, 0.0, 0, grad_x, grad_bias)
        sums.append(grad_bias)
    assert torch.equal(*sums)
    torch.testing.assert_close(sums[0].double(), grad.double().sum(0), rtol=1e-5, atol=1e-4)


def test_input_may_be_written_over_and_a_nan_passes_relu(kernels):
    x = torch.tensor([[torch.nan, -1.0, 2.0]])
    kernels.epilogue(x, None, 1, LEAKY_SLOPE, 0.0, 0, x)
    torch.testing.assert_close(x, torch.tensor([[torch.nan, 0.0, 2.0]]), equal_nan=True)


def test_no_rows_have_a_bias_gradient_of_zero(kernels):
    grad_bias = torch.full((3,), torch.nan)
    kernels.epilogue_backward(*torch.empty(2, 0, 3), 1, LEAKY_SLOPE, 0.0, 0, torch.empty(0, 3), grad_bias)
    assert grad_bias.tolist() == [0, 0, 0]
