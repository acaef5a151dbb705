"""sddmm and edge_softmax in Triton against their twins."""

import pytest
import torch
from tests.ops.graphs import CORNERS, close, skewed, values
from tests.ops.test_spmm import hub_graph

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
WIDTHS = (33, 7, 1, 3, 16, 64, 100, 257)

# NumPy, which interprets the kernel, warns of what it computes in lanes that are masked.
pytestmark = pytest.mark.filterwarnings("ignore:(invalid value|divide by zero):RuntimeWarning")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", WIDTHS)
def test_kernel_equals_twin(both, width, dtype):
    csc = skewed(10, 13)
    left, right = values(10, 2 * width, dtype=dtype), values(13, 2 * width, dtype=dtype)
    for heads, scales in ((1, (None, None)), (2, (values(10), values(13)))):
        out = torch.full((csc.num_edges, heads), torch.nan)
        pair = both("sddmm", [csc.indptr, csc.indices, left, right, *scales], [out])[0]
        close(*pair, terms=16 * width)


def test_rows_may_be_strided(both):
    csc = skewed()
    left, right = values(40, 50)[:, 7:20], values(60, 30)[:, 3:16]
    pair = both("sddmm", [csc.indptr, csc.indices, left, right, None, None], [torch.empty(csc.num_edges, 1)])
    close(*pair[0])


@pytest.mark.parametrize("corner", CORNERS)
def test_kernels_equal_twins_on_corner_graphs(both, short_segments, corner):
    csc = CORNERS[corner]()
    left, right = values(csc.num_dst, 5), values(csc.num_src, 5)
    out = torch.full((csc.num_edges, 1), torch.nan)
    _, logits = pair = both("sddmm", [csc.indptr, csc.indices, left, right, None, None], [out])[0]
    close(*pair)
    alpha = both("edge_softmax", [csc.indptr, logits], [out])[0]
    close(*alpha)
    grad = values(csc.num_edges, 1, seed=2)
    close(*both("edge_softmax_backward", [csc.indptr, alpha[1], grad], [out])[0])


@pytest.mark.parametrize("heads", [1, 3, 17, 130])
@pytest.mark.parametrize("short", [False, True])
def test_edge_softmax_equals_its_twin(both, request, heads, short):
    if short:
        request.getfixturevalue("short_segments")
    csc = skewed(10, 13)
    logits, grad = values(csc.num_edges, heads) * 20, values(csc.num_edges, heads, seed=2)
    out = torch.full_like(logits, torch.nan)
    alpha = both("edge_softmax", [csc.indptr, logits], [out])[0]
    close(*alpha)
    close(*both("edge_softmax_backward", [csc.indptr, alpha[1], grad], [out])[0])


def test_edge_softmax_of_a_hub_sums_to_one_for_huge_logits(kernels):
    csc = hub_graph(1700)
    alpha = torch.full((csc.num_edges, 1), torch.nan)
    kernels.edge_softmax(csc.indptr, values(csc.num_edges, 1) * 1e4, alpha)
    sums = torch.segment_reduce(alpha[:, 0], "sum", lengths=csc.degrees())
    torch.testing.assert_close(sums, torch.ones(3))
