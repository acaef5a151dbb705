"""How a machine without a device should divide its cores: plan="auto" beside the usual fixed ways.

    python -m benchmarks.training.cores --graphs GRAPHS

An epoch's steps of sampled training, prepared and trained, in four ways: all cores sample a batch and then
all train on it; all train and one thread samples beside; all sample and one thread trains; and as plan="auto"
says, which measured the stages and tried arrangements before (its seconds for that are given apart). Ways run
in turn in one process, from the same weights, and their losses must be equal to the bit.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.common.options import add_graphs_argument, add_out_argument, parser_of
from benchmarks.common.rows import write_rows
from benchmarks.graphs.folder import load
from graphbraid import Graph
from graphbraid.collective import Plan
from graphbraid.collective.plan.times import Arrangement
from graphbraid.estimates.plan import plan_run
from graphbraid.estimates.trial import TrialStep
from graphbraid.loader.planned import CoreSharing
from graphbraid.machine.hardware import Hardware
from graphbraid.nn import GCN, GraphSAGE
from graphbraid.sampling import MiniBatch
from graphbraid.train import Trainer
from graphbraid.train.step.step import make_loader

MODELS = {"sage": GraphSAGE, "gcn": GCN}


class Setup(NamedTuple):
    """What is trained."""

    graph: str
    model: str
    hidden: int
    fanouts: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"{self.graph} {self.model} {self.hidden} {'-'.join(map(str, self.fanouts))}"


SETUPS = [
    Setup("arxiv-like", "sage", 16, (15, 10, 5)),
    Setup("arxiv-like", "sage", 64, (15, 10)),
    Setup("arxiv-like", "gcn", 256, (15, 10)),
    Setup("products-lite", "sage", 16, (15, 10)),
    Setup("products-lite", "sage", 64, (15, 10, 5)),
    Setup("products-lite", "sage", 256, (10, 5)),
    Setup("reddit-lite", "gcn", 16, (25, 10)),
    Setup("reddit-lite", "sage", 64, (10, 5)),
    Setup("reddit-lite", "sage", 256, (10, 5)),
]


class Way:
    """One way to run an epoch's steps; its seconds and losses are kept."""

    def __init__(self, name: str, trainer: Trainer, nodes: torch.Tensor, cores: Arrangement | None) -> None:
        self.name = name
        self._cores = cores
        self._loader = make_loader(trainer.runner, trainer.config, nodes)
        self._step = TrialStep.on_copy(trainer.runner, trainer.task, trainer.config)
        self._sharing: CoreSharing | None = None
        self.seconds: list[float] = []
        self.losses: list[float] = []

    def follow(self, ahead: int) -> Way:
        """Share the cores as its arrangement says."""
        assert self._cores is not None
        self._sharing = CoreSharing(self._loader, self._cores, ahead)
        return self

    def in_turn(self, cores: int) -> Way:
        """A batch by all cores, then its training by all."""
        self._loader.work_in_turns(cores, 1, None)
        torch.set_num_threads(cores)
        return self

    def run(self, epoch: int, steps: int) -> None:
        """Prepare and train the first steps of an epoch."""
        started = time.perf_counter()
        for batch in self._batches(epoch, steps):
            self.losses.append(self._step(batch).loss)
            del batch
        self.seconds.append((time.perf_counter() - started) / steps)

    def _batches(self, epoch: int, steps: int) -> Iterator[MiniBatch]:
        if self._sharing is None:
            torch.set_num_threads(Hardware.detect().planned_cores)
            for step in range(steps):
                yield from self._loader.batches(epoch, step, step + 1)
            return
        for batch in self._loader.batches(epoch, 0, steps):
            self._sharing.before_batch()
            yield batch

    @property
    def median(self) -> float:
        """Seconds per step; the first run warms up."""
        return statistics.median(self.seconds[1:])


def ways(trainer: Trainer, nodes: torch.Tensor, plan: Plan, cores: int) -> list[Way]:
    """The plan's and the fixed ones."""
    most = Arrangement(workers=1, threads=cores)
    sampling = Arrangement(workers=cores, threads=1)
    return [
        Way("auto", trainer, nodes, plan.cores).follow(plan.cbs),
        Way("in turn", trainer, nodes, None).in_turn(cores),
        Way("all train, 1 samples", trainer, nodes, most).follow(2),
        Way("all sample, 1 trains", trainer, nodes, sampling).follow(2 * cores),
    ]


