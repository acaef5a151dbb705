"""Handle: an operation between ranks that is under way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from graphbraid.distributed.ranks.transport import Pending

T = TypeVar("T")


class Handle(Generic[T]):
    """An operation under way. Its tensors must not be touched before :meth:`wait` has returned."""

    def __init__(
        self, wait: Callable[[Pending, str], None], pending: Pending, what: str, result: Callable[[], T]
    ) -> None:
        self._wait, self._pending, self._what, self._result = wait, pending, what, result
        self._is_over = False

    def done(self) -> bool:
        """Return whether :meth:`wait` would return at once; calling it also makes progress."""
        return self._is_over or self._pending.done()

    def wait(self) -> T:
        """Wait for the operation and return its result.

        Raises:
            RankError: a rank was lost, has stalled or has failed.
        """
        if not self._is_over:
            self._wait(self._pending, self._what)
            self._is_over = True
        return self._result()
