"""bias_act_dropout against twins and PyTorch's own operators; masks that are drawn for the ids of nodes."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.ops.graphs import (
    CORNERS,
    DTYPES,
    WIDTHS,
    assert_same_bits_with_any_threads,
    close,
    skewed,
    skip_where_torch_multiplies,
    values,
)
from tests.ops.test_spmm import COEFFICIENTS, arguments, hub_graph
from tests.sampling.graphs import power_law_csc
from tests.suites import examples

from graphbraid.graph import SparseFeatures
from graphbraid.graph.csc import Csc
from graphbraid.ops import (
    Aggregation,
    aggregate_linear,
    bias_act_dropout,
    gat_attention,
    gatv2_attention,
    reference,
    sparse_dropout,
)
from graphbraid.ops.epilogue import ACTIVATION_CODES, ACTIVATIONS, LEAKY_SLOPE
from graphbraid.ops.library import RowEpilogue
from graphbraid.ops.linear import tall_product
from graphbraid.ops.rng import given_rows, given_seeds, mask_type, row_ids

PLAIN = {"none": lambda x: x, "relu": F.relu, "leaky_relu": F.leaky_relu, "elu": F.elu, "gelu": F.gelu}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", WIDTHS)
def test_kernels_equal_twins(compiled, width, dtype):
    x, grad = values(90, width, dtype=dtype), values(90, width, dtype=dtype, seed=2)
    for act in range(4):
        for p, with_bias in ((0.0, True), (0.3, True), (0.6, False)):
            bias = values(width, dtype=reference.sum_dtype(dtype)) if with_bias else None
            how = (act, LEAKY_SLOPE, p, 77)
            results = []
            for module in (compiled, reference):
                out = torch.full_like(x, torch.nan)
                module.epilogue(x, bias, *how, out)
                results.append(out)
            close(results[0], results[1])
            sums = []
            for module in (compiled, reference):
                grad_x, grad_bias = (
                    torch.full_like(x, torch.nan),
                    None if bias is None else torch.empty_like(bias),
                )
                module.epilogue_backward(grad, results[1], *how, grad_x, grad_bias)
                sums.append((grad_x, grad_bias))
            close(sums[0][0], sums[1][0])
            if bias is not None:
                close(sums[0][1], sums[1][1], terms=400)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [1, 3, 5, 7, 15])
def test_narrow_rows_have_the_bits_of_rows_that_stand_apart(compiled, width, dtype):
    """One after the other they fill vectors, and the last of 70 do not."""
    x = values(70, width + 2, dtype=dtype)[:, :width]
    bias = values(width, dtype=reference.sum_dtype(dtype))
    for how in ((act, LEAKY_SLOPE, 0.0, 0) for act in range(4)):
        for added in (bias, None):
            apart, together = torch.empty(70, width, dtype=dtype), x.contiguous()
            compiled.epilogue(x, added, *how, apart)
            compiled.epilogue(together, added, *how, together)
            assert torch.equal(together, apart)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_a_bias_alone_has_the_same_gradient_in_place(compiled, width, dtype):
    """Nothing is written then, and only the gradient is read."""
    grad, out = values(150, width, dtype=dtype), torch.full((150, width), torch.nan, dtype=dtype)
    apart, within = (torch.empty(width, dtype=reference.sum_dtype(dtype)) for _ in range(2))
    compiled.epilogue_backward(grad, grad, 0, 0.0, 0.0, 0, torch.empty_like(grad), apart)
    before = grad.clone()
    compiled.epilogue_backward(grad, out, 0, 0.0, 0.0, 0, grad, within)
    assert torch.equal(within, apart)
    assert torch.equal(grad, before)


@pytest.mark.parametrize("act", ACTIVATIONS)
@pytest.mark.parametrize("inplace", [False, True])
def test_value_and_gradients_equal_pytorch(act, inplace):
    x, bias = values(50, 9, dtype=torch.float64, grad=True), values(9, dtype=torch.float64, grad=True)
    out = bias_act_dropout(x.clone(), bias, act, inplace=inplace)
    expected = PLAIN[act](x + bias)
    torch.testing.assert_close(out, expected)
    grad = values(50, 9, dtype=torch.float64, seed=3)
    for a, b in zip(
        torch.autograd.grad(out, (x, bias), grad), torch.autograd.grad(expected, (x, bias), grad), strict=True
    ):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("kernels", ["compiled", "twin"])
def test_relu_stops_gradients_that_are_not_finite(compiled, kernels):
    """A product with a slope of 0 would be NaN."""
    out = torch.tensor([[0.0, 0.0, 2.0, 3.0]])
    grad = torch.tensor([[torch.nan, torch.inf, 1.0, torch.inf]])
    found = torch.empty_like(grad)
    chosen = compiled if kernels == "compiled" else reference
    chosen.epilogue_backward(grad, out, 1, 0.0, 0.0, 0, found, None, None)
    assert found.tolist() == [[0.0, 0.0, 1.0, torch.inf]]


@pytest.mark.parametrize("act", sorted({*ACTIVATIONS} - {"elu"}))
@pytest.mark.parametrize("kernels", ["compiled", "twin"])
def test_the_gradient_of_a_nan_is_that_of_pytorch(compiled, monkeypatch, act, kernels):
    """PyTorch's of an ELU is NaN in full vectors, and 1 in the elements behind them."""
    if kernels == "twin":
        monkeypatch.setattr("graphbraid.ops.epilogue.backend", lambda _: reference)
    x = values(6, 9)
    x[2, 3], x[4, 8] = torch.nan, -torch.nan
    grads = []
    for run in (lambda x: bias_act_dropout(x, None, act), PLAIN[act]):
        leaf = x.clone().requires_grad_()
        run(leaf).backward(torch.ones(6, 9))
        grads.append(leaf.grad)
    torch.testing.assert_close(*grads, equal_nan=True)
    assert act != "relu" or grads[0][2, 3] == 1


