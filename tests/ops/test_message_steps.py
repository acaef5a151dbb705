"""Messages as steps of a kernel, beside the same messages by PyTorch on blocks of edges, and the twins."""

import itertools
from types import SimpleNamespace

import pytest
import torch
from tests.kernels import needs_kernels
from tests.ops.graphs import assert_same_bits_with_any_threads
from tests.ops.test_messages import csc_of

from graphbraid.errors import DataError
from graphbraid.estimates.machine import allocation_of
from graphbraid.fullgraph.device import csc_on
from graphbraid.graph.csc import Csc
from graphbraid.ops import message_kernel, reference
from graphbraid.ops.message_kernel import FusedMessages, aggregate_steps
from graphbraid.ops.message_reductions import SeveralReductions
from graphbraid.ops.message_steps import MOST_STEPS, DotProducts, MessageOp, MessageStep, dot_products
from graphbraid.ops.messages import REDUCTIONS, BlockedMessages, EdgeGradients, EdgeRows

READS = {"x": "source 0", "x2": "source 1", "y": "destination 0", "y2": "destination 1"}
READS |= {"e": "edge", "w": "weight", "p": "parameter 0", "f": "parameter 1"}


def steps_of(text):
    """The steps of "x, y, add 0 1, sigmoid 2": rows that are read, then operations on earlier steps.

    A number with a point is a step's own; a word that begins with a dash reads a number for each head.
    """
    steps = []
    for one in filter(None, text.split(", ")):
        op, *given = READS.get(one, one).split()
        numbers = [float(word) for word in given if "." in word]
        places = [int(word) for word in given if "." not in word]
        op, narrow = MessageOp[op.removeprefix("-").upper()], op.startswith("-")
        steps.append(MessageStep(op, *places, number=sum(numbers, 0.0), narrow=narrow))
    return steps


MESSAGES = {
    "the source": ("x", lambda x, x2, y, y2, e, w, p, f: x),
    "the destination": ("y", lambda x, x2, y, y2, e, w, p, f: y),
    "a gate": (
        "x, y, add 0 1, sigmoid 2, multiply 3 0",
        lambda x, x2, y, y2, e, w, p, f: torch.sigmoid(x + y) * x,
    ),
    "all that can be read": (
        "x, x2, y, y2, e, w, p, f, add 0 1, subtract 8 2, multiply 9 3, add 10 4, multiply 11 5, add 12 6, "
        "multiply 13 7, tanh 14",
        lambda x, x2, y, y2, e, w, p, f: torch.tanh(((((x + x2 - y) * y2 + e) * w[:, None]) + p) * f),
    ),
    "a linear map of the edge's numbers": (
        "x, y, p, edge_number 0, parameter 2 2, multiply 3 4, edge_number 2, parameter 2 3, multiply 6 7, "
        "add 5 8, add 0 9, add 10 2, multiply 11 1",
        lambda x, x2, y, y2, e, w, p, f, m: (x + e[:, ::2] @ m[:, 1:].t() + p) * y,
    ),
    "costly steps of one end": (
        "x, y, p, multiply 0 2, tanh 3, x2, exp 5, add 4 6, divide 1 2, sigmoid 8, multiply 7 9, "
        "subtract 10 0",
        lambda x, x2, y, y2, e, w, p, f: ((x * p).tanh() + x2.exp()) * (y / p).sigmoid() - x,
    ),
    "a costly step of the source alone": ("x, sigmoid 0", lambda x, x2, y, y2, e, w, p, f: x.sigmoid()),
    "all that can be computed": (
        "x, y, number 1.5, abs 1, add 2 3, divide 0 4, relu 5, leaky_relu 5 0.25, exp 7, multiply 6 8, "
        "sum_columns 9, tanh 10, multiply 11 8, subtract 12 0",
        lambda x, x2, y, y2, e, w, p, f: _computed(x, y),
    ),
}


def _computed(x, y):
    z = x / (1.5 + y.abs())
    power = torch.nn.functional.leaky_relu(z, 0.25).exp()
    return (z.relu() * power).sum(1, keepdim=True).tanh() * power - x


