"""BatchLoader: mini-batches of a graph, prepared ahead by threads or by a device, and its LoaderSettings."""

from __future__ import annotations

import inspect
import os
import time
import weakref
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from graphbraid.arguments import MOST_THREADS, as_count, shown
from graphbraid.collective.plan.plan import Plan
from graphbraid.collective.run.stages import Accelerator, BatchDevice, Context
from graphbraid.errors import ConfigError, did_you_mean
from graphbraid.graph import EdgeType, Graph, ScaledFeatures
from graphbraid.graph.types import ONLY_NODE_TYPE
from graphbraid.loader.gather_ahead import GatherAhead
from graphbraid.loader.sources import SeedNodes, as_seeds, completed
from graphbraid.sampling.batch_seeds import SeedSource, begin_batch
from graphbraid.sampling.config import (
    DIRECTIONAL,
    EGO,
    SUBGRAPH_TYPES,
    SamplerConfig,
    SeedSchedule,
    as_epoch,
    as_fanouts,
    as_subgraph_type,
    is_by_relation,
)
from graphbraid.sampling.cpu import HostPipeline, make_pipeline
from graphbraid.sampling.minibatch.mini_batch import MiniBatch
from graphbraid.sampling.sample import PreparedBatch
from graphbraid.sampling.source import BatchSource
from graphbraid.sampling.subgraph import with_edges

if TYPE_CHECKING:
    from graphbraid.collective.run.executor import Executor
    from graphbraid.loader.planned import PlannedBatches


