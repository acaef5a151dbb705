"""Sampled training on a GPU by who prepares the batches: the CPU, the GPU, a naive hybrid, the braided plan.

    python -m benchmarks.gpu.collective [--nodes N --edges E --dtype float16] [--cores 2 4 8 12 16]
    python -m benchmarks.gpu.collective --smoke      on the emulated accelerator, with a tiny graph

For each number of cores the stages are measured, then every contender trains the same steps of an epoch from
the same parameters, in turn: all batches by the CPU, all by the GPU, the best naive hybrid of a grid (each
batch's side is drawn with a fixed probability), and the plan that was found. Their losses must agree, first
over a few steps that are not timed. Beside each epoch's seconds stand the plan's bound, how busy CPU workers,
link and GPU were, as in Table 5 of Zhang et al. (MorphGL, PVLDB 19(6)): from the executor's timeline, where
the GPU's own batching counts for link and GPU; and ``load``, the processor time of all threads.

``--hot`` caps the device memory: topology, labels and that share of the feature rows fit, the others are read
over the link; 1 leaves it half of the card. Cores are capped for all threads of this process, as ``taskset
-a`` does. Features are random: what is learned does not matter here.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.common.emulated import EmulatedAccelerator
from benchmarks.common.options import parser_of
from benchmarks.common.rows import write_rows
from benchmarks.gpu.card import describe, goals_of
from benchmarks.gpu.fullgraph import add_arguments, device_of, software
from benchmarks.gpu.sampling import skewed_graph
from benchmarks.planning.strategies import drawn_routes
from graphbraid.collective import Plan, Profile, StageTimes, fixed_plan, make_plan
from graphbraid.collective.plan.simulator import StageRun
from graphbraid.collective.plan.times import Duration
from graphbraid.collective.run.executor import Executor
from graphbraid.collective.run.operators import Operators
from graphbraid.collective.run.profiler import Effort, measure
from graphbraid.collective.run.stages import BatchDevice, Context
from graphbraid.graph import Graph
from graphbraid.loader import NeighborLoader
from graphbraid.nn import GraphSAGE
from graphbraid.sampling.minibatch.mini_batch import MiniBatch

GOAL_CORES = 4
GRID = (0.1, 0.25, 0.5, 0.75, 0.9)
NUM_CLASSES = 47
DTYPES = {"float16": torch.float16, "float32": torch.float32}
TOLERANCE = 2e-2
"""Losses of float32 training differ by the order of sums; after many steps by about so much."""


class NaivePlan(Plan):
    """Each step takes the CPU's route with the probability ``split``, whatever the others take."""

    def routes(self, num_batches: int | None = None) -> bytes:
        """Drawn."""
        return drawn_routes(num_batches or self.num_batches, self.split, seed=0)


def naive(plan: Plan) -> Plan:
    """The same buffers and workers with drawn routes."""
    return NaivePlan(**{f.name: getattr(plan, f.name) for f in dataclasses.fields(plan)})


class Training:
    """A GraphSAGE trained from the same parameters each time."""

    def __init__(self, graph: Graph, hidden: int, num_layers: int, place: torch.device) -> None:
        torch.manual_seed(0)
        # Without dropout: its draws have a state, and losses would differ from run to run.
        model = GraphSAGE(graph.num_features, hidden, NUM_CLASSES, num_layers, dropout=0.0)
        self.model = model.to(place)
        self._first = {name: value.clone() for name, value in self.model.state_dict().items()}
        self.begin()

    def begin(self) -> None:
        """Back to the first parameters."""
        self.model.load_state_dict(self._first)
        self._optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)

    def step(self, batch: MiniBatch) -> torch.Tensor:
        """One step; its loss stays on the device."""
        x = batch.x
        assert x is not None
        outputs = self.model(x.float(), batch.blocks)
        loss = torch.nn.functional.cross_entropy(outputs[: batch.batch_size], batch.seed_y)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self._optimizer.step()
        return loss.detach()


