"""GINE's rectified sums in Triton, forward and backward, against their twins."""

import pytest
import torch
from tests.ops.graphs import CORNERS, close, skewed, values
from tests.ops.test_gine import rows_of

from graphbraid.graph.csc import Csc

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
WIDTHS = (33, 7, 1, 16, 100, 257)


def assert_kernels_equal_twins(both, csc, width, dtype=torch.float32, scale=1.5):
    x, edges = rows_of(csc, width, dtype)
    how = (scale, min(csc.num_src, csc.num_dst) if scale else 0)
    close(*both("gine", [csc.indptr, csc.indices, x, edges, *how], [x.new_full((csc.num_dst, width), 7)])[0])
    grad = values(csc.num_dst, width, dtype=dtype, seed=4)
    grads = both("gine_edge_backward", [csc.indptr, csc.indices, x, edges, grad], [edges])[0]
    assert torch.equal(*grads)
    reverse, perm = csc.transpose()
    for pair in ((x, edges), (None, grads[1])):
        arguments = [reverse.indptr, reverse.indices, perm, grad, *pair, *how]
        close(*both("gine_backward", arguments, [x.new_full((csc.num_src, width), torch.nan)])[0])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", WIDTHS)
def test_kernels_equal_twins_at_every_width(both, short_segments, width, dtype):
    assert_kernels_equal_twins(both, skewed(10, 13), width, dtype, scale=width % 2)


@pytest.mark.parametrize("corner", CORNERS)
def test_kernels_equal_twins_on_corner_graphs(both, short_segments, corner):
    assert_kernels_equal_twins(both, CORNERS[corner](), 5)


def test_kernels_equal_twins_on_a_hub_and_its_transpose(both):
    sources = torch.randint(0, 3, (1203,), generator=torch.Generator().manual_seed(0)).to(torch.int32)
    assert_kernels_equal_twins(both, Csc(torch.tensor([0, 2, 1201, 1203]), sources, 3), 4)


def test_a_nan_stays_one(kernels):
    csc, out = Csc(torch.tensor([0, 2]), torch.tensor([0, 1], dtype=torch.int32), 2), torch.empty(1, 3)
    edges = torch.tensor([[1.0, torch.nan, 1.0], [1.0, 1.0, 1.0]])
    kernels.gine(csc.indptr, csc.indices, torch.ones(2, 3), edges, 0.0, 0, out)
    assert out.isnan().tolist() == [[False, True, False]]
