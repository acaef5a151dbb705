"""Part of ``benchmarks.planning.executor``: the CPU's speed falls in the middle of an epoch, by a real load.

Batches of route 0 are really sampled and gathered, by a thread per core. The device is emulated, as fast as
makes both routes worth taking; what it prepares was made before, since it has no cores here. In the middle of
the epoch a busy process per core starts. The adapted epoch is compared with one whose second half follows a
plan that was made from a profile of the loaded machine.
"""

from __future__ import annotations

import dataclasses
import hashlib
import multiprocessing
import os
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from benchmarks.common.emulated import EmulatedAccelerator
from graphbraid.collective.hardware.cpu import CpuBatching
from graphbraid.collective.plan.plan import Plan
from graphbraid.collective.plan.scheduler import make_plan
from graphbraid.collective.plan.times import Duration, Profile, StageTimes
from graphbraid.collective.run.executor import Executor
from graphbraid.collective.run.operators import Operators
from graphbraid.collective.run.profiler import Effort, measure
from graphbraid.collective.run.replanner import Replanning
from graphbraid.collective.run.stages import Context, find, register
from graphbraid.graph import Graph
from graphbraid.sampling import SamplerConfig, SeedSchedule
from graphbraid.sampling.minibatch.mini_batch import BatchSource

HARDWARE = "emulated-apart"
EFFORT = Effort(warm_up=4, samples=30, seconds=12.0)


class Hogs:
    """A busy process per core, of our own priority; they wait until they are let loose."""

    def __init__(self, count: int) -> None:
        how = multiprocessing.get_context("spawn")
        self._loose, ready = how.Event(), how.Barrier(count + 1)
        arguments = (self._loose, ready)
        self._processes = [how.Process(target=_burn, args=arguments, daemon=True) for _ in range(count)]
        for process in self._processes:
            process.start()
        ready.wait(60.0)

    def let_loose(self) -> None:
        """Begin to take time."""
        self._loose.set()

    def rest(self) -> None:
        """Take none."""
        self._loose.clear()

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.terminate()
            process.join()


def _burn(loose: Any, ready: Any) -> None:
    ready.wait()
    while loose.wait():
        for _ in range(200_000):
            pass


@contextmanager
def hogs(count: int) -> Iterator[Hogs]:
    """The processes, ended at the end."""
    found = Hogs(count)
    try:
        yield found
    finally:
        found.close()


class Made(NamedTuple):
    """The part of a batch that is looked at."""

    step: int
    n_id: torch.Tensor


@register("batching", HARDWARE)
class PreparedBatching:
    """The device's own batches, made beforehand: they cost ``T_uva`` and none of the CPU's time."""

    def __init__(self, context: Context) -> None:
        device = context.device
        assert isinstance(device, Apart)
        self._device = device
        if not device.made:
            make = CpuBatching(dataclasses.replace(context, workers=2))
            device.made.extend(Made(step, make(0, step).n_id) for step in range(context.schedule.num_steps))

    def __call__(self, epoch: int, step: int) -> Made:
        device = self._device
        with device.link, device.compute, device.taking("uva"):
            batch = device.made[step]
            device.take_memory(batch)  # type: ignore[arg-type]
        return batch


for _stage in ("transfer", "model"):
    register(_stage, HARDWARE)(find(_stage, "emulated"))  # type: ignore[arg-type]


class Apart(EmulatedAccelerator):
    """A device beside real cores."""

    hardware = HARDWARE

    def __init__(self, times: StageTimes) -> None:
        super().__init__(times, emulate_cpu=False)
        self.made: list[Made] = []


