"""PlannedBatches: the epochs of one loader by a plan; CoreSharing: the cores of its threads and the model."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import torch

from graphbraid.collective.plan.plan import Plan
from graphbraid.collective.plan.scheduler import REFILL, Limits, fixed_plan, make_plan
from graphbraid.collective.plan.times import Arrangement
from graphbraid.collective.run.executor import Executor
from graphbraid.collective.run.operators import Operators
from graphbraid.collective.run.profiler import measure
from graphbraid.collective.run.replanner import Replanning
from graphbraid.collective.run.stages import Context
from graphbraid.errors import ConfigError
from graphbraid.sampling.config import DIRECTIONAL
from graphbraid.sampling.minibatch.mini_batch import MiniBatch

if TYPE_CHECKING:
    from graphbraid.loader.batch_loader import BatchLoader, LoaderSettings


class PlannedBatches:
    """The epochs of one loader, run by a plan or one to make: ``auto``, ``cpu`` or ``gpu``.

    ``has_inputs`` is whether batches start from more than plain nodes, such as links.
    ConfigError: the loader's batches cannot be planned.
    """

    def __init__(self, plan: Any, settings: LoaderSettings, *, has_inputs: bool) -> None:
        if has_inputs:
            raise ConfigError("plans are made for plain nodes: leave out plan=, and hot rows of tiers=")
        if settings.subgraph_type != DIRECTIONAL:
            raise ConfigError(
                f"plans are made for the edges that are drawn: leave out plan=, hot rows of tiers= and "
                f"accelerators, or subgraph_type={settings.subgraph_type!r}"
            )
        assert isinstance(plan, Plan | str), "a file was read"
        self.plan: Plan | None = plan if isinstance(plan, Plan) else None
        """Plan in force; None before there is one."""
        self.executor: Executor | None = None
        """Executor of the latest iteration."""
        self.operators: Operators | None = None
        """Operators of the loader; None before the first iteration."""
        self._name = plan if isinstance(plan, str) else None
        self._workers = settings.num_workers

    def batches(self, context: Context, epoch: int, start: int, stop: int) -> Generator[MiniBatch]:
        """Yield the batches of steps ``[start, stop)`` of an epoch; the context's workers do not count."""
        num_steps = context.schedule.num_steps
        plan = self.plan = self.plan or self._make_plan(context, num_steps)
        if self.operators is None:
            planned = dataclasses.replace(context, workers=plan.workers, lookahead=plan.times.lookahead)
            self.operators = Operators.of(planned)
        keeps = self._name in ("cpu", "gpu")  # requested by name, so never replaced
        executor = self.executor = Executor(
            self.operators,
            plan,
            num_steps=num_steps,
            epoch=epoch,
            start=start,
            stop=stop,
            replanning=None if keeps else Replanning(),
        )
        try:
            with contextlib.closing(iter(executor)) as batches:
                yield from batches
        finally:
            self.plan = executor.plan

    def _make_plan(self, context: Context, num_steps: int) -> Plan:
        """Make a plan from stages measured without the model; the first steps show the model's time."""
        profile = measure(context, [self._workers])
        limits = Limits(most_cbs=max(64, 2 * self._workers))
        if self._name == "auto":
            return make_plan(profile, num_steps, limits)
        if self._name == "gpu" and profile.times[0].uva is None:
            raise ConfigError(
                f"plan='gpu' needs a device that prepares batches; {context.device} does not. "
                "A CUDA device does where triton is installed"
            )
        return fixed_plan(profile, num_steps, 1.0 if self._name == "cpu" else 0.0, limits)


class CoreSharing:
    """A setter of the number of the model's threads before each mini-batch, according to an arrangement.

    The loader's threads are set up by it, too, to prepare up to ``ahead`` batches ahead.
    """

    def __init__(self, loader: BatchLoader, cores: Arrangement, ahead: int) -> None:
        self._loader, self._cores = loader, cores
        loader.work_in_turns(cores.workers, ahead, REFILL if cores.turns else None)

    def before_batch(self) -> None:
        """Give the model the cores on which no sampling thread is busy."""
        threads = self._cores.threads
        if self._cores.turns:
            threads = max(1, threads - self._loader.busy_threads)
        if threads != torch.get_num_threads():
            torch.set_num_threads(threads)

    def after_epoch(self) -> None:
        """Give the model all its threads, as no batches are being prepared."""
        torch.set_num_threads(self._cores.threads)
