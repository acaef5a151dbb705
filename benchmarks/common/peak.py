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
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.own_bytes = 0
        """Most memory of its own: not backed by a file, or shared with other processes."""
        self.resident_bytes = 0
        """Most memory with the pages of mapped files."""
        self._pid = process.pid
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
            sizes = _status_of(self._pid)
            own = _bytes(sizes.get("RssAnon", "")) + _bytes(sizes.get("RssShmem", ""))
            self.own_bytes = max(self.own_bytes, own)
            self.resident_bytes = max(self.resident_bytes, _bytes(sizes.get("VmHWM", "")))


def _status_of(pid: int) -> dict[str, str]:
    """What the system says of a process; nothing once it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return {}
    return {name: value for name, _, value in (line.partition(":") for line in lines)}


def _bytes(value: str) -> int:
    """The bytes of a field such as ``1234 kB``; 0 for one of another kind."""
    number, _, unit = value.strip().partition(" ")
    return int(number) * 1024 if unit == "kB" else 0
