"""The memory that another process takes at most, looked up while it runs."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

LOOK_SECONDS = 0.05


class PeakMemory:
    """Looks at a process until it ends (``with PeakMemory(process) as peak``).

    Its own memory is what no file backs; pages of mapped files count apart, since the system may drop them
    whenever it needs the room.

    Args:
        process: the process.
        called: count the processes of this command that it starts, directly or not, instead of itself: the
            sum of what each takes at most.
    """

    def __init__(self, process: subprocess.Popen[str], called: str | None = None) -> None:
        self.own_bytes = 0
        """Most memory of its own: not backed by a file, or shared with other processes."""
        self.resident_bytes = 0
        """Most memory with the pages of mapped files."""
        self._pid, self._called = process.pid, called
        self._most: dict[int, tuple[int, int]] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            for pid in [self._pid] if self._called is None else _started_by(self._pid):
                own, resident = self._most.get(pid, (0, 0))
                sizes = _status_of(pid)
                if self._called not in {None, sizes.get("Name", "").strip()}:
                    continue
                now = _bytes(sizes.get("RssAnon", "")) + _bytes(sizes.get("RssShmem", ""))
                self._most[pid] = max(own, now), max(resident, _bytes(sizes.get("VmHWM", "")))
            self.own_bytes, self.resident_bytes = (
                sum(of_process[i] for of_process in self._most.values()) for i in range(2)
            )


def _status_of(pid: int) -> dict[str, str]:
    """What the system says of a process; nothing once it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return {}
    return {name: value for name, _, value in (line.partition(":") for line in lines)}


def _started_by(pid: int) -> list[int]:
    """The processes that a process has started, and those that these have."""
    found = []
    for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(child) for child in tasks.read_text(encoding="ascii").split()]
        except OSError:
            continue
        for child in children:
            found += [child, *_started_by(child)]
    return found


def _bytes(value: str) -> int:
    """Of a field such as ``1234 kB``; 0 for one of another kind."""
    number, _, unit = value.strip().partition(" ")
    return int(number) * 1024 if unit == "kB" else 0