@pytest.mark.parametrize("act", ACTIVATIONS)
def test_gradcheck_with_dropout(act):
    x, bias = values(6, 5, dtype=torch.float64, grad=True), values(5, dtype=torch.float64, grad=True)

    def run(x, bias):
        torch.manual_seed(3)  # the same mask at every evaluation
        return bias_act_dropout(x, bias, act, 0.4)

    assert torch.autograd.gradcheck(run, (x, bias))


def test_dropout_keeps_the_share_asked_for_and_scales_it():
    torch.manual_seed(0)
    out = bias_act_dropout(torch.ones(1000, 100), None, "relu", 0.3)
    kept = out != 0
    torch.testing.assert_close(out[kept], torch.full((int(kept.sum()),), 1 / 0.7))
    assert abs(kept.double().mean() - 0.7) < 0.007
    assert abs(kept.double().mean(0) - 0.7).max() < 0.08
    assert abs(kept.double().mean(1) - 0.7).max() < 0.2


def test_seed_decides_the_mask():
    x = torch.ones(50, 7)
    torch.manual_seed(5)
    first, second = bias_act_dropout(x, p=0.5), bias_act_dropout(x, p=0.5)
    torch.manual_seed(5)
    assert torch.equal(bias_act_dropout(x, p=0.5), first)
    assert not torch.equal(first, second)


def test_inplace_writes_over_its_input_and_nothing_to_do_copies_nothing():
    x = values(20, 5)
    assert bias_act_dropout(x, torch.zeros(5), inplace=True).data_ptr() == x.data_ptr()
    assert bias_act_dropout(x, None, "none") is x


def test_bits_do_not_depend_on_the_number_of_threads():
    x, bias = values(5000, 65, grad=True), values(65, grad=True)

    def run():
        torch.manual_seed(0)
        # Not ELU: PyTorch's own, in the twin, rounds differently where a thread's share ends.
        out = bias_act_dropout(x, bias, "leaky_relu", 0.3)
        return [out.detach(), *torch.autograd.grad(out.square().sum(), (x, bias))]

    assert_same_bits_with_any_threads(run)


PROPERTY = settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
EPILOGUES = st.fixed_dictionaries(
    {
        "act": st.sampled_from(sorted(ACTIVATION_CODES.values())),
        "p": st.sampled_from([0.0, 0.3, 0.9]),
        "bias": st.booleans(),
        "ids": st.booleans(),
    }
)


def epilogue_for(rows, width, dtype, *, act=1, p=0.3, bias=True, ids=True):
    return RowEpilogue(
        bias=values(width, dtype=reference.sum_dtype(dtype), seed=7) if bias else None,
        act=act,
        slope=LEAKY_SLOPE,
        p=p,
        seed=2**63 + 5,
        ids=torch.arange(rows).flip(0) * 3 if ids else None,
    )


def in_turn(kernels, out, after):
    """What the epilogue's own kernel makes of rows."""
    bias, *how, ids = after
    kernels.epilogue(out, bias, *how, out, ids)


