"""dot_attention: equal to attention node by node, forward and backward, and clear errors."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from graphbraid.errors import ConfigError, DataError
from graphbraid.graph.csc import Csc, coo_to_csc
from graphbraid.ops import message_kernel
from graphbraid.ops.attention import dot_attention
from graphbraid.ops.message_kernel import aggregate_steps
from graphbraid.ops.message_steps import MessageOp, MessageStep

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
def test_equals_attention_node_by_node(heads: int, channels: int, dtype: torch.dtype) -> None:
    csc, given = some_edges(), rows(heads, channels, dtype)
    out, expected = dot_attention(csc, *given, heads), node_by_node(csc, *given, heads)
    torch.testing.assert_close(out, expected)
    to = torch.randn(out.shape, generator=torch.Generator().manual_seed(2)).to(dtype)
    found = torch.autograd.grad(out, given, to)
    torch.testing.assert_close(found, torch.autograd.grad(expected, given, to), rtol=1e-5, atol=1e-5)


def test_gradients_are_those_of_differences() -> None:
    csc = some_edges()
    assert torch.autograd.gradcheck(lambda *given: dot_attention(csc, *given, 2), rows(2, 3))


@pytest.mark.parametrize(("heads", "channels"), [(1, 5), (4, 16), (3, 4), (17, 2)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numbers_that_backward_keeps_of_edges_change_no_bit(
    monkeypatch: pytest.MonkeyPatch, heads: int, channels: int, dtype: torch.dtype
) -> None:
    given, found = rows(heads, channels, dtype), []
    for most_bytes in (1 << 20, 0):
        monkeypatch.setattr(message_kernel, "_KEPT_BYTES", most_bytes)
        csc = some_edges()
        found.append(torch.autograd.grad(dot_attention(csc, *given, heads).sin().sum(), given))
        assert csc.has_transpose == (most_bytes > 0), "the ids of the edges are read to keep numbers"
    assert all(map(torch.equal, *found))


@pytest.mark.parametrize("is_shared", [False, True])
def test_a_message_gives_gradients_of_keys_that_are_the_values_and_of_rows_that_no_edge_reads(
    is_shared: bool,
) -> None:
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


def test_without_edges_there_are_zeros_and_no_gradients() -> None:
    given = rows(2, 3)
    out = dot_attention(some_edges(0), *given, 2)
    assert not out.any()
    assert not any(grad.any() for grad in torch.autograd.grad(out.sum(), given))


def test_large_products_do_not_overflow() -> None:
    csc, (query, key, value) = some_edges(), rows(2, 3, torch.float32)
    out = dot_attention(csc, query * 100, key * 100, value, 2)
    assert out.isfinite().all()
    torch.testing.assert_close(out, node_by_node(csc, query * 100, key * 100, value, 2))


def test_a_gradient_is_found_only_for_what_needs_one() -> None:
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
def test_what_does_not_fit_is_refused(
    change: dict[str, object], error: type[Exception], message: str
) -> None:
    names = ("query", "key", "value")
    given = dict(zip(names, (part.detach() for part in rows(2, 3, torch.float32)), strict=True))
    whole = {"csc": some_edges(), "heads": 2} | given | change
    with pytest.raises(error, match=message):
        dot_attention(**whole)
