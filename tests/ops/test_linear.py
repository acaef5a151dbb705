"""aggregate_linear and sparse_linear: both orders, both input paths, every gradient."""

import pytest
import torch
from tests.ops.graphs import assert_same_bits_with_any_threads, skewed, square, values, without_edges

from graphbraid.errors import ConfigError, DataError
from graphbraid.graph.csc import Csc, coo_to_csc
from graphbraid.graph.sparse_features import SparseFeatures
from graphbraid.ops import (
    Aggregation,
    aggregate_linear,
    bias_act_dropout,
    linear,
    sparse_dropout,
    sparse_linear,
)
from graphbraid.ops.epilogue import ACTIVATION_CODES
from graphbraid.ops.kernels import watched
from graphbraid.ops.library import run as applied
from graphbraid.ops.linear import LinearFunction, structure
from graphbraid.ops.rng import seed_of_call


def linear_rows(x, weight, *, own=(None, None), bias=None, act="none", p=0.0):
    """The product that segments of a batch's program run, with its epilogue."""
    seed = seed_of_call() if p else 0
    return applied(LinearFunction, x, weight, *own, bias, ACTIVATION_CODES[act], p, seed)


def dense_matrix(csc, mean):
    matrix = torch.zeros(csc.num_dst, csc.num_src, dtype=torch.float64)
    matrix.index_put_(
        (csc.destinations().long(), csc.indices.long()), torch.ones(csc.num_edges).double(), accumulate=True
    )
    return matrix / csc.degrees().clamp(min=1)[:, None] if mean else matrix


@pytest.fixture(params=["transform first", "aggregate first"])
def order(request, monkeypatch):
    monkeypatch.setattr(linear, "narrows", lambda *_, **__: request.param == "transform first")


@pytest.mark.usefixtures("order")
@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("root", [False, True])
def test_value_and_gradients_equal_dense_matrices(mean, root):
    csc = skewed()
    x = values(60, 5, dtype=torch.float64, grad=True)
    weight = values(9, 5, dtype=torch.float64, grad=True)
    own = values(9, 5, dtype=torch.float64, seed=2, grad=True) if root else None
    out = aggregate_linear(Aggregation(csc=csc, mean=mean), x, weight, own)
    expected = dense_matrix(csc, mean) @ x @ weight.t()
    if own is not None:
        expected = expected + x[:40] @ own.t()
    torch.testing.assert_close(out, expected)
    inputs = [t for t in (x, weight, own) if t is not None]
    grad = values(40, 9, dtype=torch.float64, seed=7)
    for a, b in zip(
        torch.autograd.grad(out, inputs, grad), torch.autograd.grad(expected, inputs, grad), strict=True
    ):
        torch.testing.assert_close(a, b)


@pytest.mark.usefixtures("order")
def test_gradcheck():
    csc = skewed(8, 11)
    how = Aggregation(csc=csc, mean=True, src_scale=values(11, dtype=torch.float64), loop_scale=0.3)
    inputs = [values(*shape, dtype=torch.float64, grad=True) for shape in ((11, 3), (2, 3), (2, 3))]
    assert torch.autograd.gradcheck(lambda x, w, r: aggregate_linear(how, x, w, r), inputs)


@pytest.mark.usefixtures("order")
def test_an_input_without_gradient_gets_none_and_the_weights_still_do():
    csc, weight = skewed(), values(4, 5, grad=True)
    x = values(60, 5)
    aggregate_linear(Aggregation(csc=csc), x, weight).sum().backward()
    assert x.grad is None
    expected = dense_matrix(csc, False).sum(0) @ x.double()
    torch.testing.assert_close(weight.grad[0].double(), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.usefixtures("order")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_rows_are_summed_and_multiplied_in_the_weights_dtype(dtype):
    csc, weight, own = skewed(), values(4, 5), values(4, 5, seed=3)
    x = values(60, 5, dtype=dtype, grad=True)
    out = aggregate_linear(Aggregation(csc=csc, mean=True), x, weight, own)
    assert out.dtype == torch.float32
    expected = dense_matrix(csc, True).float() @ x.float() @ weight.t() + x[:40].float() @ own.t()
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4)
    out.sum().backward()
    assert x.grad.dtype == dtype


