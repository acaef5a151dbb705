"""How near the pipeline that is found in the first epochs comes to the best of all, on ranks behind links.

    python -m benchmarks.distributed.tuning --rates 1e10 1e9 1e8

Two ranks with a core each, as hosts behind links shaped to a rate in bits per second, train a graph of blocks
and one without (:mod:`.planted`). While they do, the parts in which rows and gradients travel are found. Then
every setting is measured, round by round, so that what drifts touches all alike: the table says what was
found, in how many trials, and how its time compares with that of the fastest setting of all and with that of
rows that travel whole. ``--record`` writes the tables for the tests of the search. Seconds are those of the
slower rank's forward and backward pass.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.common.options import add_out_argument, parser_of
from benchmarks.common.rows import write_rows
from benchmarks.distributed.links import why_not
from benchmarks.distributed.planted import planted, scattered
from benchmarks.distributed.shaped import Training, start
from graphbraid import distributed
from graphbraid.fullgraph import Pipeline
from graphbraid.fullgraph.ranks.ladders import RUNGS
from graphbraid.graph import Graph

RANKS = 2
VISIBLE = {"planted": 0.25}
GRAPHS = ("planted", "scattered")
SETTINGS = tuple(itertools.product(RUNGS, RUNGS))
"""Parts of rows and of gradients."""
MOST_EPOCHS = 120
COUNTED = 3
"""Steps of a setting that count in each round, after one that makes its maps."""


def graph_of(name: str, num_nodes: int) -> Graph:
    """One of the graphs."""
    return planted(num_nodes, RANKS, VISIBLE[name]) if name in VISIBLE else scattered(num_nodes)


def as_rank(graph: Graph, rounds: int) -> dict[str, Any]:
    """Train until the pipeline is found, then measure every setting; what the first rank found."""
    with distributed.init() as comm:
        training = Training(graph, comm, "tuned")
        runner, epochs = training.engine.runner, 0
        while runner.tuned is None and epochs < MOST_EPOCHS:
            training.epoch()
            epochs += 1
        found = runner.tuned
        assert found is not None
        seconds: dict[str, list[float]] = {}
        step = runner._train
        for _, setting in itertools.product(range(rounds), SETTINGS):
            step.pipeline = Pipeline(chunks=setting[0], back_chunks=setting[1])
            taken = []
            for _ in range(1 + COUNTED):
                training.epoch()
                assert step.seconds is not None
                taken.append(step.seconds)
            slower = max(comm.gather(statistics.median(taken[1:])))
            seconds.setdefault(f"{setting[0]},{setting[1]}", []).append(slower)
        pipeline = found.pipeline
    return {
        "chosen": [pipeline.chunks, pipeline.back_chunks],
        "trials": found.num_trials,
        "tried": found.to_json()["table"],
        "knobs": list(found.names),
        "epochs": epochs,
        "seconds": seconds,
    }


def row_of(name: str, rate: float, options: argparse.Namespace) -> dict[str, Any]:
    """One graph behind links of one rate."""
    arguments = [name, str(options.nodes), str(options.rounds)]
    with tempfile.TemporaryDirectory(prefix="graphbraid-") as cache:
        os.environ["GRAPHBRAID_CACHE"] = cache  # or an earlier run's table would be read
        found = start(RANKS, rate, arguments, "distributed.tuning")
    return {"graph": name, "ranks": RANKS, "bits_per_second": rate, "num_nodes": options.nodes} | found


def derived(row: dict[str, Any]) -> dict[str, Any]:
    """The typical seconds of each setting, and what was found beside the fastest and beside whole."""
    seconds = {setting: statistics.median(taken) for setting, taken in row["seconds"].items()}
    best = min(seconds, key=lambda setting: seconds[setting])
    chosen = seconds[",".join(map(str, row["chosen"]))]
    return {
        "seconds": seconds,
        "best": best,
        "by_best": chosen / seconds[best],
        "whole_by_chosen": seconds["1,1"] / chosen,
    }


def show(rows: dict[str, dict[str, Any]]) -> None:
    """Print the table."""
    table = Table("", "whole, ms", "fastest, ms", "its parts", "found", "trials", "by fastest", "whole by it")
    for name, row in rows.items():
        of = derived(row)
        table.add_row(
            name,
            f"{1e3 * of['seconds']['1,1']:.1f}",
            f"{1e3 * of['seconds'][of['best']]:.1f}",
            of["best"],
            ",".join(map(str, row["chosen"])),
            str(row["trials"]),
            f"{of['by_best']:.3f}",
            f"{of['whole_by_chosen']:.3f}",
        )
    Console(width=140).print(table)


def record(rows: dict[str, dict[str, Any]], file: Path) -> None:
    """Write the tables of all settings, which the search's tests read."""
    tables = {
        name: {k: round(v, 6) for k, v in derived(row)["seconds"].items()} for name, row in rows.items()
    }
    file.write_text(json.dumps(tables, indent=1) + "\n", encoding="utf-8")


def main(arguments: list[str] | None = None) -> None:
    """Measure each graph at each rate."""
    parser = parser_of(__doc__)
    parser.add_argument("--rates", type=float, nargs="+", default=[1e10, 1e9, 1e8], help="bits per second")
    parser.add_argument("--nodes", type=int, default=80_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--record", type=Path, help="file for the tables of all settings")
    add_out_argument(parser)
    options = parser.parse_args(arguments)
    if why := why_not():
        print(f"skipped: links cannot be shaped here: {why}", file=sys.stderr)
        return
    found: dict[str, dict[str, Any]] = {}
    for name, rate in itertools.product(GRAPHS, options.rates):
        key = f"{name}, {RANKS} ranks, {rate / 1e6:g} Mbit/s"
        print(f"  {key}", file=sys.stderr, flush=True)
        rows = {key: row_of(name, rate, options)}
        found |= rows
        show(rows)
        write_rows("distributed_tuning", rows, repeats=options.rounds, out=options.out)
    if options.record is not None:
        record(found, options.record)


def _one() -> None:
    core, name, num_nodes, rounds = sys.argv[2:]
    os.sched_setaffinity(0, {int(core)})
    torch.set_num_threads(1)
    print(json.dumps(as_rank(graph_of(name, int(num_nodes)), int(rounds))))


if __name__ == "__main__":
    _one() if sys.argv[1:2] == ["--one"] else main()
