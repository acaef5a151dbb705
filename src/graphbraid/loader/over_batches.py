"""OverBatches: base class of loaders that delegate to a BatchLoader."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from graphbraid.collective.plan.plan import Plan
from graphbraid.collective.run.executor import Executor
from graphbraid.collective.run.stages import Context
from graphbraid.graph import Graph
from graphbraid.loader.batches.batch_loader import BatchLoader
from graphbraid.sampling.schedule import SeedSchedule


class OverBatches:
    """A loader whose batches come from a :class:`BatchLoader`."""

    _batches: BatchLoader

    @property
    def graph(self) -> Graph:
        """Graph that batches are sampled from."""
        return self._batches.graph

    @property
    def schedule(self) -> SeedSchedule:
        """Schedule of the seeds of each step."""
        return self._batches.schedule

    @property
    def plan(self) -> Plan | None:
        """Plan in force; None before there is one."""
        return self._batches.plan

    @property
    def executor(self) -> Executor | None:
        """Executor of the latest planned iteration; ``ops`` is its timeline, ``events`` its messages."""
        return self._batches.executor

    def context(self, workers: int) -> Context:
        """Return the context that :mod:`graphbraid.collective` makes this loader's operators from."""
        return self._batches.context(workers)

    @property
    def stage_seconds(self) -> dict[str, float]:
        """Seconds in ``sample`` and ``gather``, summed over threads, and the number of ``batches``.

        Counted since the last :meth:`reset_stage_seconds`.
        """
        return self._batches.stage_seconds

    def reset_stage_seconds(self) -> None:
        """Reset :attr:`stage_seconds` to zero."""
        self._batches.reset_stage_seconds()

    def close(self) -> None:
        """Stop the threads and end open iterators; batches remain valid.

        A later iteration starts the threads again.
        """
        self._batches.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
