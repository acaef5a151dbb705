"""FirstRows: the storage of a value or a gradient, and simple operations on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from graphbraid.fullgraph.step.arena import Buffer


@dataclass(eq=False, slots=True)
class FirstRows:
    """The first rows of a buffer."""

    buffer: Buffer
    count: int

    @property
    def tensor(self) -> Tensor:
        """The rows, ``(count, width)``."""
        whole = self.buffer.tensor
        return whole if self.count == self.buffer.shape[0] else whole[: self.count]


@dataclass(eq=False, slots=True)
class Constant:
    """A matrix that no step changes, computed when the planned step is allocated."""

    shape: tuple[int, int]
    make: Callable[[], Tensor]
    is_copy: bool
    """Whether it takes memory of its own."""
    _tensor: Tensor | None = None

    @property
    def tensor(self) -> Tensor:
        """The matrix."""
        if self._tensor is None:
            self._tensor = self.make()
        return self._tensor

    @property
    def nbytes(self) -> int:
        """Bytes it takes in addition to the loaded graph."""
        return 4 * self.shape[0] * self.shape[1] if self.is_copy else 0

    def first(self, count: int) -> Constant:
        """Return its first rows, as a view."""
        return Constant((count, self.shape[1]), lambda: self.tensor[:count], is_copy=False)


@dataclass(frozen=True, slots=True)
class Read:
    """Access of a task to a value's rows."""

    get: Callable[[], Tensor]
    """Returns the rows; called while the task runs."""
    touches: tuple[FirstRows, ...]
    """The rows in the arena that this reads; empty if the value is a constant."""


def tensor_of(rows: tuple[FirstRows, ...]) -> Tensor | None:
    """Return the tensor of the only rows; None if there are none."""
    return rows[0].tensor if rows else None


def zero(target: Tensor) -> None:
    """Set ``target = 0``."""
    target.zero_()


def copy(source: Tensor, target: Tensor) -> None:
    """Set ``target = source``."""
    target.copy_(source)


def add(source: Tensor, target: Tensor) -> None:
    """Compute ``target += source``."""
    target.add_(source)
