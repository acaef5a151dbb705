"""Aggregation in Triton against its twin."""

import pytest
import torch
from tests.ops.graphs import CORNERS, close, skewed, values
from tests.ops.test_epilogue import epilogue_for
from tests.ops.test_spmm import COEFFICIENTS, arguments, hub_graph

from graphbraid.graph.csc import Csc
from graphbraid.ops import reference
from graphbraid.ops.spmm import TIES

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
WIDTHS = (33, 7, 1, 3, 16, 64, 100, 257)  # below, at and above a tile of columns


def assert_kernel_equals_twin(both, csc, x, wanted):
    out = x.new_full((csc.num_dst, x.shape[1]), torch.nan)
    close(*both("spmm", arguments(csc, x, wanted), [out])[0])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", WIDTHS)
def test_kernel_equals_twin_at_every_width(both, short_segments, width, dtype):
    csc = skewed(10, 13)
    for wanted in ("plain", "all"):
        x = values(csc.num_src, width, dtype=dtype)
        assert_kernel_equals_twin(both, csc, x, COEFFICIENTS[wanted])


@pytest.mark.parametrize("corner", CORNERS)
@pytest.mark.parametrize("wanted", COEFFICIENTS)
def test_kernel_equals_twin_on_corner_graphs(both, short_segments, corner, wanted):
    csc = CORNERS[corner]()
    assert_kernel_equals_twin(both, csc, values(csc.num_src, 5), COEFFICIENTS[wanted])


@pytest.mark.parametrize("wanted", ["plain", "all"])
def test_kernel_equals_twin_without_hubs(both, wanted):
    csc = skewed(10, 13)
    assert_kernel_equals_twin(both, csc, values(csc.num_src, 5), COEFFICIENTS[wanted])


def test_hub_summed_in_segments_of_their_own_length_equals_the_exact_sum(kernels):
    csc, x = hub_graph(1700), values(5, 3)
    out, exact = x.new_empty(3, 3), torch.empty(3, 3, dtype=torch.float64)
    kernels.spmm(*arguments(csc, x, {}), out)
    reference.spmm(*arguments(csc, x.double(), {}), exact)
    torch.testing.assert_close(out.double(), exact, rtol=1e-5, atol=1e-4)


