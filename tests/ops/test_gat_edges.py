"""GAT's attention where edges add numbers of their own to the logits: kernels, twins, plain autograd."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from tests.ops.graphs import CORNERS, DTYPES, assert_same_bits_with_any_threads, close, skewed, values
from tests.ops.test_attention import attend, gat_inputs, with_loops
from tests.ops.test_gine import drawn

from graphbraid.ops import reference
from graphbraid.ops.attention import both_ways
from graphbraid.ops.kernels import backend

SHAPES = [(1, 1), (1, 40), (3, 5), (4, 16), (8, 8), (17, 3), (2, 257)]


def run(module, csc, inputs, logit, *, loops, p=0.0, narrow=False, after=None):
    """What the kernels write: result, log-sum-exp, and the gradients, those of the edges' numbers last.

    ``after``: result and log-sum-exp that backward is given, which half precision has rounded otherwise.
    """
    x, heads, dtype = inputs[0], logit.shape[1], reference.sum_dtype(inputs[0].dtype)
    how = (0.2, min(csc.num_src, csc.num_dst) if loops else 0, p, 2**62 + 12345)
    out = x.new_full((csc.num_dst, x.shape[1]), torch.nan)
    lse = logit.new_full((csc.num_dst, heads), torch.nan)
    kept = (torch.empty(out.shape, dtype=dtype), torch.empty_like(lse))
    module.gat_forward(csc.indptr, csc.indices, *inputs, *how, out, lse, *kept, edge_logit=logit)
    grad = values(csc.num_dst, x.shape[1] // (heads if narrow else 1), dtype=x.dtype, seed=4)
    grads = [torch.full_like(t, torch.nan) for t in (*inputs, logit)]
    arguments = (*both_ways(csc), *inputs, *how, *(after or (out, lse)), grad, *grads[:3], *kept)
    module.gat_backward(*arguments, edge_logit=logit, grad_edge_logit=grads[3])
    return [out, lse, *grads]


def logits_of(csc, heads, dtype, *, loops):
    count = csc.num_edges + (min(csc.num_src, csc.num_dst) if loops else 0)
    return values(count, heads, dtype=reference.sum_dtype(dtype), seed=7)


def assert_kernels_equal_twins(native, csc, heads, channels, dtype=torch.float32, *, loops, **how):
    inputs = gat_inputs(csc, heads, channels, dtype)
    logit = logits_of(csc, heads, dtype, loops=loops)
    expected = run(reference, csc, inputs, logit, loops=loops, **how)
    found = run(native, csc, inputs, logit, loops=loops, after=expected[:2], **how)
    for ours, theirs in zip(found[:2], expected[:2], strict=True):
        close(ours, theirs)
    for ours, theirs in zip(found[2:], expected[2:], strict=True):
        # Logits' gradients are float32, but made of outputs that were rounded to the rows' dtype.
        close(ours.to(dtype), theirs.to(dtype), terms=400 * (1 + channels))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("heads", "channels"), SHAPES)
def test_kernels_equal_twins_at_every_shape(compiled, heads, channels, dtype):
    for loops, p in ((False, 0.0), (True, 0.4)):
        assert_kernels_equal_twins(compiled, skewed(), heads, channels, dtype, loops=loops, p=p)


@pytest.mark.parametrize("corner", CORNERS)
@pytest.mark.parametrize("loops", [False, True])
def test_kernels_equal_twins_on_corner_graphs(compiled, corner, loops):
    assert_kernels_equal_twins(compiled, CORNERS[corner](), 2, 5, loops=loops)


@pytest.mark.parametrize(("heads", "channels"), [(2, 5), (4, 16)])
def test_one_gradient_may_serve_all_heads(compiled, heads, channels):
    assert_kernels_equal_twins(compiled, skewed(), heads, channels, loops=True, narrow=True)


@given(case=drawn(), heads=st.integers(1, 9), loops=st.booleans(), p=st.sampled_from([0.0, 0.5]))
def test_any_block_equals_the_twin(case, heads, loops, p):
    csc, width, _ = case
    assert_kernels_equal_twins(backend(torch.zeros(1)), csc, heads, 1 + width % 64, loops=loops, p=p)


@pytest.mark.parametrize("loops", [False, True])
def test_value_and_gradients_equal_plain_operators(loops):
    csc = skewed()
    walked = with_loops(csc) if loops else csc
    src, dst = walked.indices.long(), walked.destinations().long()
    inputs = gat_inputs(csc, 3, 5, torch.float64)
    logit = logits_of(csc, 3, torch.float64, loops=loops)
    found = run(backend(inputs[0]), csc, inputs, logit, loops=loops)
    learned = [t.clone().requires_grad_() for t in (*inputs, logit)]
    own = learned[3]
    if loops:  # of the edges that are walked, in their order: by destination, the loop last
        kept = (csc.indices.long() != csc.destinations().long()).nonzero().flatten()
        places = torch.cat([kept, torch.arange(csc.num_edges, logit.shape[0])])
        ends = torch.cat([csc.destinations().long()[kept], torch.arange(logit.shape[0] - csc.num_edges)])
        own = own[places[torch.argsort(ends, stable=True)]]
    out = attend(walked, learned[0], F.leaky_relu(learned[1][src] + learned[2][dst] + own, 0.2))
    torch.testing.assert_close(found[0], out.detach())
    grad = values(csc.num_dst, 15, dtype=torch.float64, seed=4)
    for ours, theirs in zip(found[2:], torch.autograd.grad(out, learned, grad), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_bits_do_not_depend_on_the_number_of_threads():
    csc = skewed(3000, 2000, seed=3)
    inputs = gat_inputs(csc, 4, 9, torch.float32)
    logit = logits_of(csc, 4, torch.float32, loops=True)
    assert_same_bits_with_any_threads(lambda: run(backend(inputs[0]), csc, inputs, logit, loops=True, p=0.2))


def test_numbers_of_the_wrong_length_are_refused():
    csc = skewed()
    inputs = gat_inputs(csc, 2, 3, torch.float32)
    logit = logits_of(csc, 2, torch.float32, loops=True)
    native = backend(inputs[0])
    if native is reference:
        pytest.skip("the twins take what they are given")
    with pytest.raises(ValueError, match="edge_logit must have shape"):
        run(native, csc, inputs, logit[:-1], loops=True)
