"""Crew: the threads of one executor, which share a condition, stop together and report their errors."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

JOIN_SECONDS = 30.0
"""Longest wait in seconds for a thread to finish its current batch when the crew stops."""


class Crew:
    """A group of threads that take work from a shared state."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        """Condition that every use of the shared state holds and every change to it notifies."""
        self._threads: list[threading.Thread] = []
        self._error: BaseException | None = None
        self._stopped = False

    def start(self, name: str, run: Callable[[], None]) -> None:
        """Start a thread named ``graphbraid-NAME`` that calls ``run``."""
        thread = threading.Thread(target=self._guarded, args=(run,), name=f"graphbraid-{name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def wait_for(self, claim: Callable[[], T | None]) -> T | None:
        """Call ``claim`` under the condition until it returns something; return that, or None on stopping."""
        with self.changed:
            while not self._stopped:
                found = claim()
                if found is not None:
                    return found
                self.changed.wait()
        return None

    def raise_error(self) -> None:
        """Raise the first error that ended a thread, if any; the caller must hold the condition."""
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Let each thread end after its current piece of work, and wait for all."""
        with self.changed:
            self._stopped = True
            self.changed.notify_all()
        for thread in self._threads:
            thread.join(JOIN_SECONDS)
        self._threads = []

    def _guarded(self, run: Callable[[], None]) -> None:
        try:
            run()
        except BaseException as error:
            with self.changed:
                self._error = self._error or error
                self.changed.notify_all()
