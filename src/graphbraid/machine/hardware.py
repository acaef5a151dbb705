"""Hardware: cores, memory, devices and rates of a machine, in frozen records.

It is read from Linux's ``/proc`` and ``/sys``; what a system does not report is None. Limits set by a
container (cgroup) or by ``taskset`` count: a run is planned for what it may use, not for the whole machine.

:class:`Rates` is the library's only cost model. A layer that runs by itself uses the default rates, since it
must decide before anything is measured; full-graph training uses the rates measured on the machine.
"""

from __future__ import annotations

import ctypes
import gc
import math
import os
import platform
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from graphbraid.arguments import check_type
from graphbraid.errors import ConfigError, ResourceError
from graphbraid.files.writing import format_bytes

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


def memory_group(*, root: Path | None = None) -> str:
    """Return a text that is the same for processes of a machine that share their limits of memory."""
    limited = []
    for folder in _cgroup_folders(root or ROOT, "memory"):
        limits = (read(folder / name).strip() for name in ("memory.max", "memory.limit_in_bytes"))
        if any(limit.isdigit() and int(limit) < _UNLIMITED for limit in limits):
            limited.append(str(folder))
    return " ".join(limited)


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


def version_of(distribution: str) -> str | None:
    """Return the version of an installed distribution; None if it is not installed."""
    import importlib.metadata  # here: most commands show no versions

    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


ROOT = Path("/")
"""Folder that holds ``proc`` and ``sys``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """One CUDA device."""

    index: int
    name: str
    memory_bytes: int
    capability: str
    """Compute capability, such as ``9.0``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Hardware:
    """The processor, memory and devices a run may use."""

    cpu_model: str
    architecture: str
    logical_cores: int
    """Number of logical cores of the whole machine, counting hyper-threads."""
    usable_cores: int
    """Number of logical cores this process may run on."""
    quota_cores: float | None
    """CPU time the container grants, in cores, or None without such a limit."""
    memory_total_bytes: int | None
    memory_available_bytes: int | None
    """Memory that can be allocated now without swapping, within the container's limit."""
    memory_limit_bytes: int | None
    """The container's memory limit, or None without one."""
    gpus: tuple[Gpu, ...]

    @classmethod
    def detect(cls, *, root: Path | None = None) -> Hardware:
        """Measure this machine.

        Args:
            root: folder that holds ``proc`` and ``sys``; tests pass recorded ones. If None, ``/``.
        """
        if root is not None:
            check_type(root, "root", (str, os.PathLike), "a path", error=ConfigError)
        root = ROOT if root is None else Path(root)
        model = re.search(r"^model name\s*:\s*(.*)$", read(root / "proc/cpuinfo"), re.MULTILINE)
        cores = os.cpu_count() or 1
        total, _ = _memory(read(root / "proc/meminfo"))
        limit, _ = memory_limit(root)
        return cls(
            cpu_model=(model[1].strip() if model else "") or platform.processor() or platform.machine(),
            architecture=platform.machine(),
            logical_cores=cores,
            usable_cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cores,
            quota_cores=cpu_quota(root),
            memory_total_bytes=total,
            memory_available_bytes=free_memory_bytes(root=root),
            memory_limit_bytes=limit,
            gpus=_gpus(),
        )

    @property
    def planned_cores(self) -> int:
        """Number of cores worth starting threads for: the usable ones, up to the container's CPU quota."""
        if self.quota_cores is None:
            return self.usable_cores
        return max(1, min(self.usable_cores, round(self.quota_cores)))

    def as_dict(self) -> dict[str, Any]:
        """Return the record as plain values, for JSON."""
        return asdict(self)

    def rows(self) -> list[tuple[str, str]]:
        """Return the lines of the printed record, each a label and a value."""
        rows = [
            ("processor", f"{self.cpu_model} ({self.architecture})"),
            ("cores", self._cores()),
            ("memory", self._memory()),
        ]
        rows += [(f"GPU {gpu.index}", f"{gpu.name}, {format_bytes(gpu.memory_bytes)}") for gpu in self.gpus]
        return rows if self.gpus else [*rows, ("GPU", "none that PyTorch can use")]

    def __str__(self) -> str:
        width = max(len(label) for label, _ in self.rows())
        return "\n".join(f"{label:<{width}}  {value}" for label, value in self.rows())

    def _cores(self) -> str:
        text = f"{self.usable_cores} usable of {self.logical_cores} logical"
        grant = self.quota_cores
        return text if grant is None else f"{text}; the container grants {grant:g} cores' time"

    def _memory(self) -> str:
        if self.memory_total_bytes is None or self.memory_available_bytes is None:
            return "unknown"
        text = f"{format_bytes(self.memory_available_bytes)} free of {format_bytes(self.memory_total_bytes)}"
        limit = self.memory_limit_bytes
        return text if limit is None else f"{text}; the container's limit is {format_bytes(limit)}"


def free_memory_bytes(*, root: Path | None = None) -> int | None:
    """Return the bytes that can be allocated now without swapping, or None.

    Limits of the container and of the process (``ulimit -v`` and ``ulimit -d``) count.
    """
    root = root or ROOT
    found = [_memory(read(root / "proc/meminfo"))[1], *limits_left(root)]
    limit, used = memory_limit(root)
    if limit is not None and used is not None:
        found.append(limit - used)
    return min((max(nbytes, 0) for nbytes in found if nbytes is not None), default=None)


def return_freed_blocks() -> None:
    """Give freed blocks back to the system, which the C library would keep (glibc's can do so)."""
    gc.collect(1)
    if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)


LEAST_BYTES = 96 << 20
"""Free memory that a command needs once the interpreter has its libraries. With less, late imports, heaps of
threads and the estimate of a run use it up before an error can be shown."""
_LIBRARIES_BYTES = 160 << 20
"""Memory of a process for PyTorch and its imports."""


