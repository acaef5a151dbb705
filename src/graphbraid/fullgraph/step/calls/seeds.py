"""Seeds of a program's dropout masks: drawn with each mask, or in advance into device memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from graphbraid.ops.dropout import draw_seed


class Seeds:
    """Seeds that each mask draws when it is made; a repeated forward pass gets the same seeds."""

    def __init__(self) -> None:
        self.repeats = False
        """Whether the running forward pass repeats an earlier one."""
        self._drawn: list[int] = []

    def drawn(self) -> tuple[int, ...]:
        """Return the seeds of the last forward pass, which :meth:`put_back` gives to a repetition of it."""
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