PLANS = ("auto", "cpu", "gpu")
"""Names of plans that are made when they are needed."""


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class LoaderSettings:
    """The options of a :class:`graphbraid.loader.BatchLoader`.

    Raises:
        ConfigError: an option is invalid.
    """

    num_neighbors: Any
    """Fanout per hop, the hop nearest the seeds first; -1 takes all neighbours. In a graph with types, a list
    for all relations or a dict of lists by relation."""
    num_samples: Any = None
    """Number of nodes of each type drawn per hop by their budget: a list for all types, or a dict of lists by
    type. If None, neighbours are drawn by fanouts."""
    input_nodes: Tensor | Sequence[int] | str | tuple[str, Any] | SeedNodes | None = None
    """Seeds: node ids, a bool mask or the name of a split. If None, all nodes. In a graph with types, the
    seeds' type, or a pair of the type and one of these. Ids in a :class:`SeedNodes` are not checked again."""
    batch_size: int = 1
    """Number of seeds, links or clusters per batch."""
    shuffle: bool = False
    """Whether to permute the seeds anew in each epoch."""
    drop_last: bool = False
    """Whether to leave out a last batch that is not full."""
    replace: bool = False
    """Whether to draw with replacement."""
    weighted: bool = False
    """Whether to draw in proportion to the graph's edge weights."""
    layout: str = "subgraph"
    """Layout of the batches: ``subgraph`` (PyG's) or ``blocks``; see :class:`graphbraid.SamplerConfig`."""
    subgraph_type: str = DIRECTIONAL
    """Edges of a batch: ``directional``, those drawn; ``bidirectional``, these and their reverses, each pair
    of nodes once; or ``induced``, all edges between the batch's nodes. Both need layout ``subgraph``, and
    their batches have no ``num_sampled_nodes``, ``num_sampled_edges`` and ``blocks``. In a graph with types,
    ``bidirectional`` takes reverses from the relation ``rev_NAME``; the edges have no ids and attributes, as
    in PyG. ``ego`` is ``induced`` within each of disjoint trees."""
    seed: int = 0
    """Random seed of the shuffle and of every draw."""
    num_workers: int = 0
    """Number of threads that prepare batches; 0 means one."""
    prefetch_factor: int | None = None
    """Number of batches prepared ahead per thread. If None, three. On the host, threads that are so far ahead
    rest until a third of these batches is left. Meanwhile the model has their cores."""
    return_edge_id: bool = True
    """Whether to keep ``e_id``. Without it, batches have no edge attributes. Weighted graphs always keep
    it."""
    src_degree: bool = False
    """Whether blocks carry the graph's in-degrees, for layers that normalise by them."""
    gather: bool = True
    """Whether to gather dense features while sampling rather than when ``batch.x`` is first read."""
    device: BatchDevice | str = "cpu"
    """Device of the batches: a torch device, or an accelerator whose operators are registered
    (:mod:`graphbraid.collective`)."""
    plan: Plan | str | os.PathLike[str] | None = None
    """Which side prepares each batch. ``"auto"`` measures the stages at the first iteration, finds a plan,
    and changes it when durations drift. ``"cpu"`` and ``"gpu"`` let one side prepare all batches. A plan, or
    the path of its file, is followed. If None, the CPU prepares all batches for a torch device, and an
    accelerator gets ``"auto"``. Batches do not depend on it."""
    hot_bytes: int | None = None
    """Bytes of device memory for graph, labels and features if the device prepares batches. The rest stays on
    the host and is read over the bus. If None, half of the free memory."""
    part: int = 0
    """Index of this loader's contiguous part of each batch's seeds, below ``num_parts``."""
    num_parts: int = 1
    """Number of loaders that share each batch, as ranks do. They share ``batch_size`` seeds."""
    reach: int | None = None
    """Hops of the whole batch's sample that a part keeps; see :class:`graphbraid.sampling.SeedSchedule`."""

    def __post_init__(self) -> None:
        if not is_by_relation(self.num_neighbors):
            self._set(num_neighbors=as_fanouts(self.num_neighbors, "num_neighbors"))
        self._set(
            num_workers=max(as_count(self.num_workers, "num_workers", most=MOST_THREADS), 1),
            device=_as_batch_device(self.device),
            subgraph_type=as_subgraph_type(self.subgraph_type, (*SUBGRAPH_TYPES, EGO)),
        )
        if self.subgraph_type != DIRECTIONAL and self.layout != "subgraph":
            raise ConfigError(
                f"subgraph_type={self.subgraph_type!r} has edges that belong to no single layer: it needs "
                f"layout='subgraph', not {self.layout!r}"
            )
        if self.prefetch_factor is not None:
            self._set(prefetch_factor=as_count(self.prefetch_factor, "prefetch_factor", least=1))
        if self.hot_bytes is not None:
            self._set(hot_bytes=as_count(self.hot_bytes, "hot_bytes", most=1 << 62))
        if self.plan is None and not isinstance(self.device, torch.device):
            self._set(plan="auto")
        self._set(plan=read_plan(self.plan) or self.plan)

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def depth(self) -> int:
        """Largest number of batches in preparation or waiting to be used."""
        return self.num_workers * (self.prefetch_factor or 3)

    @property
    def refill(self) -> int | None:
        """Number of batches left at which threads that were ``depth`` ahead resume. If None, they never rest.

        A thread that prepares batches on one of the operators' cores delays all of them, as they wait for
        each other. If batches stay on the host, where the model is likely to train, threads therefore work
        in bursts, and most of the model's steps have every core.
        """
        device = self.batch_device
        is_host = isinstance(device, torch.device) and device.type == "cpu"
        return self.depth // 3 if is_host else None

    @property
    def batch_device(self) -> BatchDevice:
        """The device as an object, not a name."""
        assert not isinstance(self.device, str), "read when it was given"
        return self.device

    def sampler_config(self, graph: Graph) -> SamplerConfig:
        """Return the options of the sampler: by relation for a graph with types.

        Raises:
            ConfigError: a relation is unknown or has no fanouts, or options exclude each other.
        """
        options: dict[str, Any] = {
            "replace": self.replace,
            "layout": self.layout,
            "weighted": self.weighted,
            "return_edge_id": self.return_edge_id or graph.csc.weight is not None,
        }
        if self.num_samples is not None:
            return SamplerConfig.for_budget(graph.node_types, graph.edge_types, self.num_samples, **options)
        if not graph.is_typed:
            return SamplerConfig(fanouts=as_fanouts(self.num_neighbors, "num_neighbors"), **options)
        return SamplerConfig.for_relations(graph.edge_types, self.num_neighbors, **options)

    def schedule(self, inputs: Tensor) -> SeedSchedule:
        """Return the schedule of each step's inputs: seeds, or positions of inputs such as links.

        Raises:
            ConfigError: the options leave no batch.
        """
        return SeedSchedule(
            seeds=inputs,
            batch_size=self.batch_size,
            shuffle=self.shuffle,
            drop_last=self.drop_last,
            seed=self.seed,
            part=self.part,
            num_parts=self.num_parts,
            reach=self.reach,
        )


