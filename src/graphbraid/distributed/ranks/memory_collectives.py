"""Operations of ranks that share memory: they wait for the others' parts, and take them where they are."""

from __future__ import annotations

import functools
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Protocol

import torch
from torch import Tensor

from graphbraid.distributed.ranks.mailbox import Letter
from graphbraid.distributed.ranks.transport import Pending, Reduction

_REDUCTIONS: dict[Reduction, Callable[[Tensor, Tensor], Tensor]] = {
    "sum": torch.add,
    "max": torch.maximum,
    "min": torch.minimum,
}


class MemoryWays(Protocol):
    """What an operation asks of the ways between ranks."""

    rank: int
    """Number of this rank."""
    size: int
    """Number of ranks."""

    def collect(self) -> None:
        """Take the letters that have come."""
        ...

    def letter_of(self, number: int, source: int) -> Letter | None:
        """Return what a rank has told of its part of an operation; None before, and once it was let go."""
        ...

    def memory_of(self, letter: Letter) -> Tensor:
        """Return the bytes that a letter tells of, where they are."""
        ...

    def let_go(self, letter: Letter) -> None:
        """Tell the sender that its bytes have been read."""
        ...

    def rest(self) -> None:
        """Wait for a letter, for a moment."""
        ...


class Collective(ABC):
    """An operation that waits for parts of other ranks.

    Args:
        ways: the transport.
        number: of the operation.
        awaited: bytes of the part of each other rank, of which none have no letter.
    """

    def __init__(self, ways: MemoryWays, number: int, awaited: Mapping[int, int]) -> None:
        self._ways, self._number = ways, number
        self._awaited = {source: nbytes for source, nbytes in awaited.items() if nbytes > 0}
        self._is_over = False
        self._error = ""

    def done(self) -> bool:
        """Return whether the operation has ended, well or not, and make progress on it."""
        if self._is_over:
            return True
        self._ways.collect()
        letters = {source: self._ways.letter_of(self._number, source) for source in self._awaited}
        come = {source: letter for source, letter in letters.items() if letter is not None}
        self._error = next(filter(None, itertools.starmap(self._wrong, come.items())), "")
        self._is_over = bool(self._error) or self._took(come)
        return self._is_over

    def rest(self, waited_seconds: float) -> None:
        """Wait for a letter, for a moment."""
        self._ways.rest()

    def finish(self) -> None:
        """Complete an operation that is done.

        Raises:
            RuntimeError: a rank has sent other bytes than were awaited.
        """
        if self._error:
            raise RuntimeError(self._error)

    def _wrong(self, source: int, letter: Letter) -> str:
        awaited = self._awaited[source]
        if letter.nbytes == awaited:
            return ""
        return (
            f"rank {source} has sent {letter.nbytes} bytes where {awaited} were awaited; "
            "GRAPHBRAID_RANK_CHECKS=1 finds the operation in which ranks differ"
        )

    @abstractmethod
    def _took(self, come: Mapping[int, Letter]) -> bool:
        """Take parts that have come; return whether these were the last."""


class ByteExchange(Collective):
    """An exchange of bytes, each part of which is copied once it is there."""

    def __init__(self, ways: MemoryWays, number: int, taken: Mapping[int, Tensor]) -> None:
        super().__init__(ways, number, {source: part.numel() for source, part in taken.items()})
        self._taken = taken

    def _took(self, come: Mapping[int, Letter]) -> bool:
        for source, letter in come.items():
            self._taken[source].copy_(self._ways.memory_of(letter))
            self._ways.let_go(letter)
            del self._awaited[source]
        return not self._awaited


class Reducing(Collective):
    """A reduction, which is made once all parts are there."""

    def __init__(
        self, ways: MemoryWays, number: int, awaited: Mapping[int, int], tensor: Tensor, op: Reduction
    ) -> None:
        super().__init__(ways, number, awaited)
        self._tensor, self._reduce = tensor, _REDUCTIONS[op]

    def _took(self, come: Mapping[int, Letter]) -> bool:
        if len(come) < len(self._awaited):
            return False
        tensor, parts = self._tensor, []
        for rank in range(self._ways.size):
            if rank == self._ways.rank or not come:
                parts.append(tensor)
            else:
                parts.append(self._ways.memory_of(come[rank]).view(tensor.dtype).view(tensor.shape))
        first, *others = parts
        whole = functools.reduce(self._reduce, others, first)
        if whole is not tensor:
            tensor.copy_(whole)
        for letter in come.values():
            self._ways.let_go(letter)
        return True


class Beside:
    """An operation of another transport, beside which letters that found no room are sent.

    Others wait for these; this rank may wait for nothing else meanwhile.
    """

    def __init__(self, ways: MemoryWays, pending: Pending) -> None:
        self._ways, self._pending = ways, pending

    def done(self) -> bool:
        """Return whether the operation has ended, well or not, and make progress on it."""
        self._ways.collect()
        return self._pending.done()

    def rest(self, waited_seconds: float) -> None:
        """Pause as the other transport does."""
        self._pending.rest(waited_seconds)

    def finish(self) -> None:
        """Complete an operation that is done.

        Raises:
            RuntimeError: it failed.
        """
        self._pending.finish()