@pytest.mark.usefixtures("order")
def test_autocast_gives_bfloat16_and_gradients_of_the_weights_dtype():
    csc = skewed()
    x, weight, own = values(60, 32, grad=True), values(16, 32, grad=True), values(16, 32, seed=3, grad=True)
    how = Aggregation(csc=csc, mean=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = aggregate_linear(how, x, weight, own)
    assert out.dtype == torch.bfloat16
    full = aggregate_linear(how, x, weight, own)
    torch.testing.assert_close(out.float(), full, rtol=0.05, atol=0.3)
    grad = values(40, 16, seed=5)
    half_grads = torch.autograd.grad(out, (x, weight, own), grad.bfloat16())
    for a, b in zip(half_grads, torch.autograd.grad(full, (x, weight, own), grad), strict=True):
        assert a.dtype == torch.float32
        torch.testing.assert_close(a, b, rtol=0.1, atol=0.6)


@pytest.mark.usefixtures("order")
@pytest.mark.parametrize(("num_dst", "num_src"), [(0, 0), (0, 4), (3, 4)])
def test_graphs_without_edges(num_dst, num_src):
    weight, own = values(2, 5, grad=True), values(2, 5, grad=True)
    x = values(num_src, 5, grad=True)
    out = aggregate_linear(Aggregation(csc=without_edges(num_dst, num_src)), x, weight, own)
    torch.testing.assert_close(out, x[:num_dst] @ own.t())
    out.sum().backward()
    assert (weight.grad == 0).all()


def test_cost_model_transforms_first_where_that_narrows_on_a_whole_graph():
    how = Aggregation(csc=square(2000))
    assert linear.narrows(how, 1000, 10, grad_x=False, training=True)
    assert not linear.narrows(how, 10, 1000, grad_x=False, training=True)


def test_cost_model_aggregates_first_where_a_block_has_many_more_sources():
    how = Aggregation(csc=skewed(100, 100_000))  # transforming 100,000 rows to aggregate a few hundred
    assert not linear.narrows(how, 256, 128, grad_x=False, training=True)


def test_a_training_step_is_priced_with_its_backward_pass():
    """Without a gradient of x, aggregating first aggregates once, and transforming first twice."""
    how = Aggregation(csc=square(2000))
    assert linear.narrows(how, 100, 64, grad_x=False, training=False)
    assert not linear.narrows(how, 100, 64, grad_x=False, training=True)
    x, weight = values(2000, 100), values(64, 100, grad=True)
    with watched() as training:
        aggregate_linear(how, x, weight)
    with torch.no_grad(), watched() as evaluation:
        aggregate_linear(how, x, weight)
    if training:  # the compiled kernels run
        assert [name for name, _ in training] == ["spmm", "tall_product"]
        assert [name for name, _ in evaluation] == ["tall_product", "spmm"]


def sparse_features(rows=40, columns=30, dtype=torch.float32):
    x = values(rows, columns) * (values(rows, columns, seed=8) > 1.0)
    x[3] = 0
    return SparseFeatures.from_dense(x.to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_sparse_linear_equals_the_dense_product(dtype):
    x, weight = sparse_features(dtype=dtype), values(7, 30, grad=True)
    out = sparse_linear(x, weight)
    dense = x.to_dense().float()
    torch.testing.assert_close(out, dense @ weight.t(), rtol=1e-5, atol=1e-5)
    grad = values(40, 7, seed=2)
    (actual,) = torch.autograd.grad(out, weight, grad)
    torch.testing.assert_close(actual, grad.t() @ dense, rtol=1e-5, atol=1e-5)


def test_sparse_linear_gradcheck():
    weight = values(3, 30, dtype=torch.float64, grad=True)
    assert torch.autograd.gradcheck(lambda w: sparse_linear(sparse_features(), w), weight)


@pytest.mark.parametrize("root", [False, True])
def test_sparse_and_dense_rows_give_the_same_layer(root):
    csc, x = square(40), sparse_features()
    weight, own = values(6, 30, grad=True), values(6, 30, seed=4, grad=True) if root else None
    how = Aggregation(csc=csc, mean=True)
    inputs = [weight] if own is None else [weight, own]
    sparse, dense = (aggregate_linear(how, rows, weight, own) for rows in (x, x.to_dense()))
    torch.testing.assert_close(sparse, dense, rtol=1e-5, atol=1e-5)
    for a, b in zip(
        torch.autograd.grad(sparse.square().sum(), inputs),
        torch.autograd.grad(dense.square().sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_sparse_dropout_draws_stored_values_only_and_keeps_the_sorted_structure():
    x = sparse_features(400, 100)
    torch.manual_seed(0)
    dropped = sparse_dropout(x, 0.4, training=True)
    kept = dropped.values != 0
    assert abs(kept.double().mean() - 0.6) < 0.03
    torch.testing.assert_close(dropped.values[kept], x.values[kept] / 0.6)
    assert structure(dropped) is structure(x)
    assert sparse_dropout(x, 0.4, training=False) is x
    assert sparse_dropout(x, 0.0, training=True) is x


def test_sparse_bits_do_not_depend_on_the_number_of_threads():
    x, weight = sparse_features(3000, 200), values(33, 200, grad=True)

    def run():
        out = sparse_linear(x, weight)
        return [out.detach(), *torch.autograd.grad(out.square().sum(), weight)]

    assert_same_bits_with_any_threads(run)


def test_a_weight_of_another_width_is_named():
    with pytest.raises(DataError, match=r"\(out_channels, 30\) for these features; got \(7, 31\)"):
        sparse_linear(sparse_features(), torch.zeros(7, 31))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.usefixtures("order")
@pytest.mark.parametrize("act", ["none", "relu", "leaky_relu", "elu"])
def test_what_follows_a_product_rides_on_it_to_the_bit(act, dtype):
    draw = torch.Generator().manual_seed(0)
    ends = torch.randint(40, (2, 300), generator=draw)
    how = Aggregation(csc=coo_to_csc(*ends, 40, 40)[0], mean=True)
    x, weight, root, bias = (
        torch.randn(shape, generator=draw, dtype=dtype) for shape in ((40, 24), (5, 24), (5, 24), (5,))
    )

    def results(run, *tensors):
        torch.manual_seed(3)
        leaves = [t.clone().requires_grad_() for t in tensors]
        out = run(*leaves)
        out.backward(torch.linspace(-1, 1, out.numel(), dtype=dtype).view(out.shape))
        return out.detach(), *(leaf.grad for leaf in leaves)

    def sums(x, weight, root, bias):
        return aggregate_linear(how, x, weight, root, bias=bias, act=act, p=0.3)

    def sums_first(x, weight, root, bias):
        return bias_act_dropout(aggregate_linear(how, x, weight, root), bias, act, 0.3)

    def rows(x, weight, bias):
        return linear_rows(x, weight, bias=bias, act=act, p=0.3)

    def rows_first(x, weight, bias):
        return bias_act_dropout(linear_rows(x, weight), bias, act, 0.3)

    for mine, other in zip(
        results(sums, x, weight, root, bias), results(sums_first, x, weight, root, bias), strict=True
    ):
        assert torch.equal(mine, other)
    for mine, other in zip(results(rows, x, weight, bias), results(rows_first, x, weight, bias), strict=True):
        assert torch.equal(mine, other)
    with_own = results(lambda a, b, c, d: linear_rows(a, b, own=(c, d)), x, weight, x.flip(0), root)
    for mine, other in zip(
        with_own, results(lambda a, b, c, d: a @ b.t() + c @ d.t(), x, weight, x.flip(0), root), strict=True
    ):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-5)


def test_an_epilogue_that_does_not_fit_is_refused():
    how = Aggregation(csc=Csc(torch.tensor([0, 1]), torch.tensor([0]), 1))
    x, weight = torch.zeros(1, 3), torch.zeros(2, 3)
    with pytest.raises(DataError, match=r"bias must have shape \(2,\)"):
        aggregate_linear(how, x, weight, bias=torch.zeros(3))
    with pytest.raises(DataError, match=r"bias must have shape \(2,\)"):
        linear_rows(x, weight, bias=torch.zeros(1))
    with pytest.raises(ConfigError, match="act must be"):
        aggregate_linear(how, x, weight, act="gelu")
    with pytest.raises(ConfigError, match="p must"):
        aggregate_linear(how, x, weight, p=1.0)
