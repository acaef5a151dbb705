"""What the runs of benchmarks.tiers.disk say: each way beside tiers over the batches that both gathered."""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from graphbraid.files.writing import format_bytes

GOAL = 3.0
"""How many times as fast as the better memmap tiers are, at least."""
READ = {"memmap": "read_bytes", "memmap-random": "read_bytes", "tiers": "disk_bytes"}
"""Where a contender says what it read."""
Runs = Mapping[str, Sequence[Mapping[str, Any]]]
"""What each run of each contender told, by the contender's name."""


def figures(runs: Runs, rows: Sequence[int], limits: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A row of the results.

    ``seconds`` are of the batches that both memmap with MADV_RANDOM and tiers gathered, ``plain`` of those
    that plain memmap gathered, too: with a disk that is read far ahead these are few.

    Args:
        runs: what each run of each contender told.
        rows: of each batch.
        limits: what the disk gives for random requests.
    """
    shared = beside_tiers(runs, "memmap-random", rows)
    plain = beside_tiers(runs, "memmap", rows)
    times = {"memmap-random": times_of(shared, "memmap-random"), "memmap": times_of(plain, "memmap")}
    last = {name: told(found[-1]) for name, found in runs.items()}
    return (
        shared
        | {"plain": plain, "times_as_fast": times, "goal": GOAL, "holds": min(times.values()) >= GOAL}
        | last
        | {"limits": list(limits)}
    )


def beside_tiers(runs: Runs, name: str, rows: Sequence[int]) -> dict[str, Any]:
    """Seconds of a contender and of tiers over the batches that all their runs gathered.

    Raises:
        SystemExit: they gave other rows.
    """
    both = {name: runs[name], "tiers": runs["tiers"]}
    steps = min(len(run["batch_seconds"]) for found in both.values() for run in found)
    if len({tuple(run["checksums"][:steps]) for found in both.values() for run in found}) != 1:
        raise SystemExit(f"{name} and tiers do not give the same rows")
    seconds = {one: [sum(run["batch_seconds"][:steps]) for run in found] for one, found in both.items()}
    return {"steps": steps, "rows": sum(rows[:steps]), "seconds": seconds}


def times_of(beside: Mapping[str, Any], name: str) -> float:
    """How many times as fast tiers are."""
    seconds = beside["seconds"]
    return statistics.median(seconds[name]) / statistics.median(seconds["tiers"])


def told(run: Mapping[str, Any]) -> dict[str, Any]:
    """A run's figures over all that it gathered."""
    listed = ("batch_seconds", "checksums")
    whole = {"batches": len(run["batch_seconds"]), "whole_seconds": sum(run["batch_seconds"])}
    return whole | {name: value for name, value in run.items() if name not in listed}


def read_ahead_bytes(path: Path) -> int | None:
    """What the system reads at a page fault of a file mapped as it is; None: it does not say."""
    device = path.stat().st_dev
    entry = Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb")
    try:
        return int(entry.read_text()) << 10
    except (OSError, ValueError):
        return None


def report(found: Mapping[str, Any]) -> str:
    """The figures in a few lines."""
    last, plain, ahead = found["tiers"], found["plain"], found["read_ahead_bytes"]
    rates = {name: found[name][read] / found[name]["whole_seconds"] for name, read in READ.items()}
    lines = [
        f"{format_bytes(found['num_nodes'] * found['row_bytes'])} on disk in rows of {found['row_bytes']} "
        f"bytes, with {format_bytes(found['memory_bytes'])} of memory ({last['limit']})",
        _line("memmap-random", found, rates) + ", told not to read ahead (MADV_RANDOM)",
        _line("memmap", plain, rates)
        + (f", reads {format_bytes(ahead)} ahead at a fault" if ahead is not None else ""),
        f"goal: {found['goal']:g} times as fast as the better memmap: "
        f"{'holds' if found['holds'] else 'does not hold'}",
        f"tiers   all {last['batches']} batches: {last['whole_seconds']:.2f} s, "
        f"{format_bytes(last['disk_bytes'])} read ({format_bytes(rates['tiers'])}/s), "
        f"{last['host_share']:.1%} of the rows from memory",
        f"        {last['how']}",
    ]
    lines += [
        f"disk    {format_bytes(limit['bytes_per_second'])}/s for random requests of "
        f"{format_bytes(limit['request_bytes'])} ({limit['requests_per_second']:,.0f} a second)"
        for limit in found["limits"]
    ]
    return "\n".join(lines)


def _line(name: str, beside: Mapping[str, Any], rates: Mapping[str, float]) -> str:
    theirs, ours = (statistics.median(beside["seconds"][one]) for one in (name, "tiers"))
    return (
        f"{beside['steps']} batches, {beside['rows']:,} rows: {name} {theirs:.2f} s, tiers {ours:.2f} s, "
        f"{theirs / ours:.1f} times as fast; {format_bytes(rates[name])}/s read"
    )
