"""Fused attention: compiled variants against twins, and against a composition of plain operators."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from tests.ops.graphs import CORNERS, DTYPES, assert_same_bits_with_any_threads, close, skewed, square, values
from torch import Tensor

from graphbraid import native
from graphbraid.errors import ConfigError, DataError
from graphbraid.graph.csc import Csc, coo_to_csc
from graphbraid.ops import edge_softmax, gat_attention, gatv2_attention, message_kernel, reference
from graphbraid.ops.attention import both_ways, dot_attention, head_dot, scored_attention
from graphbraid.ops.kernels import backend
from graphbraid.ops.message_kernel import aggregate_steps
from graphbraid.ops.message_steps import MessageOp, MessageStep
from graphbraid.ops.rng import keep_mask

SHAPES = [
    (1, 1),
    (1, 7),
    (4, 4),
    (8, 8),
    (3, 16),
    (4, 32),
    (2, 33),
    (4, 64),
    (17, 3),
    (1, 257),
]  # heads, channels


def gat_inputs(csc, heads, channels, dtype):
    sums = reference.sum_dtype(dtype)
    return [
        values(csc.num_src, heads * channels, dtype=dtype),
        values(csc.num_src, heads, dtype=sums, seed=2),
        values(csc.num_dst, heads, dtype=sums, seed=3),
    ]


def gatv2_inputs(csc, heads, channels, dtype):
    width = heads * channels
    return [
        values(csc.num_src, width, dtype=dtype),
        values(csc.num_dst, width, dtype=dtype, seed=2),
        values(heads, channels, dtype=reference.sum_dtype(dtype), seed=3) / channels**0.5,
    ]


def assert_kernels_equal_twins(native, name, csc, inputs, heads, *, loops, p, keyed=False, with_ids=True):
    x = inputs[0]
    keys = {"first_keys": 3 * csc.indptr[:-1] + 5} if keyed else {}
    how = (0.2, min(csc.num_src, csc.num_dst) if loops else 0, p, 12345)
    results = []
    for module in (native, reference):
        out = x.new_full((csc.num_dst, x.shape[1]), torch.nan)
        kept = [inputs[2].new_full((csc.num_dst, heads), torch.nan)]
        if name == "gat":
            kept += [inputs[2].new_full(out.shape, torch.nan), torch.full_like(kept[0], torch.nan)]
        getattr(module, f"{name}_forward")(csc.indptr, csc.indices, *inputs, *how, out, *kept, **keys)
        results.append((out, *kept))
    for actual, expected in zip(*results, strict=True):
        close(actual, expected)
    out, lse, *above = results[1]
    grad = values(csc.num_dst, x.shape[1], dtype=x.dtype, seed=4)
    grads, ways = [], both_ways(csc, with_ids=with_ids)
    for module in (native, reference):
        to = [torch.full_like(t, torch.nan) for t in inputs]
        getattr(module, f"{name}_backward")(*ways, *inputs, *how, out, lse, grad, *to, *above, **keys)
        grads.append(to)
    for actual, expected in zip(*grads, strict=True):
        # Logits' gradients are float32, but made of outputs that were rounded to the rows' dtype.
        precision = actual.dtype if x.dtype == torch.float64 else x.dtype
        close(actual.to(precision), expected.to(precision), terms=400 * (1 + x.shape[1] // heads))


def made_logits(module, csc, x, heads, att, how, after=None):
    """What the kernels write that make the logits themselves: in forward, and in backward of ``after``."""
    sums, width = reference.sum_dtype(x.dtype), x.shape[1]
    found = [torch.full((n, heads), torch.nan, dtype=sums) for n in (csc.num_src, csc.num_dst)]
    found += [x.new_full((csc.num_dst, width), torch.nan), torch.full_like(found[1], torch.nan)]
    found += [torch.full_like(found[2], torch.nan, dtype=sums), torch.full_like(found[1], torch.nan)]
    module.gat_forward(csc.indptr, csc.indices, x, *found[:2], *how, *found[2:], None, None, att)
    left, right, out, lse, above, share = after or found
    grads = [torch.full_like(t, torch.nan) for t in (x, left, right, att)]
    given = (*both_ways(csc), x, left, right, *how, out, lse, values(*out.shape, dtype=x.dtype, seed=4))
    module.gat_backward(*given, *grads[:3], above, share, None, None, None, att, grads[3])
    return found, grads


def assert_made_logits_equal_twins(native, csc, heads, channels, dtype=torch.float32, *, loops=True, p=0.0):
    x = values(csc.num_src, heads * channels, dtype=dtype)
    att = values(2, heads * channels, dtype=reference.sum_dtype(dtype), seed=6) / channels**0.5
    how = (0.2, min(csc.num_src, csc.num_dst) if loops else 0, p, 12345)
    expected, expected_grads = made_logits(reference, csc, x, heads, att, how)
    found, grads = made_logits(native, csc, x, heads, att, how, after=expected)
    for ours, theirs in zip(found, expected, strict=True):
        close(ours, theirs, terms=64 * (1 + channels))
    for ours, theirs in zip(grads, expected_grads, strict=True):
        close(ours.to(dtype), theirs.to(dtype), terms=400 * (1 + channels) * (1 + csc.num_src))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("heads", "channels"), SHAPES)
def test_logits_made_of_rows_equal_twins_at_every_shape(compiled, heads, channels, dtype):
    for loops, p in ((False, 0.0), (True, 0.4)):
        assert_made_logits_equal_twins(compiled, skewed(), heads, channels, dtype, loops=loops, p=p)


@pytest.mark.parametrize("corner", CORNERS)
def test_logits_made_of_rows_equal_twins_on_corner_graphs(compiled, corner):
    assert_made_logits_equal_twins(compiled, CORNERS[corner](), 2, 5)


def test_logits_of_destinations_that_are_no_sources_are_refused(compiled):
    back = skewed().reversed()
    with pytest.raises(ValueError, match="destinations must be the first sources"):
        made_logits(compiled, back, values(back.num_src, 10), 2, values(2, 10), (0.2, 0, 0.0, 0))


@pytest.mark.parametrize(("heads", "channels"), [(2, 1), (4, 32), (3, 17), (8, 5)])
def test_one_gradient_may_serve_all_heads(compiled, heads, channels):
    csc = skewed()
    inputs, how = gat_inputs(csc, heads, channels, torch.float32), (0.2, csc.num_dst, 0.0, 0)
    out, lse = inputs[0].new_empty(csc.num_dst, heads * channels), inputs[2].new_empty(csc.num_dst, heads)
    above, share = torch.empty_like(out), torch.empty_like(lse)
    compiled.gat_forward(csc.indptr, csc.indices, *inputs, *how, out, lse, above, share)
    grad = values(csc.num_dst, channels, dtype=torch.float32, seed=4)
    grads = []
    for handed in (grad, grad.repeat(1, heads)):
        to = [torch.full_like(t, torch.nan) for t in inputs]
        ways = both_ways(csc, with_ids=False)
        compiled.gat_backward(*ways, *inputs, *how, out, lse, handed, *to, above, share)
        grads.append(to)
    for narrow, wide in zip(*grads, strict=True):
        close(narrow, wide, terms=400 * (1 + channels))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("heads", "channels"), SHAPES)
def test_kernels_equal_twins_at_every_shape(compiled, heads, channels, dtype):
    csc = skewed()
    for loops, p in ((False, 0.0), (True, 0.4)):
        inputs = gat_inputs(csc, heads, channels, dtype)
        keyed = heads % 2 == 1
        assert_kernels_equal_twins(compiled, "gat", csc, inputs, heads, loops=loops, p=p, keyed=keyed)
        inputs = gatv2_inputs(csc, heads, channels, dtype)
        assert_kernels_equal_twins(compiled, "gatv2", csc, inputs, heads, loops=loops, p=p, keyed=keyed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_kernels_equal_twins_on_rows_of_many_edges(compiled, dtype):
    csc = skewed(6, 1500)  # a hub of 1500 edges, and sources with one
    for name, inputs in (("gat", gat_inputs), ("gatv2", gatv2_inputs)):
        rows = inputs(csc, 4, 16, dtype)
        assert_kernels_equal_twins(compiled, name, csc, rows, 4, loops=True, p=0.4)
        back = csc.reversed()  # and the other way round
        assert_kernels_equal_twins(
            compiled, name, back, inputs(back, 4, 16, dtype), 4, loops=True, p=0.0, with_ids=False
        )


@pytest.mark.parametrize("corner", CORNERS)
@pytest.mark.parametrize("loops", [False, True])
def test_kernels_equal_twins_on_corner_graphs(compiled, corner, loops):
    csc = CORNERS[corner]()
    assert_kernels_equal_twins(
        compiled, "gat", csc, gat_inputs(csc, 2, 5, torch.float32), 2, loops=loops, p=0.0
    )
    assert_kernels_equal_twins(
        compiled, "gatv2", csc, gatv2_inputs(csc, 2, 5, torch.float32), 2, loops=loops, p=0.0
    )


def with_loops(csc):
    """The graph with one self-loop per destination in place of those stored, at the end of its row."""
    src, dst = csc.indices.long(), csc.destinations().long()
    kept = src != dst
    loops = torch.arange(min(csc.num_src, csc.num_dst))
    src, dst = torch.cat((src[kept], loops)), torch.cat((dst[kept], loops))
    order = torch.argsort(dst, stable=True)
    indptr = torch.zeros(csc.num_dst + 1, dtype=torch.int64)
    indptr[1:] = torch.bincount(dst, minlength=csc.num_dst).cumsum(0)
    return Csc(indptr, src[order].to(torch.int32), csc.num_src)


def attend(csc, x, logits):
    """Softmax and weighted sum by plain operators."""
    alpha = edge_softmax(csc, logits)
    messages = x.unflatten(1, (logits.shape[1], -1))[csc.indices.long()] * alpha[:, :, None]
    return x.new_zeros(csc.num_dst, x.shape[1]).index_add(0, csc.destinations().long(), messages.flatten(1))


@pytest.mark.parametrize("loops", [False, True])
def test_attention_equals_a_composition_of_plain_operators(loops):
    csc = skewed()
    walked = with_loops(csc) if loops else csc
    src, dst = walked.indices.long(), walked.destinations().long()
    x, left, right = (t.requires_grad_() for t in gat_inputs(csc, 3, 5, torch.float64))
    fused = gat_attention(csc, x, left, right, negative_slope=0.1, self_loops=loops)
    plain = attend(walked, x, F.leaky_relu(left[src] + right[dst], 0.1))
    x_src, x_dst, att = (t.requires_grad_() for t in gatv2_inputs(csc, 3, 5, torch.float64))
    fused_v2 = gatv2_attention(csc, x_src, x_dst, att, negative_slope=0.1, self_loops=loops)
    z = F.leaky_relu((x_src[src] + x_dst[dst]).unflatten(1, (3, 5)), 0.1)
    plain_v2 = attend(walked, x_src, (z * att).sum(-1))
    grad = values(csc.num_dst, 15, dtype=torch.float64, seed=9)
    for a, b, inputs in ((fused, plain, (x, left, right)), (fused_v2, plain_v2, (x_src, x_dst, att))):
        torch.testing.assert_close(a, b)
        for ga, gb in zip(
            torch.autograd.grad(a, inputs, grad), torch.autograd.grad(b, inputs, grad), strict=True
        ):
            torch.testing.assert_close(ga, gb)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_gradcheck(dropout):
    csc = square(8)

    def gat(x, left, right):
        torch.manual_seed(0)  # the same mask at every evaluation
        return gat_attention(csc, x, left, right, dropout=dropout)

    def gatv2(x_src, x_dst, att):
        torch.manual_seed(0)
        return gatv2_attention(csc, x_src, x_dst, att, dropout=dropout)

    inputs = [t.requires_grad_() for t in gat_inputs(csc, 2, 3, torch.float64)]
    assert torch.autograd.gradcheck(gat, inputs)
    assert torch.autograd.gradcheck(
        gatv2, [t.requires_grad_() for t in gatv2_inputs(csc, 2, 3, torch.float64)]
    )


def test_dropout_keeps_the_mean_and_the_share_asked_for():
    csc = Csc(torch.arange(0, 200_001, 2), torch.zeros(200_000, dtype=torch.int32), 100_000)
    torch.manual_seed(0)
    out = gat_attention(
        csc, torch.ones(100_000, 1), *torch.zeros(2, 100_000, 1), self_loops=False, dropout=0.3
    )
    # Two equal edges, each kept with 0.7 and then counted 1/0.7: 0, 0.714 or 1.429.
    share = torch.stack([((out - k / 1.4).abs() < 1e-6).double().mean() for k in range(3)])
    torch.testing.assert_close(share, torch.tensor([0.09, 0.42, 0.49]).double(), rtol=0, atol=0.006)


def test_mask_is_independent_of_row_and_column_order():
    rows = torch.arange(1000)
    mask = keep_mask(rows, 33, 0.25, 99)
    torch.testing.assert_close(mask.double().mean(), torch.tensor(0.75).double(), rtol=0, atol=0.01)
    assert torch.equal(keep_mask(rows.flip(0), 33, 0.25, 99), mask.flip(0))
    assert torch.equal(keep_mask(rows, 7, 0.25, 99), mask[:, :7])
    assert not torch.equal(keep_mask(rows, 33, 0.25, 100), mask)
    assert abs(torch.corrcoef(mask.double().T).fill_diagonal_(0)).max() < 0.15  # 5 deviations of 1000 draws


@given(rows=st.lists(st.integers(0, 39), unique=True, max_size=40), heads=st.integers(1, 5))
def test_masks_belong_to_edges_wherever_their_rows_stand(rows, heads):
    csc, rows = skewed(), torch.tensor(rows, dtype=torch.int64)
    first_keys = csc.indptr[:-1] + torch.arange(csc.num_dst)
    edges = [torch.arange(csc.indptr[v], csc.indptr[v + 1]) for v in rows]
    indptr = torch.tensor([0, *(part.numel() for part in edges)]).cumsum(0)
    part = Csc(indptr, csc.indices[torch.cat((*edges, rows[:0]))], csc.num_src)
    x, left, right = gat_inputs(csc, heads, 3, torch.float32)
    results = []
    for walked, own, keys in ((csc, right, None), (part, right[rows], first_keys[rows])):
        out, lse = x.new_empty(walked.num_dst, x.shape[1]), x.new_empty(walked.num_dst, heads)
        how = (0.2, 0, 0.5, 99)
        backend(x).gat_forward(walked.indptr, walked.indices, x, left, own, *how, out, lse, first_keys=keys)
        results.append(out)
    assert torch.equal(results[0][rows], results[1])


@pytest.mark.parametrize("frozen", [(), (0,), (1, 2), (2,)])
@pytest.mark.parametrize(("heads", "channels"), [(1, 7), (4, 16), (3, 5)])
def test_logits_made_of_rows_equal_those_of_a_product(heads, channels, frozen):
    csc = skewed(40, 60)
    found = []
    for scored in (True, False):
        given = [
            values(csc.num_src, heads * channels),
            *(values(1, heads, channels, seed=2 + i) for i in range(2)),
        ]
        for place, one in enumerate(given):
            one.requires_grad_(place not in frozen)
        x, *vectors = given
        if scored:
            out = scored_attention(csc, x, x, tuple(vectors))
        else:
            logits = head_dot(x, *vectors)
            out = gat_attention(csc, x, logits[:, :heads], logits[: csc.num_dst, heads:])
        (out * values(*out.shape, seed=9)).sum().backward()
        found.append([out, *(one.grad for one in given)])
    assert [one is None for one in found[0][1:]] == [place in frozen for place in range(3)]
    for actual, expected in zip(*found, strict=True):
        if expected is not None:
            close(actual, expected, terms=400 * (1 + channels))


def test_huge_logits_stay_finite():
    csc = skewed()
    x, left, right = gat_inputs(csc, 2, 3, torch.float32)
    out = gat_attention(csc, x, left * 1e4, right * 1e4)
    assert out.isfinite().all()


def test_rows_and_logits_may_be_stored_by_column():
    csc = skewed()
    given = gat_inputs(csc, 3, 2, torch.float32)
    by_column = [one.t().contiguous().t().requires_grad_() for one in given]
    out, expected = (
        gat_attention(csc, *by_column),
        gat_attention(csc, *(one.requires_grad_() for one in given)),
    )
    assert torch.equal(out, expected)
    found = torch.autograd.grad(out.square().sum(), by_column)
    assert all(map(torch.equal, found, torch.autograd.grad(expected.square().sum(), given)))


def test_bits_do_not_depend_on_the_number_of_threads():
    csc = skewed(3000, 2000, seed=3)
    gat = [t.requires_grad_() for t in gat_inputs(csc, 4, 9, torch.float32)]
    gatv2 = [t.requires_grad_() for t in gatv2_inputs(csc, 4, 9, torch.float32)]

    vectors, block = [values(1, 4, 9, seed=7 + place, grad=True) for place in range(2)], skewed(1000, 2000)
    # Without kernels PyTorch multiplies rows and gradients by the vectors, and its threads divide the sums.
    of_scored = [] if native.kernels() is None else [gat[0], *vectors]

    def run():
        torch.manual_seed(1)
        scored = scored_attention(block, gat[0], gat[0], vectors, dropout=0.2)
        first, second = gat_attention(csc, *gat, dropout=0.2), gatv2_attention(csc, *gatv2, dropout=0.2)
        return [
            scored.detach(),
            first.detach(),
            second.detach(),
            *(torch.autograd.grad(scored.square().sum(), of_scored) if of_scored else ()),
            *torch.autograd.grad(first.square().sum(), gat),
            *torch.autograd.grad(second.square().sum(), gatv2),
        ]

    assert_same_bits_with_any_threads(run)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_without_sources_all_gradients_are_written(dtype, monkeypatch):
    """Unwritten memory was once a gradient there, which is seldom a number."""
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    csc = Csc(torch.zeros(4, dtype=torch.int64), torch.empty(0, dtype=torch.int64), 0)
    rows = [torch.zeros(n, 8, dtype=dtype, requires_grad=True) for n in (0, 3)]
    logits = [torch.zeros(n, 2, dtype=dtype, requires_grad=True) for n in (0, 3)]
    att = torch.ones(2, 4, dtype=dtype, requires_grad=True)
    torch.use_deterministic_algorithms(True)
    try:
        gat, gatv2 = gat_attention(csc, rows[0], *logits), gatv2_attention(csc, *rows, att)
        found = [gat, gatv2, *torch.autograd.grad(gat.sum(), (rows[0], *logits))]
        found += torch.autograd.grad(gatv2.sum(), (*rows, att))
    finally:
        torch.use_deterministic_algorithms(False)
    assert not any(one.count_nonzero() for one in found)


def test_what_is_no_adjacency_is_refused():
    x, left, right = gat_inputs(skewed(), 2, 3, torch.float32)
    with pytest.raises(ConfigError, match="csc must be a Csc; got ''"):
        gat_attention("", x, left, right)
    with pytest.raises(ConfigError, match="csc must be a Csc"):
        gatv2_attention(None, x, x, torch.zeros(2, 3))


NUM_SRC, NUM_DST = 9, 7


def some_edges(count: int = 25) -> Csc:
    """Edges that repeat, into all but the last two destinations, which have none."""
    draw = torch.Generator().manual_seed(0)
    ends = (torch.randint(0, most, (count,), generator=draw) for most in (NUM_SRC, NUM_DST - 2))
    return coo_to_csc(*ends, NUM_SRC, NUM_DST)[0]


def rows(heads: int, channels: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    draw, width = torch.Generator().manual_seed(1), heads * channels
    counts = (NUM_DST, NUM_SRC, NUM_SRC)
    return [torch.randn(n, width, generator=draw).to(dtype).requires_grad_() for n in counts]


def node_by_node(csc: Csc, query: Tensor, key: Tensor, value: Tensor, heads: int) -> Tensor:
    query, key, value = (part.unflatten(1, (heads, -1)) for part in (query, key, value))
    found = []
    for v in range(csc.num_dst):
        u = csc.indices[csc.indptr[v] : csc.indptr[v + 1]].long()
        shares = (query[v] * key[u]).sum(-1).softmax(0)
        found.append((shares[:, :, None] * value[u]).sum(0).flatten())
    return torch.stack(found)


@pytest.mark.parametrize(("heads", "channels"), [(1, 5), (3, 4), (2, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equals_attention_node_by_node(heads, channels, dtype):
    csc, given = some_edges(), rows(heads, channels, dtype)
    out, expected = dot_attention(csc, *given, heads), node_by_node(csc, *given, heads)
    torch.testing.assert_close(out, expected)
    to = torch.randn(out.shape, generator=torch.Generator().manual_seed(2)).to(dtype)
    found = torch.autograd.grad(out, given, to)
    torch.testing.assert_close(found, torch.autograd.grad(expected, given, to), rtol=1e-5, atol=1e-5)


def test_gradients_are_those_of_differences():
    csc = some_edges()
    assert torch.autograd.gradcheck(lambda *given: dot_attention(csc, *given, 2), rows(2, 3))


@pytest.mark.parametrize(("heads", "channels"), [(1, 5), (4, 16), (3, 4), (17, 2)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numbers_that_backward_keeps_of_edges_change_no_bit(monkeypatch, heads, channels, dtype):
    given, found = rows(heads, channels, dtype), []
    for most_bytes in (1 << 20, 0):
        monkeypatch.setattr(message_kernel, "_KEPT_BYTES", most_bytes)
        csc = some_edges()
        found.append(torch.autograd.grad(dot_attention(csc, *given, heads).sin().sum(), given))
        assert csc.has_transpose == (most_bytes > 0), "the ids of the edges are read to keep numbers"
    assert all(map(torch.equal, *found))


@pytest.mark.parametrize("is_shared", [False, True])
def test_a_message_gives_gradients_of_keys_that_are_the_values_and_of_rows_that_no_edge_reads(is_shared):
    csc, (query, key, value) = some_edges(), rows(2, 3, torch.float32)
    more = torch.cat((query.detach(), torch.ones(2, 6))).requires_grad_()
    source = MessageStep(MessageOp.SOURCE, 0 if is_shared else 1)
    steps = (
        *(MessageStep(MessageOp.SOURCE, 0), MessageStep(MessageOp.DESTINATION, 0)),
        *(MessageStep(MessageOp.MULTIPLY, 0, 1), MessageStep(MessageOp.SUM_COLUMNS, 2)),
        *(MessageStep(MessageOp.SOFTMAX, 3), source, MessageStep(MessageOp.MULTIPLY, 5, 4)),
    )
    sources = (key,) if is_shared else (key, value)
    out = aggregate_steps(csc, steps, sources=sources, destinations=(more,), width=6, heads=2)
    expected = node_by_node(csc, more[:NUM_DST], key, sources[-1], 2)
    torch.testing.assert_close(out, expected)
    found, wanted = (torch.autograd.grad(to.sin().sum(), (*sources, more)) for to in (out, expected))
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def test_without_edges_there_are_zeros_and_no_gradients():
    given = rows(2, 3)
    out = dot_attention(some_edges(0), *given, 2)
    assert not out.any()
    assert not any(grad.any() for grad in torch.autograd.grad(out.sum(), given))


def test_large_products_do_not_overflow():
    csc, (query, key, value) = some_edges(), rows(2, 3, torch.float32)
    out = dot_attention(csc, query * 100, key * 100, value, 2)
    assert out.isfinite().all()
    torch.testing.assert_close(out, node_by_node(csc, query * 100, key * 100, value, 2))


def test_a_gradient_is_found_only_for_what_needs_one():
    csc, (query, key, value) = some_edges(), rows(2, 3)
    out = dot_attention(csc, query.detach(), key.detach(), value, 2)
    out.sum().backward()
    assert value.grad is not None
    assert query.grad is key.grad is None


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"heads": 0}, ConfigError, "heads"),
        ({"heads": 4}, DataError, r"query must be \(7, heads \* channels\) for 4 heads"),
        ({"csc": 3}, DataError, "csc must be Csc"),
        ({"key": torch.zeros(8, 6)}, DataError, r"key must be \(9, heads \* channels\)"),
        ({"value": torch.zeros(9, 5)}, DataError, r"value must be .* as many columns as query has \(6\)"),
        ({"value": torch.zeros(9, 6).double()}, DataError, "value is torch.float64 on cpu"),
        ({"query": torch.zeros(7, 6).half()}, DataError, "query is torch.float16 on cpu"),
    ],
)
def test_what_does_not_fit_is_refused(change, error, message):
    names = ("query", "key", "value")
    given = dict(zip(names, (part.detach() for part in rows(2, 3, torch.float32)), strict=True))
    whole = {"csc": some_edges(), "heads": 2} | given | change
    with pytest.raises(error, match=message):
        dot_attention(**whole)