def assert_spmm_ends_as_in_turn(kernels, csc, x, wanted, after):
    args = arguments(csc, x, wanted)
    joined, apart, twin = (x.new_full((csc.num_dst, x.shape[1]), torch.nan) for _ in range(3))
    kernels.spmm(*args, joined, after)
    kernels.spmm(*args, apart)
    in_turn(kernels, apart, after)
    assert torch.equal(joined, apart)
    reference.spmm(*args, twin, after)
    close(joined, twin)


@PROPERTY
@given(
    width=st.integers(1, 300),
    dtype=st.sampled_from(DTYPES),
    wanted=st.sampled_from(sorted(COEFFICIENTS)),
    corner=st.sampled_from(sorted(CORNERS)),
    how=EPILOGUES,
)
def test_spmm_with_an_epilogue_equals_both_in_turn(compiled, width, dtype, wanted, corner, how):
    csc = CORNERS[corner]()
    after = epilogue_for(csc.num_dst, width, dtype, **how)
    x = values(csc.num_src, width, dtype=dtype)
    assert_spmm_ends_as_in_turn(compiled, csc, x, COEFFICIENTS[wanted], after)


@pytest.mark.parametrize("width", [1, 40, 300])
def test_the_epilogue_of_a_hub_follows_the_sum_of_its_segments(compiled, width):
    csc = hub_graph()
    after = epilogue_for(3, width, torch.float32)
    args = arguments(csc, values(5, width), {})
    joined, apart = torch.empty(2, 3, width)
    compiled.spmm(*args, joined, after)
    compiled.spmm(*args, apart)
    in_turn(compiled, apart, after)
    assert torch.equal(joined, apart)


def test_rows_beside_and_wider_than_the_input_are_handled(compiled):
    csc, after = skewed(), epilogue_for(40, 33, torch.float32)
    x = values(csc.num_src, 33, dtype=torch.bfloat16)
    for args in (arguments(csc, x, {}), arguments(csc, x.float(), {})):
        around, apart = torch.full((csc.num_dst, 60), 7.0), torch.empty(csc.num_dst, 33)
        compiled.spmm(*args, around[:, 5:38], after)
        compiled.spmm(*args, apart)
        in_turn(compiled, apart, after)
        assert torch.equal(around[:, 5:38], apart)
        assert (around[:, :5] == 7).all()
        assert (around[:, 38:] == 7).all()


@PROPERTY
@given(
    shape=st.tuples(st.integers(1, 260), st.sampled_from([1, 40, 1025]), st.integers(1, 70)),
    how=EPILOGUES,
    add=st.booleans(),
    named=st.booleans(),
)
def test_a_product_with_an_epilogue_equals_both_in_turn(compiled, shape, how, add, named):
    rows, depth, width = shape
    a, b, before = values(rows, depth), values(depth, width, seed=2), values(rows, width, seed=3)
    ids = torch.arange(rows).flip(0) if named else None
    after = epilogue_for(rows, width, torch.float32, **how)
    joined, apart, twin = before.clone(), before.clone(), before.clone()
    compiled.tall_product(a, b, joined, add, ids, after)
    compiled.tall_product(a, b, apart, add, ids)
    in_turn(compiled, apart, after)
    assert torch.equal(joined, apart)
    reference.tall_product(a, b, twin, add, ids, after)
    close(joined, twin, terms=40 * depth / (1 - how["p"]) ** 2)  # dropout scales roundings up, too


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])  # float64: PyTorch multiplies
def test_a_product_takes_an_epilogue_whoever_multiplies(dtype):
    a, b = values(50, 9, dtype=dtype), values(9, 20, dtype=dtype, seed=2)
    after = epilogue_for(50, 20, dtype)
    expected = a @ b
    in_turn(reference, expected, after)
    close(tall_product(a, b, after=after), expected)


