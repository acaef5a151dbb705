"""Attention whose edges have numbers (GAT) or features (GATv2) of their own: kernels, twins, autograd."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from tests.kernels import needs_kernels
from tests.ops.graphs import (
    CORNERS,
    DTYPES,
    assert_same_bits_with_any_threads,
    close,
    skewed,
    skip_where_torch_multiplies,
    values,
)
from tests.ops.test_attention import attend, gat_inputs, gatv2_inputs, with_loops
from tests.ops.test_gine import drawn

from graphbraid import native
from graphbraid.graph.csc import Csc
from graphbraid.ops import reference
from graphbraid.ops.attention import both_ways
from graphbraid.ops.kernels import backend

SHAPES = [(1, 1), (1, 40), (3, 5), (4, 16), (8, 8), (1, 64), (17, 3), (2, 257)]
NAMES = ("edge_features", "loop_features", "edge_weight")


def run_gat(module, csc, inputs, edges, *, loops, p=0.0, narrow=False, after=None):
    """What the kernels write: result, log-sum-exp, and the gradients, those of the edges' numbers last.

    ``after``: result and log-sum-exp that backward is given, which half precision has rounded otherwise.
    """
    x, [logit] = inputs[0], edges
    heads, dtype = logit.shape[1], reference.sum_dtype(x.dtype)
    how = (0.2, loops_of(csc) if loops else 0, p, 2**62 + 12345)
    out = x.new_full((csc.num_dst, x.shape[1]), torch.nan)
    lse = logit.new_full((csc.num_dst, heads), torch.nan)
    kept = (torch.empty(out.shape, dtype=dtype), torch.empty_like(lse))
    module.gat_forward(csc.indptr, csc.indices, *inputs, *how, out, lse, *kept, edge_logit=logit)
    grad = values(csc.num_dst, x.shape[1] // (heads if narrow else 1), dtype=x.dtype, seed=4)
    grads = [torch.full_like(t, torch.nan) for t in (*inputs, logit)]
    arguments = (*both_ways(csc), *inputs, *how, *(after or (out, lse)), grad, *grads[:3], *kept)
    module.gat_backward(*arguments, edge_logit=logit, grad_edge_logit=grads[3])
    return [out, lse, *grads]


def run_gatv2(module, csc, inputs, edges, *, loops, p=0.0, after=None, learns=True):
    """The same of GATv2, with the gradient of the edges' map last."""
    x, att = inputs[0], inputs[2]
    how = (0.2, loops_of(csc) if loops else 0, p, 2**62 + 12345)
    out = x.new_full((csc.num_dst, x.shape[1]), torch.nan)
    lse = att.new_full((csc.num_dst, att.shape[0]), torch.nan)
    of_edges = dict(zip(NAMES, edges, strict=True))
    module.gatv2_forward(csc.indptr, csc.indices, *inputs, *how, out, lse, **of_edges)
    grad = values(csc.num_dst, x.shape[1], dtype=x.dtype, seed=4)
    grads = [torch.full_like(t, torch.nan) for t in (*inputs, edges[2])]
    arguments = (*both_ways(csc), *inputs, *how, *(after or (out, lse)), grad, *grads[:3])
    module.gatv2_backward(*arguments, **of_edges, grad_edge_weight=grads[3] if learns else None)
    return [out, lse, *grads]


def loops_of(csc):
    return min(csc.num_src, csc.num_dst)


def logits_of(csc, heads, channels, features, dtype, *, loops):
    """A number of each head for edges and self-loops."""
    count = csc.num_edges + (loops_of(csc) if loops else 0)
    return [values(count, heads, dtype=reference.sum_dtype(dtype), seed=7)]


def features_of(csc, heads, channels, features, dtype, *, loops):
    """Features of edges and self-loops, and their map."""
    counts = csc.num_edges, loops_of(csc) if loops else 0
    sums = reference.sum_dtype(dtype)
    rows = [values(count, features, dtype=sums, seed=7 + i) for i, count in enumerate(counts)]
    return [*rows, values(features, heads * channels, dtype=sums, seed=9) / features**0.5]


KINDS = {"GAT": (gat_inputs, logits_of, run_gat), "GATv2": (gatv2_inputs, features_of, run_gatv2)}
each_kind = pytest.mark.parametrize("kind", KINDS)


def assert_kernels_equal_twins(
    kind, native, csc, heads, channels, features=3, dtype=torch.float32, *, loops, **how
):
    inputs_of, edges_of, run = KINDS[kind]
    inputs = inputs_of(csc, heads, channels, dtype)
    edges = edges_of(csc, heads, channels, features, dtype, loops=loops)
    expected = run(reference, csc, inputs, edges, loops=loops, **how)
    found = run(native, csc, inputs, edges, loops=loops, after=expected[:2], **how)
    terms = 1 if kind == "GAT" else 1 + features
    for ours, theirs in zip(found[:2], expected[:2], strict=True):
        close(ours, theirs, terms=64 * terms)
    for ours, theirs in zip(found[2:], expected[2:], strict=True):
        # Gradients of logits and parameters are float32, but made of outputs rounded to the rows' dtype.
        close(ours.to(dtype), theirs.to(dtype), terms=400 * (1 + channels) * terms)


