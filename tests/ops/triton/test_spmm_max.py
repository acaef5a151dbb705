"""Maximum over in-neighbours in Triton, and its gradient, against their twins."""

import pytest
import torch
from tests.ops.graphs import CORNERS, close, skewed, values

from graphbraid.graph.csc import Csc
from graphbraid.ops.spmm import TIES

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
WIDTHS = (33, 7, 1, 3, 16, 64, 100, 257)


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
@pytest.mark.parametrize("width", WIDTHS)
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