def require_least(what: str) -> None:
    """Check that there is the free memory that every run needs, whatever its estimate says.

    Raises:
        ResourceError: there is less.
    """
    free, least = free_memory_bytes(), LEAST_BYTES
    if "torch" not in sys.modules:
        least += _LIBRARIES_BYTES
    if free is not None and free < least:
        raise ResourceError(
            f"{what} needs at least {format_bytes(least)} of free memory, whatever its data; "
            f"{format_bytes(free)} are free. Raise the limit of the container or the process, or end other "
            "programs"
        )


def limits_left(root: Path = ROOT) -> list[int]:
    """Return the memory that each limit of the process leaves; empty without a limit."""
    if sys.platform == "win32":
        return []
    import resource

    left, status = [], read(root / "proc/self/status")
    for limit, field in ((resource.RLIMIT_AS, "VmSize"), (resource.RLIMIT_DATA, "VmData")):
        soft, _ = resource.getrlimit(limit)
        used = re.search(rf"^{field}:\s*(\d+) kB", status, re.MULTILINE)
        if soft != resource.RLIM_INFINITY and used:
            left.append(soft - int(used[1]) * 1024)
    return left


def own_anonymous_bytes() -> int:
    """Return the memory of this process that belongs to no file; 0 where the system does not say."""
    return _own_bytes("RssAnon") or 0


def own_peak_bytes() -> int | None:
    """Return the most memory that this process has held, with pages of files; None where it is unknown."""
    return _own_bytes("VmHWM")


def _own_bytes(field: str) -> int | None:
    found = re.search(rf"^{field}:\s*(\d+) kB", read(ROOT / "proc/self/status"), re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def _memory(meminfo: str) -> tuple[int | None, int | None]:
    """Return the total and the available bytes."""

    def kilobytes(name: str) -> int | None:
        match = re.search(rf"^{name}:\s*(\d+) kB", meminfo, re.MULTILINE)
        return int(match.group(1)) * 1024 if match else None

    return kilobytes("MemTotal"), kilobytes("MemAvailable")


def _gpus() -> tuple[Gpu, ...]:
    import torch

    if not torch.cuda.is_available():
        return ()
    gpus = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        gpus.append(
            Gpu(
                index=index,
                name=properties.name,
                memory_bytes=properties.total_memory,
                capability=f"{properties.major}.{properties.minor}",
            )
        )
    return tuple(gpus)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """Throughput of a machine per second; decisions depend only on the ratios.

    The defaults are within a factor of two of those of the two machines in docs/results.md; a wrong choice
    near a tie costs little.
    """

    multiply_flops: float = 1.5e11
    """Floating-point operations per second of a float32 matrix product with a weight."""
    row_bytes: float = 1.2e10
    """Bytes per second read from randomly placed rows in memory, as by an aggregation."""
    cached_row_bytes: float = 6e10
    """Bytes per second read from randomly placed rows in the caches of the cores."""
    outer_row_bytes: float = 3e10
    """Bytes per second read from randomly placed rows in the cache behind those."""
    inner_cache_bytes: float = 2e6
    """Size in bytes up to which a matrix is read at the rate of the cores' caches."""
    cache_bytes: float = 8e6
    """Size in bytes up to which a matrix is read at the rate of the cache rather than that of memory."""
    stream_bytes: float = 1.5e10
    """Bytes per second read or written sequentially."""
    outer_stream_bytes: float = 3e10
    """Bytes per second read or written sequentially in the cache behind the cores'."""
    sparse_values: float = 4e8
    """Stored values per second that sparse features times a weight multiply by a vector of 16 columns."""

    binary_values: float = 1e10
    """Zeros and ones per second that binary features times a weight multiply by a vector of 16 columns."""
    exponentials: float = 4e9
    """Exponentials of float32 numbers per second, of rows that the cores' caches hold."""

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Rates:
        """Make rates from their values by name; TypeError or ValueError unless all are positive numbers."""
        values = {str(name): float(rate) for name, rate in content.items()}
        if bad := [name for name, rate in values.items() if not math.isfinite(rate) or rate <= 0]:
            raise ValueError(f"the rate {bad[0]} is {values[bad[0]]}, not a positive number")
        return cls(**values)

    @property
    def gamma(self) -> float:
        """Ratio of the sparse input path's arithmetic rate to the dense path's (Morphling's gamma)."""
        return self.sparse_values * 16 * 2 / self.multiply_flops

    def fastest(self, other: Rates) -> Rates:
        """Return the higher of each two rates, since disturbances only make a measurement slower."""
        return Rates(**{name: max(rate, getattr(other, name)) for name, rate in asdict(self).items()})

    def aggregate_seconds(self, num_edges: int, width: int) -> float:
        """Return the time of an aggregation of float32 rows."""
        return 4.0 * num_edges * width / self.row_bytes

    def multiply_seconds(self, num_rows: int, depth: int, width: int) -> float:
        """Return the time of a dense product: the longer of its arithmetic and its memory traffic."""
        arithmetic = 2.0 * num_rows * depth * width / self.multiply_flops
        return max(arithmetic, 4.0 * num_rows * (depth + width) / self.stream_bytes)

    def sparse_seconds(self, num_values: float, width: int) -> float:
        """Return the time of the product of sparse features with a weight."""
        return num_values * ((width + 15) // 16) / self.sparse_values

    def binary_seconds(self, num_rows: int, depth: int, width: int) -> float:
        """Return the time of the product of binary features, 32 to a word, with a weight."""
        return num_rows * ((depth + 31) // 32 * 32) * ((width + 15) // 16) / self.binary_values
