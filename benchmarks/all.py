"""Runs the benchmarks on a quiet machine, from one commit, and writes their results and tables.

    python -m benchmarks.all --plan                      what would run, and how long it takes
    python -m benchmarks.all --data ARCHIVES             everything
    python -m benchmarks.all --parts sampling epoch      some of it

Rows gather under ``build/benchmarks/COMMIT``; what a stopped run has there is not measured again, so the same
command goes on where it stopped. At the end they go into ``benchmarks/results``: a file all of whose parts
were run is written anew and holds rows of one commit, of others the rows that were measured are replaced.
Files that differ from the commit are refused, since its name would not say what was measured; so is a machine
on which other programs run, unless ``--although-busy`` is given, which every row then says.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.common import quiet, rows
from benchmarks.common.contenders import ROOT
from benchmarks.common.options import PYKEEN_PYTHON, absolute_path, add_peer_arguments, parser_of
from benchmarks.graphs.make import archive_of, make, missing_archives
from benchmarks.parts import PARTS, Part, Places
from benchmarks.tables.pages import write_pages
from graphbraid import native

BUILD = ROOT / "build" / "benchmarks"
DURATIONS = "durations"
LONGEST = 3.0
"""Times its minutes after which a part is stopped: it hangs, or the machine is another than it was."""
LEAST_LIMIT_MINUTES = 5.0
WAIT_SECONDS = 120.0
"""Seconds to wait, at most, for the machine to be quiet again before each part."""


def chosen_parts(names: Sequence[str] | None) -> list[Part]:
    """The parts of these names, in their own order; all where none is named."""
    known = [part.name for part in PARTS]
    if unknown := [name for name in names or [] if name not in known]:
        sys.exit(f"there is no part {', '.join(unknown)}; parts are {', '.join(known)}")
    return [part for part in PARTS if names is None or part.name in names]


def missing(part: Part, places: Places) -> str:
    """What a part needs and does not find, with what to do; empty where nothing is missing."""
    if part.pyg and importlib.util.find_spec("torch_geometric") is None:
        return "PyTorch Geometric; pip install torch-geometric"
    if part.peers and not Path(places.peer_python).exists():
        return f"{places.peer_python}; make peers"
    if part.pykeen and not PYKEEN_PYTHON.exists():
        return f"{PYKEEN_PYTHON}; make peers-pykeen"
    absent = missing_archives(part.graphs, places.graphs, places.data)
    absent += [name for name in part.archives if archive_of(name, places.data) is None]
    if absent:
        return f"{', '.join(f'{name}.npz' for name in absent)}; --data names the folder of archives"
    return ""


def minutes_of(part: Part) -> tuple[float, str]:
    """How long a part takes, and how that is known."""
    for row in rows.read_rows(DURATIONS, rows.RESULTS):
        if row["row"] == part.name:
            return row["minutes"], f"measured {row['date']}"
    return part.minutes, "estimated"


def show_plan(parts: Sequence[Part], places: Places, stage: Path) -> list[Part]:
    """Print every part with its minutes; those that are to be run."""
    table, left, minutes = Table("part", "minutes", "", "state"), [], 0.0
    for part in parts:
        took, how = minutes_of(part)
        if rows_of(part, stage).exists():
            state = "done"
        elif what := missing(part, places):
            state = f"left out, for want of {what}"
        else:
            state, minutes = "to run", minutes + took
            left.append(part)
        table.add_row(part.name, f"{took:.0f}", how, state)
    console = Console(width=150)
    console.print(table)
    console.print(f"{len(left)} of {len(parts)} parts to run, about {minutes:.0f} minutes")
    return left


def rows_of(part: Part, stage: Path) -> Path:
    """Where a part's rows are once it is done."""
    return stage / f"{part.name}.jsonl"


def check_commit(begun: str | None = None) -> str:
    """The commit that all rows will name; ends the run where it would not say what is measured."""
    if changed := rows.changed_files():
        sys.exit(f"commit or undo first, since rows name the commit: {', '.join(changed)}")
    commit = rows.commit()
    if begun not in (None, commit):
        sys.exit(f"the commit moved from {begun} to {commit}; check out {begun} and run this again to go on")
    return commit


