"""Sampled training on a GPU by who prepares the batches: the CPU, the GPU, a naive hybrid, the braided plan.

    python -m benchmarks.gpu.collective [--nodes N --edges E --dtype float16] [--cores 2 4 8 12 16]
    python -m benchmarks.gpu.collective --smoke      on the emulated accelerator, with a tiny graph

For each number of cores the stages are measured, then every contender trains the same steps of an epoch from
the same parameters, in turn: all batches by the CPU, all by the GPU, the best naive hybrid of a grid (each
batch's side is drawn with a fixed probability), and the plan that was found. Their losses must agree. Beside
each epoch's seconds stands how busy CPU workers, link and GPU were, as in Table 5 of Zhang et al. (MorphGL,
PVLDB 19(6)): from the executor's timeline, where the GPU's own batching counts for link and GPU.

``--hot-bytes`` caps the device memory for graph and features; 0 reads everything over the link. Cores are
capped for this process and all its threads. Features are random: what is learned does not matter here.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import statistics
import sys
import time
from typing import Any

import torch

from benchmarks.common.options import parser_of
from benchmarks.common.rows import write_rows
from benchmarks.gpu.fullgraph import add_arguments, software
from benchmarks.gpu.sampling import skewed_graph
from benchmarks.planning.strategies import drawn_routes
from graphbraid.collective import Plan, Profile, StageTimes, fixed_plan, make_plan
from graphbraid.collective.hardware.emulated import EmulatedAccelerator
from graphbraid.collective.plan.simulator import StageRun
from graphbraid.collective.plan.times import Duration
from graphbraid.collective.run.executor import Executor
from graphbraid.collective.run.operators import Operators
from graphbraid.collective.run.profiler import Effort, measure
from graphbraid.collective.run.protocols import BatchDevice
from graphbraid.collective.run.stages import Context
from graphbraid.graph import Graph
from graphbraid.loader import NeighborLoader
from graphbraid.nn import GraphSAGE
from graphbraid.sampling.minibatch.mini_batch import MiniBatch

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
        """Leave this process so many cores; threads started from now on have no others."""
        os.sched_setaffinity(0, self._cores[:cores])
        torch.set_num_threads(cores)

    def uncap(self) -> None:
        """Give all cores and threads back."""
        os.sched_setaffinity(0, self._cores)
        torch.set_num_threads(self._threads)


def run(
    context: Context, plan: Plan, training: Training, num_steps: int, steps: int
) -> tuple[list[float], Executor]:
    """Train; the loss of each step, and what ran when."""
    training.begin()
    with Executor(Operators.of(context), plan, num_steps=num_steps, stop=steps) as executor:
        losses = [training.step(batch) for batch in executor]
    return torch.stack(losses).tolist(), executor


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


def contenders_of(profile: Profile, num_steps: int) -> dict[str, Plan]:
    """Every plan by name."""
    plans = {"cpu": fixed_plan(profile, num_steps, 1.0)}
    if profile.times[0].uva is not None:
        plans["gpu"] = fixed_plan(profile, num_steps, 0.0)
        plans |= {f"naive {share:g}": naive(fixed_plan(profile, num_steps, share)) for share in GRID}
    return plans | {"braided": make_plan(profile, num_steps)}


def compare(
    loader: NeighborLoader, training: Training, cores: int, options: argparse.Namespace
) -> dict[str, Any]:
    """One number of cores: the profile, then all contenders in turn."""
    workers = sorted({1 << i for i in range(cores.bit_length()) if 1 << i <= cores} | {cores})
    effort = Effort(samples=3, seconds=2.0) if options.smoke else Effort()
    profile = measure(loader.context(cores), workers, train=training.step, effort=effort)
    steps = min(len(loader), options.steps)
    plans = contenders_of(profile, steps)
    seconds: dict[str, list[float]] = {name: [] for name in plans}
    busy: dict[str, dict[str, float]] = {}
    losses: dict[str, list[float]] = {}
    for _ in range(options.repeats):
        for name, plan in plans.items():
            context = dataclasses.replace(loader.context(plan.workers), lookahead=plan.times.lookahead)
            losses[name], executor = run(context, plan, training, steps, steps)
            seconds[name].append(max(op.end for op in executor.ops))
            busy[name] = utilisation(executor.ops, plan.workers)
    median = {name: statistics.median(runs) for name, runs in seconds.items()}
    others = {name: s for name, s in median.items() if name != "braided"}
    best = min(others, key=lambda name: others[name])
    return {
        "cores": cores,
        "times": [dataclasses.asdict(times) for times in profile.times],
        "plans": {
            name: {
                "split": plan.split,
                "workers": plan.workers,
                "buffers": [plan.cbs, plan.gbs],
                "lookahead": plan.times.lookahead,
                "predicted_seconds": plan.predicted_seconds,
                "seconds": seconds[name],
                "busy": busy[name],
            }
            for name, plan in plans.items()
        },
        "best_other": best,
        "speedup_over_best_other": others[best] / median["braided"],
        "problem": problem_of(losses, exactly=options.smoke),
    }


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
    print(f"{row['cores']} cores")
    for name, found in row["plans"].items():
        busy = ", ".join(f"{part} {share:4.0%}" for part, share in found["busy"].items())
        print(
            f"  {name:10} {statistics.median(found['seconds']):8.3f} s  predicted "
            f"{found['predicted_seconds']:8.3f}  {found['workers']:2} workers, {found['split']:4.0%} on "
            f"the CPU{', look-ahead' * found['lookahead']};  busy: {busy}"
        )
    print(
        f"  braided is {row['speedup_over_best_other']:.2f} times as fast as the best other "
        f"({row['best_other']}) {row['problem']}",
        flush=True,
    )


def make_graph(options: argparse.Namespace) -> Graph:
    """A graph with skewed degrees, random labels and features of the asked dtype."""
    graph = skewed_graph(options.nodes, options.edges, options.features)
    assert isinstance(graph.x, torch.Tensor)
    labels = torch.randint(0, NUM_CLASSES, (options.nodes,), generator=torch.Generator().manual_seed(0))
    return graph.replace(x=graph.x.to(DTYPES[options.dtype]), y=labels)


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Run the benchmark."""
    parser = parser_of(__doc__)
    add_arguments(parser)
    parser.add_argument("--nodes", type=int, default=2_000_000)
    parser.add_argument("--edges", type=int, default=50_000_000)
    parser.add_argument("--features", type=int, default=128)
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--fanouts", type=int, nargs="+", default=[15, 10, 5])
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--cores", type=int, nargs="+", default=[2, 4, 8, 12, 16])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--hot-bytes", type=int, help="device memory for graph and features")
    options = parser.parse_args(argv)
    if options.smoke:
        options.nodes, options.edges, options.features, options.hidden = 2_000, 16_000, 8, 8
        options.fanouts, options.batch_size, options.steps, options.repeats = [4, 3], 16, 10, 1
    elif not torch.cuda.is_available():
        sys.exit("there is no CUDA device here; --smoke runs the same on the emulated accelerator")
    started, machine = time.perf_counter(), Machine(options.smoke)
    graph = make_graph(options)
    print(f"{graph}: made in {time.perf_counter() - started:.0f} s", flush=True)
    training = Training(graph, options.hidden, len(options.fanouts), machine.place)
    rows, left_out = [], []
    with NeighborLoader(
        graph,
        options.fanouts,
        "train",
        batch_size=options.batch_size,
        shuffle=True,
        layout="blocks",
        return_edge_id=False,
        seed=0,
        device=machine.device,
        hot_bytes=options.hot_bytes,
    ) as loader:
        for cores in options.cores:
            if cores > machine.num_cores or time.perf_counter() - started > options.budget:
                left_out.append(cores)
                continue
            machine.cap(cores)
            try:
                rows.append(compare(loader, training, cores, options))
            finally:
                machine.uncap()
            show(rows[-1])
    if left_out:
        print(f"left out, for want of cores or time: {', '.join(map(str, left_out))} cores")
    names = ("nodes", "edges", "features", "dtype", "fanouts", "batch_size", "hidden", "steps", "hot_bytes")
    setting = {
        "gpu": software(machine.place),
        "config": {name: getattr(options, name) for name in names},
    }
    named = {f"{row['cores']} cores": {**setting, **row} for row in rows}
    name = f"gpu_collective{'_smoke' * options.smoke}"
    print("wrote", write_rows(name, named, repeats=options.repeats, out=options.out))
    return {"rows": rows, "left_out": left_out}


if __name__ == "__main__":
    sys.exit(1 if any(row["problem"] for row in main()["rows"]) else 0)
