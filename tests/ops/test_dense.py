"""tall_product, tall_gram, dense_linear: variants against twins, any shape, any threads, gradients."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.ops.graphs import assert_same_bits_with_any_threads, close, values

from graphbraid.nn.linear import Linear
from graphbraid.ops import dense_linear
from graphbraid.ops.linear import tall_gram, tall_product

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
