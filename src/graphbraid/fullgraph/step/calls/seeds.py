"""Seeds of a program's dropout masks: drawn as each mask is, or ahead into the device's memory."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from graphbraid.ops.dropout import draw_seed


class Seeds:
    """Each mask draws its seed as it is made; a forward pass that is repeated gets the same ones."""

    def __init__(self) -> None:
        self.repeats = False
        """Whether the pass that runs is a repetition."""
        self._drawn: list[int] = []

    def add(self) -> Callable[[], int | Tensor]:
        """A further mask; what gives its seed, called once in every forward pass."""
        number = len(self._drawn)
        self._drawn.append(0)

        def seed() -> int:
            if not self.repeats:
                self._drawn[number] = draw_seed()
            return self._drawn[number]

        return seed

    def draw(self) -> None:
        """Before a forward pass."""


class SeedsInMemory(Seeds):
    """Seeds lie in memory that kernels read as they run, so that a recorded pass draws new masks.

    Drawn in the order of the masks, so that a generator's state gives the masks it gives on the CPU.
    """

    def __init__(self, place: torch.device) -> None:
        super().__init__()
        self._place = place
        self._count = 0
        self._slots: list[Tensor] = []

    def add(self) -> Callable[[], int | Tensor]:
        """A further mask; its seed is ``(1,)`` int64."""
        number = self._count
        self._count += 1
        return lambda: self._slots[number]

    def draw(self) -> None:
        """Write the seeds of the next forward pass."""
        if len(self._slots) < self._count:
            self._slots = list(torch.zeros(self._count, 1, dtype=torch.int64, device=self._place))
        for slot in self._slots:
            slot.fill_(draw_seed())  # the number travels with the launch: no copy, no waiting
