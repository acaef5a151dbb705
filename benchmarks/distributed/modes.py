"""ModalTransport: the same calls as they are, made blocking, left out, or recorded to be made again."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor

from graphbraid.distributed.ranks.transport import Pending, Reduction, Transport


class ModalTransport:
    """A transport whose exchanges and sums of large tensors depend on :attr:`mode`.

    ``overlapped``: as they are; ``blocking``: over when the call returns; ``nothing sent``: left out, what is
    received is whatever was there; ``recorded``: as they are, and :meth:`replay` makes them again.
    """

    def __init__(self, inner: Transport) -> None:
        self._inner, self.mode = inner, "overlapped"
        self.name, self.rank, self.size = inner.name, inner.rank, inner.size
        self._calls: list[Callable[[], Pending]] = []

    @contextlib.contextmanager
    def in_mode(self, mode: str) -> Iterator[None]:
        """Work in a mode for a while."""
        self.mode = mode
        try:
            yield
        finally:
            self.mode = "overlapped"

    def replay(self) -> None:
        """Make the recorded calls again, one after the other."""
        for call in self._calls:
            _finished(call())

    def all_reduce(self, tensor: Tensor, op: Reduction) -> Pending:
        """Begin a reduction; those of a few numbers, which ranks agree by, are made in every mode."""
        if tensor.numel() <= 1:
            return self._inner.all_reduce(tensor, op)
        if self.mode == "recorded":
            copy = tensor.clone()
            self._calls.append(lambda: self._inner.all_reduce(copy, op))
        return self._made(lambda: self._inner.all_reduce(tensor, op))

    def all_to_all(
        self, send: Tensor, send_bytes: Sequence[int], receive: Tensor, receive_bytes: Sequence[int]
    ) -> Pending:
        """Begin an exchange of bytes."""
        if self.mode == "recorded":
            sent, received = send.clone(), receive.clone()
            self._calls.append(lambda: self._inner.all_to_all(sent, send_bytes, received, receive_bytes))
        return self._made(lambda: self._inner.all_to_all(send, send_bytes, receive, receive_bytes))

    def _made(self, call: Callable[[], Pending]) -> Pending:
        if self.mode == "nothing sent":
            return Pending()
        return _finished(call()) if self.mode == "blocking" else call()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def _finished(pending: Pending) -> Pending:
    started = time.perf_counter()
    while not pending.done():
        pending.rest(time.perf_counter() - started)
    pending.finish()
    return Pending()
