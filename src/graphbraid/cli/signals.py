"""Handlers of Ctrl-C and SIGTERM, so that the command line always ends cleanly and with its exit code.

This module does not import PyTorch, so that the handlers are installed before anything slow begins.
"""

from __future__ import annotations

import signal
import sys
import time
from types import FrameType

EXIT_CODE = 130
"""Exit code after a signal: 128 + SIGINT, as shells expect."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_AGAIN_SECONDS = 2.0
_IMPORT_SECONDS = 30.0  # an import that takes longer is interrupted after all
_LOOK_SECONDS = 0.02  # between two looks at whether an import has ended


class Stopped(BaseException):
    """Raised in the main thread by a signal; not an ``Exception``, so that no other code catches it."""


def take() -> None:
    """Make signals raise :class:`Stopped` from now on; signals that the parent process ignores stay ignored.

    A signal that comes during an import is raised when the import has ended: a half-imported module, or a
    native one whose first import broke, would fail in ways of its own. :class:`Stopped` is raised again every
    two seconds until :func:`ending` is called, since a destructor that it interrupts swallows it.
    """
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _stop)
    if hasattr(signal, "SIGALRM"):
        signal.signal(signal.SIGALRM, _stop)
    sys.unraisablehook = _say_unraisable


def ending() -> None:
    """Ignore further signals, which would only interrupt the clean end of the process."""
    if signal.getsignal(signal.SIGTERM) is not _stop:  # the handlers are not installed, as in a test
        return
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, 0)


class _Stop:
    """Handler that raises :class:`Stopped`, but not in the middle of an import."""

    first: float | None = None  # seconds of the monotonic clock when the first signal came

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.first is None:
            self.first = time.monotonic()
        can_wait = hasattr(signal, "setitimer")
        if can_wait and _importing(frame) and time.monotonic() - self.first < _IMPORT_SECONDS:
            signal.setitimer(signal.ITIMER_REAL, _LOOK_SECONDS)
            return
        if can_wait:
            signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECONDS)
        raise Stopped


_stop = _Stop()


def _importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _say_unraisable(unraisable: sys.UnraisableHookArgs) -> None:
    """Print errors that no code can catch, unless a signal came.

    After it, :class:`Stopped` needs no line, since it is raised again. If it interrupts a constructor, the
    destructor fails on the half-made object.
    """
    if _stop.first is None:
        sys.__unraisablehook__(unraisable)
