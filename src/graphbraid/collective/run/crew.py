"""Crew: the threads of one executor, which wait on one condition, stop together and hand on their errors."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

JOIN_SECONDS = 30.0
"""Longest wait for a thread's current batch when the crew stops."""


class Crew:
    """Threads that take work from a state they share."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        """Every use of the shared state is under it, and whoever changes the state notifies it."""
        self._threads: list[threading.Thread] = []
        self._error: BaseException | None = None
        self._stopped = False

    def start(self, name: str, run: Callable[[], None]) -> None:
        """Run a thread's life, under the name ``graphbraid-NAME``."""
        thread = threading.Thread(target=self._guarded, args=(run,), name=f"graphbraid-{name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def wait_for(self, claim: Callable[[], T | None]) -> T | None:
        """What ``claim``, called under the condition, gives once it gives something; None when all stop."""
        with self.changed:
            while not self._stopped:
                found = claim()
                if found is not None:
                    return found
                self.changed.wait()
        return None

    def raise_error(self) -> None:
        """Raise the first error that ended a thread, with its trace; the caller holds the condition."""
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Let each thread end after what it is at, and wait for them."""
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