def test_bits_of_what_joins_a_kernel_do_not_depend_on_the_number_of_threads():
    skip_where_torch_multiplies()
    csc = skewed(3000, 2000, seed=3)
    x, after = values(2000, 37), epilogue_for(3000, 37, torch.float32)
    a, b = values(3000, 70), values(70, 37, seed=2)

    def run():
        return [Aggregation(csc=csc).forward(x, after=after), tall_product(a, b, after=after)]

    assert_same_bits_with_any_threads(run)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"act": 4}, r"act must lie in \[0, 3\]; got 4"),
        ({"p": 1.0}, r"p must lie in \[0, 1\)"),
        ({"bias": torch.zeros(5)}, "bias must have length"),
        ({"bias": torch.zeros(9, dtype=torch.float64)}, "bias must have the dtype of the sums, float32"),
        ({"ids": torch.arange(3)}, "ids must have length"),
    ],
)
def test_an_epilogue_that_does_not_fit_is_refused(compiled, change, message):
    csc = skewed()
    after = epilogue_for(csc.num_dst, 9, torch.float32)._replace(**change)
    with pytest.raises(ValueError, match=message):
        compiled.spmm(*arguments(csc, values(60, 9), {}), torch.empty(40, 9), after)
    with pytest.raises(ValueError, match=message):
        compiled.tall_product(values(40, 2), values(2, 9), torch.empty(40, 9), False, None, after)


# ---- masks by ids


NUM = 40
CSC = power_law_csc(NUM, 300)
X = torch.randn(NUM, 6, generator=torch.Generator().manual_seed(0))
ORDER = torch.randperm(NUM, generator=torch.Generator().manual_seed(1))


def _permuted(csc: Csc) -> Csc:
    """The graph whose node ``i`` is node ``ORDER[i]``, with the edges of a row in their order."""
    place = torch.empty_like(ORDER)
    place[ORDER] = torch.arange(NUM)
    rows = [csc.indices[int(csc.indptr[v]) : int(csc.indptr[v + 1])].long() for v in ORDER.tolist()]
    ends = torch.tensor([0, *(len(row) for row in rows)]).cumsum(0)
    return Csc(ends, place[torch.cat(rows)].to(torch.int32), NUM)


def _dense(x, csc):
    return bias_act_dropout(x, None, "relu", 0.5)


def _product(x, csc):
    weight = torch.linspace(-1, 1, 48).view(8, 6).to(x.dtype)
    return aggregate_linear(Aggregation(csc=csc), x, weight, act="relu", p=0.5)


def _gat(x, csc):
    return gat_attention(csc, x, x[:, :2], x[:, 2:4], dropout=0.5)


def _gatv2(x, csc):
    return gatv2_attention(csc, x, x, torch.ones(2, 3), dropout=0.5)


@pytest.mark.parametrize("run", [_dense, _product, _gat, _gatv2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_node_has_the_same_mask_at_any_place_forward_and_backward(run, dtype):
    found = []
    for ids, csc in ((torch.arange(NUM), CSC), (ORDER, _permuted(CSC))):
        x = X.to(dtype)[ids].requires_grad_()
        with given_seeds(iter([7])), given_rows({"": ids}):
            out = run(x, csc)
        out.square().sum().backward()
        found.append((out.detach(), x.grad))
    (out, grad), (other, other_grad) = found
    assert (out == 0).any()
    torch.testing.assert_close(other, out[ORDER])
    torch.testing.assert_close(other_grad, grad[ORDER], rtol=1e-4, atol=1e-4)


def test_ids_that_are_the_places_give_the_masks_of_places():
    with given_seeds(iter([7])):
        plain = _dense(X, CSC)
    with given_seeds(iter([7])), given_rows({"": torch.arange(NUM)}):
        assert plain.equal(_dense(X, CSC))


def test_stored_values_of_sparse_features_are_dropped_by_node_and_column():
    dense = torch.where(X > 0, X, 0)
    found = []
    for ids in (torch.arange(NUM), ORDER):
        x = SparseFeatures.from_dense(dense[ids])
        with given_seeds(iter([3])), given_rows({"": ids}):
            found.append(sparse_dropout(x, 0.4, training=True).to_dense())
    assert found[1].equal(found[0][ORDER])
    kept = found[0] != 0
    assert found[0][kept].allclose(dense[kept] / 0.6)
    assert 0.45 < kept.sum() / (dense != 0).sum() < 0.75


def test_ids_are_those_of_the_type_that_is_said_and_end_with_the_block():
    rows = {"a": torch.tensor([5, 6]), "b": torch.tensor([9])}
    assert row_ids(1) is None
    with given_rows(rows):
        assert row_ids(2).tolist() == [5, 6]
        mask_type("b")
        assert row_ids(1).tolist() == [9]
        assert row_ids(2) is None
        mask_type(0)
        assert row_ids(1).tolist() == [5]
        with given_rows(None):
            assert row_ids(1) is None
        assert row_ids(1).tolist() == [5]
    mask_type("a")
    assert row_ids(1) is None
