"""One contender of benchmarks.tiers.disk: gathers recorded batches' rows, prints one JSON line.

python -m benchmarks.tiers.disk_contender NAME --store FOLDER --ids FILE --memory BYTES ...
"""

from __future__ import annotations

import json
import math
import mmap
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash
from torch import Tensor

from benchmarks.common.options import parser_of
from benchmarks.tiers.limited import DroppedCache, MemoryLimit, drop, read_bytes
from graphbraid.datasets import open_store
from graphbraid.features import DiskOptions, DiskRows, TieredFeatures

LIMIT_ROWS = 40_000
"""Random requests by which the disk's rate is measured."""
Gather = Callable[[int], Tensor]


def memmap(
    path: Path,
    batches: Sequence[Tensor],
    dropped: DroppedCache | None,
    *,
    is_random: bool,
    most_seconds: float,
) -> dict[str, Any]:
    """Rows by indexing ``numpy.memmap``: a page fault for each page that is not there.

    ``is_random`` tells the system not to read ahead (``MADV_RANDOM``), which nobody does by default.
    """
    table = np.load(path, mmap_mode="r")
    mapped: mmap.mmap = table._mmap
    if is_random:
        mapped.madvise(mmap.MADV_RANDOM)

    def gather(step: int) -> Tensor:
        if dropped is not None:
            dropped.look(lambda: mapped.madvise(mmap.MADV_DONTNEED))
        return torch.from_numpy(table[batches[step].numpy()])

    return timed(gather, len(batches), most_seconds)


def tiers(folder: Path, batches: Sequence[Tensor], host: int, lookahead: int) -> dict[str, Any]:
    """Rows from tiers with announced batches, as the loader's thread gathers them."""
    graph = open_store(folder, verify=False)
    started = time.perf_counter()
    store = TieredFeatures.build(graph, host=host, lookahead=lookahead)
    build_seconds = time.perf_counter() - started
    numbers: list[int] = []

    def gather(step: int) -> Tensor:
        while len(numbers) < min(step + lookahead + 1, len(batches)):
            numbers.append(store.announce(batches[len(numbers)]))
        return store.gather(batches[step], batch=numbers[step])

    found = timed(gather, len(batches))
    counts = store.counts
    return found | {
        "build_seconds": build_seconds,
        "host_share": counts.host_share,
        "disk_rows": counts.disk_rows,
        "disk_requests": counts.disk_requests,
        "disk_bytes": counts.disk_bytes,
        "how": store.disk.how(),
    }


def limit(path: Path, request_bytes: int) -> dict[str, Any]:
    """What the disk gives at random for requests of this size, by the same reader, unchecked."""
    num_rows = path.stat().st_size // request_bytes
    options = DiskOptions(longest_bytes=request_bytes, gap_blocks=0)
    blocks = DiskRows(
        path, offset=0, num_rows=num_rows, row_shape=(request_bytes,), dtype=torch.uint8, options=options
    )
    wanted = torch.randperm(num_rows, generator=torch.Generator().manual_seed(0))
    wanted = wanted[: min(LIMIT_ROWS, num_rows // 2)]
    parts = wanted.split(8192)
    out = torch.empty(8192, request_bytes, dtype=torch.uint8)
    started = time.perf_counter()
    for ids in parts:
        blocks.gather(ids, out[: ids.numel()])
    seconds = time.perf_counter() - started
    return {
        "seconds": seconds,
        "request_bytes": request_bytes,
        "requests_per_second": blocks.counts.disk_requests / seconds,
        "bytes_per_second": blocks.counts.disk_bytes / seconds,
        "how": blocks.how(),
    }


def timed(gather: Gather, num_batches: int, most_seconds: float = math.inf) -> dict[str, Any]:
    """Seconds of each gather until the time is up, and what they gave, by its checksum."""
    seconds: list[float] = []
    checksums: list[str] = []
    before = read_bytes()
    for step in range(num_batches):
        started = time.perf_counter()
        rows = gather(step)
        seconds.append(time.perf_counter() - started)
        checksums.append(xxhash.xxh3_64_hexdigest(rows.view(torch.uint8).numpy().data))
        del rows
        if sum(seconds) > most_seconds:
            break
    return {"batch_seconds": seconds, "checksums": checksums, "read_bytes": read_bytes() - before}


def main(arguments: list[str] | None = None) -> None:
    """Run one contender, cold, under the limit."""
    parser = parser_of(__doc__)
    parser.add_argument("contender", choices=("memmap", "memmap-random", "tiers", "limit"))
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--ids", type=Path, help="what torch.save wrote: the batches' ids")
    parser.add_argument("--memory", type=int, help="bytes for all that is kept of the file")
    parser.add_argument("--host-share", type=float, default=0.85, help="of the memory that tiers may take")
    parser.add_argument("--lookahead", type=int, default=16)
    parser.add_argument("--most-seconds", type=float, default=math.inf, help="of a memmap's gathers")
    parser.add_argument("--request-bytes", type=int, default=4096)
    parser.add_argument("--no-cgroup", action="store_true", help="drop the page cache instead of a limit")
    options = parser.parse_args(arguments)
    path = options.store / "x.npy"
    if options.contender == "limit":
        print(json.dumps(limit(path, options.request_bytes)))
        return
    batches = torch.load(options.ids)
    drop(path)
    bound = None if options.no_cgroup else MemoryLimit(options.memory)
    limited = bound is not None and bound.is_in_force
    try:
        if options.contender != "tiers":
            dropped = None if limited else DroppedCache(path, options.memory)
            is_random, most = options.contender == "memmap-random", options.most_seconds
            found = memmap(path, batches, dropped, is_random=is_random, most_seconds=most)
        else:
            host = int(options.memory * options.host_share)
            found = tiers(options.store, batches, host, options.lookahead)
    finally:
        if bound is not None:
            bound.end()
    reason = "asked for" if bound is None else bound.reason
    print(json.dumps(found | {"limit": "cgroup" if limited else f"dropped page cache ({reason})"}))


if __name__ == "__main__":
    main()
