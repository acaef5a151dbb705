"""Handling of Ctrl-C and SIGTERM: the first signal ends the run cleanly, the second at once."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequested(Exception):  # noqa: N818 (it ends an evaluation and is not an error)
    """An evaluation was cut short by a signal; the trainer catches this."""


class SignalGuard:
    """A context manager that records the first SIGINT or SIGTERM in :attr:`signal` instead of raising.

    The second one raises ``KeyboardInterrupt``. Outside the main thread, where Python does not allow signal
    handlers to be set, the guard does nothing.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._former: dict[int, Any] = {}

    def __enter__(self) -> SignalGuard:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                self._former[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._former.items():
            # A handler that was not set from Python (None) cannot be restored from Python.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._former = {}

    def check(self) -> None:
        """Raise :class:`StopRequested` if a signal was received."""
        if self.signal is not None:
            raise StopRequested

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
            raise KeyboardInterrupt
        self.signal = number
