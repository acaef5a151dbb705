"""Messages on blocks of edges, beside all of them at once: values, gradients, memory, refusals."""

import numpy as np
import pytest
import torch
from tests.ops.graphs import assert_same_bits_with_any_threads

from graphbraid import Graph
from graphbraid.errors import ConfigError, DataError
from graphbraid.ops import aggregate_messages, messages

NODES, EDGES, WIDTH = 40, 300, 6


def csc_of(num_edges=EDGES, num_nodes=NODES):
    """Repeated edges, self-loops, a hub with half of the edges, and nodes without any."""
    ends = torch.randint(0, max(1, num_nodes - 4), (2, num_edges), generator=torch.Generator().manual_seed(0))
    ends[1, : num_edges // 2] = min(7, num_nodes - 1)
    return Graph.from_edge_index(ends, num_nodes).csc


def at_once(csc, message, sources, destinations, edges, reduction):
    """The same by plain PyTorch, with a row per edge."""
    src, dst = csc.indices.long(), csc.destinations().long()
    rows = message(*(x[src] for x in sources), *(x[dst] for x in destinations), *edges)
    flat = rows.flatten(1)
    out = flat.new_zeros(csc.num_dst, flat.shape[1])
    if reduction in ("max", "min"):
        places = dst[:, None].expand_as(flat)
        out = out.scatter_reduce(0, places, flat, f"a{reduction}", include_self=False)
    else:
        out = out.index_add(0, dst, flat)
    if reduction == "mean":
        out = out / csc.degrees().clamp(min=1)[:, None]
    return out.view(csc.num_dst, *rows.shape[1:])


def some(*shape, dtype=torch.float64):
    return torch.randn(shape, dtype=torch.float64).to(dtype).requires_grad_()


@pytest.fixture(params=[7, 64, 4096], ids="blocks of {} edges".format)
def blocks(request, monkeypatch):
    """Edges in a block: the hub's stand in many, in some and in one."""
    monkeypatch.setattr(messages, "_BLOCK_FLOATS", 1)
    monkeypatch.setattr(messages, "_LEAST_EDGES", request.param)


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("reduction", messages.REDUCTIONS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_equals_all_edges_at_once(reduction, dtype):
    torch.manual_seed(1)
    csc = csc_of()
    x, y, e = (
        some(NODES, WIDTH, dtype=dtype),
        some(NODES, WIDTH, dtype=dtype),
        some(EDGES, WIDTH, dtype=dtype),
    )
    weight = some(WIDTH, WIDTH, dtype=dtype)

    def message(x_j, x_i, y_i, edge):
        return ((torch.sigmoid(x_i + x_j) * x_j + edge).relu() @ weight * y_i).view(-1, 2, WIDTH // 2)

    given = {"sources": [x], "destinations": [x, y], "edges": [e]}
    out = aggregate_messages(csc, message, **given, parameters=[weight], reduction=reduction)
    expected = at_once(csc, message, *given.values(), reduction)
    close = {"rtol": 1e-3, "atol": 1e-4} if dtype == torch.float32 else {}
    torch.testing.assert_close(out, expected, **close)
    grad, inputs = torch.randn_like(out), (x, y, e, weight)
    ours, theirs = (torch.autograd.grad(one, inputs, grad) for one in (out, expected))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, **close)


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("reduction", ["max", "min"])
@pytest.mark.parametrize("ties", ["shared", "shared with zero"])
def test_equal_messages_share_a_gradient(reduction, ties):
    csc = csc_of()
    x = torch.randint(-1, 2, (NODES, WIDTH)).double().requires_grad_()  # most maxima are 1, some 0
    out = aggregate_messages(csc, lambda x_j: x_j, sources=[x], reduction=reduction, ties=ties)
    expected = at_once(csc, lambda x_j: x_j, [x], [], [], reduction)
    assert torch.equal(out, expected)
    (ours,), (theirs,) = (torch.autograd.grad(one.sum(), x) for one in (out, expected))
    if ties == "shared with zero":  # which is PyTorch's own way
        torch.testing.assert_close(ours, theirs)
    else:
        torch.testing.assert_close(ours.sum(0), (csc.degrees() > 0).sum().double().expand(WIDTH))


def of_all_edges(message, csc, *given):
    """The same message on all edges together."""
    return message(*given, index=csc.destinations().long(), num_rows=csc.num_dst)


def softmax(scores, index, num_rows):
    weight = scores.exp()
    return weight / weight.new_zeros(num_rows, weight.shape[1]).index_add(0, index, weight)[index]


def attention(x_j, x_i, weight, *, index, num_rows):
    return softmax(x_j * x_i @ weight, index, num_rows) * x_j


def spread(x_j, x_i, weight, *, index, num_rows):
    """A row for each destination, which is not 0 where there are no edges."""
    rows = (x_j * x_i) @ weight
    square = rows.new_zeros(num_rows, rows.shape[1]).index_add(0, index, rows.square())
    return torch.cat([(square + 1).sqrt(), square], 1)


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("reduction", ["sum", "mean", "max", "own"])
@pytest.mark.parametrize(("num_edges", "num_nodes"), [(EDGES, NODES), (0, 5), (3, 1)])
def test_a_message_may_read_all_edges_of_its_destination(reduction, num_edges, num_nodes):
    torch.manual_seed(1)
    csc, x, weight = csc_of(num_edges, num_nodes), some(num_nodes, WIDTH), some(WIDTH, WIDTH)
    message = spread if reduction == "own" else attention

    def call(*given, **of_block):
        return message(*given, weight, **of_block)

    how = {"sources": [x], "destinations": [x], "parameters": [weight], "reduction": reduction}
    out = aggregate_messages(csc, call, **how, by_destination=True)
    rows = x[csc.indices.long()], x[csc.destinations().long()]
    expected = of_all_edges(call, csc, *rows)
    if reduction != "own":
        expected = at_once(csc, lambda _: expected, [x], [], [], reduction)
    torch.testing.assert_close(out, expected)
    grad = torch.randn_like(out)
    ours, theirs = (torch.autograd.grad(one, (x, weight), grad) for one in (out, expected))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)


def median_or_error(x_j, *, index, num_rows):
    """Fails if the first node has no edge, as PyG's median does."""
    assert (index == 0).any()
    return x_j.new_full((num_rows, 1), 3.0).index_put((index,), x_j[:, :1].max() + 0 * x_j[:, :1])


def test_an_aggregation_gets_an_edge_also_where_nodes_have_none(monkeypatch):
    """Blocks of nodes without edges, and graphs without any, give what such nodes have beside others."""
    monkeypatch.setattr(messages, "_BLOCK_FLOATS", 1)
    monkeypatch.setattr(messages, "_LEAST_EDGES", 2)
    for ends in (torch.tensor([[1, 2], [0, 5]]), torch.zeros(2, 0, dtype=torch.int64)):
        csc = Graph.from_edge_index(ends, 9).csc
        x = some(9, WIDTH)
        out = aggregate_messages(
            csc, median_or_error, sources=[x], reduction="own", by_destination=True, shape=(1,)
        )
        assert (out == 3.0).sum() == 9 - ends.shape[1]
        torch.autograd.grad(out.sum(), x, allow_unused=True)


@pytest.mark.usefixtures("blocks")
def test_random_numbers_are_drawn_again_in_backward_and_differ_between_blocks():
    x = torch.ones(NODES, WIDTH, requires_grad=True)

    def call(x_j):
        return torch.nn.functional.dropout(x_j, 0.5)

    torch.manual_seed(2)
    out = aggregate_messages(csc_of(), call, sources=[x], draws=True)
    after = torch.get_rng_state()
    torch.manual_seed(2)
    assert torch.equal(out, aggregate_messages(csc_of(), call, sources=[x], draws=True))
    assert torch.equal(after, torch.get_rng_state())
    (grad,) = torch.autograd.grad(out.sum(), x)
    torch.testing.assert_close(grad.sum(), out.detach().sum())  # the same edges were kept
    assert 0.45 < float(out.detach().sum()) / (2 * EDGES * WIDTH) < 0.55
    assert len({tuple(row) for row in out.detach()[8:].tolist()}) > 10


@pytest.mark.parametrize("reduction", messages.REDUCTIONS)
@pytest.mark.parametrize(("num_edges", "num_nodes"), [(0, 5), (0, 1), (3, 1)])
def test_no_edges_and_one_node(reduction, num_edges, num_nodes):
    csc, x = csc_of(num_edges, num_nodes), some(num_nodes, WIDTH)
    out = aggregate_messages(csc, lambda a, b: a * b, sources=[x], destinations=[x], reduction=reduction)
    expected = at_once(csc, lambda a, b: a * b, [x], [x], [], reduction)
    torch.testing.assert_close(out, expected)
    for ours, theirs in zip(*(torch.autograd.grad(o.sum(), x) for o in (out, expected)), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_bits_do_not_depend_on_the_number_of_threads():
    csc, x = csc_of(20_000, 500), torch.randn(500, 32, requires_grad=True)

    def run():
        out = aggregate_messages(csc, lambda a, b: torch.tanh(a) * b, sources=[x], destinations=[x])
        return [out.detach(), *torch.autograd.grad(out.square().sum(), x)]

    assert_same_bits_with_any_threads(run)


def test_a_message_gets_a_block_of_edges_at_a_time(monkeypatch):
    monkeypatch.setattr(messages, "_BLOCK_FLOATS", 1)
    monkeypatch.setattr(messages, "_LEAST_EDGES", 50)
    seen = []

    def message(x_j):
        seen.append(len(x_j))
        return x_j.exp()

    x = some(NODES, WIDTH)
    aggregate_messages(csc_of(), message, sources=[x]).sum().backward()
    assert seen == [0, *[50] * 12]


@pytest.mark.parametrize(
    ("error", "message", "options"),
    [
        (ConfigError, "reduction must be one of sum, mean", {"reduction": "median"}),
        (ConfigError, "needs by_destination", {"reduction": "own"}),
        (DataError, "parameters must be tensors; got", {"parameters": np.array(["a", "b"])}),
        (ConfigError, "also takes index= and num_rows=; this one does not", {"by_destination": True}),
        (ConfigError, "ties must be one of shared", {"ties": "first"}),
        (DataError, "source rows must be 40", {"sources": [torch.zeros(3, 2)]}),
        (DataError, "destination rows must be 40", {"destinations": [torch.zeros(39, 2)]}),
        (DataError, "edge rows must be 300", {"edges": [torch.zeros(40, 2)]}),
        (DataError, "must be floating point", {"edges": [torch.zeros(300, 2, dtype=torch.int64)]}),
        (DataError, "rows to read", {"sources": ()}),
    ],
)
def test_what_does_not_fit_is_refused(error, message, options):
    given = {"sources": [torch.zeros(NODES, 2)], **options}
    with pytest.raises(error, match=message):
        aggregate_messages(csc_of(), lambda *rows: rows[0], **given)


def test_a_message_that_gives_no_row_per_edge_is_refused():
    with pytest.raises(DataError, match="one row per edge"):
        aggregate_messages(csc_of(), lambda x: x.sum(), sources=[torch.zeros(NODES, 2)])


def test_second_derivatives_are_refused():
    x = some(NODES, 2)
    out = aggregate_messages(csc_of(), lambda x: x * x, sources=[x])
    with pytest.raises(ConfigError, match="second derivatives"):
        torch.autograd.grad(out.sum(), x, create_graph=True)
