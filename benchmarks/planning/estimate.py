"""Do estimates hold? Memory and time of an epoch as estimated, beside what the run then takes.

    python -m benchmarks.planning.estimate --graphs FOLDER [--names arxiv-like products-lite ...]

For each graph and each mode (mini-batches, the whole graph, either with validations, with checkpoints and the
test, with no and with a quarter of the rows in memory), in turn as processes of their own:
``graphbraid.estimate``, and the run that it is of. The run's epoch is the median after the first; its memory
the process's peak; the whole run is what ``Trainer.fit`` takes from its first epoch on. Kept are the
ratios of estimate to run; memory is to be within 15 %, times within 25 %. Validations are on a tenth of the
nodes, none of them trained on. An epoch is what the clock of the run counts: without checkpoints, which are
in the whole run. The parts of both stand below: training and validation of an epoch, what the first one takes
longer, and what is there once (test, checkpoints), so that a miss shows where it comes from. Both processes
note what other programs use of the cores meanwhile: beside a load that comes and goes two epochs of one run
differ by more than that, so such times are kept, not judged.
Rows are printed and written as they come; those that the file has from this commit are not measured again.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.common.contenders import Contender, ours, run_in_turn
from benchmarks.common.options import add_graphs_argument, add_out_argument, parser_of
from benchmarks.common.rows import RESULTS, commit, read_lines, write_rows
from benchmarks.graphs.folder import load
from graphbraid import Graph
from graphbraid.datasets import save_store
from graphbraid.machine.measurements import is_disturbed

WITHIN = {"memory_bytes": 0.15, "epoch_seconds": 0.25, "run_seconds": 0.25}
SAMPLED = {"fanouts": [15, 10], "batch_size": 1024, "eval_every": 0, "test_at_end": False}
FULL = {"mode": "full", "eval_every": 0, "test_at_end": False, "epochs": 12}
WHOLE_RUN = {"eval_every": 1, "test_at_end": True, "out_dir": "run"}
PARTS = ("train", "validation", "first", "once")
"""Parts of a run whose seconds are kept."""
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "sampled sage": ("sage", SAMPLED),
    "sampled gat": ("gat", SAMPLED),
    "sampled sage, validated": ("sage", SAMPLED | {"eval_every": 1}),
    "full gcn": ("gcn", FULL),
    "full sage": ("sage", FULL),
    "full sage, validated": ("sage", FULL | {"eval_every": 1}),
    "sampled sage, exact by layers, with test and checkpoints": (
        "sage",
        SAMPLED | WHOLE_RUN | {"eval_mode": "exact", "memory_budget_bytes": 64 << 20},
    ),
    "full gcn, with test and checkpoints": ("gcn", FULL | WHOLE_RUN),
    "full sage, a quarter of the rows in memory": ("sage", FULL | {"host": "quarter", "epochs": 6}),
    "tiers sage, none in memory": ("sage", SAMPLED | {"host": 0}),
    "tiers sage, a quarter in memory": ("sage", SAMPLED | {"host": "quarter"}),
}
"""Model and options of each row."""


def with_validation(graph: Graph) -> Graph:
    """The graph with splits to validate and to test on: each every tenth node that is not trained on."""
    is_free = torch.ones(graph.num_nodes, dtype=torch.bool)
    is_free[graph.split("train")] = False
    free = is_free.nonzero().flatten()
    step = max(1, 10 * free.numel() // graph.num_nodes)
    evaluated = {"val": free[::step], "test": free[step // 2 :: step]}
    return graph.replace(splits={**graph.splits, **evaluated})


def measure(name: str, case: str, store: Path, options: argparse.Namespace) -> dict[str, Any]:
    """A row: the estimate, the run, and their ratios."""
    model, chosen = CASES[case]
    arguments = ["--model", model, "--options", json.dumps(chosen), "--epochs", str(options.epochs)]
    both = [
        Contender(what, ours("planning.estimate_run", str(store), "--what", what, *arguments))
        for what in ("estimate", "run")
    ]
    run_in_turn(both, options.repeats)
    found, ran = both
    row: dict[str, Any] = {"graph": name, "case": case, "options": chosen}
    for key, within in WITHIN.items():
        ratio = found.median(key) / ran.median(key)
        row[key] = {"estimated": found.median(key), "ran": ran.median(key), "ratio": ratio}
        row[key]["holds"] = abs(ratio - 1) <= within
    row["parts"] = {part: {what.name: what.median(part) for what in both} for part in PARTS}
    row["others"] = max(run["others"] for contender in both for run in contender.runs)
    if is_disturbed(row["others"]):
        row["epoch_seconds"]["holds"] = row["run_seconds"]["holds"] = None
    return row | {"seconds_to_estimate": found.median("seconds"), "runs": {c.name: c.runs for c in both}}


def show(row: dict[str, Any]) -> None:
    """Print a row as it comes."""
    memory, epoch, run = row["memory_bytes"], row["epoch_seconds"], row["run_seconds"]
    print(
        f"{row['graph']}, {row['case']}: memory {memory['estimated'] / 1e9:.2f} GB, ran with "
        f"{memory['ran'] / 1e9:.2f} ({memory['ratio']:.2f}); epoch {epoch['estimated']:.3g} s, ran in "
        f"{epoch['ran']:.3g} ({epoch['ratio']:.2f}); all {run['estimated']:.3g} s, ran in "
        f"{run['ran']:.3g} ({run['ratio']:.2f}); estimated in {row['seconds_to_estimate']:.1f} s"
        + (f", beside others on {row['others']:.0%} of the cores" if epoch["holds"] is None else ""),
        flush=True,
    )
    parts = (f"{part} {said['estimate']:.3g} / {said['run']:.3g}" for part, said in row["parts"].items())
    print(f"    seconds as estimated / as they ran: {', '.join(parts)}", flush=True)


def main(arguments: list[str] | None = None) -> None:
    """Measure each case of each graph, and write it."""
    parser = parser_of(__doc__)
    add_graphs_argument(parser)
    parser.add_argument("--names", nargs="+", default=["arxiv-like", "products-lite", "web_cnr2000"])
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument(
        "--epochs", type=int, default=4, help="of a run on mini-batches; the first does not count"
    )
    parser.add_argument("--repeats", type=int, default=2)
    add_out_argument(parser)
    options = parser.parse_args(arguments)
    path = options.out or RESULTS / "estimate.jsonl"
    done = {row["row"] for row in read_lines(path) if row["commit"] == commit()}
    for name in options.names:
        with tempfile.TemporaryDirectory() as folder:
            graph = with_validation(load(options.graphs / name))
            store = save_store(graph, Path(folder) / "store")
            for case in options.cases:
                key = f"{name}, {case}"
                if key in done:
                    continue
                row = measure(name, case, store, options)
                show(row)
                write_rows("estimate", {key: row}, repeats=options.repeats, out=path)
    print("wrote", path)


if __name__ == "__main__":
    main()
