"""Test accuracy over several seeds: full-batch GCN and GAT beside the literature, sampled beside full batch.

    python -m benchmarks.accuracy.literature [--seeds 10] [--data ../shared/data] [--only cora/gat] [--jobs 2]

Trains through ``graphbraid.Trainer`` alone. The epoch is chosen by the validation split; the test split is
evaluated once per run, exactly, at its end. Results are written whenever a row has all its seeds, so that a
stopped benchmark keeps what it has; rows that a run does not cover (``--only``) stay in the file as they are.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

from benchmarks.accuracy.setups import SETUPS, SPLIT_SEED, Setup
from benchmarks.accuracy.summary import line_of, summary
from benchmarks.common.contenders import ROOT
from benchmarks.common.options import add_out_argument
from benchmarks.common.rows import RESULTS, machine_and_commit, put_rows

DATA = ROOT.parent / "shared" / "data"


@lru_cache(maxsize=2)
def _graph(folder: Path, dataset: str, prepare: tuple[tuple[str, Any], ...]) -> Any:
    from graphbraid import datasets

    return datasets.load(folder / f"{dataset}.npz", **dict(prepare))


def run(setup: Setup, seed: int, folder: Path, threads: int | None = None) -> dict[str, Any]:
    """Train and test once.

    Args:
        setup: what to train.
        seed: draws the weights, dropout and the mini-batches; the split is always the same.
        folder: holds the datasets' ``.npz``.
        threads: of the model's operators; None leaves torch's setting.
    """
    import torch

    from graphbraid import Trainer, nn

    graph = _graph(folder, setup.dataset, tuple(setup.prepare.items()))
    torch.manual_seed(seed)
    model = nn.MODELS[setup.model](graph.num_features, out_channels=graph.num_classes, **setup.options)
    optimizer = setup.optimizer(model)
    options = setup.train | {"optimizer": optimizer, "seed": seed, "threads": threads}
    if not isinstance(optimizer, str):
        del options["lr"]  # its own
    result = Trainer(model, graph, metrics=("accuracy",), **options).fit()
    if result.status == "interrupted":
        raise KeyboardInterrupt(f"{setup.name}, seed {seed}, was stopped after {result.num_epochs} epochs")
    return {
        "seed": seed,
        "test": 100 * result.test["accuracy"],
        "val": 100 * result.history[result.best_epoch or 0]["val_accuracy"],
        "best_epoch": result.best_epoch,
        "epochs": result.num_epochs,
        "seconds": round(result.seconds, 2),
    }


def run_all(setups: list[Setup], seeds: int, folder: Path, *, jobs: int, out: Path) -> None:
    """All runs, ``jobs`` at a time; a row goes into ``out`` when all its seeds are done."""
    rows = {s.name: _description(s) | {"runs": []} for s in setups}
    started, where = (
        time.perf_counter(),
        machine_and_commit(),
    )  # before training: the commit may move on meanwhile
    for setup, one in _runs(setups, seeds, folder, jobs):
        row = rows[setup.name]
        row["runs"] = sorted([*row["runs"], one], key=lambda run: run["seed"])
        if len(row["runs"]) == seeds:
            named = {"row": setup.name, **where, "repeats": seeds, "split_seed": SPLIT_SEED}
            put_rows(out, [named | row | summary(row["runs"])])
            row |= summary(row["runs"])
            print(line_of(row), flush=True)
    print(f"{time.perf_counter() - started:.0f} s, written to {out}")


def _runs(setups: list[Setup], seeds: int, folder: Path, jobs: int) -> Iterator[tuple[Setup, dict[str, Any]]]:
    """Each run as it ends."""
    work = [(setup, seed) for setup in setups for seed in range(seeds)]
    if jobs == 1:
        for setup, seed in work:
            yield setup, run(setup, seed, folder, 1)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        waiting = {pool.submit(run, setup, seed, folder, 1): setup for setup, seed in work}
        for done in as_completed(waiting):
            yield waiting[done], done.result()


def _description(setup: Setup) -> dict[str, Any]:
    """Everything that says what is trained, as plain values."""
    return {"name": setup.name, **asdict(setup), "metrics": ["accuracy"], "optimizer": "adam"}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=10, help="runs per row, with seeds 0, 1, ...")
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the datasets' .npz files")
    parser.add_argument("--only", nargs="+", default=[], help="parts of names of rows, such as cora/gcn")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, each with one thread")
    add_out_argument(parser)
    return parser.parse_args()


def main() -> None:
    """Run what the command line asks for."""
    options = parse()
    setups = [s for s in SETUPS if not options.only or any(part in s.name for part in options.only)]
    if not setups:
        sys.exit(f"--only matches none of {', '.join(s.name for s in SETUPS)}; got {' '.join(options.only)}")
    run_all(
        setups, options.seeds, options.data, jobs=options.jobs, out=options.out or RESULTS / "accuracy.jsonl"
    )


if __name__ == "__main__":
    main()