def case(name, reduction, width, ties="shared", *, csc=None, place="cpu"):
    """Both forms of a message, and what it reads."""
    steps, function = MESSAGES[name]
    csc, draw = csc_on(csc or csc_of(), torch.device(place)), torch.Generator().manual_seed(2)
    some = [torch.randn(count, width, generator=draw) for count in (csc.num_src, csc.num_dst) for _ in (1, 2)]
    is_mapped = "linear map" in name
    edges = torch.randn(csc.num_edges, 3 if is_mapped else width, generator=draw)
    some += [edges, torch.rand(csc.num_edges, generator=draw)]
    some = [rows.to(place) for rows in some]
    rows = EdgeRows(sources=tuple(some[:2]), destinations=tuple(some[2:4]), edges=tuple(some[4:]))
    parameters = [torch.randn(1, width, generator=draw).to(place), torch.full((1,), 0.7, device=place)]
    parameters += [torch.randn(width, 3, generator=draw).to(place)] * is_mapped
    for parameter in parameters:
        parameter.requires_grad_()
    options = {"width": width, "parameters": parameters, "ties": ties}
    fused = FusedMessages(csc, steps_of(steps), reduction, **options)
    blocked = BlockedMessages(csc, lambda *given: function(*given, *parameters), reduction, **options)
    return fused, blocked, rows, parameters


def both_passes(how, rows, parameters, *, slopes=False):
    """The result, and the gradients of sources, destinations and parameters."""
    of_result = rows.destinations[0]
    kept = {"kept": [torch.full_like(of_result, torch.nan) for _ in how.kept_widths]} if slopes else {}
    out = torch.full_like(of_result, torch.nan)
    count = torch.empty_like(out, dtype=torch.int32) if how.count_width else None
    how.forward(rows, out, count, **kept)
    into = EdgeGradients(
        sources=tuple(map(torch.ones_like, rows.sources)),
        destinations=tuple(map(torch.ones_like, rows.destinations)),
        edges=(None, None),
        parameters=tuple(torch.zeros_like(p) for p in parameters),
    )
    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(3)).to(out.device)
    how.backward(rows, grad, into, out=out, count=count, **kept)
    return [out, *into.sources, *into.destinations, *into.parameters]


@pytest.mark.parametrize("name", MESSAGES)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("width", [1, 7, 64, 1500])  # the last: an edge at a time
def test_equals_blocks_of_edges(name, reduction, width):
    fused, blocked, rows, parameters = case(name, reduction, width)
    ours, theirs = (both_passes(how, rows, parameters) for how in (fused, blocked))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-4, atol=2e-4 * max(1.0, float(b.abs().max())) / 10)


@pytest.mark.parametrize("name", MESSAGES)
@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_slopes_that_forward_keeps_spare_backward_a_walk(name, reduction):
    fused, blocked, rows, parameters = case(name, reduction, 7)
    has_slopes = name not in ("the source", "all that can be computed", "a costly step of the source alone")
    assert bool(fused.kept_widths) is has_slopes
    ours, theirs = both_passes(fused, rows, parameters, slopes=True), both_passes(blocked, rows, parameters)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-4, atol=2e-5 * max(1.0, float(b.abs().max())))
    assert not case(name, "max", 7)[0].kept_widths


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("channels", [1, 5, 32])
@pytest.mark.parametrize("has_kernels", [True, False])
def test_rows_by_head(monkeypatch, reduction, channels, has_kernels):
    """A number for each head of both ends and of a parameter, a sum over channels, and an edge's weight."""
    heads, csc, draw = 3, csc_of(), torch.Generator().manual_seed(4)
    if not has_kernels:
        monkeypatch.setattr(message_kernel, "backend", lambda _: reference)
    x, y = (torch.randn(csc.num_src, heads * channels, generator=draw) for _ in range(2))
    alpha, beta = (torch.randn(csc.num_src, heads, generator=draw) for _ in range(2))
    rows = EdgeRows(sources=(x, alpha), destinations=(y, beta), edges=(torch.rand(csc.num_edges),))
    factor = torch.randn(heads, requires_grad=True)
    steps = steps_of(
        "-source 1, -destination 1, -parameter 0, x, y, w, add 0 1, multiply 3 4, sum_columns 7, "
        "multiply 8 5, add 9 6, multiply 10 2, tanh 11, multiply 12 3"
    )

    def message(x, alpha, y, beta, weight):
        x, y = x.unflatten(1, (heads, -1)), y.unflatten(1, (heads, -1))
        score = ((x * y).sum(2) * weight[:, None] + alpha + beta) * factor
        return (score.tanh()[:, :, None] * x).flatten(1)

    options = {"width": heads * channels, "parameters": [factor]}
    found = []
    for how in (
        FusedMessages(csc, steps, reduction, heads=heads, **options),
        BlockedMessages(csc, message, reduction, **options),
    ):
        out = torch.empty(csc.num_dst, heads * channels)
        count = torch.empty(out.shape, dtype=torch.int32) if how.count_width else None
        how.forward(rows, out, count)
        into = EdgeGradients(
            sources=(torch.zeros_like(x), torch.zeros_like(alpha)),
            destinations=(torch.zeros_like(y), torch.zeros_like(beta)),
            edges=(None,),
            parameters=(torch.zeros_like(factor),),
        )
        grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(5))
        how.backward(rows, grad, into, out=out, count=count)
        found.append([out, *into.sources, *into.destinations, *into.parameters])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=2e-5 * max(1.0, float(theirs.abs().max())))


