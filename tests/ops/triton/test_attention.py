"""Fused attention in Triton, forward and backward, against its twins."""

import pytest
import torch
from tests.ops.graphs import CORNERS, close, skewed, values
from tests.ops.test_attention import gat_inputs, gatv2_inputs, made_logits

from graphbraid.graph.csc import Csc
from graphbraid.ops import reference
from graphbraid.ops.attention import both_ways

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SHAPES = [(3, 16), (2, 33), (1, 1), (1, 7), (8, 8), (4, 64), (17, 3), (1, 257)]  # heads, channels
SMALL_CORNERS = {
    **CORNERS,
    "skewed": lambda: skewed(10, 13),
    "int64 ids": lambda: skewed(10, 13, dtype=torch.int64),
}
INPUTS = {"gat": gat_inputs, "gatv2": gatv2_inputs}


def assert_kernels_equal_twins(both, name, csc, heads, channels, dtype=torch.float32, *, loops, p):
    inputs = INPUTS[name](csc, heads, channels, dtype)
    x = inputs[0]
    how = (0.2, min(csc.num_src, csc.num_dst) if loops else 0, p, 2**62 + 12345)
    out = x.new_full((csc.num_dst, x.shape[1]), torch.nan)
    lse = torch.full((csc.num_dst, heads), torch.nan)
    keys = [None] * (2 if name == "gat" else 0)  # above and share, which these kernels do not write
    keys.append(3 * csc.indptr[:-1] + 5 if heads % 2 else None)
    pairs = both(f"{name}_forward", [csc.indptr, csc.indices, *inputs, *how], [out, lse, *keys])[:2]
    for pair in pairs:
        close(*pair)
    forward = [*both_ways(csc), *inputs, *how, pairs[0][1], pairs[1][1]]
    grad = values(csc.num_dst, x.shape[1], dtype=dtype, seed=4)
    outputs = [torch.full_like(t, torch.nan) for t in inputs]
    for pair in both(f"{name}_backward", [*forward, grad], [*outputs, *keys])[:3]:
        close(*pair, terms=400 * (1 + channels))


@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("heads", "channels"), SHAPES)
def test_kernels_equal_twins_at_every_shape(both, short_segments, name, heads, channels, dtype):
    loops = (heads + DTYPES.index(dtype)) % 2 == 0
    csc = skewed(5, 9)
    assert_kernels_equal_twins(
        both, name, csc, heads, channels, dtype, loops=loops, p=0.6 if channels % 2 else 0
    )


@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("corner", SMALL_CORNERS)
@pytest.mark.parametrize("loops", [False, True])
def test_kernels_equal_twins_on_corner_graphs(both, short_segments, name, corner, loops):
    csc = SMALL_CORNERS[corner]()
    assert_kernels_equal_twins(both, name, csc, 2, 5, loops=loops, p=0.4)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("heads", "channels"), [(3, 16), (1, 7)])
def test_logits_made_of_rows_equal_twins(kernels, short_segments, heads, channels, dtype):
    csc, how = skewed(5, 9), (0.2, 5, 0.4, 12345)
    x, att = values(9, heads * channels, dtype=dtype), values(2, heads * channels, seed=6) / channels**0.5
    expected, expected_grads = made_logits(reference, csc, x, heads, att, how)
    found, grads = made_logits(kernels, csc, x, heads, att, how, after=expected)
    for ours, theirs in zip(found[:4], expected[:4], strict=True):  # these kernels keep no more
        close(ours, theirs, terms=64 * (1 + channels))
    for ours, theirs in zip(grads, expected_grads, strict=True):
        close(ours.to(dtype), theirs.to(dtype), terms=4000 * (1 + channels))


@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("loops", [False, True])
def test_kernels_equal_twins_on_hubs_of_both_sides(both, name, loops):
    csc = Csc(torch.tensor([0, 2, 601, 603]), torch.zeros(603, dtype=torch.int32), 3)
    assert_kernels_equal_twins(both, name, csc, 2, 3, loops=loops, p=0.0)


@pytest.mark.parametrize("name", INPUTS)
def test_a_seed_in_memory_draws_the_masks_of_its_value(kernels, short_segments, name):
    csc = skewed(10, 13)
    inputs = INPUTS[name](csc, 2, 5, torch.float32)
    results = []
    for seed in (12345, torch.tensor([12345])):
        how = (0.2, 10, 0.6, seed)
        out, lse = torch.empty(10, 10), torch.empty(10, 2)
        getattr(kernels, f"{name}_forward")(csc.indptr, csc.indices, *inputs, *how, out, lse)
        grads = [torch.empty_like(t) for t in inputs]
        getattr(kernels, f"{name}_backward")(*both_ways(csc), *inputs, *how, out, lse, out, *grads)
        results.append([out, lse, *grads])
    for by_value, by_place in zip(*results, strict=True):
        assert torch.equal(by_value, by_place)


def test_huge_logits_stay_finite(kernels):
    csc = skewed(10, 13)
    x, left, right = gat_inputs(csc, 2, 3, torch.float32)
    out, lse = torch.empty(10, 6), torch.empty(10, 2)
    how = (0.2, 10, 0.0, 0)
    kernels.gat_forward(csc.indptr, csc.indices, x, left * 1e4, right * 1e4, *how, out, lse)
    assert out.isfinite().all()
    assert lse.isfinite().all()


def test_logits_of_edges_are_refused(kernels):
    csc = skewed(10, 13)
    inputs = INPUTS["gat"](csc, 2, 3, torch.float32)
    of_edges = values(csc.num_edges, 2)
    given = (csc.indptr, csc.indices, *inputs, 0.2, 0, 0.0, 0, torch.empty(10, 6), torch.empty(10, 2))
    with pytest.raises(NotImplementedError, match="those on the CPU do"):
        kernels.gat_forward(*given, None, None, None, of_edges)


def test_features_of_edges_are_refused(kernels):
    csc = skewed(10, 13)
    inputs, of_edges = INPUTS["gatv2"](csc, 2, 3, torch.float32), values(csc.num_edges, 2)
    how, out, lse = (0.2, 0, 0.0, 0), torch.empty(10, 6), torch.empty(10, 2)
    with pytest.raises(NotImplementedError, match="those on the CPU do"):
        kernels.gatv2_forward(csc.indptr, csc.indices, *inputs, *how, out, lse, None, of_edges)
    grads = [torch.empty_like(t) for t in inputs]
    with pytest.raises(NotImplementedError, match="those on the CPU do"):
        kernels.gatv2_backward(*both_ways(csc), *inputs, *how, out, lse, out, *grads, None, of_edges)
