"""Running under a limit of memory, page cache included: a control group below the present one."""

from __future__ import annotations

import os
from pathlib import Path

CONTROLLERS = Path("/sys/fs/cgroup")


class MemoryLimit:
    """A control group that bounds what this process takes from now on, files it reads included.

    Memory taken before counts for the group it was taken in. Limits of the groups above stay in force.

    Args:
        num_bytes: the limit.
        root: where control groups are mounted.
        own: the process's entries of ``/proc/self/cgroup``.
    """

    def __init__(
        self, num_bytes: int, *, root: Path = CONTROLLERS, own: Path = Path("/proc/self/cgroup")
    ) -> None:
        self.reason = ""
        """Why there is no limit; empty where there is one."""
        self._group: Path | None = None
        try:
            self._before, limit = _group_of_memory(root, own.read_text())
            group = self._before / f"graphbraid-{os.getpid()}"
            group.mkdir()
            self._group = group
            (group / limit).write_text(str(num_bytes))
            (group / "cgroup.procs").write_text(str(os.getpid()))
        except OSError as error:
            self.reason = f"no memory cgroup to be had ({error})"
            self.end()

    @property
    def is_in_force(self) -> bool:
        """Whether the process is in the group."""
        return self._group is not None

    def peak_bytes(self) -> int:
        """Most that the group took at a time, files it read included."""
        assert self._group is not None
        for name in ("memory.max_usage_in_bytes", "memory.peak"):
            if (self._group / name).exists():
                return int((self._group / name).read_text())
        raise FileNotFoundError(f"{self._group} does not tell what it took at most")

    def end(self) -> None:
        """Go back to the group before and remove this one."""
        group, self._group = self._group, None
        if group is None:
            return
        try:
            (self._before / "cgroup.procs").write_text(str(os.getpid()))
            group.rmdir()
        except OSError as error:
            self.reason = self.reason or f"{group} could not be removed ({error})"


def _group_of_memory(root: Path, entries: str) -> tuple[Path, str]:
    """This process's group, and its file for a limit: of version 1's controller, else of version 2."""
    own = [line.split(":", 2) for line in entries.splitlines()]
    for _, controllers, place in own:
        if "memory" in controllers.split(","):
            return root / "memory" / place.lstrip("/"), "memory.limit_in_bytes"
    for number, controllers, place in own:
        group = root / place.lstrip("/")
        if number == "0" and not controllers and (group / "memory.max").exists():
            return group, "memory.max"
    raise FileNotFoundError("no group that counts memory")


class DroppedCache:
    """Stand-in for a limit: drop a mapped file's pages whenever as many bytes were read as memory would hold.

    That is harder on who relies on the page cache than a limit would be: half of it lies there on average.

    Args:
        path: the file.
        num_bytes: read between two drops.
    """

    def __init__(self, path: Path, num_bytes: int) -> None:
        self._path, self._most, self._read = path, num_bytes, read_bytes()

    def look(self, unmap: object) -> None:
        """Drop the pages if it is time; ``unmap()`` is called before and lets go of the mapping's pages."""
        if read_bytes() - self._read > self._most:
            unmap()  # type: ignore[operator]
            drop(self._path)
            self._read = read_bytes()


def read_bytes() -> int:
    """Bytes that this process had read from disks."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


def drop(path: Path) -> None:
    """Have the system forget a file's pages."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