def test_the_gradient_of_the_longest_message_fits():
    csc, rows = csc_of(), torch.rand(40, 3) + 1
    x, y = (rows.requires_grad_(),), (rows.detach().clone().requires_grad_(),)
    text = ", ".join(("x", "y", *(f"divide {n - 1} {n - 2}" for n in range(2, MOST_STEPS))))
    made = aggregate_steps(csc, steps_of(text), sources=x, destinations=y, width=3)
    found = torch.autograd.grad(made.sum(), [*x, *y])
    assert all(gradient.shape == rows.shape for gradient in found)


def _softmax(score, dst, num_dst):
    """PyG's softmax over the edges of each destination."""
    places = dst.view(-1, *[1] * (score.ndim - 1)).expand_as(score)
    most = score.new_zeros(num_dst, *score.shape[1:]).scatter_reduce(
        0, places, score.detach(), "amax", include_self=False
    )
    power = (score - most[dst]).exp()
    return power / power.new_zeros(most.shape).index_add(0, dst, power)[dst]


def _by_dot(x, x2, y, e, p, dst, heads):
    score = (x * y + x * p).unflatten(1, (heads, -1)).sum(2) * 0.3
    return (_softmax(score, dst, int(dst.max()) + 1)[:, :, None] * x2.unflatten(1, (heads, -1))).flatten(1)


def _by_column(x, x2, y, e, p, dst, heads):
    message = (x + e).relu() + y
    return _softmax(message * p, dst, int(dst.max()) + 1) * message


def _attended(x, x2, y, e, p, dst, heads):
    score = (x * y).unflatten(1, (heads, -1)).sum(2) / 3.0
    return (_softmax(score, dst, int(dst.max()) + 1)[:, :, None] * x2.unflatten(1, (heads, -1))).flatten(1)


def _of_destinations(x, x2, y, e, p, dst, heads):
    score = (y * y).unflatten(1, (heads, -1)).sum(2)
    return (_softmax(score, dst, int(dst.max()) + 1)[:, :, None] * x.unflatten(1, (heads, -1))).flatten(1)


DOT_PRODUCTS = "y, x, x2, multiply 0 1, sum_columns 3, number 3.0, divide 4 5, softmax 6, multiply 2 7"
WITH_SOFTMAX = {
    "of destinations alone": (
        "y, x, multiply 0 0, sum_columns 2, softmax 3, multiply 1 4",
        _of_destinations,
    ),
    "of dot products": (DOT_PRODUCTS, _attended),
    "of a product by heads": (
        "x, y, p, multiply 0 1, multiply 0 2, add 3 4, sum_columns 5, number 0.3, multiply 6 7, softmax 8, "
        "x2, multiply 10 9",
        _by_dot,
    ),
    "of each column": (
        "x, e, y, p, add 0 1, relu 4, add 5 2, multiply 6 3, softmax 7, multiply 8 6",
        _by_column,
    ),
}


