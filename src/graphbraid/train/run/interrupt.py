"""Ctrl-C and SIGTERM as a wish to stop: the first ends the run cleanly, the second at once."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequested(Exception):  # noqa: N818 (it ends an evaluation, it is no error)
    """Raised inside an evaluation that a signal cut short; the trainer catches it."""


class SignalGuard:
    """While entered, notes the first SIGINT or SIGTERM in :attr:`signal` instead of raising.

    The second raises ``KeyboardInterrupt`` where the program stands. Outside the main thread Python takes
    no signal handlers, and the guard does nothing.
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
            # A handler that was not set from Python cannot be set back from it.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._former = {}

    def check(self) -> None:
        """Raise :class:`StopRequested` if a signal came."""
        if self.signal is not None:
            raise StopRequested

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
            raise KeyboardInterrupt
        self.signal = number