def check_quiet(wait_seconds: float, *, although_busy: bool) -> None:
    """End the run where other programs have the processor, or have every row say so."""
    share = quiet.wait_for_quiet(0.0 if although_busy else wait_seconds)
    os.environ.pop(rows.REMARK, None)
    if share is None or share <= quiet.MOST:
        return
    remark = f"other programs had {share:.0%} of the cores"
    if not although_busy:
        sys.exit(
            f"{remark}: stop them and run this again, which goes on from here; or --although-busy, which "
            "every row then says"
        )
    os.environ[rows.REMARK] = remark


def run_part(part: Part, places: Places, stage: Path) -> bool:
    """Run one part; whether it gave its rows."""
    begun, log = stage / f"{part.name}.begun.jsonl", stage / f"{part.name}.log"
    begun.unlink(missing_ok=True)
    started = time.monotonic()
    limit = max(LEAST_LIMIT_MINUTES, LONGEST * minutes_of(part)[0])
    with log.open("w", encoding="utf-8") as file:
        code = run_group(part.command(places, begun), file.fileno(), 60.0 * limit)
    minutes = (time.monotonic() - started) / 60.0
    if code != 0 or not begun.exists():
        why = f"took longer than {limit:.0f} minutes" if code is None else f"ended with {code}"
        print(f"{part.name} {why}; see {log}\n{log.read_text(encoding='utf-8')[-1500:]}", file=sys.stderr)
        return False
    begun.rename(rows_of(part, stage))
    rows.write_rows(DURATIONS, {part.name: {"minutes": minutes}}, repeats=1, out=stage / f"{DURATIONS}.jsonl")
    print(f"{part.name}: {minutes:.1f} minutes", flush=True)
    return True


def run_group(command: Sequence[str], output: int, limit_seconds: float) -> int | None:
    """The exit status of a command, None past the limit; what it started ends with it in any case."""
    process = subprocess.Popen(
        command, stdout=output, stderr=subprocess.STDOUT, cwd=ROOT, start_new_session=True
    )
    try:
        return process.wait(limit_seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()


def publish(stage: Path) -> None:
    """Put what was measured into the committed results, and the tables into the pages."""
    for name in dict.fromkeys(part.results for part in PARTS):
        parts = [part for part in PARTS if part.results == name]
        done = [rows_of(part, stage) for part in parts if rows_of(part, stage).exists()]
        into = rows.RESULTS / f"{name}.jsonl"
        if len(done) == len(parts):
            into.unlink(missing_ok=True)
        for path in done:
            rows.put_rows(into, rows.read_lines(path))
    if durations := rows.read_lines(stage / f"{DURATIONS}.jsonl"):
        rows.put_rows(rows.RESULTS / f"{DURATIONS}.jsonl", durations)
    write_pages()


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = parser_of(__doc__)
    parser.add_argument("--parts", nargs="+", help=f"of {', '.join(part.name for part in PARTS)}")
    parser.add_argument("--plan", action="store_true", help="only show what would run")
    parser.add_argument("--graphs", type=absolute_path, default=BUILD / "graphs", help="made where missing")
    parser.add_argument("--data", type=absolute_path, help="folder of npz archives, for real graphs")
    add_peer_arguments(parser)
    parser.add_argument("--although-busy", action="store_true", help="measure beside other programs")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Show the plan, run what is left of it, publish; 1 where a part failed."""
    options = parse(arguments)
    parts = chosen_parts(options.parts)
    places = Places(graphs=options.graphs, data=options.data, peer_python=options.peer_python)
    stage = BUILD / rows.commit()
    left = show_plan(parts, places, stage)
    if options.plan:
        return 0
    commit = check_commit()
    if native.kernels() is None:
        sys.exit("the compiled kernels are not there, and the tables are about them; see graphbraid doctor")
    stage.mkdir(parents=True, exist_ok=True)
    for graph in dict.fromkeys(graph for part in left for graph in part.graphs):
        print(f"graph {make(graph, places.graphs, places.data)}", flush=True)
    failed = []
    for part in left:
        check_commit(commit)
        check_quiet(WAIT_SECONDS, although_busy=options.although_busy)
        if not run_part(part, places, stage):
            failed.append(part.name)
    publish(stage)
    print(f"results of {commit} are in {rows.RESULTS}, the tables in the README and the docs; commit them")
    if failed:
        print(f"failed: {', '.join(failed)}; the same command tries them again", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
