"""Rows gathered from memory beside the limit: a plain C loop that copies random rows.

    python -m benchmarks.tiers.gather [--gigabytes 1] [--out FILE]

For rows of 128 to 4096 bytes and one and two threads, from a table that no cache holds:

- *limit*: ``row_copy.c``, compiled here for this machine, with the prefetch distance and the kind of store
  that are fastest for these rows;
- *kernel*: the kernel that gathers features in memory, as the sampling threads call it;
- *tiers*: ``RowCache`` with all rows in memory, where a comparison says where a row is, as it does for the
  first rows of a graph renumbered by score; each thread calls it;
- *map*: the same with rows in another order than the file's, looked up in a map by id. That is a random line
  more a row, which the limit does not read: of rows of 128 bytes, three lines and not two.

The first two read one table in 2 MiB pages, and all write into the same memory. Threads divide the ids among
them; contenders take turns, and the median counts. Rates are bytes of rows a second, each read and written.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.common.options import add_out_argument, parser_of
from benchmarks.common.rows import write_rows
from graphbraid import native
from graphbraid.features import DiskRows, RowCache

ROW_BYTES = (128, 256, 512, 1024, 2048, 4096)
THREADS = (1, 2)
AHEAD = (2, 4, 8, 16, 32, 64)
GOAL = 0.8
Gather = Callable[[Tensor, Tensor], object]
"""Takes ids and the memory for their rows."""
Setting = tuple[int, bool]
"""A setting of the C loop: rows fetched ahead, and whether it writes past the caches."""


def compiled_limit() -> Any:
    """``copy_rows`` of ``row_copy.c``, compiled with all that this machine has."""
    compiler = shutil.which("cc")
    if compiler is None:
        raise SystemExit("the limit is a C program, and there is no compiler (cc)")
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "row_copy.so"
        source = Path(__file__).with_name("row_copy.c")
        flags = ["-O3", "-march=native", "-shared", "-fPIC"]
        subprocess.run([compiler, *flags, str(source), "-o", str(library)], check=True)
        function = ctypes.CDLL(str(library)).copy_rows
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    function.argtypes = (pointer, number, pointer, number, pointer, number, ctypes.c_int)
    function.restype = None
    return function


def in_huge_pages(num_bytes: int) -> Tensor:
    """``(num_bytes,)`` uint8, written once, in 2 MiB pages where the system has some."""
    if not hasattr(mmap, "MAP_PRIVATE"):  # of Windows, which has no such pages either
        return torch.ones(num_bytes, dtype=torch.uint8)
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # shared memory, the default, is in 4 KiB pages
    memory = mmap.mmap(-1, num_bytes, flags=private)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    found = torch.frombuffer(memory, dtype=torch.uint8)
    found.fill_(1)
    return found


def limits(copy_rows: Any, table: Tensor, threads: ThreadPoolExecutor, count: int) -> dict[Setting, Gather]:
    """The C loop for each prefetch distance and kind of store, on as many threads."""

    def gather(ahead: int, past: bool) -> Gather:
        def part(ids: Tensor, out: Tensor) -> None:
            copy_rows(
                table.data_ptr(), table.shape[1], ids.data_ptr(), ids.numel(), out.data_ptr(), ahead, past
            )

        return shared(part, threads, count)

    return {(ahead, past): gather(ahead, past) for ahead in AHEAD for past in (False, True)}


def shared(gather: Gather, threads: ThreadPoolExecutor, count: int) -> Gather:
    """The same, ids divided among threads that call it at once."""
    return lambda ids, out: list(threads.map(gather, ids.chunk(count), out.chunk(count)))


def kernel(table: Tensor) -> Gather:
    """The library's kernel."""
    kernels = native.kernels()
    if kernels is None:
        raise SystemExit("the compiled kernels are not there, and there is nothing to measure")
    return lambda ids, out: kernels.gather_rows(table, ids, out)


@contextmanager
def tiers(table: Tensor, folder: Path) -> Iterator[dict[str, Gather]]:
    """Caches that hold all rows of a file: in its order, and in another."""
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        table.numpy().tofile(file.name)
        disk = DiskRows(
            file.name, offset=0, num_rows=len(table), row_shape=(table.shape[1],), dtype=torch.uint8
        )
        ordered, mapped = (RowCache(disk, len(table), policy="static") for _ in range(2))
        ordered.fill(torch.arange(len(table)))
        for half in reversed(torch.arange(len(table)).chunk(2)):
            mapped.fill(half)
        yield {"tiers": ordered.gather, "map": mapped.gather}