def softmax_case(name, heads, channels, *, has_grad=True, csc=None, place="cpu"):
    """A message with a softmax: its sums, the leaves that it reads, the rows of edges, and the graph."""
    csc, width = csc_on(csc or csc_of(), torch.device(place)), heads * channels
    draw = torch.Generator().manual_seed(6)
    drawn = [torch.randn(n, width, generator=draw) for n in (csc.num_src, csc.num_src, csc.num_dst)]
    edge, p = torch.randn(csc.num_edges, width, generator=draw).to(place), torch.randn(width, generator=draw)
    leaves = x, x2, y, p = [t.to(place).requires_grad_(has_grad) for t in (*drawn, p)]
    made = aggregate_steps(
        csc,
        steps_of(WITH_SOFTMAX[name][0]),
        sources=(x, x2),
        destinations=(y,),
        edges=(edge,),
        parameters=(p,),
        width=width,
        heads=heads,
    )
    return made, leaves, edge, csc


@pytest.mark.parametrize("name", WITH_SOFTMAX)
@pytest.mark.parametrize(("heads", "channels"), [(1, 5), (2, 8), (4, 16), (3, 1)])
@pytest.mark.parametrize("has_kernels", [True, False])
@pytest.mark.parametrize("has_grad", [True, False])
def test_a_softmax_over_the_edges_of_a_destination(monkeypatch, name, heads, channels, has_kernels, has_grad):
    if not has_kernels:
        monkeypatch.setattr(message_kernel, "backend", lambda _: reference)
    made, leaves, edge, csc = softmax_case(name, heads, channels, has_grad=has_grad)
    function, draw = WITH_SOFTMAX[name][1], torch.Generator().manual_seed(7)
    wide = [t.detach().double().requires_grad_() for t in leaves]
    src, dst = csc.indices.long(), csc.destinations().long()
    given = wide[0][src], wide[1][src], wide[2][dst], edge.double(), wide[3]
    out = made.new_zeros(made.shape, dtype=torch.float64).index_add(0, dst, function(*given, dst, heads))
    torch.testing.assert_close(made.double(), out, rtol=1e-4, atol=1e-5)
    if has_grad:
        grad = torch.randn(out.shape, generator=draw)
        ours = torch.autograd.grad(made, leaves, grad, allow_unused=True)
        theirs = torch.autograd.grad(out, wide, grad.double(), allow_unused=True)
        for a, b in zip(ours, theirs, strict=True):
            if b is not None:
                torch.testing.assert_close(
                    a.double(), b, rtol=1e-4, atol=1e-4 * max(1.0, float(b.abs().max()))
                )


@pytest.mark.parametrize("has_kernels", [True, False])
def test_attention_whose_rows_are_all_of_one_matrix_adds_up_its_gradients(monkeypatch, has_kernels):
    if not has_kernels:
        monkeypatch.setattr(message_kernel, "backend", lambda _: reference)
    csc = csc_of()
    x = torch.randn(max(csc.num_src, csc.num_dst), 8, requires_grad=True)
    steps = steps_of(DOT_PRODUCTS.replace("y, x, x2", "x, y, x"))
    sources, destinations = (x[: csc.num_src],), (x,)
    made = aggregate_steps(csc, steps, sources=sources, destinations=destinations, width=8, heads=2)
    wide = x.detach().double().requires_grad_()
    src, dst = csc.indices.long(), csc.destinations().long()
    of_edges = _attended(wide[src], wide[src], wide[dst], None, None, dst, 2)
    out = of_edges.new_zeros(made.shape).index_add(0, dst, of_edges)
    torch.testing.assert_close(made.double(), out, rtol=1e-4, atol=1e-5)
    ours, theirs = (torch.autograd.grad(one.square().sum(), of)[0] for one, of in ((made, x), (out, wide)))
    torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "steps",
    [
        DOT_PRODUCTS.replace("multiply 0 1", "add 0 1"),
        "y, x, x2, multiply 0 1, sum_columns 3, softmax 4, multiply 0 5",
        "x, y, x2, multiply 0 1, softmax 3, multiply 2 4",
        DOT_PRODUCTS.replace("y, x,", "x, x2,"),
        DOT_PRODUCTS.replace("number 3.0", "y"),
        DOT_PRODUCTS.replace("3.0", "0.0"),
        DOT_PRODUCTS.removesuffix(", softmax 6, multiply 2 7"),
    ],
)
def test_what_only_looks_like_dot_product_attention_is_none(steps):
    assert dot_products(steps_of(DOT_PRODUCTS)) == DotProducts(0, 0, 1, 1 / 3)
    assert dot_products(steps_of(steps)) is None