def read_plan(plan: Plan | str | os.PathLike[str] | None) -> Plan | None:
    """Return the plan of an option: the plan itself, or one read from its file. None for a name or None.

    Raises:
        ConfigError: the argument is neither a name nor an existing file.
        DataError: the file does not hold a valid plan.
    """
    if plan is None or isinstance(plan, Plan) or (isinstance(plan, str) and plan in PLANS):
        return plan if isinstance(plan, Plan) else None
    if isinstance(plan, str | os.PathLike) and Path(plan).is_file():
        return Plan.load(plan)
    raise ConfigError(
        f"plan must be one of {', '.join(map(repr, PLANS))}, a Plan, or the path of a plan's file; got "
        f"{plan!r}, and there is no such file.{did_you_mean(plan, PLANS)}"
    )


def _as_device(device: str | torch.device) -> torch.device:
    """Return a torch device; ConfigError if it is not present."""
    try:
        found = torch.device(device)
    except RuntimeError:
        raise ConfigError(
            f"device must be a torch device such as 'cpu' or 'cuda:0', or an accelerator; got {device!r}"
        ) from None
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"device={str(device)!r} needs a CUDA device that is not here ({torch.cuda.device_count()} found)"
        )
    return found


def _as_batch_device(device: Any) -> BatchDevice:
    if isinstance(device, str | torch.device):
        return _as_device(device)
    if not isinstance(device, Accelerator):
        raise ConfigError(
            "device must be a torch device such as 'cpu' or 'cuda:0', or an accelerator, which names its "
            f"operators by `hardware` and `host`; got {shown(device)}"
        )
    return device


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
        if source.rows is not None or source.lists is not None:
            source.check_tiers()
        if source.pipeline is None:
            graph.check_whole("a loader")
        elif settings.subgraph_type != DIRECTIONAL:
            raise ConfigError(
                f"subgraph_type={settings.subgraph_type!r} reads lists of nodes that other ranks own; "
                f"batches of a graph divided among ranks need subgraph_type={DIRECTIONAL!r}"
            )
        self.settings, self._seeds = settings, seeds
        if seeds is None:
            found = settings.input_nodes
            if not isinstance(found, SeedNodes):
                found = as_seeds(found, graph)
            inputs, input_type = found.ids, found.node_type
        else:
            inputs = torch.arange(seeds.num_inputs)
        self.input_type: str | EdgeType = ONLY_NODE_TYPE if input_type is None else input_type
        self.config = settings.sampler_config(graph)
        self.schedule = settings.schedule(inputs)
        self.device = settings.batch_device
        self._to: torch.device | None = None
        """Device that batches are moved to; None if they stay."""
        if isinstance(self.device, torch.device) and self.device.type != "cpu":
            self._to = self.device
        self.num_workers, self.ahead = settings.num_workers, settings.depth
        """Threads, and the largest number of batches that they prepare ahead."""
        self._refill = settings.refill
        self._source = self._completed(source)
        self._planned = self._planned_batches()
        self._pipeline: HostPipeline | None = None
        self._before: dict[str, float] = {}
        self._gather_seconds = 0.0  # of rows that no pipeline gathers
        self._open: weakref.WeakSet[Generator[MiniBatch]] = weakref.WeakSet()

    def _completed(self, source: BatchSource) -> BatchSource:
        if not self.settings.src_degree and not isinstance(source.graph.x, ScaledFeatures):
            return source
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
            batches = GatherAhead(batches, source.rows, self.ahead, self._count_gather).batches()
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
            if len(begun) > self.ahead:
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
        return batch if self._to is None else batch.to(self._to)

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
        self.num_workers, self.ahead, self._refill = workers, depth, depth // 3 if refill is None else refill

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
            depth=self.ahead,
            refill=self._refill,
            seed_type=seed_type,
            lists=source.lists,
            edge_times=edge_times,
        )

    def _planned_batches(self) -> PlannedBatches | None:
        rows = self._source.rows
        on_host = isinstance(self.device, torch.device) and self._to is None
        has_hot_rows = rows is not None and rows.hot is not None and not on_host
        plan = self.settings.plan or ("cpu" if has_hot_rows else None)  # copies of a plan leave hot rows out
        if plan is None:
            return None
        from graphbraid.loader.planned import PlannedBatches  # here: most loaders follow no plan

        return PlannedBatches(plan, self.settings, has_inputs=self._seeds is not None)
