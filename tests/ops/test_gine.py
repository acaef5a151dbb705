"""GINE's rectified sums: every compiled variant against its twin, gradients against plain autograd."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.ops.graphs import (
    CORNERS,
    DTYPES,
    WIDTHS,
    assert_same_bits_with_any_threads,
    close,
    skewed,
    square,
    values,
)

from graphbraid.errors import DataError
from graphbraid.graph.csc import Csc, coo_to_csc
from graphbraid.ops import gine, reference
from graphbraid.ops.kernels import backend


def rows_of(csc, width, dtype=torch.float32):
    """Rows of sources and of edges, about half of whose sums are above 0."""
    return values(csc.num_src, width, dtype=dtype), values(csc.num_edges, width, dtype=dtype, seed=2)


def assert_kernels_equal_twins(native, csc, x, edges, scale=1.5):
    width, dtype = x.shape[1], x.dtype
    num_loops = min(csc.num_src, csc.num_dst) if scale else 0
    found = []
    for module in (native, reference):
        out = x.new_full((csc.num_dst, width), torch.nan)
        module.gine(csc.indptr, csc.indices, x, edges, scale, num_loops, out)
        grad = values(csc.num_dst, width, dtype=dtype, seed=4)
        to_edges = edges.clone()  # written over
        module.gine_edge_backward(csc.indptr, csc.indices, x, to_edges, grad, to_edges)
        reverse, perm = csc.transpose()
        ways, back = (reverse.indptr, reverse.indices, perm, grad), []
        for pair in ((x, edges), (None, to_edges)):
            back.append(x.new_full((csc.num_src, width), torch.nan))
            module.gine_backward(*ways, *pair, scale, num_loops, back[-1])
        found.append((out, to_edges, *back))
    for actual, expected in zip(*found, strict=True):
        close(actual, expected)
    assert torch.equal(found[0][1], found[1][1])  # chosen, not computed
    close(found[0][2], found[0][3])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", WIDTHS)
def test_kernels_equal_twins_at_every_width(compiled, width, dtype):
    csc = skewed()
    assert_kernels_equal_twins(compiled, csc, *rows_of(csc, width, dtype), scale=width % 2)


@pytest.mark.parametrize("corner", CORNERS)
def test_kernels_equal_twins_on_corner_graphs(compiled, corner):
    csc = CORNERS[corner]()
    for width in (5, 19):
        assert_kernels_equal_twins(compiled, csc, *rows_of(csc, width))


@st.composite
def drawn(draw):
    """A block with repeated edges, loops and empty rows, a width, and a factor of own rows."""
    num_src, num_dst = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    ends = st.tuples(st.integers(0, num_src - 1), st.integers(0, num_dst - 1))
    edges = torch.tensor(draw(st.lists(ends, max_size=30)), dtype=torch.int64).reshape(-1, 2)
    csc, _ = coo_to_csc(edges[:, 0], edges[:, 1], num_src, num_dst)
    return csc, draw(st.integers(1, 1024)), draw(st.sampled_from([0.0, 1.0, -0.3]))


@given(case=drawn())
def test_any_block_equals_the_twin(case):
    csc, width, scale = case
    x, edges = rows_of(csc, width)
    assert_kernels_equal_twins(backend(x), csc, x, edges, scale)


def test_rows_may_stand_apart(compiled):
    csc = skewed()
    x, edges = values(csc.num_src, 50)[:, 3:36], values(csc.num_edges, 40, seed=2)[:, 5:38]
    assert_kernels_equal_twins(compiled, csc, x, edges)


@pytest.mark.parametrize("width", [1, 7, 16, 40])
def test_a_nan_stays_one_and_a_sum_of_0_has_no_gradient(compiled, width):
    csc = Csc(torch.tensor([0, 2, 3]), torch.tensor([0, 1, 2], dtype=torch.int32), 3)
    x, edges, out = torch.ones(3, width), -torch.ones(3, width), torch.empty(2, width)
    edges[1] = torch.nan
    compiled.gine(csc.indptr, csc.indices, x, edges, 0.0, 0, out)
    assert out[0].isnan().all()
    assert (out[1] == 0).all()
    grads = torch.empty(3, width)
    compiled.gine_edge_backward(csc.indptr, csc.indices, x, edges, torch.ones(2, width), grads)
    assert grads[:, 0].tolist() == [0, 1, 0]  # as PyTorch's


def naive(csc, x, edges, scale):
    """The definition by plain operators."""
    messages = (x[csc.indices.long()] + edges).relu()
    out = x.new_zeros(csc.num_dst, x.shape[1]).index_add(0, csc.destinations().long(), messages)
    count = min(csc.num_src, csc.num_dst)
    return out + torch.nn.functional.pad(scale * x[:count], (0, 0, 0, csc.num_dst - count))


@pytest.mark.parametrize("scale", [0.0, 1.3])
@pytest.mark.parametrize("learns", ["both", "x", "edges"])
def test_value_and_gradients_equal_the_definition(learns, scale):
    csc = skewed()
    x, edges = rows_of(csc, 21, torch.float64)
    inputs = [t.requires_grad_() for t, name in ((x, "x"), (edges, "edges")) if learns in (name, "both")]
    grad = values(csc.num_dst, 21, dtype=torch.float64, seed=5)
    out, expected = gine(csc, x, edges, loop_scale=scale), naive(csc, x, edges, scale)
    torch.testing.assert_close(out, expected)
    for a, b in zip(
        torch.autograd.grad(out, inputs, grad), torch.autograd.grad(expected, inputs, grad), strict=True
    ):
        torch.testing.assert_close(a, b)


def test_gradcheck():
    csc = square(8)
    x, edges = (t.requires_grad_() for t in rows_of(csc, 3, torch.float64))
    assert torch.autograd.gradcheck(lambda x, e: gine(csc, x, e, loop_scale=0.7), (x, edges))


def test_bits_do_not_depend_on_the_number_of_threads():
    csc = skewed(3000, 2000, seed=3)
    x, edges = (t.requires_grad_() for t in rows_of(csc, 37))

    def run():
        out = gine(csc, x, edges, loop_scale=1.0)
        return [out.detach(), *torch.autograd.grad(out.square().sum(), (x, edges))]

    assert_same_bits_with_any_threads(run)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.zeros(59, 3)}, r"one row per source node \(60\); got shape \(59, 3\)"),
        ({"x": torch.zeros(60, 4)}, r"edges must be torch.float32 of shape \(\d+, 4\)"),
        ({"edges": torch.zeros(3, 3)}, r"a row as wide as x's for each edge; got torch.float32 of \(3, 3\)"),
        ({"edges": torch.zeros(3, 3, dtype=torch.int64)}, "edges must be floating point"),
    ],
)
def test_wrong_arguments_are_named(change, message):
    csc = skewed()
    arguments = {"x": torch.zeros(60, 3), "edges": torch.zeros(csc.num_edges, 3)} | change
    with pytest.raises(DataError, match=message):
        gine(csc, **arguments)
