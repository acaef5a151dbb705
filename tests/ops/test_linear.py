"""aggregate_linear and sparse_linear: both orders, both input paths, every gradient."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.kernels import needs_kernels
from tests.ops.graphs import assert_same_bits_with_any_threads, close, skewed, square, values, without_edges

from graphbraid.errors import ConfigError, DataError
from graphbraid.graph.csc import Csc, coo_to_csc
from graphbraid.graph.sparse_features import SparseFeatures
from graphbraid.nn.linear import Linear
from graphbraid.ops import (
    Aggregation,
    aggregate_linear,
    bias_act_dropout,
    dense_linear,
    linear,
    sparse_dropout,
    sparse_linear,
)
from graphbraid.ops.epilogue import ACTIVATION_CODES
from graphbraid.ops.gram_rounds import GramRounds, rounds_of
from graphbraid.ops.kernels import watched
from graphbraid.ops.library import run as applied
from graphbraid.ops.linear import LinearFunction, tall_gram, tall_product
from graphbraid.ops.rng import seed_of_call
from graphbraid.ops.sparse_linear import structure


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


# Around the tile of every variant (14 or 6 rows, 8 to 32 columns), the chunk and the block of the depth.
ROWS = (1, 5, 6, 13, 14, 15, 111, 113, 700)
DEPTHS = (1, 2, 31, 200, 1023, 1025, 2049)
WIDTHS = (1, 7, 8, 9, 16, 17, 31, 33, 47, 64, 100)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("depth", DEPTHS)
def test_product_equals_twin(compiled, depth, width):
    for rows in ROWS:
        a, weight = values(rows, depth), values(width, depth, seed=2)
        expected = a.double() @ weight.double().t()
        for b in (weight.t(), weight.t().contiguous()):
            out = torch.full((rows, width), torch.nan)
            compiled.tall_product(a, b, out, False)
            close(out, expected.float(), terms=depth * 40)
            compiled.tall_product(a, b, out, True)
            close(out, (2 * expected).float(), terms=depth * 40)


@pytest.mark.parametrize("rows", [0, 1, 100, 256, 257, 2050, 9000])
def test_gram_equals_twin(compiled, rows):
    for height, width in ((1, 1), (13, 33), (14, 16), (15, 47), (64, 100), (100, 31)):
        a, b = values(rows, height), values(rows, width, seed=2)
        out = torch.full((height, width), torch.nan)
        compiled.tall_gram(a, b, out)
        close(out, (a.double().t() @ b.double()).float(), terms=max(rows, 1) * 40)


@pytest.mark.parametrize("shape", [(0, 3), (3, 1), (16, 16), (17, 33), (5, 100), (32, 8415), (8415, 32)])
def test_a_transposed_matrix_has_the_same_numbers(compiled, shape):
    rows, width = shape
    a, out = values(rows, width + 3)[:, :width], torch.full((width, rows), torch.nan)
    compiled.transpose(a, out)
    assert torch.equal(out, a.t())


@pytest.mark.parametrize("count", [1, 13, 112, 113, 300, 2500])
@pytest.mark.parametrize(("depth", "width"), [(1, 3), (7, 40), (100, 32), (1100, 9), (32, 64)])
def test_rows_may_be_named(compiled, count, depth, width):
    x, weight = values(211, depth + 3)[:, :depth], values(depth, width, seed=2)
    ids = torch.randint(211, (count,), generator=torch.Generator().manual_seed(count))
    out = torch.full((count, width), torch.nan)
    compiled.tall_product(x, weight, out, False, ids)
    expected = torch.empty(count, width)
    compiled.tall_product(x[ids], weight, expected, False)
    assert torch.equal(out, expected)
    for rows, named, shape in ((out, x, (width, depth)), (x[ids].contiguous(), out, (depth, width))):
        back = ids if named is x else torch.arange(count).flip(0)
        found, straight = torch.empty(shape), torch.empty(shape)
        compiled.tall_gram(rows, named, found, back)
        compiled.tall_gram(rows, named[back], straight)
        assert torch.equal(found, straight)
        close(found, (rows.double().t() @ named[back].double()).float(), terms=count * depth * 40)


def test_an_id_out_of_range_is_refused(compiled):
    for bad in (-1, 5):
        ids = torch.tensor([0, bad])
        with pytest.raises(ValueError, match="ids must lie in"):
            compiled.tall_product(torch.ones(5, 3), torch.ones(3, 2), torch.empty(2, 2), False, ids)
        with pytest.raises(ValueError, match="ids must lie in"):
            compiled.tall_gram(torch.ones(2, 4), torch.ones(5, 3), torch.empty(4, 3), ids)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(shape=st.tuples(st.integers(0, 60), st.integers(0, 70), st.integers(0, 70)), pad=st.integers(0, 3))
def test_rows_that_stand_apart_are_neither_misread_nor_overwritten(compiled, shape, pad):
    rows, depth, width = shape
    a, b = values(rows, depth + pad)[:, :depth], values(depth, width + pad, seed=2)[:, :width]
    around = torch.full((rows, width + 2 * pad), 7.0)
    out = tall_product(a, b, out=around[:, pad : pad + width])
    close(out, (a.double() @ b.double()).float(), terms=400)
    assert (around[:, :pad] == 7).all()
    assert (around[:, pad + width :] == 7).all()
    g = values(rows, width + pad, seed=3)[:, :width]
    close(tall_gram(a, g), (a.double().t() @ g.double()).float(), terms=400)


def test_a_row_with_nan_spoils_only_itself(compiled):
    a = values(40, 20)
    a[17, 3] = torch.nan
    out = tall_product(a, values(20, 33, seed=2))
    assert out[17].isnan().all()
    assert not out[torch.arange(40) != 17].isnan().any()


def test_bits_do_not_depend_on_threads_or_on_other_rows(compiled):
    a, weight, grad = values(3000, 70), values(70, 40, seed=2), values(3000, 40, seed=3)
    assert_same_bits_with_any_threads(lambda: [tall_product(a, weight), tall_gram(grad, a)])
    assert torch.equal(tall_product(a[1000:1003], weight), tall_product(a, weight)[1000:1003])


@pytest.mark.parametrize("with_bias", [False, True])
def test_dense_linear_equals_torch_with_its_gradients(compiled, with_bias):
    inputs = [values(300, 50, grad=True), values(20, 50, seed=2, grad=True)]
    if with_bias:
        inputs.append(values(20, seed=3, grad=True))
    grad = values(300, 20, seed=4)
    out, expected = dense_linear(*inputs), F.linear(*inputs)
    close(out, expected, terms=400)
    for ours, theirs in zip(
        torch.autograd.grad(out, inputs, grad), torch.autograd.grad(expected, inputs, grad), strict=True
    ):
        close(ours, theirs, terms=4000)


def test_gradcheck_in_double():
    inputs = [values(6, 5, dtype=torch.float64, grad=True), values(3, 5, dtype=torch.float64, grad=True)]
    assert torch.autograd.gradcheck(dense_linear, inputs)


def test_only_asked_gradients_are_computed():
    x, weight = values(9, 5), values(3, 5, grad=True)
    dense_linear(x, weight).sum().backward()
    assert x.grad is None
    close(weight.grad, x.sum(0).expand(3, 5), terms=9)


def test_linear_takes_the_shapes_and_dtypes_of_torch():
    layer = Linear(5, 3)
    for x in (values(5), values(2, 4, 5), values(7, 5)):
        close(layer(x), F.linear(x, layer.weight, layer.bias))
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(values(7, 5)).dtype == torch.bfloat16
    assert layer.double()(values(7, 5, dtype=torch.float64)).dtype == torch.float64


@pytest.mark.parametrize(
    ("a", "b", "out", "message"),
    [
        ((4, 3), (2, 5), (4, 5), "b must have length 3; got 2"),
        ((4, 3), (3, 5), (4, 6), r"out must have shape \(4, 5\); got \(4, 6\)"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(compiled, a, b, out, message):
    with pytest.raises(ValueError, match=message):
        compiled.tall_product(values(*a), values(*b), torch.empty(out), False)


ROWS_IN_ROUNDS = [0, 1, 7, 2047, 2048, 9001]


def in_rounds(a, b, most):
    gram = GramRounds(a, b.shape[1])
    for part in rounds_of(len(a), most):
        gram.add(part, b[part.ids()])
    return gram.out


def matrices(rows, height, width):
    draw = torch.Generator().manual_seed(rows)
    return torch.randn(rows, height, generator=draw), torch.randn(rows, width, generator=draw)


@pytest.mark.parametrize("rows", ROWS_IN_ROUNDS)
def test_rounds_hold_every_row_once(rows):
    for most in (1, 5, 100, 1 << 20):
        found = rounds_of(rows, most)
        assert torch.equal(torch.cat([part.ids() for part in found]).sort().values, torch.arange(rows))
        assert [part.ends for part in found] == [False] * (len(found) - 1) + [True]
        assert max(part.num_rows for part in found) <= max(most, 8)


@needs_kernels
@pytest.mark.parametrize("rows", ROWS_IN_ROUNDS)
@pytest.mark.parametrize(("height", "width"), [(1, 1), (13, 33), (40, 100), (33, 800), (100, 7)])
def test_the_bits_are_those_of_all_rows_at_once(rows, height, width):
    a, b = matrices(rows, height, width)
    expected = tall_gram(a, b)
    for most in (64, 1000, 1 << 20):
        assert torch.equal(in_rounds(a, b, most), expected)


def test_rows_may_have_any_strides():
    a, b = matrices(2500, 31, 1)
    columns_first = a.t().contiguous().t()
    assert torch.equal(in_rounds(columns_first, b, 300), in_rounds(a, b, 300))
    by_twos = torch.stack([b, b], 2).flatten(1)[:, ::2]
    assert torch.equal(in_rounds(a, by_twos, 300), in_rounds(a, b, 300))


def test_the_bits_do_not_depend_on_threads():
    a, b = matrices(9001, 40, 100)
    assert_same_bits_with_any_threads(lambda: [in_rounds(a, b, 1000)])


@pytest.mark.parametrize("rows", [1, 2500])
def test_the_twin_sums_the_same(rows):
    a, b = matrices(rows, 5, 9)
    gram = GramRounds(a.double(), 9)
    for part in rounds_of(rows, 300):
        gram.add(part, b.double()[part.ids()])  # which no compiled kernel takes
    torch.testing.assert_close(gram.out, a.double().t() @ b.double())


@needs_kernels
def test_rows_of_another_round_are_refused():
    a, b = matrices(3000, 4, 5)
    gram = GramRounds(a, 5)
    part = rounds_of(3000, 100)[0]
    with pytest.raises(ValueError, match="b must have"):
        gram.add(part, b[:99])
