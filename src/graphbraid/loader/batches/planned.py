"""PlannedBatches: a loader's batches prepared according to a plan, which is made at the first iteration."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Generator

from graphbraid.collective.plan.plan import Plan
from graphbraid.collective.plan.scheduler import Limits, fixed_plan, make_plan
from graphbraid.collective.run.executor import Executor
from graphbraid.collective.run.operators import Operators
from graphbraid.collective.run.profiler import measure
from graphbraid.collective.run.replanner import Replanning
from graphbraid.collective.run.stages import Context
from graphbraid.errors import ConfigError
from graphbraid.loader.batches.settings import LoaderSettings
from graphbraid.sampling.minibatch.mini_batch import MiniBatch
from graphbraid.sampling.subgraph import DIRECTIONAL


class PlannedBatches:
    """The epochs of one loader, run according to a plan.

    Args:
        plan: the plan, or the name of one to make: ``auto``, ``cpu`` or ``gpu``.
        workers: number of threads that prepare batches while stages are measured for the plan.
    """

    def __init__(self, plan: Plan | str, workers: int) -> None:
        self.plan: Plan | None = plan if isinstance(plan, Plan) else None
        """Plan in force; None before there is one."""
        self.executor: Executor | None = None
        """Executor of the latest iteration."""
        self.operators: Operators | None = None
        """Operators of the loader; None before the first iteration."""
        self._name = plan if isinstance(plan, str) else None
        self._workers = workers

    def batches(self, context: Context, epoch: int, start: int, stop: int) -> Generator[MiniBatch]:
        """Yield the batches of steps ``[start, stop)`` of an epoch in order.

        Args:
            context: context that operators are made from, for any number of workers.
            epoch: index of the epoch.
            start: first step.
            stop: step to stop before.
        """
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

    def forget_operators(self) -> None:
        """Drop the operators, so that the next iteration makes new ones."""
        self.operators = None

    def _make_plan(self, context: Context, num_steps: int) -> Plan:
        """Make a plan from what can be measured without the model, whose time the first steps show."""
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


def planned_for(settings: LoaderSettings, *, has_hot_rows: bool, has_seeds: bool) -> PlannedBatches | None:
    """Return what prepares a loader's batches by a plan; None if it has none.

    Args:
        settings: the loader's; its plan is one that was read, or the name of one.
        has_hot_rows: whether a device keeps rows, which the copies of a plan leave out.
        has_seeds: whether batches start from more than plain nodes.

    Raises:
        ConfigError: there are no plans for such batches.
    """
    plan = settings.plan or ("cpu" if has_hot_rows else None)
    if plan is None:
        return None
    if has_seeds:
        raise ConfigError("plans are made for plain nodes: leave out plan=, and hot rows of tiers=")
    if settings.subgraph_type != DIRECTIONAL:
        raise ConfigError(
            f"plans are made for the edges that are drawn: leave out plan=, hot rows of tiers= and "
            f"accelerators, or subgraph_type={settings.subgraph_type!r}"
        )
    assert isinstance(plan, Plan | str), "a file was read"
    return PlannedBatches(plan, settings.num_workers)
