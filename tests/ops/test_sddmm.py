"""sddmm and edge_softmax: compiled variants against twins, gradients, corner graphs."""

import pytest
import torch
from tests.ops.graphs import CORNERS, DTYPES, WIDTHS, assert_same_bits_with_any_threads, close, skewed, values

from graphbraid.errors import DataError
from graphbraid.ops import edge_softmax, reference, sddmm


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", WIDTHS)
def test_kernel_equals_twin(compiled, width, dtype):
    csc = skewed()
    sums = reference.sum_dtype(dtype)
    left, right = values(40, 2 * width, dtype=dtype), values(60, 2 * width, dtype=dtype)
    for heads in (1, 2):
        scales = values(40, dtype=sums), values(60, dtype=sums)
        out, expected = torch.empty(2, csc.num_edges, heads, dtype=sums)
        compiled.sddmm(csc.indptr, csc.indices, left, right, *scales, out)
        reference.sddmm(csc.indptr, csc.indices, left, right, *scales, expected)
        close(out, expected, terms=16 * width)


@pytest.mark.parametrize("heads", [1, 3])
def test_rows_of_no_channels_have_products_of_zero(compiled, heads):
    csc = skewed()
    out = torch.full((csc.num_edges, heads), torch.nan)
    compiled.sddmm(csc.indptr, csc.indices, torch.empty(40, 0), torch.empty(60, 0), None, None, out)
    assert not out.any()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("heads", [1, 2, 4, 8])
def test_kernel_equals_twin_where_vectors_hold_several_heads_or_heads_several_vectors(compiled, heads, dtype):
    csc = skewed(num_src=600)
    for width in (8, 16, 32, 64, 128):
        left, right = values(40, width, dtype=dtype), values(600, width, dtype=dtype)
        out, expected = torch.full((2, csc.num_edges, heads), torch.nan, dtype=reference.sum_dtype(dtype))
        compiled.sddmm(csc.indptr, csc.indices, left, right, None, None, out)
        reference.sddmm(csc.indptr, csc.indices, left, right, None, None, expected)
        close(out, expected, terms=16 * width)


@pytest.mark.parametrize("corner", CORNERS)
def test_kernels_equal_twins_on_corner_graphs(compiled, corner):
    csc = CORNERS[corner]()
    left, right = values(csc.num_dst, 5), values(csc.num_src, 5)
    out, expected = torch.empty(2, csc.num_edges, 1)
    compiled.sddmm(csc.indptr, csc.indices, left, right, None, None, out)
    reference.sddmm(csc.indptr, csc.indices, left, right, None, None, expected)
    close(out, expected)
    alpha, wanted = torch.empty(2, csc.num_edges, 1)
    compiled.edge_softmax(csc.indptr, out, alpha)
    reference.edge_softmax(csc.indptr, expected, wanted)
    close(alpha, wanted)


def test_gradcheck():
    csc = skewed(8, 11)
    left, right = values(8, 5, dtype=torch.float64, grad=True), values(11, 5, dtype=torch.float64, grad=True)
    assert torch.autograd.gradcheck(lambda a, b: sddmm(csc, a, b), (left, right))


@pytest.mark.parametrize("heads", [1, 2, 3, 4, 5, 8, 16, 17, 33])
def test_edge_softmax_kernels_equal_twins(compiled, heads):
    csc = skewed()
    for dtype in (torch.float32, torch.float64):
        logits = values(csc.num_edges, heads, dtype=dtype) * 20
        alpha, expected, back, wanted = logits.new_empty(4, csc.num_edges, heads)
        compiled.edge_softmax(csc.indptr, logits, alpha)
        reference.edge_softmax(csc.indptr, logits, expected)
        close(alpha, expected)
        grad = values(csc.num_edges, heads, dtype=dtype, seed=2)
        compiled.edge_softmax_backward(csc.indptr, alpha, grad, back)
        reference.edge_softmax_backward(csc.indptr, alpha, grad, wanted)
        close(back, wanted)


def test_edge_softmax_sums_to_one_for_huge_logits():
    csc = skewed()
    alpha = edge_softmax(csc, values(csc.num_edges) * 1e4)
    sums = torch.segment_reduce(alpha, "sum", lengths=csc.degrees())
    torch.testing.assert_close(sums, (csc.degrees() > 0).float())


def test_edge_softmax_gradcheck():
    csc = skewed(8, 11)
    logits = values(csc.num_edges, 2, dtype=torch.float64, grad=True)
    assert torch.autograd.gradcheck(lambda z: edge_softmax(csc, z), logits)


def test_edge_softmax_keeps_shape_and_dtype():
    csc = skewed()
    for shape in ((csc.num_edges,), (csc.num_edges, 2)):
        out = edge_softmax(csc, values(*shape, dtype=torch.bfloat16))
        assert out.shape == shape
        assert out.dtype == torch.bfloat16


def test_bits_do_not_depend_on_the_number_of_threads():
    csc = skewed(3000, 2000, seed=3)
    left, right = values(3000, 37, grad=True), values(2000, 37, grad=True)

    def run():
        out = edge_softmax(csc, sddmm(csc, left, right))
        return [out.detach(), *torch.autograd.grad(out.square().sum(), (left, right))]

    assert_same_bits_with_any_threads(run)


def test_rows_of_two_dtypes_are_refused():
    with pytest.raises(DataError, match="one dtype"):
        sddmm(skewed(), torch.zeros(40, 3), torch.zeros(60, 3, dtype=torch.float64))