def test_rows_of_input_and_output_may_be_strided(kernels):
    csc = skewed(10, 13)
    wide, out, expected = values(csc.num_src, 50), torch.zeros(csc.num_dst, 60), torch.zeros(csc.num_dst, 60)
    args = arguments(csc, wide[:, 10:43], {"addend": True})
    args[-1] = values(csc.num_dst // 2, 70)[:, 20:53]
    kernels.spmm(*args, out[:, 5:38])
    reference.spmm(*args, expected[:, 5:38])
    close(out, expected)  # also that nothing beside the columns was touched


def test_half_precision_rows_may_be_summed_into_float32(both):
    csc = skewed(10, 13)
    x = values(csc.num_src, 33, dtype=torch.bfloat16)
    close(*both("spmm", arguments(csc, x, {}), [torch.empty(csc.num_dst, 33)])[0])


def test_a_skipped_self_loop_may_hold_anything(both):
    csc = skewed(10, 13)
    x, wanted = values(csc.num_src, 5), COEFFICIENTS["loops"]
    args = arguments(csc, x, wanted)
    args[3] = values(csc.num_edges)
    args[3][csc.indices == csc.destinations()] = torch.nan
    expected, out = (torch.empty(csc.num_dst, 5) for _ in range(2))
    reference.spmm(*args, expected)
    assert expected.isfinite().all()
    close(*both("spmm", args, [out])[0])


def test_two_runs_give_the_same_bits(kernels, short_segments):
    csc = skewed(10, 13)
    args = arguments(csc, values(csc.num_src, 33), COEFFICIENTS["all"])
    first, second = torch.empty(2, csc.num_dst, 33)
    kernels.spmm(*args, first)
    kernels.spmm(*args, second)
    assert torch.equal(first, second)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("act", range(4))
def test_an_epilogue_ends_as_its_own_kernel_after_it_would(kernels, short_segments, act, dtype):
    csc = skewed(10, 13)
    x = values(csc.num_src, 33, dtype=dtype)
    args = arguments(csc, x, COEFFICIENTS["all"])
    for p, with_bias, with_ids in ((0.0, True, False), (0.3, False, False), (0.6, True, True)):
        after = epilogue_for(10, 33, dtype, act=act, p=p, bias=with_bias, ids=with_ids)
        bias, *how, ids = after
        joined, apart, expected = (x.new_full((10, 40), torch.nan)[:, 3:36] for _ in range(3))
        kernels.spmm(*args, joined, after)
        kernels.spmm(*args, apart)
        kernels.epilogue(apart, bias, *how, apart, ids)
        close(joined, apart)
        reference.spmm(*args, expected, after)
        close(joined, expected)


WIDTHS_OF_MAXIMA = (33, 7, 1, 3, 16, 64, 100, 257)


def assert_kernels_equal_twins(both, csc, x, weight, ties):
    width = x.shape[1]
    places = torch.full((csc.num_dst, width), -7, dtype=torch.int32)
    out = x.new_full((csc.num_dst, width), torch.nan)
    outs, found = both("spmm_max", [csc.indptr, csc.indices, x, weight, ties], [out, places])
    close(*outs)
    assert torch.equal(*found)
    (alone,) = both("spmm_max", [csc.indptr, csc.indices, x, weight, ties], [out, None])
    assert torch.equal(alone[0].nan_to_num(9), outs[0].nan_to_num(9))
    transposed, perm = csc.transpose()
    edges = [transposed.indptr, transposed.indices]
    grad = values(csc.num_dst, width, dtype=x.dtype, seed=4)
    ordered = None if weight is None else weight[perm]
    into = [x.new_full((csc.num_src, width), torch.nan)]
    if ties == 0:
        arguments = [*edges, perm, csc.indptr, grad, ordered, found[1]]
        close(*both("spmm_max_backward", arguments, into)[0])
    elif weight is None or x.dtype == torch.float32:  # the operator compares others in float32
        share = (grad / found[1].clamp(min=1)).to(x.dtype)
        close(*both("spmm_max_shared_backward", [*edges, share, ordered, outs[1], x], into)[0])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", WIDTHS_OF_MAXIMA)
@pytest.mark.parametrize("ties", range(3), ids=TIES)
def test_kernels_equal_twins_at_every_width(both, short_segments, width, dtype, ties):
    csc = skewed(10, 13)
    x = values(13, width, dtype=dtype).round(decimals=1 if dtype.itemsize > 2 else 0)  # many ties
    x[::3] = -0.0
    weight = values(csc.num_edges).round(decimals=1) if width % 2 else None
    assert_kernels_equal_twins(both, csc, x, weight, ties)


@pytest.mark.parametrize("corner", CORNERS)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ties", range(3), ids=TIES)
def test_kernels_equal_twins_on_corner_graphs(both, short_segments, corner, weighted, ties):
    csc = CORNERS[corner]()
    weight = values(csc.num_edges) if weighted else None
    assert_kernels_equal_twins(both, csc, values(csc.num_src, 5).round(decimals=1), weight, ties)


@pytest.mark.parametrize("ties", range(3), ids=TIES)
def test_kernels_equal_twins_on_a_hub_and_its_transpose(both, ties):
    generator = torch.Generator().manual_seed(0)
    sources = torch.randint(0, 3, (1203,), generator=generator).to(torch.int32)  # hubs both ways
    csc = Csc(torch.tensor([0, 2, 1201, 1203]), sources, 3)
    assert_kernels_equal_twins(both, csc, values(3, 4), values(1203).round(decimals=1), ties)


@pytest.mark.parametrize("short", [False, True])
def test_a_nan_wins_the_maximum_and_infinities_and_zeros_count(both, request, short):
    if short:
        request.getfixturevalue("short_segments")
    csc = Csc(torch.tensor([0, 300, 301, 303]), torch.arange(303, dtype=torch.int32), 303)
    x = torch.zeros(303, 4)
    # Each twice, 256 edges apart: in one lane of edges, and in one lane of segments.
    x[[11, 267], 0] = torch.nan
    x[[3, 259], 1] = torch.inf
    x[:300, 2] = -torch.inf
    x[0, 3] = -0.0  # equal to the zeros that follow
    x[300] = -torch.inf
    x[301:, 0] = torch.nan
    expected = ([11, 3, 0, 0], [0, 2, 300, 300], [0, 2, 300, 301])  # places; numbers of shares
    for ties, counted in enumerate(expected):
        outs, found = both(
            "spmm_max",
            [csc.indptr, csc.indices, x, None, ties],
            [torch.empty(3, 4), torch.empty(3, 4, dtype=torch.int32)],
        )
        torch.testing.assert_close(*outs, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(*found)
        assert found[0][0].tolist() == counted
