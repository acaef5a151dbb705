"""Kernels that end in an epilogue: the bits of both kernels in turn, and the values of the twins."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.ops.graphs import (
    CORNERS,
    DTYPES,
    assert_same_bits_with_any_threads,
    close,
    skewed,
    skip_where_torch_multiplies,
    values,
)
from tests.ops.test_spmm import COEFFICIENTS, arguments, hub_graph
from tests.suites import examples

from graphbraid.ops import Aggregation, reference
from graphbraid.ops.epilogue import ACTIVATION_CODES, LEAKY_SLOPE
from graphbraid.ops.library import RowEpilogue
from graphbraid.ops.linear import tall_product

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


def test_bits_do_not_depend_on_the_number_of_threads():
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
