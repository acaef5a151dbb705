"""Handlers of Ctrl-C and SIGTERM, so that the command line always ends cleanly and with its exit code.

This module does not import PyTorch, so that the handlers are installed before anything slow begins.
"""

from __future__ import annotations

import signal

EXIT_CODE = 130
"""Exit code after a signal: 128 + SIGINT, as shells expect."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_AGAIN_SECONDS = 2.0


class Stopped(BaseException):
    """Raised in the main thread by a signal; not an ``Exception``, so that no other code catches it."""


def take() -> None:
    """Make signals raise :class:`Stopped` from now on; signals that the parent process ignores stay ignored.

    It is raised again every two seconds until :func:`ending` is called, since an import or a destructor that
    it interrupts may swallow it.
    """
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _stop)
    if hasattr(signal, "SIGALRM"):
        signal.signal(signal.SIGALRM, _stop)


def ending() -> None:
    """Ignore further signals, which would only interrupt the clean end of the process."""
    if signal.getsignal(signal.SIGTERM) is not _stop:  # the handlers are not installed, as in a test
        return
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, 0)


def _stop(*_: object) -> None:
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECONDS)
    raise Stopped
