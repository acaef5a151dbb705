"""BatchLoader: a graph's mini-batches, prepared ahead by threads or by a device; what Trainer iterates."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import os
import weakref
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Self

import torch
from torch import Tensor

from graphbraid.arguments import MOST_THREADS, as_count
from graphbraid.collective.plan.limits import Limits
from graphbraid.collective.plan.plan import Plan
from graphbraid.collective.plan.scheduler import fixed_plan, make_plan
from graphbraid.collective.run.drift import Replanning
from graphbraid.collective.run.executor import Executor
from graphbraid.collective.run.profiler import measure
from graphbraid.collective.run.protocols import BatchDevice
from graphbraid.collective.run.stages import Context, Operators
from graphbraid.errors import ConfigError
from graphbraid.graph import Graph
from graphbraid.graph.csc import degrees_and_loops
from graphbraid.loader.inputs import as_device, as_fanouts, as_seeds
from graphbraid.loader.plans import PLANS, read_plan
from graphbraid.sampling.config import SamplerConfig
from graphbraid.sampling.cpu import HostPipeline, make_pipeline
from graphbraid.sampling.minibatch import MiniBatch
from graphbraid.sampling.sample import Prepared
from graphbraid.sampling.schedule import SeedSchedule
from graphbraid.sampling.source import BatchSource


class BatchLoader:
    """Mini-batches of sampled neighbours, prepared ahead by persistent threads.

    A batch is a pure function of (graph, arguments, ``seed``, epoch, step): the number of threads, the order
    and the process change no bit of it, and :meth:`batches` starts an epoch at any step.
    :class:`graphbraid.loader.NeighborLoader` is this with PyG's and torch's face; the arguments that both
    have are described there.

    Args:
        source: the graph, or what batches are cut from.
        num_neighbors: fanout per hop.
        input_nodes: seeds: node ids, a bool mask, the name of a split, or None for all nodes.
        batch_size: seeds per batch.
        shuffle: permute the seeds anew in each epoch.
        drop_last: leave out a last batch that is not full.
        replace: draw with replacement.
        weighted: draw by the graph's edge weights.
        layout: ``subgraph`` or ``blocks``.
        seed: of the shuffle and of every draw.
        num_workers: threads that prepare batches, at least one.
        prefetch_factor: batches prepared ahead per thread.
        return_edge_id: keep ``e_id``.
        src_degree: give blocks the graph's in-degrees.
        gather: gather dense features while sampling.
        device: where batches are given.
        plan: who prepares which batch.
        hot_bytes: device memory for graph, labels and features.

    Raises:
        ConfigError: an option that cannot be meant.
        DataError: an empty split.
    """

    def __init__(
        self,
        source: BatchSource | Graph,
        num_neighbors: Sequence[int],
        input_nodes: Tensor | str | None = None,
        *,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        replace: bool = False,
        weighted: bool = False,
        layout: str = "subgraph",
        seed: int = 0,
        num_workers: int = 0,
        prefetch_factor: int | None = None,
        return_edge_id: bool = True,
        src_degree: bool = False,
        gather: bool = True,
        device: BatchDevice | str = "cpu",
        plan: Plan | str | os.PathLike[str] | None = None,
        hot_bytes: int | None = None,
    ) -> None:
        source = BatchSource(graph=source) if isinstance(source, Graph) else source
        graph = self.graph = source.graph
        workers = as_count(num_workers, "num_workers", most=MOST_THREADS)
        if prefetch_factor is not None:
            prefetch_factor = as_count(prefetch_factor, "prefetch_factor", least=1)
        if hot_bytes is not None:
            hot_bytes = as_count(hot_bytes, "hot_bytes", most=1 << 62)
        self.config = SamplerConfig(
            fanouts=as_fanouts(num_neighbors),
            replace=replace,
            layout=layout,
            weighted=weighted,
            return_edge_id=return_edge_id or graph.csc.weight is not None,
        )
        self.schedule = SeedSchedule(
            seeds=as_seeds(input_nodes, graph),
            batch_size=batch_size,
            shuffle=shuffle,
            drop_last=drop_last,
            seed=seed,
        )
        self.num_workers = max(workers, 1)
        self._depth = self.num_workers * (prefetch_factor or 2)
        self._refill: int | None = None
        self._gather, self._hot_bytes = gather, hot_bytes
        self._src_degree = src_degree
        self._source = self._with_degrees(source)
        self.device: BatchDevice = as_device(device) if isinstance(device, str | torch.device) else device
        if plan is None and not isinstance(self.device, torch.device):
            plan = "auto"
        self.plan: Plan | None = read_plan(plan)
        """The plan in force, once there is one."""
        self.executor: Executor | None = None
        """What ran the latest planned iteration: its timeline in ``ops``, its messages in ``events``."""
        self._plan_kind = plan if isinstance(plan, str) and plan in PLANS else None
        self._operators: Operators | None = None
        self._pipeline: HostPipeline | None = None
        self._before: dict[str, float] = {}
        self._open: weakref.WeakSet[Generator[MiniBatch]] = weakref.WeakSet()

    def __len__(self) -> int:
        """Batches of an epoch."""
        return self.schedule.num_steps

    def batches(self, epoch: int, start_step: int = 0, stop_step: int | None = None) -> Generator[MiniBatch]:
        """The batches of steps ``[start_step, stop_step)`` of an epoch, in order.

        They are the same whenever they are asked for.

        Raises:
            ConfigError: steps outside the epoch.
        """
        last = len(self) if stop_step is None else stop_step
        if epoch < 0 or not 0 <= start_step <= last <= len(self):
            raise ConfigError(
                f"epoch must be >= 0 and steps in [0, {len(self)}]; "
                f"got epoch {epoch}, steps {start_step} to {last}"
            )
        return self._opened(self._iterate(epoch, start_step, last))

    def batches_of(
        self, positions: Iterable[Tensor], epoch: int, first_step: int = 0
    ) -> Generator[MiniBatch]:
        """A batch for each list of positions in the seeds, prepared ahead as these can be read.

        That of the n-th list draws as step ``first_step + n`` of the epoch does, so the positions of an
        epoch's steps give its batches.

        Raises:
            ConfigError: the loader follows a plan, whose steps are those of the schedule.
        """
        if self.plan is not None or self._plan_kind is not None:
            raise ConfigError(
                "a plan is made for the loader's own order of seeds: leave out plan=, or the sampler and the "
                "calls with ids"
            )
        return self._opened(self._iterate_positions(positions, epoch, first_step))

    def _opened(self, iterator: Generator[MiniBatch]) -> Generator[MiniBatch]:
        self._open.add(iterator)
        return iterator

    def _iterate_positions(
        self, positions: Iterable[Tensor], epoch: int, first_step: int
    ) -> Generator[MiniBatch]:
        pipeline, source, schedule = self._running(), self._source, self.schedule
        begun: deque[tuple[Tensor, Iterator[Prepared]]] = deque()
        for step, part in enumerate(positions, start=first_step):
            begun.append((part, pipeline.begin(schedule.seeds[part], schedule.seed, epoch, step)))
            if len(begun) > self._depth:
                yield self._finished(source, *begun.popleft(), epoch)
        while begun:
            yield self._finished(source, *begun.popleft(), epoch)

    def _finished(
        self, source: BatchSource, positions: Tensor, batch: Iterator[Prepared], epoch: int
    ) -> MiniBatch:
        return self._as_batch(source, next(batch)._replace(input_id=positions), epoch)

    def _as_batch(self, source: BatchSource, prepared: Prepared, epoch: int) -> MiniBatch:
        batch = MiniBatch(source, prepared, layout=self.config.layout, epoch=epoch)
        return batch.to(self.device) if isinstance(self.device, torch.device) else batch

    def _iterate(self, epoch: int, start_step: int, last: int) -> Generator[MiniBatch]:
        if self.plan is not None or self._plan_kind is not None:
            yield from self._iterate_planned(epoch, start_step, last)
            return
        source = self._source
        for prepared in self._running().run(self.schedule, epoch, start_step, last):
            batch = self._as_batch(source, prepared, epoch)
            del prepared  # a reused buffer must not wait for the next batch to be freed
            yield batch
            del batch

    def _iterate_planned(self, epoch: int, start_step: int, last: int) -> Generator[MiniBatch]:
        plan = self.plan = self.plan or self._make_plan()
        if self._operators is None:
            context = dataclasses.replace(self.context(plan.workers), lookahead=plan.times.lookahead)
            self._operators = Operators.of(context)
        keeps = self._plan_kind in ("cpu", "gpu")  # asked for by name: kept whatever it takes
        executor = self.executor = Executor(
            self._operators,
            plan,
            num_steps=len(self),
            epoch=epoch,
            start=start_step,
            stop=last,
            replanning=None if keeps else Replanning(),
        )
        try:
            with contextlib.closing(iter(executor)) as batches:
                yield from batches
        finally:
            self.plan = executor.plan

    def _make_plan(self) -> Plan:
        """Measure what can be measured without the model, whose time the first steps then show."""
        profile = measure(self.context(self.num_workers), [self.num_workers])
        limits = Limits(most_cbs=max(64, 2 * self.num_workers))
        if self._plan_kind == "auto":
            return make_plan(profile, len(self), limits)
        if self._plan_kind == "gpu" and profile.times[0].uva is None:
            raise ConfigError(
                f"plan='gpu' needs a device that prepares batches; {self.device} does not. "
                "A CUDA device does where triton is installed"
            )
        return fixed_plan(profile, len(self), 1.0 if self._plan_kind == "cpu" else 0.0, limits)

    def context(self, workers: int) -> Context:
        """What :mod:`graphbraid.collective` makes this loader's operators from."""
        return Context(
            source=self._source,
            sampler=self.config,
            schedule=self.schedule,
            device=self.device,
            workers=workers,
            gather=self._gather,
            hot_bytes=self._hot_bytes,
        )

    def read(self, source: BatchSource) -> None:
        """Cut the batches from another source of the same nodes from the next iteration on."""
        self.graph, self._source = source.graph, self._with_degrees(source)
        self._pipeline, self._operators, self._before = None, None, {}  # open iterators go on with theirs

    def _with_degrees(self, source: BatchSource) -> BatchSource:
        if not self._src_degree:
            return source
        degree, loop = degrees_and_loops(source.graph.csc)
        return dataclasses.replace(source, src_degree=degree, src_loop=loop)

    def work_in_turns(self, workers: int, depth: int, refill: int | None) -> None:
        """Let ``workers`` threads prepare up to ``depth`` batches ahead from the next iteration on.

        With ``refill`` they then rest until so many of them are left; see :attr:`busy_threads`.
        """
        self.close()
        self.num_workers, self._depth, self._refill = workers, depth, refill

    @property
    def ahead(self) -> int:
        """Batches that the threads prepare ahead, at most."""
        return self._depth

    @property
    def busy_threads(self) -> int:
        """Threads that prepare batches now, or are about to; the others' cores are free."""
        return 0 if self._pipeline is None else self._pipeline.busy_threads()

    @property
    def stage_seconds(self) -> dict[str, float]:
        """Seconds in ``sample`` and ``gather``, summed over threads, and the number of ``batches``.

        Counted from the last :meth:`reset_stage_seconds`.
        """
        now = self._counted_seconds()
        return {stage: seconds - self._before.get(stage, 0.0) for stage, seconds in now.items()}

    def reset_stage_seconds(self) -> None:
        """Start :attr:`stage_seconds` anew."""
        self._before = self._counted_seconds()

    def _counted_seconds(self) -> dict[str, float]:
        counts = [self._pipeline, self._operators]
        found = [count.stage_seconds() for count in counts if count is not None]
        return {name: sum(part[name] for part in found) for name in ("sample", "gather", "batches")}

    @property
    def is_iterated(self) -> bool:
        """Whether an iteration has begun that has not ended."""
        return any(inspect.getgeneratorstate(i) == inspect.GEN_SUSPENDED for i in self._open)

    def close(self) -> None:
        """Stop the threads and end open iterators; batches stay valid.

        A later iteration starts threads again.
        """
        for iterator in list(self._open):
            iterator.close()
        self._pipeline, self._operators, self._before = None, None, {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _running(self) -> HostPipeline:
        if self._pipeline is None:
            x = self.graph.x
            can_gather = self._gather and isinstance(x, Tensor) and x.ndim == 2 and x.is_contiguous()
            self._pipeline = make_pipeline(
                self.graph.csc,
                self.config,
                x if can_gather and isinstance(x, Tensor) else None,
                num_threads=self.num_workers,
                depth=self._depth,
                refill=self._refill,
            )
        return self._pipeline


def _drawn_seed() -> int:
    """A number in ``[0, 2**63)`` from torch's generator, as ``torch.utils.data`` seeds its workers."""
    return int(torch.empty((), dtype=torch.int64).random_())
