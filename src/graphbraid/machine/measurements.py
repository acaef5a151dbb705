"""Measurements kept between runs, and the load of other programs while something was measured.

A kept measurement is one file, named by a hash of the key that says what was measured. It carries a checksum.
One that is damaged or invalid counts as missing: a warning is logged and its content is measured again. The
caller decides, with :class:`OtherPrograms`, which measurements are worth keeping.
"""

import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

from graphbraid.errors import DataError, ResourceError
from graphbraid.files.checksums import FIELD, sealed, unsealed
from graphbraid.files.opening import cache_folder, read_text
from graphbraid.files.writing import atomic_write

LEAST_SECONDS = 0.5
"""Shortest time that gives an answer: the system's clock counts hundredths of a second."""
MOST_OTHERS = 0.1
"""Largest share of the cores that other programs may use for a measurement to be trusted."""


def is_disturbed(others: float | None) -> bool:
    """Return whether other programs used too large a share of the cores for a measurement to be trusted."""
    return others is not None and others > MOST_OTHERS


class OtherPrograms:
    """The load of other programs, from now on, on the cores this process may use; read from ``/proc/stat``.

    Args:
        root: folder that holds ``proc``; tests pass another.
    """

    def __init__(self, *, root: Path = Path("/")) -> None:
        self._stat = root / "proc/stat"
        self._began, self._own = time.perf_counter(), time.process_time()
        self._busy = self._busy_seconds()

    def share(self) -> float | None:
        """Return their share of these cores' time so far, from 0 to 1, or None if unknown or too early."""
        seconds, own, busy = time.perf_counter() - self._began, time.process_time(), self._busy_seconds()
        if seconds < LEAST_SECONDS or busy is None or self._busy is None:
            return None
        others = (busy[0] - self._busy[0]) - (own - self._own)
        return min(1.0, max(0.0, others / (busy[1] * seconds)))

    def _busy_seconds(self) -> tuple[float, int] | None:
        """Return the seconds the usable cores were busy since the system started, and their number."""
        try:
            lines = [line.split() for line in self._stat.read_text(encoding="ascii").splitlines()]
            per_second = os.sysconf("SC_CLK_TCK")
            usable = {f"cpu{core}" for core in os.sched_getaffinity(0)}
            cores = [[int(ticks) for ticks in line[1:9]] for line in lines if line and line[0] in usable]
        except (OSError, ValueError, AttributeError):  # no such file, an unknown format, or not Linux
            return None
        if not cores or any(len(ticks) < 8 for ticks in cores):
            return None
        # user, nice, system, idle, iowait, irq, softirq, steal
        busy = sum(sum(ticks) - ticks[3] - ticks[4] for ticks in cores)
        return busy / per_second, len(cores)


T = TypeVar("T")

NOT_KEPT = (OSError, ResourceError)
"""Errors that :meth:`Kept.write` raises if a measurement cannot be kept."""
_UNSOUND = (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError)

_log = logging.getLogger(__name__)


class Kept(Generic[T]):
    """The cache of measurements of one kind.

    Args:
        kind: name of the kind in messages, and of its folder, such as ``rates``.
        to_json: function that turns a measurement into plain values.
        from_json: function that turns plain values into a measurement. It may raise ValueError, TypeError or
            KeyError, if they are invalid.
    """

    def __init__(
        self, kind: str, to_json: Callable[[T], Mapping[str, Any]], from_json: Callable[[Any], T]
    ) -> None:
        self._kind, self._to_json, self._from_json = kind, to_json, from_json

    def file(self, key: str) -> Path:
        """Return the file for a key, which must hold everything that the measurement depends on."""
        return cache_folder(self._kind) / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"

    def read(self, file: Path) -> T | None:
        """Read a measurement; return None if the file is missing, or, with a warning, if it is invalid."""
        try:
            return self._load(file)
        except FileNotFoundError:
            return None
        except _UNSOUND as error:
            message = "the %s kept in the cache %s cannot be used: what it held is measured again (%s)"
            _log.warning(message, self._kind, file, error)
            return None

    def read_others(self, file: Path) -> Iterator[T]:
        """Yield the measurements kept under other keys than that of ``file``, skipping invalid files."""
        for other in sorted(file.parent.glob("*.json")):
            if other == file:
                continue
            try:
                found = self._load(other)
            except _UNSOUND:
                continue
            yield found

    def write(self, file: Path, found: T) -> None:
        """Write a measurement, replacing an earlier one; OSError or ResourceError if it cannot be written."""
        file.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(file) as aside:
            aside.write_text(json.dumps(sealed(self._to_json(found)), indent=1), encoding="utf-8")

    def keep(self, file: Path, found: T, what: str) -> None:
        """Write a measurement; if that fails, warn that ``what`` could not be kept."""
        try:
            self.write(file, found)
        except NOT_KEPT as error:
            _log.warning("%s could not be kept: %s", what, error)

    def _load(self, file: Path) -> T:
        content = json.loads(read_text(file))
        if not isinstance(content, dict) or FIELD not in content:
            raise DataError("it has no checksum")
        return self._from_json(unsealed(content, file))