class Machine:
    """The device, and cores that can be capped."""

    def __init__(self, smoke: bool) -> None:
        self._cores, self._threads = sorted(os.sched_getaffinity(0)), torch.get_num_threads()
        self._smoke = smoke
        self.place = torch.device("cpu" if smoke else "cuda")

    @property
    def device(self) -> BatchDevice:
        """What the loader is given."""
        if not self._smoke:
            return self.place
        return EmulatedAccelerator(
            StageTimes(
                workers=1,
                cpu=Duration(seconds=0.004),
                dma=Duration(seconds=0.0005),
                uva=Duration(seconds=0.002),
                model=Duration(seconds=0.001),
            )
        )

    @property
    def num_cores(self) -> int:
        """All of them."""
        return len(self._cores)

    def cap(self, cores: int) -> None:
        """Leave the threads of this process so many cores, and those that they start."""
        _pin_threads(self._cores[:cores])
        torch.set_num_threads(cores)

    def uncap(self) -> None:
        """Give all cores and threads back."""
        _pin_threads(self._cores)
        torch.set_num_threads(self._threads)


def _pin_threads(cores: list[int]) -> None:
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(ProcessLookupError):  # one that has just ended
            os.sched_setaffinity(int(thread.name), cores)


class Epoch(NamedTuple):
    """What came of training some steps."""

    losses: list[float]
    seconds: float
    busy: dict[str, float]
    """Share of the epoch that each resource was busy, and ``load``, that of the cores' time it used."""


def run(context: Context, plan: Plan, training: Training, num_steps: int, steps: int) -> Epoch:
    """Train; the loss of each step, and how busy the machine was."""
    training.begin()
    started, used = time.perf_counter(), time.process_time()
    with Executor(Operators.of(context), plan, num_steps=num_steps, stop=steps) as executor:
        losses = torch.stack([training.step(batch) for batch in executor]).tolist()
    cores = len(os.sched_getaffinity(0))
    load = (time.process_time() - used) / (cores * (time.perf_counter() - started))
    busy = utilisation(executor.ops, plan.workers) | {"load": min(load, 1.0)}
    return Epoch(losses, max(op.end for op in executor.ops), busy)


def utilisation(ops: list[StageRun], workers: int) -> dict[str, float]:
    """Share of the epoch that each resource was busy."""
    busy = {stage: sum(op.end - op.start for op in ops if op.stage == stage) for stage in _STAGES}
    seconds = max(op.end for op in ops)
    return {
        "cpu": busy["cpu"] / (workers * seconds),
        "link": (busy["dma"] + busy["uva"]) / seconds,
        "gpu": (busy["model"] + busy["uva"]) / seconds,
    }


_STAGES = ("cpu", "dma", "uva", "model")
CHECKED_STEPS = 5


def contenders_of(profile: Profile, num_steps: int, grid: Sequence[float]) -> dict[str, Plan]:
    """Every plan by name."""
    plans = {"cpu": fixed_plan(profile, num_steps, 1.0)}
    if profile.times[0].uva is not None:
        plans["gpu"] = fixed_plan(profile, num_steps, 0.0)
        plans |= {f"naive {share:g}": naive(fixed_plan(profile, num_steps, share)) for share in grid}
    return plans | {"braided": make_plan(profile, num_steps)}


