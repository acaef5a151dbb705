"""Choices: scores of links, each beside those of negatives that it is to be told from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from graphbraid.graph.key_lookup import KeyLookup
from graphbraid.loader.gather_ahead import RowBuffers
from graphbraid.ops.library import once_differentiable

Places = tuple[Tensor, Tensor]
"""Rows and columns of some entries of a matrix."""


def choices(
    own: Tensor, others: Sequence[Tensor], hidden: Sequence[Places], memory: RowBuffers | None = None
) -> Tensor:
    """Return links' scores beside those of negatives, in one matrix that is written once.

    Args:
        own: ``(num_links,)`` scores of the links.
        others: matrices of one shape and dtype: a row of negatives' scores for each link.
        hidden: for each of these the entries that are no negatives; ``-inf`` stands in their place, and they
            get no gradient.
        memory: lends the result's memory on a CPU, which the system need not clear then. If None, it is new.

    Returns:
        ``(len(others) * num_links, 1 + num_negatives)``: the links with the first matrix, then with the
        second; a link's own score is in the first column.
    """
    found: Tensor = _Choices.apply(own, tuple(hidden), memory, *others)  # type: ignore[no-untyped-call]
    return found


def alike(own: Tensor, drawn: Tensor) -> Places:
    """Return where the negatives ``drawn`` for all links are the end that a link has ``own``."""
    return KeyLookup(drawn).places(own)


class _Choices(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, own: Tensor, hidden: tuple[Places, ...], memory: RowBuffers | None, *others: Tensor
    ) -> Tensor:
        ctx.hidden = hidden
        dtype, shape = torch.promote_types(own.dtype, others[0].dtype), torch.Size([1 + others[0].shape[1]])
        count = len(others) * own.numel()
        if memory is None or own.device.type != "cpu":
            out = own.new_empty((count, *shape), dtype=dtype)
        else:
            out = memory.lend(count, shape, dtype)
        for rows, scores, places in zip(out.chunk(len(others)), others, hidden, strict=True):
            rows[:, 0], rows[:, 1:] = own, scores
            rows[:, 1:][places] = -torch.inf
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        sides = grad.view(len(ctx.hidden), -1, grad.shape[1])
        others = [_shown(rows[:, 1:], places) for rows, places in zip(sides, ctx.hidden, strict=True)]
        return sides[:, :, 0].sum(0), None, None, *others


def _shown(grad: Tensor, hidden: Places) -> Tensor:
    """Return a gradient that is zero at the hidden entries: itself where it is, as behind a softmax."""
    if not bool(grad[hidden].any()):
        return grad
    grad = grad.clone()
    grad[hidden] = 0
    return grad