def in_turn(
    contenders: Mapping[Any, Gather], ids: Tensor, out: Tensor, repeats: int
) -> dict[Any, list[float]]:
    """Each contender's seconds, A B C A B C ..., after a warm-up."""
    found: dict[Any, list[float]] = {name: [] for name in contenders}
    for repeat in range(repeats + 1):
        for name, gather in contenders.items():
            started = time.perf_counter()
            gather(ids, out)
            if repeat:
                found[name].append(time.perf_counter() - started)
    return found


def measure(row_bytes: int, memory: Tensor, out: Tensor, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of the results for one size of rows."""
    table, out = memory.view(-1, row_bytes), out.view(-1, row_bytes)
    draw = torch.Generator().manual_seed(0)
    table[:] = torch.randint(256, (1, row_bytes), generator=draw, dtype=torch.uint8)
    table[:, :8] = torch.arange(len(table))[:, None].view(torch.uint8)  # rows that differ
    copy_rows, found = compiled_limit(), []
    with tiers(table, options.folder) as from_tiers:
        for count in THREADS:
            ids = torch.randint(len(table), (len(out),), generator=draw)
            torch.set_num_threads(count)
            with ThreadPoolExecutor(count) as threads:
                loops = limits(copy_rows, table, threads, count)
                ours = {"kernel": kernel(table)}
                ours |= {name: shared(gather, threads, count) for name, gather in from_tiers.items()}
                check({"limit": loops[8, True], **ours}, table, ids, out)
                found.append(beside_limit(loops, ours, ids, out, options.repeats))
            found[-1] = {"row_bytes": row_bytes, "threads": count} | found[-1]
    return found


def beside_limit(
    loops: Mapping[Setting, Gather], ours: Mapping[str, Gather], ids: Tensor, out: Tensor, repeats: int
) -> dict[str, Any]:
    """Rates of ours and of the fastest loop."""
    tried = in_turn(loops, ids, out, 2)
    best = min(tried, key=lambda setting: min(tried[setting]))
    seconds = in_turn({"limit": loops[best], **ours}, ids, out, repeats)
    rates = {name: out.numel() / statistics.median(runs) for name, runs in seconds.items()}
    return {
        "bytes_per_second": rates,
        "of_limit": {name: rates[name] / rates["limit"] for name in ours},
        "limit_ahead": best[0],
        "limit_past_caches": best[1],
        "seconds": seconds,
    }


def check(contenders: Mapping[str, Gather], table: Tensor, ids: Tensor, out: Tensor) -> None:
    """End where a contender does not give the table's rows."""
    expected = table[ids]
    for name, gather in contenders.items():
        out.zero_()
        gather(ids, out)
        if not torch.equal(out, expected):
            raise SystemExit(f"{name} gave other rows than the table's")


def show(rows: list[dict[str, Any]]) -> None:
    """Print the table."""
    table = Table(
        "bytes a row", "threads", "limit GB/s", "kernel", "tiers", "map", "limit's prefetch and stores"
    )
    for row in rows:
        rates, shares = row["bytes_per_second"], row["of_limit"]
        ours = [f"{rates[name] / 1e9:.1f} ({shares[name]:.0%})" for name in shares]
        how = f"{row['limit_ahead']} rows, {'past the caches' if row['limit_past_caches'] else 'plain'}"
        size, threads = str(row["row_bytes"]), str(row["threads"])
        table.add_row(size, threads, f"{rates['limit'] / 1e9:.1f}", *ours, how)
    Console(width=110).print(table)
    print(f"goal: {GOAL:.0%} of the limit")


def main(arguments: list[str] | None = None) -> None:
    """Measure, print and keep."""
    parser = parser_of(__doc__)
    parser.add_argument("--gigabytes", type=float, default=1.0, help="GiB of the table")
    parser.add_argument("--row-bytes", type=int, nargs="+", default=ROW_BYTES)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm"), help="of the tiers' file")
    add_out_argument(parser)
    options = parser.parse_args(arguments)
    largest = max(options.row_bytes)
    num_bytes = max(int(options.gigabytes * (1 << 30)) // largest, 8) * largest
    memory, out = in_huge_pages(num_bytes), in_huge_pages(max(num_bytes // 4 // largest, 2) * largest)
    rows = [row for row_bytes in options.row_bytes for row in measure(row_bytes, memory, out, options)]
    show(rows)
    named = {f"{row['row_bytes']} bytes, {row['threads']} threads": row for row in rows}
    write_rows("tiers_gather", named, repeats=options.repeats, out=options.out)


if __name__ == "__main__":
    main()
