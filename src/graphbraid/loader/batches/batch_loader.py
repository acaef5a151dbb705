"""BatchLoader: mini-batches of a graph, prepared ahead by threads or by a device; Trainer iterates it."""

from __future__ import annotations

import inspect
import time
import weakref
from collections.abc import Generator, Iterable, Iterator
from functools import partial
from types import TracebackType
from typing import Self

import torch
from torch import Tensor

from graphbraid.collective.plan.plan import Plan
from graphbraid.collective.run.executor import Executor
from graphbraid.collective.run.stages import Context
from graphbraid.errors import ConfigError
from graphbraid.graph import Graph
from graphbraid.loader.batches.ahead import GatherAhead
from graphbraid.loader.batches.by_position import batches_at
from graphbraid.loader.batches.planned import PlannedBatches, planned_for
from graphbraid.loader.batches.settings import LoaderSettings
from graphbraid.loader.batches.sources import completed
from graphbraid.sampling.batch_seeds import BatchSeeds, SeedSource
from graphbraid.sampling.cpu import HostPipeline, make_pipeline
from graphbraid.sampling.minibatch.mini_batch import MiniBatch
from graphbraid.sampling.sample import PreparedBatch
from graphbraid.sampling.schedule import as_epoch
from graphbraid.sampling.source import BatchSource
from graphbraid.sampling.subgraph import DIRECTIONAL, with_edges


