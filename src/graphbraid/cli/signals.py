"""Ctrl-C and SIGTERM for the command line: whatever it is doing, it ends cleanly and with its exit code.

Imports nothing of PyTorch, so that the handlers stand before anything slow begins.
"""

from __future__ import annotations

import signal

EXIT_CODE = 130
"""128 + SIGINT, what shells expect."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_AGAIN_SECONDS = 2.0


class Stopped(BaseException):
    """Raised in the main thread by a signal; no ``except Exception`` and no parser takes it for its own."""


def take() -> None:
    """From now on a signal raises :class:`Stopped`; one that the caller's caller ignores stays ignored.

    Raised again every two seconds until :func:`ending` is called, as an import or a destructor in whose
    midst it came may have swallowed it.
    """
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _stop)
    if hasattr(signal, "SIGALRM"):
        signal.signal(signal.SIGALRM, _stop)


def ending() -> None:
    """The end has begun and has been told: further signals would only tear it apart."""
    if signal.getsignal(signal.SIGTERM) is not _stop:  # nobody took them: a library, a test
        return
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, 0)


def _stop(*_: object) -> None:
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECONDS)
    raise Stopped