@each_kind
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("heads", "channels"), SHAPES)
def test_kernels_equal_twins_at_every_shape(compiled, heads, channels, dtype, kind):
    for loops, p, features in ((False, 0.0, 3), (True, 0.4, 8)):
        assert_kernels_equal_twins(
            kind, compiled, skewed(), heads, channels, features, dtype, loops=loops, p=p
        )


@pytest.mark.parametrize("features", [1, 2, 4, 5, 16, 33])
def test_kernels_equal_twins_for_any_number_of_features(compiled, features):
    assert_kernels_equal_twins("GATv2", compiled, skewed(), 4, 12, features, loops=True)


@each_kind
@pytest.mark.parametrize("corner", CORNERS)
@pytest.mark.parametrize("loops", [False, True])
def test_kernels_equal_twins_on_corner_graphs(compiled, corner, loops, kind):
    assert_kernels_equal_twins(kind, compiled, CORNERS[corner](), 2, 5, loops=loops)


@pytest.mark.parametrize(("heads", "channels"), [(2, 5), (4, 16)])
def test_one_gradient_may_serve_all_heads(compiled, heads, channels):
    assert_kernels_equal_twins("GAT", compiled, skewed(), heads, channels, loops=True, narrow=True)


@pytest.mark.parametrize("loops", [False, True])
def test_kernels_equal_twins_on_a_row_of_many_blocks(compiled, loops):
    # Its edges' rows are made some at a time, forward and backward, and their products wait for each other.
    hub = torch.randint(700, (1303,), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    csc = Csc(torch.tensor([0, 3, 1300, 1300, 1303]), hub, 700)
    for features in (2, 7):
        assert_kernels_equal_twins("GATv2", compiled, csc, 2, 16, features, loops=loops, p=0.3)


@each_kind
@given(
    case=drawn(),
    heads=st.integers(1, 9),
    features=st.integers(1, 9),
    loops=st.booleans(),
    p=st.sampled_from([0.0, 0.5]),
)
def test_any_block_equals_the_twin(kind, case, heads, features, loops, p):
    csc, width, _ = case
    channels = 1 + width % 64
    assert_kernels_equal_twins(
        kind, backend(torch.zeros(1)), csc, heads, channels, features, loops=loops, p=p
    )


@each_kind
@pytest.mark.parametrize("loops", [False, True])
def test_value_and_gradients_equal_plain_operators(kind, loops):
    csc, (inputs_of, edges_of, run) = skewed(), KINDS[kind]
    walked = with_loops(csc) if loops else csc
    src, dst = walked.indices.long(), walked.destinations().long()
    inputs = inputs_of(csc, 3, 5, torch.float64)
    edges = edges_of(csc, 3, 5, 4, torch.float64, loops=loops)
    found = run(backend(inputs[0]), csc, inputs, edges, loops=loops)
    learned = [t.clone().requires_grad_() for t in (*inputs, edges[-1])]
    places = torch.arange(csc.num_edges)
    if loops:  # of the edges that are walked, in their order: by destination, the loop last
        kept = (csc.indices.long() != csc.destinations().long()).nonzero().flatten()
        places = torch.cat([kept, csc.num_edges + torch.arange(loops_of(csc))])
        ends = torch.cat([csc.destinations().long()[kept], torch.arange(loops_of(csc))])
        places = places[torch.argsort(ends, stable=True)]
    if kind == "GAT":
        logits = F.leaky_relu(learned[1][src] + learned[2][dst] + learned[3][places], 0.2)
    else:
        z = learned[0][src] + learned[1][dst] + torch.cat(edges[:2])[places] @ learned[3]
        logits = (F.leaky_relu(z, 0.2).view(-1, 3, 5) * learned[2]).sum(-1)
    out = attend(walked, learned[0], logits)
    torch.testing.assert_close(found[0], out.detach())
    grad = values(csc.num_dst, 15, dtype=torch.float64, seed=4)
    torch.testing.assert_close(found[2:], [*torch.autograd.grad(out, learned, grad)])


def case_of(heads, channels, features):
    """A block, the rows of its nodes, and its edges' features with self-loops, for GATv2."""
    csc = skewed()
    inputs = gatv2_inputs(csc, heads, channels, torch.float32)
    return csc, inputs, features_of(csc, heads, channels, features, torch.float32, loops=True)


def test_features_of_zero_change_no_bit():
    csc, inputs, edges = case_of(4, 16, 3)
    edges = [t * 0 for t in edges]
    module, how = backend(inputs[0]), (0.2, loops_of(csc), 0.0, 0)
    found = run_gatv2(module, csc, inputs, edges, loops=True)
    out, lse = torch.empty_like(found[0]), torch.empty_like(found[1])
    module.gatv2_forward(csc.indptr, csc.indices, *inputs, *how, out, lse)
    assert torch.equal(found[0], out)
    assert torch.equal(found[1], lse)
    grads = [torch.empty_like(t) for t in inputs]
    grad = values(csc.num_dst, 64, seed=4)
    module.gatv2_backward(*both_ways(csc), *inputs, *how, out, lse, grad, *grads)
    for ours, theirs in zip(found[2:5], grads, strict=True):
        assert torch.equal(ours, theirs)


def test_rows_may_stand_apart_and_self_loops_may_share_one():
    csc, inputs, edges = case_of(2, 6, 3)
    edges[1] = edges[1][:1].expand(loops_of(csc), 3)
    apart = [torch.cat([edges[0], edges[0]], 1)[:, :3], edges[1], edges[2]]
    module = backend(inputs[0])
    expected = run_gatv2(module, csc, inputs, [t.contiguous() for t in edges], loops=True)
    for ours, theirs in zip(run_gatv2(module, csc, inputs, apart, loops=True), expected, strict=True):
        assert torch.equal(ours, theirs)


def test_a_map_that_does_not_learn_changes_no_other_gradient():
    csc, inputs, edges = case_of(2, 6, 3)
    both = [
        run_gatv2(backend(inputs[0]), csc, inputs, edges, loops=True, learns=learns)
        for learns in (True, False)
    ]
    for learned, frozen in zip(both[0][:5], both[1][:5], strict=True):
        assert torch.equal(learned, frozen)
    assert both[1][5].isnan().all()


@each_kind
def test_bits_do_not_depend_on_the_number_of_threads(kind):
    skip_where_torch_multiplies()
    csc, (inputs_of, edges_of, run) = skewed(3000, 2000, seed=3), KINDS[kind]
    inputs = inputs_of(csc, 4, 9, torch.float32)
    edges = edges_of(csc, 4, 9, 5, torch.float32, loops=True)
    assert_same_bits_with_any_threads(lambda: run(backend(inputs[0]), csc, inputs, edges, loops=True, p=0.2))


NOT_SUMMED_IN = "must have the dtype of the sums, float32; got float64"


@needs_kernels
@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("edge_features", lambda rows: rows[:-1], "edge_features must have shape"),
        ("edge_features", lambda rows: rows[:, :-1], "edge_features must have shape"),
        ("edge_features", lambda rows: rows.double(), f"edge_features {NOT_SUMMED_IN}"),
        ("edge_features", lambda rows: rows.t().contiguous().t(), "row of edge_features must be contiguous"),
        ("edge_features", lambda _: None, "edge_features, loop_features and edge_weight go together"),
        ("loop_features", lambda rows: rows[:-1], "loop_features must have shape"),
        ("loop_features", lambda rows: rows.double(), f"loop_features {NOT_SUMMED_IN}"),
        ("loop_features", lambda _: None, "edge_features, loop_features and edge_weight go together"),
        ("edge_weight", lambda rows: rows[:, :-1].contiguous(), "edge_weight must have shape"),
        ("edge_weight", lambda rows: rows.double(), f"edge_weight {NOT_SUMMED_IN}"),
        ("edge_weight", lambda rows: rows[:0], "edge_weight must have rows"),
    ],
)
def test_features_that_do_not_fit_are_refused(name, change, message):
    csc, inputs, edges = case_of(2, 3, 4)
    how, out, lse = (0.2, loops_of(csc), 0.0, 0), torch.empty(csc.num_dst, 6), torch.empty(csc.num_dst, 2)
    wrong = dict(zip(NAMES, edges, strict=True))
    wrong[name] = change(wrong[name])
    forward = (csc.indptr, csc.indices, *inputs, *how, out, lse)
    with pytest.raises(ValueError, match=message):
        native.kernels().gatv2_forward(*forward, **wrong)
    backward = (*both_ways(csc), *inputs, *how, out, lse, out.clone(), *(t.clone() for t in inputs))
    with pytest.raises(ValueError, match=message):
        native.kernels().gatv2_backward(*backward, **wrong)


