"""layer_norm and batch_norm: compiled variants against twins, and the operators against PyTorch's own."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.ops.graphs import DTYPES, assert_same_bits_with_any_threads, close, values
from tests.suites import examples
from torch import nn

from graphbraid.errors import ConfigError, DataError
from graphbraid.ops import batch_norm, layer_norm, reference

WIDTHS = (1, 3, 7, 16, 33, 64, 100, 257, 1024)
ROWS = (0, 1, 2, 90)
EPS = 1e-5


def factors(width, dtype, wanted):
    """A weight and a bias, one of them or neither."""
    dtype = reference.sum_dtype(dtype)
    weight, bias = values(width, dtype=dtype, seed=5), values(width, dtype=dtype, seed=6)
    return weight if "weight" in wanted else None, bias if "bias" in wanted else None


def unwritten(*shape, dtype):
    return torch.full(shape, torch.nan, dtype=reference.sum_dtype(dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", WIDTHS)
def test_layer_norm_kernels_equal_twins(compiled, width, dtype):
    for rows in ROWS:
        x, grad = values(rows, width, dtype=dtype), values(rows, width, dtype=dtype, seed=2)
        for wanted in ("weight bias", "weight", ""):
            weight, bias = factors(width, dtype, wanted)
            made, grads = [], []
            for module in (compiled, reference):
                out, mean, rstd = (
                    torch.full_like(x, torch.nan),
                    unwritten(rows, dtype=dtype),
                    unwritten(rows, dtype=dtype),
                )
                module.layer_norm(x, weight, bias, EPS, out, mean, rstd)
                made.append((out, mean, rstd))
            for actual, expected in zip(*made, strict=True):
                close(actual, expected)
            _, mean, rstd = made[1]
            for module in (compiled, reference):
                sums = [unwritten(width, dtype=dtype) for _ in range(2)]
                grad_x = grad.clone()  # over the gradient it comes from
                module.layer_norm_backward(grad_x, x, weight, mean, rstd, grad_x, *sums)
                grads.append([grad_x, *sums])
            scale = float(rstd.abs().max()) if rows else 1.0
            for actual, expected in zip(*grads, strict=True):
                close(actual, expected, terms=400 * max(scale, 1.0) ** 2)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", WIDTHS)
def test_batch_norm_kernels_equal_twins(compiled, width, dtype):
    for rows in (*ROWS, 700):
        x, grad = values(rows, width, dtype=dtype), values(rows, width, dtype=dtype, seed=2)
        moments = []
        for module in (compiled, reference):
            moments.append([unwritten(width, dtype=dtype) for _ in range(2)])
            module.column_moments(x, *moments[-1])
        for actual, expected in zip(*moments, strict=True):
            close(actual, expected)
        mean, rstd = moments[1][0], (moments[1][1] + 0.01).rsqrt()
        for from_rows in (True, False):
            weight, bias = factors(width, dtype, "weight bias" if from_rows else "bias")
            made = []
            for module in (compiled, reference):
                out, grad_x = torch.full_like(x, torch.nan), grad.clone()
                sums = [unwritten(width, dtype=dtype) for _ in range(2)]
                module.batch_norm(x, mean, rstd, weight, bias, out)
                module.batch_norm_backward(grad_x, x, mean, rstd, weight, from_rows, grad_x, *sums)
                made.append([out, grad_x, *sums])
            for actual, expected in zip(*made, strict=True):
                close(actual, expected, terms=3000)


def test_kernels_write_only_what_is_asked_for(compiled):
    x, grad = values(20, 9), values(20, 9, seed=2)
    out, mean, rstd = torch.empty_like(x), torch.empty(20), torch.empty(20)
    compiled.layer_norm(x, None, None, EPS, out, None, None)
    again = x.clone()
    compiled.layer_norm(again, None, None, EPS, again, mean, rstd)  # over its input
    assert torch.equal(out, again)
    whole = [torch.empty_like(x), torch.empty(9), torch.empty(9)]
    compiled.layer_norm_backward(grad, x, None, mean, rstd, *whole)
    for i in range(3):
        part = [torch.empty_like(t) if i == j else None for j, t in enumerate(whole)]
        compiled.layer_norm_backward(grad, x, None, mean, rstd, *part)
        assert torch.equal(part[i], whole[i])
    sums = torch.empty(9), torch.empty(9)
    compiled.batch_norm_backward(grad, x, torch.zeros(9), torch.ones(9), None, True, None, *sums)
    close(sums[1], grad.sum(0))


@pytest.mark.parametrize(("mean", "spread"), [(0.0, 1.0), (1000.0, 1.0), (-3e5, 40.0), (1e-20, 1e-18)])
def test_variances_survive_large_means(compiled, mean, spread):
    """As a difference of squares in float32, the variance beside a mean of 1000 would have no digit left."""
    x = (values(5000, 33, dtype=torch.float64) * spread + mean).float()
    exact = x.double()
    tolerance = 1e-5 + 4 * torch.finfo(torch.float32).eps * abs(mean) / spread
    found = torch.empty(33), torch.empty(33)
    compiled.column_moments(x, *found)
    torch.testing.assert_close(found[0].double(), exact.mean(0), rtol=2e-7, atol=1e-6 * spread)
    torch.testing.assert_close(found[1].double(), exact.var(0, correction=0), rtol=1e-5, atol=0)
    rows = torch.empty(5000), torch.empty(5000)
    out = torch.empty_like(x)
    compiled.layer_norm(x, None, None, 0.0, out, *rows)
    torch.testing.assert_close(rows[0].double(), exact.mean(1), rtol=2e-7, atol=1e-6 * spread)
    torch.testing.assert_close(rows[1].double(), exact.var(1, correction=0).rsqrt(), rtol=1e-5, atol=0)
    expected = (exact - exact.mean(1, keepdim=True)) * exact.var(1, correction=0, keepdim=True).rsqrt()
    torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance)


def test_columns_that_jump_between_shares_have_their_variance(compiled):
    x = torch.cat([torch.full((1000, 3), 5e4), torch.full((3000, 3), -2e4)]) + values(4000, 3)
    found = torch.empty(3), torch.empty(3)
    compiled.column_moments(x, *found)
    torch.testing.assert_close(found[0].double(), x.double().mean(0), rtol=1e-6, atol=0)
    torch.testing.assert_close(found[1].double(), x.double().var(0, correction=0), rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@settings(max_examples=examples(40))
@given(
    rows=st.integers(0, 40),
    width=st.integers(1, 70),
    wanted=st.sampled_from(["weight bias", "weight", "bias", ""]),
    seed=st.integers(0, 99),
)
def test_layer_norm_equals_pytorch(dtype, rows, width, wanted, seed):
    x = values(rows, width, dtype=dtype, seed=seed, grad=True)
    weight, bias = (None if f is None else f.requires_grad_() for f in factors(width, dtype, wanted))
    inputs = [t for t in (x, weight, bias) if t is not None]
    out, expected = layer_norm(x, weight, bias, 0.01), F.layer_norm(x, (width,), weight, bias, 0.01)
    close(out, expected)
    grad = values(rows, width, dtype=dtype, seed=3)
    for actual, wanted_grad in zip(
        torch.autograd.grad(out, inputs, grad), torch.autograd.grad(expected, inputs, grad), strict=True
    ):
        close(actual, wanted_grad, terms=2000)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@settings(max_examples=examples(40))
@given(
    rows=st.integers(2, 40),
    width=st.integers(1, 70),
    affine=st.booleans(),
    tracked=st.booleans(),
    momentum=st.sampled_from([None, 0.1, 1.0]),
    modes=st.lists(st.booleans(), min_size=1, max_size=4),
    seed=st.integers(0, 99),
)
def test_batch_norm_equals_pytorch_through_several_calls(
    dtype, rows, width, affine, tracked, momentum, modes, seed
):
    module = nn.BatchNorm1d(
        width, eps=0.01, momentum=momentum, affine=affine, track_running_stats=tracked, dtype=dtype
    )
    ours = {name: buffer.clone() for name, buffer in module.named_buffers()}
    for call, training in enumerate(modes):
        x = values(rows, width, dtype=dtype, seed=seed + call, grad=True)
        inputs = [x, *module.parameters()]
        expected = module.train(training)(x)
        out = batch_norm(
            x,
            weight=module.weight,
            bias=module.bias,
            training=training,
            momentum=momentum,
            eps=0.01,
            **ours,
        )
        # Two equal rows have a variance of 0, where 1 / sqrt(eps) = 10 enlarges rounding.
        close(out, expected, terms=2000)
        for actual, wanted in zip(ours.values(), module.buffers(), strict=True):
            close(actual, wanted) if actual.dtype == dtype else torch.testing.assert_close(actual, wanted)
        grad = values(rows, width, dtype=dtype, seed=3)
        for actual, wanted in zip(
            torch.autograd.grad(out, inputs, grad), torch.autograd.grad(expected, inputs, grad), strict=True
        ):
            close(actual, wanted, terms=10000)


def test_gradcheck():
    x = values(6, 5, dtype=torch.float64, grad=True)
    weight, bias = (values(5, dtype=torch.float64, seed=s, grad=True) for s in (3, 4))
    stats = values(5, dtype=torch.float64), values(5, dtype=torch.float64).abs()
    assert torch.autograd.gradcheck(layer_norm, (x, weight, bias))
    assert torch.autograd.gradcheck(lambda *a: batch_norm(a[0], None, None, *a[1:]), (x, weight, bias))
    assert torch.autograd.gradcheck(lambda *a: batch_norm(a[0], *stats, *a[1:]), (x, weight, bias))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_rows_of_half_precision_take_weights_of_full(dtype):
    x = values(50, 24, dtype=dtype, grad=True)
    weight, bias = values(24, seed=5, grad=True), values(24, seed=6, grad=True)
    out, expected = layer_norm(x, weight, bias), F.layer_norm(x.float(), (24,), weight, bias)
    assert out.dtype == dtype
    close(out, expected.to(dtype))
    grads = torch.autograd.grad(out.float().sum(), (x, weight, bias))
    assert [g.dtype for g in grads] == [dtype, torch.float32, torch.float32]
    assert batch_norm(x, None, None, weight, bias, training=True).dtype == dtype


def test_rows_may_stand_apart_and_unneeded_gradients_are_left_out():
    wide = values(30, 20)
    x = wide[:, 3:12]
    weight = values(9, seed=2, grad=True)
    close(layer_norm(x, weight), F.layer_norm(x, (9,), weight))
    (grad,) = torch.autograd.grad(batch_norm(x, None, None, weight).square().sum(), weight)
    torch.testing.assert_close(grad, 2 * 30 * weight, rtol=1e-4, atol=1e-3)  # mean of squares is 1


def test_no_rows_move_no_running_statistics():
    module = nn.BatchNorm1d(3)
    out = batch_norm(
        torch.zeros(0, 3), module.running_mean, module.running_var, training=True, num_batches_tracked=None
    )
    assert out.shape == (0, 3)
    assert module.running_mean.tolist() == [0, 0, 0]
    assert module.running_var.tolist() == [1, 1, 1]


def test_what_is_not_finite_stays_in_its_row_or_column():
    x = values(40, 20)
    x[7, 3] = torch.inf
    x[9, 5] = torch.nan
    rows = layer_norm(x).isfinite().all(1)
    assert (~rows).nonzero().flatten().tolist() == [7, 9]
    columns = batch_norm(x, training=True).isfinite().all(0)
    assert (~columns).nonzero().flatten().tolist() == [3, 5]


def test_bits_do_not_depend_on_the_number_of_threads():
    x, weight, bias = values(5000, 65, grad=True), values(65, grad=True), values(65, seed=2, grad=True)

    def run():
        outputs = []
        for out in (layer_norm(x, weight, bias), batch_norm(x, None, None, weight, bias, training=True)):
            outputs += [out.detach(), *torch.autograd.grad(out.square().sum(), (x, weight, bias))]
        return outputs

    assert_same_bits_with_any_threads(run)


@pytest.mark.parametrize(
    ("run", "error", "message"),
    [
        (lambda x: batch_norm(x, x[0], x[:, 0]), DataError, r"running_var .* got shape \(4,\)"),
        (lambda x: batch_norm(x[:1], training=True), DataError, "more than one row"),
        (lambda x: batch_norm(x, eps=float("nan")), ConfigError, "eps must be .* got nan"),
        (lambda x: batch_norm(x, x[0]), ConfigError, "given together"),
        (
            lambda x: batch_norm(x, x[0], x[1], training=True, momentum=None),
            ConfigError,
            "num_batches_tracked",
        ),
    ],
)
def test_bad_input_is_named(run, error, message):
    with pytest.raises(error, match=message):
        run(torch.zeros(4, 3))