@pytest.mark.parametrize("shift", [0.0, 1e5, -1e9, 3e30])
@pytest.mark.parametrize("has_kernels", [True, False])
def test_a_softmax_of_scores_of_any_size_keeps_its_digits(monkeypatch, shift, has_kernels):
    """Masks add a large number to some scores or to all; the logarithm of their sum is small beside them."""
    if not has_kernels:
        monkeypatch.setattr(message_kernel, "backend", lambda _: reference)
    csc, draw = csc_of(), torch.Generator().manual_seed(6)
    scores = (torch.randn(csc.num_src, 5, generator=draw) + shift).requires_grad_()
    x = torch.randn(csc.num_src, 5, generator=draw, requires_grad=True)
    made = aggregate_steps(csc, steps_of("x, x2, softmax 0, multiply 2 1"), sources=(scores, x), width=5)
    src, dst = csc.indices.long(), csc.destinations().long()
    wide = [t.detach().double().requires_grad_() for t in (scores, x)]
    of_edges = wide[0][src]
    top = torch.full_like(made, -torch.inf, dtype=torch.float64)
    top = top.scatter_reduce(0, dst[:, None].expand_as(of_edges), of_edges.detach(), "amax")
    powers = (of_edges - top[dst]).exp()
    share = powers / torch.zeros_like(top).index_add(0, dst, powers)[dst]
    out = torch.zeros_like(top).index_add(0, dst, share * wide[1][src])
    torch.testing.assert_close(made.double(), out, rtol=1e-5, atol=1e-6)
    grad = torch.randn(out.shape, generator=draw)
    ours = torch.autograd.grad(made, (scores, x), grad)
    for a, b in zip(ours, torch.autograd.grad(out, wide, grad.double()), strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-5)


def _several(names, shape, scalers=("identity",), ties="shared"):
    averages = SimpleNamespace(avg_deg_lin=torch.tensor([3.0]), avg_deg_log=torch.tensor([1.5]))
    return SeveralReductions(names=names, shape=shape, ties=ties, scalers=scalers, averages=averages)


def test_a_gradient_of_several_reductions_is_read_where_it_lies_beside_other_columns():
    # Columns of a concatenation's gradient, as PNA's are: a copy would be as large as the result.
    csc, draw = csc_of(), torch.Generator().manual_seed(6)
    x = torch.randn(csc.num_src, 6, generator=draw).requires_grad_()
    how = _several(("mean", "min", "max", "std"), (6,), ("identity", "amplification", "attenuation"))
    made = aggregate_steps(csc, steps_of("x"), sources=(x,), reduction=how, width=6, width_out=72)
    grad = torch.randn(csc.num_dst, 75, generator=draw)[:, 3:]

    def peak_and_gradient(of_result):
        found = []

        def backward():
            found[:] = torch.autograd.grad(made, x, of_result, retain_graph=True)

        backward()
        return allocation_of(backward, x.device).peak, found[0]

    (peak, found), (least, same) = map(peak_and_gradient, (grad, grad.contiguous()))
    assert torch.equal(found, same)
    assert peak == least


