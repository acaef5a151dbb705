"""PrefetchIterator: the next batch can be taken early, while a step waits for other ranks."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class PrefetchIterator(Iterator[T], Generic[T]):
    """An iterator of batches, the next of which can be taken before it is asked for.

    The threads that prepare batches begin another one as soon as one is taken. Where they share the core of
    training, they would do so while the next step computes; taken early, they do while it waits.

    Args:
        batches: where they come from, which is closed with this one.
    """

    def __init__(self, batches: Generator[T]) -> None:
        self._batches = batches
        self._taken: list[T | BaseException] = []

    def take(self) -> None:
        """Take the next batch if none is taken; what is raised for it is raised as it is asked for."""
        if self._taken:
            return
        try:
            self._taken.append(next(self._batches))
        except Exception as error:  # StopIteration, too
            self._taken.append(error)

    def __next__(self) -> T:
        """Return the next batch."""
        if not self._taken:
            return next(self._batches)
        taken = self._taken.pop()
        if isinstance(taken, BaseException):
            raise taken
        return taken

    def close(self) -> None:
        """Let go of a batch that nobody asked for, and close the iterator behind."""
        self._taken.clear()
        self._batches.close()
