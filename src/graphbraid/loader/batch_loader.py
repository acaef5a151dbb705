"""BatchLoader: mini-batches of a graph, prepared ahead by threads or by a device; Trainer iterates it."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import time
import weakref
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from typing import Any, Self

import torch
from torch import Tensor

from graphbraid.collective.plan.plan import Plan
from graphbraid.collective.plan.scheduler import Limits, fixed_plan, make_plan
from graphbraid.collective.run.executor import Executor
from graphbraid.collective.run.operators import Operators
from graphbraid.collective.run.profiler import measure
from graphbraid.collective.run.replanner import Replanning
from graphbraid.collective.run.stages import Context
from graphbraid.errors import ConfigError
from graphbraid.graph import EdgeType, Graph
from graphbraid.graph.types import ONLY_NODE_TYPE
from graphbraid.loader.gather_ahead import GatherAhead
from graphbraid.loader.options import LoaderSettings
from graphbraid.loader.sources import as_seeds, completed
from graphbraid.sampling.batch_seeds import SeedSource, begin_batch
from graphbraid.sampling.config import DIRECTIONAL, as_epoch
from graphbraid.sampling.cpu import HostPipeline, make_pipeline
from graphbraid.sampling.minibatch.mini_batch import MiniBatch
from graphbraid.sampling.sample import PreparedBatch
from graphbraid.sampling.source import BatchSource
from graphbraid.sampling.subgraph import with_edges


class BatchLoader:
    """A loader of mini-batches of sampled neighbours, prepared ahead by persistent threads.

    A batch is a pure function of (graph, arguments, ``seed``, epoch, step): it has the same bits for any
    number of threads, in any order and in any process, and :meth:`batches` can start an epoch at any step.
    :class:`graphbraid.loader.NeighborLoader` gives it the interface of PyG's and torch's loaders.

    Args:
        source: the graph, or the graph and attributes that batches are read from.
        settings: options of the batches, their preparation and their device.
        seeds: inputs such as links, whose seeds are ids in the whole graph. If None, the nodes of
            ``settings.input_nodes``.
        input_type: node type of ``seeds``, or the relation of links, where the graph has types.

    Raises:
        ConfigError: seeds are outside the graph, or settings exclude each other.
        DataError: a split is empty.
    """

    def __init__(
        self,
        source: BatchSource | Graph,
        settings: LoaderSettings,
        seeds: SeedSource | None = None,
        input_type: str | EdgeType | None = None,
    ) -> None:
        if isinstance(source, Graph):
            source = BatchSource(graph=source)
        graph = self.graph = source.graph
        if source.pipeline is None:
            graph.check_whole("a loader")
        elif settings.subgraph_type != DIRECTIONAL:
            raise ConfigError(
                f"subgraph_type={settings.subgraph_type!r} reads lists of nodes that other ranks own; "
                f"batches of a graph divided among ranks need subgraph_type={DIRECTIONAL!r}"
            )
        self.settings, self._seeds = settings, seeds
        if seeds is None:
            found = as_seeds(settings.input_nodes, graph)
            inputs, input_type = found.ids, found.node_type
        else:
            inputs = torch.arange(seeds.num_inputs)
        self.input_type: str | EdgeType = ONLY_NODE_TYPE if input_type is None else input_type
        self.config = settings.sampler_config(graph)
        self.schedule = settings.schedule(inputs)
        self.device = settings.batch_device
        self.num_workers, self._depth = settings.num_workers, settings.depth
        self._refill = settings.refill
        self._source = self._completed(source)
        self._planned = self._planned_batches()
        self._pipeline: HostPipeline | None = None
        self._before: dict[str, float] = {}
        self._gather_seconds = 0.0  # of rows that no pipeline gathers
        self._open: weakref.WeakSet[Generator[MiniBatch]] = weakref.WeakSet()

    def _completed(self, source: BatchSource) -> BatchSource:
        takes_all = all(fanout < 0 for fanout in self.config.fanouts)
        return completed(source, src_degree=self.settings.src_degree, takes_all=takes_all)

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

    def batches(
        self, epoch: int, start_step: int = 0, stop_step: int | None = None, *, then: int = 0
    ) -> Generator[MiniBatch]:
        """Yield the batches of steps ``[start_step, stop_step)`` of an epoch in order.

        Every call with the same epoch and steps yields the same batches. Batches that ranks draw from parts
        may be followed by those of ``then`` whole epochs, whose first ones are prepared meanwhile.

        Raises:
            ConfigError: the steps are outside the epoch.
        """
        last = len(self) if stop_step is None else stop_step
        epoch = as_epoch(epoch)
        if not 0 <= start_step <= last <= len(self):
            raise ConfigError(f"an epoch has steps in [0, {len(self)}]; got steps {start_step} to {last}")
        return self._opened(self._iterate(epoch, start_step, last, then))

    def batches_of(
        self, positions: Iterable[Tensor], epoch: int, first_step: int = 0
    ) -> Generator[MiniBatch]:
        """Yield a batch for each list of positions in the seeds; lists are read and prepared ahead.

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
        self._source.check_tiers()
        self._open.add(iterator)
        return iterator

    def _iterate(self, epoch: int, start_step: int, last: int, then: int) -> Generator[MiniBatch]:
        if self._planned is not None:
            yield from self._planned.batches(self.context(self.num_workers), epoch, start_step, last)
            return
        if self._seeds is not None and self._source.pipeline is None:
            steps = (self.schedule.whole.positions_of(epoch, step) for step in range(start_step, last))
            yield from self._iterate_positions(steps, epoch, start_step)
            return
        source, left, running = self._source, last - start_step, self._running().run
        more: Any = [then] if then else []  # pipelines of ranks alone take it
        batches: Iterator[Any] = running(self.schedule, epoch, start_step, last, *more)
        if source.rows is not None and self.settings.gather:
            batches = GatherAhead(batches, source.rows, self._depth, self._count_gather).batches()
        for prepared in batches:
            if not left:
                epoch, left = epoch + 1, len(self)
            left -= 1
            batch = self._as_batch(source, prepared, epoch)
            del prepared  # so that its buffer can be reused before the next batch
            yield batch
            del batch

    def _iterate_positions(
        self, positions: Iterable[Tensor], epoch: int, first_step: int
    ) -> Generator[MiniBatch]:
        """Yield a batch for each of ``positions``; the threads prepare up to :attr:`ahead` batches ahead."""
        source, pipeline, seeds = self._source, self._running(), self._seeds
        schedule = self.schedule.whole if seeds is None else self.schedule
        begun: deque[Iterator[PreparedBatch]] = deque()
        for step, part in enumerate(positions, start=first_step):
            begun.append(begin_batch(pipeline.begin, schedule, seeds, part, epoch=epoch, step=step))
            if len(begun) > self._depth:
                yield self._finished(source, epoch, begun.popleft())
        while begun:
            yield self._finished(source, epoch, begun.popleft())

    def _finished(self, source: BatchSource, epoch: int, batch: Iterator[PreparedBatch]) -> MiniBatch:
        prepared = next(batch)
        if source.rows is not None and self.settings.gather:
            started = time.perf_counter()
            prepared = prepared._replace(x=[source.rows.gather(prepared.sampled.n_id)])
            self._count_gather(time.perf_counter() - started)
        return self._as_batch(source, prepared, epoch)

    def _as_batch(self, source: BatchSource, prepared: PreparedBatch, epoch: int) -> MiniBatch:
        kind, seeds = self.settings.subgraph_type, prepared.seeds
        if kind != DIRECTIONAL:
            times = None if self._seeds is None else self._seeds.edge_times
            keeping = None if seeds is None else seeds.constraints
            edges = with_edges(prepared.sampled, kind, source.graph, keeping, times)
            prepared = prepared._replace(sampled=edges)
        batch = MiniBatch(
            source,
            prepared,
            layout=self.config.layout,
            epoch=epoch,
            input_type=self.input_type,
        )
        return batch.to(self.device) if isinstance(self.device, torch.device) else batch

    def _count_gather(self, seconds: float) -> None:
        self._gather_seconds += seconds

    def context(self, workers: int) -> Context:
        """Return the context that :mod:`graphbraid.collective` makes this loader's operators from."""
        assert not self.graph.is_typed, "stages are those of graphs of one type"
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
        self._source = self._completed(source)
        self._forget_threads()  # open iterators keep their own

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
        """Say what a sampling device holds and reads; empty without one, and before its first batch."""
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
            self._planned.operators = None  # the next iteration makes new ones

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _running(self) -> HostPipeline:
        if self._pipeline is None:
            self._pipeline = self._new_pipeline()
        return self._pipeline

    def _new_pipeline(self) -> HostPipeline:
        source, gathers = self._source, self.settings.gather
        seed_type = self.input_type if self._seeds is None and isinstance(self.input_type, str) else None
        if source.pipeline is not None:
            return source.pipeline(
                self.config,
                gathers=gathers,
                num_threads=self.num_workers,
                seed_type=seed_type,
                seeds=self._seeds,
            )
        edge_times = None if self._seeds is None else self._seeds.edge_times
        return make_pipeline(
            self.graph,
            self.config,
            [source.gathered(one) for one in self.graph.node_types] if gathers else None,
            num_threads=self.num_workers,
            depth=self._depth,
            refill=self._refill,
            seed_type=seed_type,
            lists=source.lists,
            edge_times=edge_times,
        )

    def _planned_batches(self) -> PlannedBatches | None:
        """Return the batches of a plan; None if there is no plan."""
        settings, rows = self.settings, getattr(self._source, "rows", None)
        on_host = isinstance(self.device, torch.device) and self.device.type == "cpu"
        has_hot_rows = rows is not None and rows.hot is not None and not on_host
        plan = settings.plan or ("cpu" if has_hot_rows else None)  # copies of a plan leave hot rows out
        if plan is None:
            return None
        if self._seeds is not None:
            raise ConfigError("plans are made for plain nodes: leave out plan=, and hot rows of tiers=")
        if settings.subgraph_type != DIRECTIONAL:
            raise ConfigError(
                f"plans are made for the edges that are drawn: leave out plan=, hot rows of tiers= and "
                f"accelerators, or subgraph_type={settings.subgraph_type!r}"
            )
        assert isinstance(plan, Plan | str), "a file was read"
        return PlannedBatches(plan, settings.num_workers)


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
            context: context that operators are made from; its number of workers does not count.
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