@needs_kernels
def test_backward_needs_places_of_edges_and_a_gradient_that_fits():
    csc, inputs, edges = case_of(2, 3, 4)
    of_edges = dict(zip(NAMES, edges, strict=True))
    out, lse = torch.empty(csc.num_dst, 6), torch.empty(csc.num_dst, 2)
    after = (*inputs, 0.2, loops_of(csc), 0.0, 0, out, lse, out.clone(), *(t.clone() for t in inputs))
    call = native.kernels().gatv2_backward
    with pytest.raises(ValueError, match="perm must have length 160; got 0"):
        call(*both_ways(csc, with_ids=False), *after, **of_edges)
    with pytest.raises(ValueError, match="grad_edge_weight must have shape"):
        call(*both_ways(csc), *after, **of_edges, grad_edge_weight=edges[2][:-1].clone())
    with pytest.raises(ValueError, match="grad_edge_weight goes with edge_weight"):
        call(*both_ways(csc), *after, grad_edge_weight=edges[2].clone())


@needs_kernels
def test_numbers_of_the_wrong_length_are_refused():
    csc = skewed()
    inputs, [logit] = gat_inputs(csc, 2, 3, torch.float32), logits_of(csc, 2, 3, 0, torch.float32, loops=True)
    with pytest.raises(ValueError, match="edge_logit must have shape"):
        run_gat(native.kernels(), csc, inputs, [logit[:-1]], loops=True)
