"""How near the pipeline that is found in the first epochs comes to the best of all, on ranks behind links.

    python -m benchmarks.distributed.tuning --rates 1e10 1e9 1e8

Two ranks with a core each, as hosts behind links shaped to a rate in bits per second, train a graph of blocks
and one without (:mod:`.planted`). While they do, the parts in which rows and gradients travel are found. Then
every setting is measured, round by round, so that what drifts touches all alike. As the least of so many
times is lucky, the fastest of them, what was found and whole rows are finalists, measured anew, round by
round of their own, and compared so. The table says what was found, in how many trials, and how its time
compares with that of the fastest finalist and with that of rows that travel whole. ``--record`` writes the
tables for the tests of the search. Seconds are those of the slower rank's forward and backward pass.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.common.options import add_out_argument, parser_of
from benchmarks.common.rows import write_rows
from benchmarks.distributed.links import why_not
from benchmarks.distributed.planted import planted, scattered
from benchmarks.distributed.shaped import start
from benchmarks.distributed.training import Training
from graphbraid import distributed
from graphbraid.distributed import Communicator
from graphbraid.fullgraph import Pipeline
from graphbraid.fullgraph.ranks.ladders import RUNGS
from graphbraid.graph import Graph

RANKS = 2
VISIBLE = {"planted": 0.25}
GRAPHS = ("planted", "scattered")
SETTINGS = tuple(itertools.product(RUNGS, RUNGS))
"""Parts of rows and of gradients."""
MOST_EPOCHS = 120
COUNTED = 2
"""Steps of a setting that count in each round, after one that makes its maps."""
FINALISTS = 3
"""Fastest settings of all that are measured anew, beside what was found and whole rows."""
FINAL_ROUNDS = 7


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
        pipeline = found.pipeline
        seconds = measured(training, comm, SETTINGS, rounds)
        finals = measured(training, comm, finalists(seconds, pipeline), FINAL_ROUNDS)
    return {
        "chosen": [pipeline.chunks, pipeline.back_chunks],
        "trials": found.num_trials,
        "tried": found.to_json()["table"],
        "knobs": list(found.names),
        "epochs": epochs,
        "seconds": seconds,
        "finals": finals,
    }


def measured(
    training: Training, comm: Communicator, settings: Sequence[tuple[int, int]], rounds: int
) -> dict[str, list[float]]:
    """Return the slower rank's seconds of each setting in each round, the same on all ranks."""
    step = training.engine.runner._train
    seconds: dict[str, list[float]] = {}
    for _, (chunks, back_chunks) in itertools.product(range(rounds), settings):
        step.pipeline = Pipeline(chunks=chunks, back_chunks=back_chunks)
        taken = []
        for _ in range(1 + COUNTED):
            training.epoch()
            assert step.seconds is not None
            taken.append(step.seconds)
        slower = max(comm.gather(statistics.median(taken[1:])))
        seconds.setdefault(f"{chunks},{back_chunks}", []).append(slower)
    return seconds


def finalists(seconds: dict[str, list[float]], found: Pipeline) -> list[tuple[int, int]]:
    """Return what was found, whole rows, and the settings of the least typical times."""
    fastest = sorted(SETTINGS, key=lambda setting: statistics.median(seconds["{},{}".format(*setting)]))
    return list(dict.fromkeys([(found.chunks, found.back_chunks), (1, 1), *fastest[:FINALISTS]]))


def row_of(name: str, rate: float, options: argparse.Namespace) -> dict[str, Any]:
    """One graph behind links of one rate."""
    arguments = [name, str(options.nodes), str(options.rounds)]
    with tempfile.TemporaryDirectory(prefix="graphbraid-") as cache:
        os.environ["GRAPHBRAID_CACHE"] = cache  # or an earlier run's table would be read
        found = start(RANKS, rate, arguments, "distributed.tuning")
    return {"graph": name, "ranks": RANKS, "bits_per_second": rate, "num_nodes": options.nodes} | found


def derived(row: dict[str, Any]) -> dict[str, Any]:
    """The typical seconds of each setting, and what was found beside the fastest and beside whole.

    Among finalists the typical ratio of two times of the same round says which of them is faster.
    """
    seconds = {setting: statistics.median(taken) for setting, taken in row["seconds"].items()}
    finals = {setting: statistics.median(taken) for setting, taken in row.get("finals", {}).items()}
    chosen = ",".join(map(str, row["chosen"]))
    if finals:
        rounds = row["finals"]
        by = {
            setting: statistics.median(
                mine / other for mine, other in zip(rounds[chosen], taken, strict=True)
            )
            for setting, taken in rounds.items()
        }
    else:
        by = {setting: seconds[chosen] / taken for setting, taken in seconds.items()}
    best = max(by, key=by.__getitem__)
    return {
        "seconds": seconds | finals,
        "best": best,
        "by_best": by[best],
        "whole_by_chosen": 1 / by["1,1"],
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
    parser.add_argument("--rounds", type=int, default=2)
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
