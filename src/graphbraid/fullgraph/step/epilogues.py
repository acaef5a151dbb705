"""Epilogues of a step: the seeds and masks of their dropout, and their calls of kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from graphbraid.fullgraph.step.bound_call import MaskSeed
from graphbraid.ops import reference
from graphbraid.ops.dropout import RowEpilogue, draw_seed
from graphbraid.ops.epilogue import ACTIVATION_CODES, LEAKY_SLOPE
from graphbraid.ops.kernels import backend


class Seeds:
    """Seeds that each mask draws when it is made; a repeated forward pass gets the same seeds."""

    def __init__(self) -> None:
        self.repeats = False
        """Whether the running forward pass repeats an earlier one."""
        self._drawn: list[int] = []

    def drawn(self) -> tuple[int, ...]:
        """Return the seeds of the last forward pass. :meth:`put_back` takes them to repeat the pass."""
        return tuple(self._drawn)

    def put_back(self, drawn: Sequence[int]) -> None:
        """Give the next forward pass the seeds of an earlier one."""
        self._drawn = list(drawn)

    def add(self) -> Callable[[], int | Tensor]:
        """Add a mask; return a function that gives its seed, to be called once in every forward pass."""
        number = len(self._drawn)
        self._drawn.append(0)

        def seed() -> int:
            if not self.repeats:
                self._drawn[number] = draw_seed()
            return self._drawn[number]

        return seed

    def draw(self) -> None:
        """Prepare the seeds of a forward pass; nothing to do if masks draw their own."""


class SeedsInMemory(Seeds):
    """Seeds in memory that kernels read as they run, so that a recorded pass gets new masks.

    They are drawn in the order of the masks, so that a generator's state gives the same masks as on the CPU.
    """

    def __init__(self, place: torch.device) -> None:
        super().__init__()
        self._place = place
        self._slots: list[Tensor] = []

    def add(self) -> Callable[[], int | Tensor]:
        """Add a mask; return a function that gives its seed, a ``(1,)`` int64 tensor."""
        number = len(self._drawn)
        self._drawn.append(0)
        return lambda: self._slots[number]

    def draw(self) -> None:
        """Write the seeds of the next forward pass."""
        if len(self._slots) < len(self._drawn):
            self._slots = list(torch.zeros(len(self._drawn), 1, dtype=torch.int64, device=self._place))
        self.put_back([draw_seed() for _ in self._slots])

    def put_back(self, drawn: Sequence[int]) -> None:
        """Write the seeds of an earlier forward pass."""
        super().put_back(drawn)
        for slot, seed in zip(self._slots, drawn, strict=True):
            slot.fill_(seed)  # passed with the kernel launch: no copy, no synchronization


@dataclass(frozen=True, eq=False, slots=True)
class Mask:
    """A dropout mask, which depends on the seed and on each row's node, not on the row's position."""

    p: float
    seed: int | Tensor = 0
    """A number, or a ``(1,)`` int64 tensor that kernels read as they run."""
    nodes: Tensor | None = None
    """``(num_rows,)`` int64 node of each row; None if row v is node v."""


class EpilogueMask:
    """The mask of one epilogue: its forward pass draws it, and its backward pass reads it again.

    Args:
        p: probability of dropping an element.
        seeds: the step's seeds.
        nodes: ``(num_rows,)`` int64 node of each row. If None, row v is node v.
    """

    def __init__(self, p: float, seeds: Seeds, nodes: Tensor | None) -> None:
        self._p, self._nodes = p, nodes
        self._seed: Callable[[], int | Tensor] = seeds.add() if p > 0 else lambda: 0
        self._last = Mask(p)

    def of_forward(self) -> Mask:
        """Draw the mask for the forward pass, and return it."""
        self._last = Mask(self._p, self._seed(), self._nodes if self._p > 0 else None)
        return self._last

    def of_backward(self, nodes: Tensor | None = None) -> Mask:
        """Return the mask that was drawn last, for all rows or for rows of these nodes."""
        if nodes is None or self._p == 0:
            return self._last
        return replace(self._last, nodes=nodes)

    def seed(self, mask: Callable[[], Mask]) -> MaskSeed | None:
        """Return the seed of a bound call with ``mask``, one of the masks above; None without dropout."""
        if self._p == 0:
            return None
        return MaskSeed(draw=lambda: mask().seed, drawn=lambda: self._last.seed)


def epilogue(x: Tensor, bias: Tensor | None, act: str, mask: Mask, out: Tensor) -> None:
    """Compute ``out = dropout(act(x + bias))``; ``out`` may be ``x``."""
    factors, *how, ids = row_epilogue(bias, act, mask, x)
    backend(x).epilogue(x, factors, *how, out, ids)


def row_epilogue(bias: Tensor | None, act: str, mask: Mask, like: Tensor) -> RowEpilogue:
    """Return the same epilogue for a kernel to fuse; ``like`` says the device of its rows."""
    return RowEpilogue(
        bias=bias,
        act=ACTIVATION_CODES[act],
        slope=LEAKY_SLOPE,
        p=mask.p,
        seed=seed_for(like, mask.seed),
        ids=mask.nodes,
    )


def epilogue_backward(  # noqa: PLR0917 - in the order of the kernel's
    grad: Tensor, out: Tensor, act: str, mask: Mask, grad_x: Tensor, grad_bias: Tensor | None
) -> None:
    """Compute the gradients of :func:`epilogue`; ``grad_x`` may be ``grad``."""
    how = (ACTIVATION_CODES[act], LEAKY_SLOPE, mask.p, seed_for(grad, mask.seed))
    backend(grad).epilogue_backward(grad, out, *how, grad_x, grad_bias, mask.nodes)


def seed_for(rows: Tensor, seed: int | Tensor) -> int | Tensor:
    """Return a mask's seed as ``rows``' kernels take it: compiled CPU kernels take only numbers."""
    by_value = rows.device.type == "cpu" and backend(rows) is not reference
    return int(seed) if by_value else seed