@pytest.mark.parametrize("has_kernels", [True, False])
@pytest.mark.parametrize("ties", ["shared", "shared with zero"])
@pytest.mark.parametrize(
    ("names", "shape", "scalers"),
    [
        (("mean", "min", "max", "std"), (6,), ("identity", "amplification", "attenuation")),
        (("max", "sum"), (2, 3), ("identity",)),
        (("std",), (6,), ("linear", "inverse_linear")),
        (("var", "min"), (3, 2), ("attenuation",)),
    ],
)
def test_several_reductions_of_one_walk_equal_each_by_itself(
    monkeypatch, names, shape, scalers, ties, has_kernels
):
    if not has_kernels:
        monkeypatch.setattr(message_kernel, "backend", lambda _: reference)
    csc, draw = csc_of(), torch.Generator().manual_seed(6)
    x, y = (torch.randn(n, 6, generator=draw).round(decimals=1) for n in (csc.num_src, csc.num_dst))
    leaves = [t.requires_grad_() for t in (x, y)]
    steps = steps_of("x, y, add 0 1, relu 2")
    made = aggregate_steps(
        csc,
        steps,
        sources=(x,),
        destinations=(y,),
        reduction=_several(names, shape, scalers, ties),
        width=6,
        width_out=6 * len(names) * len(scalers),
    )
    degrees = csc.indptr.diff()[:, None].float()
    share, parts = 1 / degrees.clamp(min=1), []
    squared = [*steps, *steps_of("multiply 3 3")]
    for name in names:
        how = {"sources": (x,), "destinations": (y,), "width": 6, "ties": ties}
        if name in ("max", "min"):
            parts.append(aggregate_steps(csc, steps, reduction=name, **how))
            continue
        total = aggregate_steps(csc, steps, **how)
        mean = total * share
        variance = aggregate_steps(csc, squared, **how) * share - mean * mean
        root = variance.clamp(min=1e-5).sqrt()
        of = {"sum": total, "mean": mean, "var": variance}
        parts.append(of[name] if name in of else root.masked_fill(root <= 1e-5**0.5, 0.0))
    factors = {
        "identity": torch.ones(()),
        "amplification": (degrees + 1).log() / 1.5,
        "attenuation": 1.5 / (degrees.clamp(min=1) + 1).log(),
        "linear": degrees / 3,
        "inverse_linear": 3 / degrees.clamp(min=1),
    }
    by_head = [[(part * factors[one]).view(-1, *shape) for part in parts] for one in scalers]
    out = torch.cat([part for group in by_head for part in group], -1).flatten(1)
    torch.testing.assert_close(made, out, rtol=1e-5, atol=1e-5)
    grad = torch.randn(out.shape, generator=draw)
    ours, theirs = (torch.autograd.grad(one, leaves, grad) for one in (made, out))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("steps", "reduction"),
    [
        ("x, softmax 0", "sum"),
        ("x, softmax 0, multiply 1 1", "sum"),
        ("x, softmax 0, add 1 0", "sum"),
        ("x, softmax 0, exp 1, multiply 1 2", "sum"),
        ("x, softmax 0, softmax 1, multiply 2 0", "sum"),
        ("x, softmax 0, multiply 0 1", "max"),
    ],
)
def test_a_softmax_that_is_no_factor_of_a_sum_is_refused(steps, reduction):
    with pytest.raises(DataError, match="softmax"):
        FusedMessages(csc_of(), steps_of(steps), reduction, 2)


@pytest.mark.parametrize("name", MESSAGES)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@needs_kernels
def test_the_kernels_equal_their_twins(monkeypatch, name, reduction):
    fused, _, rows, parameters = case(name, reduction, 7)
    ours = both_passes(fused, rows, parameters)
    monkeypatch.setattr(message_kernel, "backend", lambda _: reference)
    for a, b in zip(ours, both_passes(fused, rows, parameters), strict=True):
        torch.testing.assert_close(a, b, rtol=2e-4, atol=2e-5 * max(1.0, float(b.abs().max())))


