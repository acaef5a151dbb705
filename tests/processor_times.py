"""``pytest --processor-times FILE`` writes each test's processor seconds, which other programs do not change.

Counted are the test's own process and the processes it waits for; what several tests share counts with the
first of them.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Generator
from pathlib import Path

import pytest


def processor_seconds() -> float:
    """Processor seconds of this process and of those that it has waited for."""
    return sum(os.times()[:4])


class Clock:
    """Says with each report of a phase what it took since the one before.

    Args:
        more: processor seconds of processes that run on and work for the tests.
    """

    def __init__(self, more: Callable[[], float]) -> None:
        self._more, self._last = more, 0.0

    def pytest_runtest_logstart(self) -> None:
        """Begin a test."""
        self._last = self._now()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """End a phase."""
        report, now = (yield), self._now()
        report.processor_seconds = now - self._last
        self._last = now
        return report

    def _now(self) -> float:
        return processor_seconds() + self._more()


class Record:
    """Adds up what the reports of all test processes say, and writes it: the most costly first."""

    def __init__(self, path: Path) -> None:
        self._path, self._seconds = path, Counter[str]()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take a phase."""
        self._seconds[report.nodeid] += getattr(report, "processor_seconds", 0.0)

    def pytest_sessionfinish(self) -> None:
        """Write the file."""
        rounded = {test: round(seconds, 3) for test, seconds in self._seconds.most_common()}
        self._path.write_text(json.dumps(rounded, indent=1) + "\n", encoding="utf-8")
