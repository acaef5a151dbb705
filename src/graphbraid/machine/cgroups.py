"""The limits of a container: processor time and memory of the process's cgroups, v1 and v2."""

from __future__ import annotations

import re
from pathlib import Path

_UNLIMITED = 1 << 60  # cgroup v1 says "no limit" with a number near 2**63


def read(path: Path) -> str:
    """Return a file's text; an empty one where there is none, or none that may be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def cpu_quota(root: Path) -> float | None:
    """Return the tightest CPU limit of the process's cgroups, in cores, or None without one."""
    quotas = []
    for folder in _cgroup_folders(root, "cpu"):
        quota, _, period = read(folder / "cpu.max").strip().partition(" ")
        if not quota:
            quota, period = (
                read(folder / "cpu.cfs_quota_us").strip(),
                read(folder / "cpu.cfs_period_us").strip(),
            )
        if quota.isdigit() and period.isdigit() and int(period) > 0:
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def memory_limit(root: Path) -> tuple[int | None, int | None]:
    """Return limit and usage in bytes of the cgroup with the least memory left, or None and None."""
    found = []
    for folder in _cgroup_folders(root, "memory"):
        for limit_file, usage_file in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            limit = read(folder / limit_file).strip()
            if not limit.isdigit() or int(limit) >= _UNLIMITED:
                continue
            if (usage := read(folder / usage_file).strip()).isdigit():
                found.append((int(limit), max(0, int(usage) - _reclaimable(read(folder / "memory.stat")))))
    return min(found, key=lambda pair: pair[0] - pair[1], default=(None, None))


def _reclaimable(stat: str) -> int:
    """Return the bytes of cached files in a cgroup: they count as used but are freed on demand."""
    values = dict(re.findall(r"^(\w+) (\d+)$", stat, re.MULTILINE))
    prefix = "total_" if "total_inactive_file" in values else ""  # v1's totals include child groups
    return sum(int(values.get(f"{prefix}{name}", 0)) for name in ("active_file", "inactive_file"))


def _cgroup_folders(root: Path, controller: str) -> list[Path]:
    """List this process's cgroup folders (v1 and v2), from its own to the root; any may hold a limit."""
    base = root / "sys/fs/cgroup"
    folders: list[Path] = []
    for line in read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            top = base
        elif controller in controllers.split(","):
            top = base / controller
        else:
            continue
        own = top / path.lstrip("/")
        folders += [folder for folder in (own, *own.parents) if folder == top or top in folder.parents]
    return folders