def compare(
    loader: NeighborLoader, training: Training, cores: int, hot: float, options: argparse.Namespace
) -> dict[str, Any]:
    """One number of cores and one cap: the profile, then all contenders in turn."""
    workers = sorted({1 << i for i in range(cores.bit_length()) if 1 << i <= cores} | {cores})
    effort = Effort(samples=3, seconds=2.0) if options.smoke else Effort()
    profile = measure(loader.context(cores), workers, train=training.step, effort=effort)
    steps = min(len(loader), options.steps)
    plans = contenders_of(profile, steps, options.grid)
    epochs: dict[str, list[Epoch]] = {name: [] for name in plans}

    def train(name: str, steps: int) -> Epoch:
        plan = plans[name]
        context = dataclasses.replace(loader.context(plan.workers), lookahead=plan.times.lookahead)
        return run(context, plan, training, steps, steps)

    checked = {name: train(name, min(steps, CHECKED_STEPS)).losses for name in plans}
    problem = problem_of(checked, exactly=options.smoke)
    for _ in range(0 if problem else options.repeats):
        for name in plans:
            epochs[name].append(train(name, steps))
    row: dict[str, Any] = {
        "cores": cores,
        "hot": hot,
        "times": [dataclasses.asdict(times) for times in profile.times],
        "problem": problem
        or problem_of({n: runs[-1].losses for n, runs in epochs.items()}, exactly=options.smoke),
        "plans": {},
        "goals": {},
    }
    if problem:
        return row
    row["plans"] = {
        name: {
            "split": plan.split,
            "workers": plan.workers,
            "buffers": [plan.cbs, plan.gbs],
            "lookahead": plan.times.lookahead,
            "predicted_seconds": plan.predicted_seconds,
            "bound_seconds": plan.bound_seconds,
            "seconds": [one.seconds for one in epochs[name]],
            "busy": epochs[name][-1].busy,
        }
        for name, plan in plans.items()
    }
    median = {name: statistics.median(one.seconds for one in runs) for name, runs in epochs.items()}
    others = {name: s for name, s in median.items() if name != "braided"}
    best = min(others, key=lambda name: others[name])
    row |= {"best_other": best, "speedup_over_best_other": others[best] / median["braided"]}
    one_sided = min(s for name, s in others.items() if name in ("cpu", "gpu"))
    over = median["braided"] / plans["braided"].bound_seconds
    row["of_one_sided"], row["of_bound"] = one_sided / median["braided"], over
    return row


def problem_of(losses: dict[str, list[float]], *, exactly: bool) -> str:
    """What is wrong with the contenders' losses; empty if nothing is."""
    most = 0.0 if exactly else TOLERANCE
    for name, found in losses.items():
        for step, (wanted, loss) in enumerate(zip(losses["cpu"], found, strict=True)):
            if not abs(loss - wanted) <= most * abs(wanted):  # also where one is not a number
                return f"at step {step} the loss of {name} is {loss} and that of cpu {wanted}"
    return ""


def show(row: dict[str, Any]) -> None:
    """A line per contender."""
    print(f"{row['cores']} cores, {row['hot']:.0%} of the rows hot {row['problem']}")
    for name, found in row["plans"].items():
        busy = ", ".join(f"{part} {share:4.0%}" for part, share in found["busy"].items())
        print(
            f"  {name:10} {statistics.median(found['seconds']):8.3f} s  predicted "
            f"{found['predicted_seconds']:8.3f}  bound {found['bound_seconds']:8.3f}  "
            f"{found['workers']:2} workers, {found['split']:4.0%} on "
            f"the CPU{', look-ahead' * found['lookahead']};  busy: {busy}"
        )
    if row["problem"]:
        return
    print(
        f"  braided is {row['speedup_over_best_other']:.2f} times as fast as the best other "
        f"({row['best_other']})"
    )
    if row["cores"] == GOAL_CORES:
        row["goals"] = goals_of(
            ("braided over the better of all-CPU and all-GPU", row["of_one_sided"], 1.3, True),
            ("braided over its bound", row["of_bound"], 1.05, False),
        )


