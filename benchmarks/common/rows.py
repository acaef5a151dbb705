"""Results as one JSON line per row: each says where, when and from which commit it was measured.

A row is named, and writing one replaces the row of that name: a benchmark that is run for one graph keeps
the others. What follows from several rows (means, ratios between them) is not stored but computed by
whoever shows it.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from benchmarks.common.contenders import ROOT

RESULTS = ROOT / "benchmarks" / "results"
REMARK = "GRAPHBRAID_BENCHMARK_REMARK"
"""Environment variable: what a reader must know of how these rows were measured."""

Row = dict[str, Any]


def write_rows(
    name: str, rows: Mapping[str, Mapping[str, Any]], *, repeats: int, out: Path | None = None
) -> Path:
    """Write rows among those that a benchmark has, each stamped; returns the file.

    Args:
        name: the results', the file's without ``.jsonl``.
        rows: each row's name and figures.
        repeats: how often each was measured; a row's own ``repeats`` wins.
        out: another file.
    """
    path, stamp = out or RESULTS / f"{name}.jsonl", machine_and_commit()
    stamped = [{"row": key, **stamp, "repeats": repeats, **row} for key, row in rows.items()]
    put_rows(path, stamped)
    return path


def put_rows(path: Path, rows: list[Row]) -> None:
    """Write rows into a file: in place of those of the same name, else behind the others."""
    kept = {row["row"]: row for row in read_lines(path)}
    kept |= {row["row"]: row for row in rows}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in kept.values()), encoding="utf-8")


def read_rows(name: str, folder: Path = RESULTS) -> list[Row]:
    """The rows of some results, in the order they were written; none where nothing was measured yet."""
    return list({row["row"]: row for row in read_lines(folder / f"{name}.jsonl")}.values())


def read_lines(path: Path) -> list[Row]:
    """A file's rows; none where there is no such file."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]


def machine_and_commit() -> Row:
    """What every row is stamped with."""
    stamp: Row = {"commit": commit(), "date": datetime.now(UTC).strftime("%Y-%m-%d"), "machine": machine()}
    return stamp | ({"remark": os.environ[REMARK]} if os.environ.get(REMARK) else {})


@lru_cache(maxsize=1)
def machine() -> Row:
    """The machine and the software that figures belong to."""
    import torch

    from graphbraid import __version__, native

    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "unknown")
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "kernels": native.active().variant,
        "graphbraid": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def commit() -> str:
    """The commit that is checked out, with ``+`` where files that can change a figure differ from it."""
    head = _git("rev-parse", "--short", "HEAD")
    return head + "+" * bool(changed_files()) if head else "unknown"


def changed_files() -> list[str]:
    """Files that differ from the commit or are in none, but for results and pages, which change no figure."""
    pages = (":!benchmarks/results", ":!docs", ":!*.md")
    status = _git("status", "--porcelain", "--", ".", *pages)
    return [line[3:] for line in status.splitlines()]


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, cwd=ROOT, check=False)
    except FileNotFoundError:  # a copy of the sources on a machine without git
        return ""
    return done.stdout.rstrip()