@pytest.mark.parametrize(
    ("reduction", "ties"), [*itertools.product(["max", "min"], ["shared", "shared with zero"])]
)
def test_equal_messages_share_a_gradient(reduction, ties):
    fused, blocked, rows, parameters = case("the source", reduction, 5, ties)
    rows.sources[0].copy_(torch.randint(-1, 2, rows.sources[0].shape))
    for a, b in zip(*(both_passes(how, rows, parameters) for how in (fused, blocked)), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("op", ["sigmoid", "tanh", "exp"])
def test_functions_equal_pytorch_from_the_smallest_to_the_largest(op):
    x = torch.cat(
        [torch.logspace(-30, 4, 3000), -torch.logspace(-30, 4, 3000), torch.tensor([0.0, torch.inf])]
    )
    x = torch.cat([x, torch.linspace(-90, 90, 6000), torch.tensor([-torch.inf, torch.nan])])[
        :, None
    ].contiguous()
    csc = csc_of(len(x), len(x))
    ids = torch.arange(len(x))
    csc = type(csc)(torch.arange(len(x) + 1), ids, len(x))
    out = torch.empty_like(x)
    FusedMessages(csc, steps_of(f"x, {op} 0"), "sum", 1).forward(EdgeRows(sources=(x,)), out)
    expected = getattr(x, op)()
    torch.testing.assert_close(
        out, expected, rtol=1e-6, atol=1e-19 if op == "sigmoid" else 1e-37, equal_nan=True
    )


def test_bits_do_not_depend_on_the_number_of_threads():
    csc, x = csc_of(40_000, 900), torch.randn(900, 32)
    parameter = torch.randn(32)
    steps = steps_of("x, y, p, add 0 1, tanh 3, multiply 4 2")
    how = FusedMessages(csc, steps, "sum", 32, parameters=[parameter])

    def run():
        out, total, grad = torch.empty(900, 32), torch.zeros(32), torch.zeros(900, 32)
        rows = EdgeRows(sources=(x,), destinations=(x,))
        how.forward(rows, out)
        into = EdgeGradients(sources=(grad,), destinations=(grad,), parameters=(total,))
        how.backward(rows, x, into)
        return [out, grad, total]

    assert_same_bits_with_any_threads(run)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(("num_edges", "num_nodes"), [(0, 5), (0, 1), (3, 1)])
def test_no_edges_and_one_node(reduction, num_edges, num_nodes):
    csc, x = csc_of(num_edges, num_nodes), torch.rand(num_nodes, 3)
    how = FusedMessages(csc, steps_of("x, exp 0"), reduction, 3)
    out, grad = torch.empty(num_nodes, 3), torch.zeros(num_nodes, 3)
    count = torch.empty(num_nodes, 3, dtype=torch.int32) if how.count_width else None
    how.forward(EdgeRows(sources=(x,)), out, count)
    how.backward(EdgeRows(sources=(x,)), out, EdgeGradients(sources=(grad,)), out=out, count=count)
    assert torch.isfinite(grad).all()
    if not num_edges:
        assert not out.any()
        assert not grad.any()


@needs_kernels
@pytest.mark.parametrize(
    "steps",
    [
        "x2",
        "source 2",
        "y",
        "e",
        "w",
        "p",
        "relu 0",
        "x, add 0 1",
        "x, add 1 0",
        ", ".join(["x"] * (MOST_STEPS + 1)),
        "",
    ],
)
def test_steps_that_read_what_is_not_there_are_refused(steps):
    csc, x = csc_of(), torch.rand(40, 2)
    with pytest.raises((ValueError, TypeError), match="steps"):
        FusedMessages(csc, steps_of(steps), "sum", 2).forward(EdgeRows(sources=(x,)), x.clone())


@pytest.mark.parametrize(("nodes", "sources"), [(3, 3), (0, 2), (0, 0)])
def test_graphs_without_edges_or_nodes_have_zeros(nodes, sources):
    csc = Csc(torch.zeros(nodes + 1, dtype=torch.int64), torch.empty(0, dtype=torch.int32), sources)
    how = FusedMessages(csc, steps_of("x, y, e, add 0 1, multiply 3 2"), "mean", width=4)
    rows = EdgeRows(
        sources=(torch.ones(sources, 4),), destinations=(torch.ones(nodes, 4),), edges=(torch.ones(0, 4),)
    )
    out, found = torch.full((nodes, 4), torch.nan), [torch.ones(sources, 4), torch.ones(nodes, 4)]
    how.forward(rows, out)
    how.backward(rows, out, EdgeGradients(sources=(found[0],), destinations=(found[1],)))
    assert bool((out == 0).all())
    assert all(bool((gradient == 1).all()) for gradient in found)
