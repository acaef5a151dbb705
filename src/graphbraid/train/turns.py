"""Turns: one call of a Trainer at a time, since modes, buffers and torch's settings are everybody's."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from graphbraid.errors import ConfigError

_LOOK_SECONDS = 0.05


class Turns:
    """Lets threads wait for each other, but not for a whole training run."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._training: int | None = None

    @contextlib.contextmanager
    def take(self, *, trains: bool = False) -> Iterator[None]:
        """A turn, after those of other threads; calls within it (from callbacks) are part of it.

        Args:
            trains: whether it is a training run, which nobody waits for.

        Raises:
            ConfigError: another thread trains.
        """
        while not self._lock.acquire(timeout=_LOOK_SECONDS):
            if self._training is not None:
                raise ConfigError(
                    "another thread is in this Trainer's fit(); call it when fit() has returned, or from a "
                    "callback, which runs between two steps"
                )
        before = self._training
        try:
            self._training = threading.get_ident() if trains else before
            yield
        finally:
            self._training = before
            self._lock.release()
