"""TrainerLock: the calls of one Trainer run one at a time, since they share the model."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from graphbraid.errors import ConfigError

_LOOK_SECONDS = 0.05


class TrainerLock:
    """A lock by which threads wait for each other, except for a training run."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._training: int | None = None

    @contextlib.contextmanager
    def take(self, *, trains: bool = False) -> Iterator[None]:
        """Hold the lock during the ``with`` block; nested calls (from callbacks) may take it again.

        Args:
            trains: whether this is a training run, for which other threads do not wait.

        Raises:
            ConfigError: another thread is training.
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