class BatchLoader:
    """A loader of mini-batches of sampled neighbours, prepared ahead by persistent threads.

    A batch is a pure function of (graph, arguments, ``seed``, epoch, step): it has the same bits for any
    number of threads, in any order and in any process, and :meth:`batches` can start an epoch at any step.
    :class:`graphbraid.loader.NeighborLoader` gives it the interface of PyG's and torch's loaders.

    Args:
        source: the graph, or the graph and attributes that batches are read from.
        settings: options of the batches, their preparation and their device.
        seeds: inputs that are more than nodes. If None, the nodes of ``settings.input_nodes``.

    Raises:
        ConfigError: seeds are outside the graph, or settings exclude each other.
        DataError: a split is empty.
    """

    def __init__(
        self, source: BatchSource | Graph, settings: LoaderSettings, seeds: SeedSource | None = None
    ) -> None:
        source = BatchSource(graph=source) if isinstance(source, Graph) else source
        self.graph, self.settings = source.graph, settings
        self.config, self._seeds = settings.sampler(source.graph), seeds
        self.schedule = settings.schedule(source.graph, None if seeds is None else seeds.num_inputs)
        self.device = settings.batch_device
        self.num_workers, self._depth = settings.num_workers, settings.depth
        self._refill = settings.refill
        self._source = completed(source, src_degree=settings.src_degree)
        self._planned: PlannedBatches | None = planned_for(
            settings, has_hot_rows=self._has_hot_rows(), has_seeds=seeds is not None
        )
        self._pipeline: HostPipeline | None = None
        self._before: dict[str, float] = {}
        self._gather_seconds = 0.0  # of rows that no pipeline gathers
        self._open: weakref.WeakSet[Generator[MiniBatch]] = weakref.WeakSet()

    @property
    def starts_from_inputs(self) -> bool:
        """Whether batches start from more than plain nodes, such as links."""
        return self._seeds is not None

    @property
    def plan(self) -> Plan | None:
        """Plan in force; None before there is one."""
        return None if self._planned is None else self._planned.plan

    @property
    def executor(self) -> Executor | None:
        """Executor of the latest planned iteration; ``ops`` is its timeline, ``events`` its messages."""
        return None if self._planned is None else self._planned.executor

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return self.schedule.num_steps

    def batches(self, epoch: int, start_step: int = 0, stop_step: int | None = None) -> Generator[MiniBatch]:
        """Yield the batches of steps ``[start_step, stop_step)`` of an epoch in order.

        Every call with the same epoch and steps yields the same batches.

        Raises:
            ConfigError: the steps are outside the epoch.
        """
        last = len(self) if stop_step is None else stop_step
        epoch = as_epoch(epoch)
        if not 0 <= start_step <= last <= len(self):
            raise ConfigError(f"an epoch has steps in [0, {len(self)}]; got steps {start_step} to {last}")
        return self._opened(self._iterate(epoch, start_step, last))

    def batches_of(
        self, positions: Iterable[Tensor], epoch: int, first_step: int = 0
    ) -> Generator[MiniBatch]:
        """Yield a batch for each list of positions in the seeds, prepared ahead as far as these can be read.

        The n-th batch draws as step ``first_step + n`` of the epoch does, so the positions of an epoch's
        steps yield its batches.

        Raises:
            ConfigError: the loader follows a plan, whose steps are those of the schedule.
        """
        if self._planned is not None:
            raise ConfigError(
                "a plan is made for the loader's own order of seeds: leave out plan=, or the sampler and the "
                "calls with ids"
            )
        return self._opened(self._iterate_positions(positions, as_epoch(epoch), first_step))

    def _opened(self, iterator: Generator[MiniBatch]) -> Generator[MiniBatch]:
        self._check_tiers()
        self._open.add(iterator)
        return iterator

    def _check_tiers(self) -> None:
        self._source.check_tiers()

    def _iterate_positions(
        self, positions: Iterable[Tensor], epoch: int, first_step: int
    ) -> Generator[MiniBatch]:
        yield from batches_at(
            positions,
            self._running(),
            self.schedule,
            self._seeds,
            epoch=epoch,
            first_step=first_step,
            depth=self._depth,
            finish=partial(self._finished, self._source, epoch),
        )

    def _finished(
        self,
        source: BatchSource,
        epoch: int,
        positions: Tensor,
        seeds: BatchSeeds,
        batch: Iterator[PreparedBatch],
    ) -> MiniBatch:
        prepared = next(batch)._replace(input_id=positions)
        if source.rows is not None and self.settings.gather:
            started = time.perf_counter()
            prepared = prepared._replace(x=source.rows.gather(prepared.sampled.n_id))
            self._count_gather(time.perf_counter() - started)
        return self._as_batch(source, prepared, epoch, seeds)

    def _as_batch(
        self, source: BatchSource, prepared: PreparedBatch, epoch: int, seeds: BatchSeeds | None = None
    ) -> MiniBatch:
        if self.settings.subgraph_type != DIRECTIONAL:
            times = None if self._seeds is None else self._seeds.edge_times
            keeping = None if seeds is None else seeds.constraints
            kind = self.settings.subgraph_type
            made = with_edges(prepared.sampled, kind, source.graph.csc, keeping, times)
            prepared = prepared._replace(sampled=made)
        batch = MiniBatch(source, prepared, layout=self.config.layout, epoch=epoch)
        more = {} if seeds is None else seeds.attributes_of(prepared.sampled)
        for name, value in more.items():
            setattr(batch, name, value)
        return batch.to(self.device) if isinstance(self.device, torch.device) else batch

    def _iterate(self, epoch: int, start_step: int, last: int) -> Generator[MiniBatch]:
        if self._planned is not None:
            yield from self._planned.batches(self.context(self.num_workers), epoch, start_step, last)
            return
        if self._seeds is not None:
            steps = (self.schedule.positions_of(epoch, step) for step in range(start_step, last))
            yield from self._iterate_positions(steps, epoch, start_step)
            return
        source = self._source
        batches = self._running().run(self.schedule, epoch, start_step, last)
        for prepared in self._with_rows(source, batches):
            batch = self._as_batch(source, prepared, epoch)
            del prepared  # so that its buffer can be reused before the next batch
            yield batch
            del batch

    def _with_rows(self, source: BatchSource, prepared: Iterator[PreparedBatch]) -> Iterator[PreparedBatch]:
        """The same batches, with their rows where these are not the pipeline's to gather."""
        if source.rows is None or not self.settings.gather:
            return prepared
        return GatherAhead(prepared, source.rows, self._depth, self._count_gather).batches()

    def _count_gather(self, seconds: float) -> None:
        self._gather_seconds += seconds

    def context(self, workers: int) -> Context:
        """Return the context that :mod:`graphbraid.collective` makes this loader's operators from."""
        return Context(
            source=self._source,
            sampler=self.config,
            schedule=self.schedule,
            device=self.device,
            workers=workers,
            gather=self.settings.gather,
            hot_bytes=self.settings.hot_bytes,
        )

    def read(self, source: BatchSource, seeds: SeedSource | None = None) -> None:
        """Read batches from another source with the same nodes and inputs, from the next iteration on."""
        self._seeds, self.graph = seeds, source.graph
        self._source = completed(source, src_degree=self.settings.src_degree)
        self._forget_threads()  # open iterators keep their own

    def _has_hot_rows(self) -> bool:
        """Whether batches go to a device that keeps some of their rows."""
        rows = self._source.rows
        on_host = isinstance(self.device, torch.device) and self.device.type == "cpu"
        return rows is not None and rows.hot is not None and not on_host

    def work_in_turns(self, workers: int, depth: int, refill: int | None) -> None:
        """Let ``workers`` threads prepare up to ``depth`` batches ahead from the next iteration on.

        They then rest until only ``refill`` batches are left, by default a third; see :attr:`busy_threads`.
        """
        self.close()
        self.num_workers, self._depth, self._refill = workers, depth, depth // 3 if refill is None else refill

    @property
    def ahead(self) -> int:
        """Largest number of batches that the threads prepare ahead."""
        return self._depth

    @property
    def busy_threads(self) -> int:
        """Number of threads that are preparing batches or are about to; the cores of the others are free."""
        return 0 if self._pipeline is None else self._pipeline.busy_threads()

    @property
    def stage_seconds(self) -> dict[str, float]:
        """Seconds in ``sample`` and ``gather``, summed over threads, and the number of ``batches``.

        Counted since the last :meth:`reset_stage_seconds`.
        """
        now = self._counted_seconds()
        return {stage: seconds - self._before.get(stage, 0.0) for stage, seconds in now.items()}

    def explain(self) -> str:
        """Say what a device that samples holds, and what it reads; empty without one, and before it does."""
        operators = None if self._planned is None else self._planned.operators
        return "" if operators is None else operators.explain()

    def reset_stage_seconds(self) -> None:
        """Reset :attr:`stage_seconds` to zero."""
        self._before = self._counted_seconds()

    def _counted_seconds(self) -> dict[str, float]:
        counts = [self._pipeline, None if self._planned is None else self._planned.operators]
        found = [count.stage_seconds() for count in counts if count is not None]
        seconds = {name: sum(part[name] for part in found) for name in ("sample", "gather", "batches")}
        return seconds | {"gather": seconds["gather"] + self._gather_seconds}

    @property
    def is_iterated(self) -> bool:
        """Whether an iteration is in progress."""
        return any(inspect.getgeneratorstate(i) == inspect.GEN_SUSPENDED for i in self._open)

    def close(self) -> None:
        """Stop the threads and end open iterators; batches remain valid.

        A later iteration starts the threads again.
        """
        for iterator in list(self._open):
            iterator.close()
        self._forget_threads()

    def _forget_threads(self) -> None:
        self._pipeline, self._before, self._gather_seconds = None, {}, 0.0
        if self._planned is not None:
            self._planned.forget_operators()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _running(self) -> HostPipeline:
        if self._pipeline is None:
            x = self.graph.x
            can_gather = self.settings.gather and isinstance(x, Tensor) and x.ndim == 2 and x.is_contiguous()
            can_gather = can_gather and self._source.rows is None
            self._pipeline = make_pipeline(
                self.graph.csc,
                self.config,
                x if can_gather and isinstance(x, Tensor) else None,
                num_threads=self.num_workers,
                depth=self._depth,
                refill=self._refill,
                lists=self._source.lists,
                edge_times=None if self._seeds is None else self._seeds.edge_times,
            )
        return self._pipeline
