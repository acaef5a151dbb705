"""FusedMessages: messages made of elementwise steps, computed and reduced by one kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

from graphbraid.graph.csc import Csc
from graphbraid.ops.kernels import backend
from graphbraid.ops.messages import (
    EdgeGradients,
    EdgeRows,
    MessageReduction,
    finish_reduction,
    gradient_of_each,
)
from graphbraid.ops.spmm import Ties

MOST_MATRICES, MOST_STEPS = 2, 48
"""Matrices of sources, and of destinations, and steps of a message that the kernel takes."""


class MessageOp(IntEnum):
    """What a step computes for each edge ``u -> v``, by the number that the kernels take.

    The first six read rows: ``u`` of a matrix of the sources, ``v`` of one of the destinations, the edge's
    own, its weight, a parameter's, or a number; a weight or number fills the row. All others compute a row
    from those of one or two earlier steps.
    """

    SOURCE = 0
    DESTINATION = 1
    EDGE = 2
    WEIGHT = 3
    PARAMETER = 4
    NUMBER = 5
    ADD = 6
    SUBTRACT = 7
    MULTIPLY = 8
    DIVIDE = 9
    RELU = 10
    LEAKY_RELU = 11
    SIGMOID = 12
    TANH = 13
    EXP = 14
    ABS = 15
    SUM_COLUMNS = 16


@dataclass(frozen=True, slots=True)
class MessageStep:
    """One step of a message."""

    op: MessageOp
    first: int = 0
    """The matrix or parameter that is read, or the step; 0 where nothing is."""
    second: int = 0
    """The other step of those that read two."""
    number: float = 0.0
    """The number, or the slope below zero."""


class FusedMessages:
    """Messages of a graph's edges and their reduction, by one kernel that stores no row per edge.

    The values of all steps stand in the cache for some edges at a time. Backward computes them again, once
    over the in-edges for the destinations' gradients, and once over the out-edges for the sources'. Sums are
    in the order of the edges, so results do not depend on the number of threads. Runs in float32.

    Args:
        csc: the graph or block.
        steps: the message; the last step gives it.
        reduction: how the messages to a node become one row. Nodes without any have zeros.
        width: columns of all rows and of the result.
        parameters: what the message reads beside the rows, each of ``width`` numbers or of one.
        ties: see :class:`.BlockedMessages`.
    """

    def __init__(
        self,
        csc: Csc,
        steps: Sequence[MessageStep],
        reduction: MessageReduction,
        width: int,
        *,
        parameters: Sequence[Tensor] = (),
        ties: Ties = "shared",
    ) -> None:
        self._csc, self._reduction, self._width, self._ties = csc, reduction, width, ties
        self._parameters = parameters
        self._steps = torch.tensor([[step.op, step.first, step.second] for step in steps])
        self._numbers = torch.tensor([step.number for step in steps], dtype=torch.float32)

    @property
    def selects(self) -> bool:
        """Whether the reduction is a maximum or minimum; backward then reads the result."""
        return self._reduction in ("max", "min")

    def forward(self, rows: EdgeRows, out: Tensor, count: Tensor | None = None) -> None:
        """Compute the reduced messages; see :meth:`.BlockedMessages.forward`.

        Args:
            rows: what the message reads; an edge weight is a vector.
            out: ``(num_dst, width)`` float32, written.
            count: ``(num_dst, width)`` int32, written, for a maximum or minimum alone.
        """
        csc, how = self._csc, {"max": 1, "min": 2}.get(self._reduction, 0)
        read = self._read(rows)
        if self.selects and count is None:
            count = torch.empty(out.shape, dtype=torch.int32)
        backend(out).message_forward(csc.indptr, csc.indices, *read, how, out, count)
        finish_reduction(csc, self._reduction, self._ties, out, count)

    def backward(
        self,
        rows: EdgeRows,
        grad: Tensor,
        into: EdgeGradients,
        *,
        out: Tensor | None = None,
        count: Tensor | None = None,
    ) -> None:
        """Add the gradients of what the message reads; see :meth:`.BlockedMessages.backward`.

        ``into`` has none of edges.
        """
        grad = gradient_of_each(self._csc, self._reduction, grad, count)
        largest = out if self.selects else None
        read, csc, parameters = self._read(rows), self._csc, self._parameters
        wanted = [total for total in into.parameters if total is not None]
        learned = torch.empty(len(parameters), self._width) if wanted else None
        kernels, first = backend(grad), learned
        if any(target is not None for target in into.sources):
            reverse, perm = csc.transpose()
            to = _pair(into.sources)
            kernels.message_backward(
                reverse.indptr, reverse.indices, perm, True, *read, grad, largest, *to, first
            )
            first = None
        if any(target is not None for target in into.destinations) or first is not None:
            to = _pair([None if t is None else t[: csc.num_dst] for t in into.destinations])
            kernels.message_backward(csc.indptr, csc.indices, None, False, *read, grad, largest, *to, first)
        if learned is not None:
            for row, parameter, total in zip(learned, parameters, into.parameters, strict=True):
                if total is not None:
                    total.add_((row.sum() if parameter.numel() == 1 else row).view(total.shape))

    def _read(self, rows: EdgeRows) -> tuple[Tensor | None, ...]:
        """Return the kernels' arguments that say what is computed from what."""
        of_edges = [e.detach().contiguous() for e in rows.edges]
        edges = next((e for e in of_edges if e.ndim == 2), None)
        weight = next((e for e in of_edges if e.ndim == 1), None)
        learned = torch.empty(len(self._parameters), self._width)
        for row, parameter in zip(learned, self._parameters, strict=True):
            row.copy_(parameter.detach().reshape(-1))
        sources, destinations = _pair(rows.sources), _pair(rows.destinations)
        return self._steps, self._numbers, *sources, *destinations, edges, weight, learned


def _pair(tensors: Sequence[Tensor | None]) -> tuple[Tensor | None, Tensor | None]:
    """Return up to two matrices, contiguous, as two."""
    found = [None if one is None else one.detach().contiguous() for one in tensors]
    return (*found, None, None)[0], (*found, None, None)[1]


__all__ = ["FusedMessages", "MessageOp", "MessageStep"]