def measure(setup: Setup, graph: Graph, options: argparse.Namespace, seconds: float) -> dict[str, Any]:
    """All ways of one setup, in turn, for so many seconds."""
    torch.manual_seed(0)
    model = MODELS[setup.model](graph.num_features, setup.hidden, graph.num_classes, len(setup.fanouts))
    trainer = Trainer(
        model,
        graph,
        fanouts=setup.fanouts,
        layout="blocks",
        plan="auto",
        eval_every=0,
        test_at_end=False,
        restore_best=False,
    )
    cores, nodes = Hardware.detect().planned_cores, graph.split("train")
    started = time.perf_counter()
    plan = plan_run(trainer.runner, trainer.task, trainer.config, nodes)
    planned = time.perf_counter()
    assert plan is not None
    assert plan.cores is not None, "the machine has one core"
    contenders = ways(trainer, nodes, plan, cores)
    epoch = 0
    while epoch < 1 + options.repeats or time.perf_counter() < started + seconds:
        turn = epoch % len(contenders)  # each way comes first as often as last
        for way in contenders[turn:] + contenders[:turn]:
            torch.manual_seed(epoch)  # of dropout
            way.run(epoch, min(options.steps, -(-len(nodes) // trainer.config.batch_size)))
        epoch += 1
    if len({tuple(way.losses) for way in contenders}) != 1:
        raise SystemExit(f"{setup.name}: losses differ")
    auto, *others = contenders
    best = min(others, key=lambda way: way.median)
    return {
        "setup": setup.name,
        "plan": plan.cores.name,
        "planning_seconds": planned - started,
        "predicted_step_seconds": plan.predicted_seconds / plan.num_batches,
        "tried": {t.name: t.predicted_seconds / plan.num_batches for t in plan.runner_ups},
        "step_seconds": {way.name: way.median for way in contenders},
        "runs": {way.name: way.seconds[1:] for way in contenders},
        "best_extreme": best.name,
        "speedup_over_best": best.median / auto.median,
        "losses_equal": True,
    }


def show(rows: list[dict[str, Any]]) -> None:
    """A table of milliseconds per step."""
    names = list(rows[0]["step_seconds"])
    table = Table("setup", "plan", *names, "over the best")
    for row in rows:
        took = [f"{1e3 * row['step_seconds'][name]:.2f}" for name in names]
        table.add_row(row["setup"], row["plan"], *took, f"{row['speedup_over_best']:.2f}")
    Console(width=150).print(table)


def main() -> None:
    """Run, compare, write."""
    parser = parser_of(__doc__)
    add_graphs_argument(parser)
    parser.add_argument("--minutes", type=float, default=5.0, help="for all setups together")
    parser.add_argument("--steps", type=int, default=40, help="of an epoch, at most")
    parser.add_argument("--repeats", type=int, default=3, help="at least")
    parser.add_argument("--only", help="setups whose name contains this")
    add_out_argument(parser)
    options = parser.parse_args()
    chosen = [setup for setup in SETUPS if not options.only or options.only in setup.name]
    rows = []
    with tempfile.TemporaryDirectory() as cache:
        os.environ["GRAPHBRAID_CACHE"] = cache  # every plan is measured here and now
        graphs: dict[str, Graph] = {}
        for setup in chosen:
            if setup.graph not in graphs:
                graphs = {setup.graph: load(options.graphs / setup.graph)}
            rows.append(measure(setup, graphs[setup.graph], options, 60.0 * options.minutes / len(chosen)))
            show(rows[-1:])
    show(rows)
    config = {"steps": options.steps, "repeats": options.repeats, "minutes": options.minutes}
    named = {row["setup"]: {"config": config, **row, "repeats": len(row["runs"]["auto"])} for row in rows}
    print("wrote", write_rows("cores", named, repeats=options.repeats, out=options.out))


if __name__ == "__main__":
    main()