def begin(
    parser: argparse.ArgumentParser, argv: list[str] | None
) -> tuple[argparse.Namespace, Machine, Graph, dict[str, Any]]:
    """The options, the machine, a graph of random labels and features, and what goes with every row.

    Args:
        parser: with a benchmark's own options, beside which those that decide what is trained are added.
        argv: what it parses.
    """
    add_arguments(parser)
    parser.add_argument("--nodes", type=int, default=2_000_000)
    parser.add_argument("--edges", type=int, default=50_000_000)
    parser.add_argument("--features", type=int, default=128)
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--fanouts", type=int, nargs="+", default=[15, 10, 5])
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args(argv)
    if options.smoke:
        options.nodes, options.edges, options.features, options.hidden = 2_000, 16_000, 8, 8
        options.fanouts, options.batch_size, options.steps, options.repeats = [4, 3], 16, 10, 1
    place, started = device_of(options), time.perf_counter()
    graph = skewed_graph(options.nodes, options.edges, options.features)
    assert isinstance(graph.x, torch.Tensor)
    labels = torch.randint(0, NUM_CLASSES, (options.nodes,), generator=torch.Generator().manual_seed(0))
    graph = graph.replace(x=graph.x.to(DTYPES[options.dtype]), y=labels)
    print(f"{graph}: made in {time.perf_counter() - started:.0f} s")
    names = ("nodes", "edges", "features", "dtype", "fanouts", "batch_size", "hidden", "steps")
    setting = {"gpu": software(place), "config": {name: getattr(options, name) for name in names}}
    print(describe(setting["gpu"]["limits"]), flush=True)
    return options, Machine(options.smoke), graph, setting


def make_loader(graph: Graph, machine: Machine, options: argparse.Namespace, **placed: Any) -> NeighborLoader:
    """The loader whose steps all contenders train; ``placed`` says what is in device memory."""
    return NeighborLoader(
        graph,
        options.fanouts,
        "train",
        batch_size=options.batch_size,
        shuffle=True,
        layout="blocks",
        return_edge_id=False,
        seed=0,
        device=machine.device,
        **placed,
    )


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Run the benchmark."""
    parser = parser_of(__doc__)
    parser.add_argument("--cores", type=int, nargs="+", default=[2, 4, 8, 16])
    parser.add_argument("--hot", type=float, nargs="+", default=[1.0, 0.25, 0.0], help="shares of rows")
    parser.add_argument("--grid", type=float, nargs="+", default=GRID, help="CPU's shares of naive hybrids")
    started = time.perf_counter()
    options, machine, graph, setting = begin(parser, argv)
    training = Training(graph, options.hidden, len(options.fanouts), machine.place)
    rows, left_out, path = [], [], None
    file = f"gpu_collective{'_smoke' * options.smoke}"
    for hot in options.hot:
        hot_bytes = None if hot == 1 else hot_bytes_of(graph, hot)
        with make_loader(graph, machine, options, hot_bytes=hot_bytes) as loader:
            for cores in options.cores:
                name = f"{cores} cores" + f", {hot:.0%} hot" * (hot != 1)
                if cores > machine.num_cores or time.perf_counter() - started > options.budget:
                    left_out.append(name)
                    continue
                machine.cap(cores)
                try:
                    rows.append(compare(loader, training, cores, hot, options))
                finally:
                    machine.uncap()
                show(rows[-1])
                named = {name: {**setting, **rows[-1]}}
                path = write_rows(file, named, repeats=options.repeats, out=options.out)
    if left_out:
        print(f"left out, for want of cores or time: {'; '.join(left_out)}")
    print("wrote", path)
    return {"rows": rows, "left_out": left_out}


def hot_bytes_of(graph: Graph, share: float) -> int:
    """Device memory for topology, labels, local ids, a share of the rows, and the map of where they are."""
    assert isinstance(graph.x, torch.Tensor)
    assert graph.y is not None
    csc = graph.csc
    fixed = csc.indptr.nbytes + csc.indices.nbytes + graph.y.nbytes + 12 * graph.num_nodes
    return fixed + int(share * graph.num_nodes) * graph.x[:1].nbytes


if __name__ == "__main__":
    sys.exit(1 if any(row["problem"] for row in main()["rows"]) else 0)