class LoadRunner:
    """Runs the epoch, whole or from its middle on."""

    def __init__(self, graph: Graph, num_steps: int, workers: int) -> None:
        self._num_steps, self._workers = num_steps, workers
        batch_size = 8192
        self._context = Context(
            source=BatchSource(graph=graph),
            sampler=SamplerConfig(fanouts=(25, 25)),
            schedule=SeedSchedule(
                seeds=torch.arange(num_steps * batch_size) % graph.num_nodes,
                batch_size=batch_size,
                shuffle=True,
            ),
            device=torch.device("cpu"),
            workers=workers,
        )
        cpu = measure(self._context, [workers], effort=EFFORT).times[0].cpu
        self.device = Apart(balanced(cpu, workers))
        self._context = dataclasses.replace(self._context, device=self.device)
        self._operators = Operators.of(self._context)
        self._digests: dict[int, str] = {}

    def plan(self, num_batches: int) -> Plan:
        """A plan for the machine as it is now: the CPU's time is measured, the device's are given."""
        on_cpu = dataclasses.replace(self._context, device=torch.device("cpu"))
        cpu = measure(on_cpu, [self._workers], effort=EFFORT).times[0].cpu
        times = dataclasses.replace(self.device.times, cpu=cpu)
        return make_plan(Profile(times=(times,)), num_batches)

    def run(self, plan: Plan, *, start: int = 0, busy: Hogs | None, replan: bool = False) -> dict[str, Any]:
        """Seconds of steps from ``start`` on; ``busy`` are let loose at the epoch's middle."""
        half = self._num_steps // 2
        executor = Executor(
            self._operators,
            dataclasses.replace(
                plan, num_batches=self._num_steps, num_cpu=round(plan.split * self._num_steps)
            ),
            num_steps=self._num_steps,
            start=start,
            replanning=Replanning() if replan else None,
        )
        if busy is not None and start >= half:
            busy.let_loose()
        for batch in executor:
            if busy is not None and batch.step == half:
                busy.let_loose()
            digest = hashlib.sha256(batch.n_id.numpy().tobytes()).hexdigest()
            if self._digests.setdefault(batch.step, digest) != digest:
                raise SystemExit(f"two plans gave different batches at step {batch.step}")
        if busy is not None:
            busy.rest()
        ends = {op.step: op.end for op in executor.ops if op.stage == "model"}
        first = ends[half - 1] if start < half else 0.0
        return {"first_half": first, "second_half": max(ends.values()) - first, "events": executor.events}


def balanced(cpu: Duration, workers: int) -> StageTimes:
    """A device to which half of the batches go while the CPU is not disturbed."""
    each = cpu.seconds / workers
    return StageTimes(
        workers=workers,
        cpu=cpu,
        dma=Duration(seconds=0.1 * each),
        gpu=Duration(seconds=0.3 * each),
        uva=Duration(seconds=0.6 * each),
        model=Duration(seconds=0.2 * each),
    )


def real_load(graph: Graph, num_steps: int, repeats: int) -> dict[str, Any]:
    """The adapted epoch beside one that knew, and one that kept its plan; medians over repeats in turn."""
    cores = len(os.sched_getaffinity(0))
    runner = LoadRunner(graph, num_steps, cores)
    half = num_steps // 2
    with hogs(cores) as busy:
        quiet = runner.plan(num_steps)
        busy.let_loose()
        loaded = runner.plan(num_steps - half)
        busy.rest()
        runs: dict[str, list[dict[str, Any]]] = {"adapted": [], "kept": [], "knew": []}
        for _ in range(repeats):
            runs["adapted"].append(runner.run(quiet, busy=busy, replan=True))
            runs["knew"].append(runner.run(loaded, start=half, busy=busy))
            runs["kept"].append(runner.run(quiet, busy=busy))
    whole = {
        name: statistics.median(run["first_half"] + run["second_half"] for run in runs[name])
        for name in ("adapted", "kept")
    }
    second = {name: statistics.median(run["second_half"] for run in found) for name, found in runs.items()}
    first = statistics.median(run["first_half"] for run in runs["kept"])  # under the plan that all have there
    seconds = {**whole, "knew": first + second["knew"]}
    found = {
        "steps": num_steps,
        "workers": cores,
        "cpu_seconds_quiet": quiet.times.cpu.seconds,
        "cpu_seconds_loaded": loaded.times.cpu.seconds,
        "split_quiet": quiet.split,
        "split_loaded": loaded.split,
        "seconds": seconds,
        "second_half_seconds": second,
        "adapted_over_knew": seconds["adapted"] / seconds["knew"],
        "kept_over_knew": seconds["kept"] / seconds["knew"],
        "adapted_over_knew_second_half": second["adapted"] / second["knew"],
        "runs": runs,
        "batches_equal": True,
    }
    print(
        f"real load: T_cpu {1e3 * quiet.times.cpu.seconds:.1f} to {1e3 * loaded.times.cpu.seconds:.1f} ms, "
        f"split {quiet.split:.2f} to {loaded.split:.2f}; adapted {found['adapted_over_knew']:.3f}, kept "
        f"{found['kept_over_knew']:.3f} times an epoch that knew"
    )
    return found
