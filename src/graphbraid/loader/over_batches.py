"""OverBatches: what a loader passes on of the BatchLoader that it is a face of."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from graphbraid.collective.plan.plan import Plan
from graphbraid.collective.run.executor import Executor
from graphbraid.collective.run.stages import Context
from graphbraid.graph import Graph
from graphbraid.loader.batches import BatchLoader
from graphbraid.sampling.schedule import SeedSchedule


class OverBatches:
    """A loader whose batches are a :class:`BatchLoader`'s."""

    _batches: BatchLoader

    @property
    def graph(self) -> Graph:
        """The graph that batches are cut from."""
        return self._batches.graph

    @property
    def schedule(self) -> SeedSchedule:
        """Which seeds a step has."""
        return self._batches.schedule

    @property
    def plan(self) -> Plan | None:
        """The plan in force, once there is one."""
        return self._batches.plan

    @property
    def executor(self) -> Executor | None:
        """What ran the latest planned iteration: its timeline in ``ops``, its messages in ``events``."""
        return self._batches.executor

    def context(self, workers: int) -> Context:
        """What :mod:`graphbraid.collective` makes this loader's operators from."""
        return self._batches.context(workers)

    @property
    def stage_seconds(self) -> dict[str, float]:
        """Seconds in ``sample`` and ``gather``, summed over threads, and the number of ``batches``.

        Counted from the last :meth:`reset_stage_seconds`.
        """
        return self._batches.stage_seconds

    def reset_stage_seconds(self) -> None:
        """Start :attr:`stage_seconds` anew."""
        self._batches.reset_stage_seconds()

    def close(self) -> None:
        """Stop the threads and end open iterators; batches stay valid.

        A later iteration starts threads again.
        """
        self._batches.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
