"""Sampling on the CPU: compiled pipelines of persistent threads, and references with the same interface."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from graphbraid import native
from graphbraid.arguments import MOST_THREADS, as_count
from graphbraid.errors import DataError
from graphbraid.graph import Graph
from graphbraid.graph.csc import Csc
from graphbraid.graph.scans import check_ids
from graphbraid.native import plain_errors
from graphbraid.sampling import reference, rng
from graphbraid.sampling.batch_seeds import Constraints, EdgeTimes
from graphbraid.sampling.config import SamplerConfig
from graphbraid.sampling.lists import NeighborLists
from graphbraid.sampling.sample import PreparedBatch, Sampled, SampledEdges, TypedPreparedBatch, TypedSampled
from graphbraid.sampling.schedule import SeedSchedule

MOST_AHEAD = 1 << 20
"""Largest number of mini-batches prepared ahead of their use."""
COUNTED = ("sample", "gather", "batches")
"""What pipelines count."""
Batch = TypeVar("Batch", bound=PreparedBatch | TypedPreparedBatch)
Batch_co = TypeVar("Batch_co", covariant=True)


class BatchPipeline(Protocol[Batch_co]):
    """A pipeline that prepares mini-batches ahead of their use."""

    def run(self, schedule: SeedSchedule, epoch: int, first_step: int, last_step: int) -> Iterator[Batch_co]:
        """Yield the batches of the steps ``[first_step, last_step)`` in order."""
        ...

    def stage_seconds(self) -> dict[str, float]:
        """Return the seconds spent in each stage since the start, summed over threads."""
        ...

    def busy_threads(self) -> int:
        """Return the number of threads that are preparing batches or are about to."""
        ...


class HostPipeline(BatchPipeline[Batch_co], Protocol[Batch_co]):
    """A pipeline on the CPU, which also samples for seeds that come from no schedule."""

    def begin(
        self, seeds: Tensor, seed: int, epoch: int, step: int, constraints: Constraints | None = None
    ) -> Iterator[Batch_co]:
        """Start preparing the batch of ``seeds`` at a step, and return an iterator that waits for it.

        The iterator yields this one batch.

        Args:
            seeds: ``(batch,)`` int64 node ids; the batch's ``input_id`` holds positions in this tensor.
            seed: random seed of the draws.
            epoch: epoch whose random numbers are drawn.
            step: step whose random numbers are drawn.
            constraints: what the draws keep to. If None, they are free.
        """
        ...


def make_pipeline(
    csc: Csc,
    config: SamplerConfig,
    x: Tensor | None,
    *,
    num_threads: int,
    depth: int,
    refill: int | None = None,
    lists: NeighborLists | None = None,
    edge_times: EdgeTimes | None = None,
) -> HostPipeline[PreparedBatch]:
    """Make a compiled pipeline, or a reference pipeline if kernels are missing or switched off.

    Args:
        csc: the graph, on the CPU.
        config: options of the sampler.
        x: ``(num_nodes, F)`` contiguous feature rows to gather. If None, only nodes and edges are sampled.
        num_threads: number of threads that prepare batches.
        depth: largest number of batches in preparation or waiting to be used.
        refill: once ``depth`` batches are ready, the threads rest until only this many are left. If None,
            they start the next batch as soon as there is room for one.
        lists: where the adjacency lists of ``csc`` are. If None, in memory, or mapped there.
        edge_times: when each edge arose, for batches that are constrained by times; the rows of ``csc`` are
            sorted by it.

    Raises:
        ConfigError: the number of threads or of batches is out of range.
        DataError: edge weights are needed and are missing or negative, or ``x`` does not fit the graph.
        ResourceError: the system cannot start that many threads.
    """
    threads = _checked_threads(num_threads, depth, refill)
    if config.weighted:
        reference.check_odds(csc)
    if x is not None and (x.ndim != 2 or x.shape[0] != csc.num_dst):
        raise DataError(f"x must have a row for each of the {csc.num_dst} nodes; got {tuple(x.shape)}")
    twin = _ReferencePipeline(
        lambda seeds, key, constraints: reference.sample_checked(
            csc, config, seeds, key, lists, constraints=constraints, edge_times=edge_times
        ),
        lambda sampled: None if x is None else torch.index_select(x, 0, sampled.n_id),
        PreparedBatch,
        csc.num_dst,
    )
    kernels = native.kernels()
    if kernels is None:
        return twin
    read = csc if lists is None else lists.csc

    def start() -> Any:
        return kernels.Pipeline(
            **_of_graph(read, config, edge_times),
            x=None if x is None else x.detach(),
            lists=None if lists is None else lists.native,
            **threads,
        )

    arrays = read.indptr, read.indices, read.weight, x
    return _NativePipeline(kernels, start, arrays, _as_prepared, twin)


def make_typed_pipeline(
    graph: Graph,
    config: SamplerConfig,
    seed_type: str | None,
    x: Sequence[Tensor | None],
    *,
    num_threads: int,
    depth: int,
    refill: int | None = None,
    edge_times: EdgeTimes | None = None,
) -> HostPipeline[TypedPreparedBatch]:
    """Make a pipeline of mini-batches of a graph with types, as :func:`make_pipeline` does.

    Args:
        graph: a graph with types, on the CPU.
        config: options of the sampler.
        seed_type: node type of the seeds. If None, seeds are of any type, as ids in the whole graph.
        x: for each node type ``(num_nodes, F)`` contiguous feature rows to gather, or None.
        num_threads: as in :func:`make_pipeline`.
        depth: as there.
        refill: as there.
        edge_times: when each edge arose, for batches that are constrained by times; the rows of the graph's
            types are sorted by it.

    Raises:
        ConfigError: the number of threads or of batches is out of range.
        DataError: the graph has no types or not those, weights are needed and are missing or negative, or
            ``x`` does not fit the graph.
        ResourceError: the system cannot start that many threads.
    """
    threads = _checked_threads(num_threads, depth, refill)
    types = graph.types
    if types is None or len(types.edges) != len(config.all_fanouts):
        raise DataError(f"the graph needs types, and {len(config.all_fanouts)} relations")
    if seed_type is not None and seed_type not in types.nodes:
        raise DataError(f"there is no node type {seed_type!r} to draw seeds of")
    if config.weighted:
        reference.check_odds(types.rows)
    for nodes, rows in zip(types.nodes.values(), x, strict=True):
        if rows is not None and (rows.ndim != 2 or rows.shape[0] != nodes.num_nodes):
            raise DataError(f"x must have a row for each of {nodes.num_nodes} nodes; got {tuple(rows.shape)}")
    number = None if seed_type is None else list(types.nodes).index(seed_type)
    sizes = [nodes.num_nodes for nodes in types.nodes.values()]
    twin = _ReferencePipeline(
        lambda seeds, key, constraints: reference.sample_typed_checked(
            types, config, number, seeds, key, constraints=constraints, edge_times=edge_times
        ),
        lambda sampled: [
            None if rows is None else torch.index_select(rows.detach(), 0, ids)
            for rows, ids in zip(x, sampled.n_id, strict=True)
        ],
        TypedPreparedBatch,
        sum(sizes) if number is None else sizes[number],
    )
    kernels = native.kernels()
    if kernels is None:
        return twin

    def start() -> Any:
        typed = kernels.Types(
            indptr=types.rows.indptr,
            num_nodes=sizes,
            relations=[[relation.source, relation.destination] for relation in types.relations()],
            fanouts=[list(fanouts) for fanouts in config.all_fanouts],
            seed_type=number,
            untimed=[] if edge_times is None else sorted(edge_times.untimed),
        )
        for place, rows in enumerate(x):
            if rows is not None:
                typed.gather(place, rows.detach())
        return kernels.Pipeline(**_of_graph(graph.csc, config, edge_times), x=None, types=typed, **threads)

    csc, time = graph.csc, None if edge_times is None else edge_times.time
    arrays = types.rows.indptr, csc.indptr, csc.indices, csc.weight, time, *x
    num_relations, num_hops = len(config.all_fanouts), len(config.fanouts)
    return _NativePipeline(
        kernels, start, arrays, lambda batch: _as_typed_prepared(batch, num_relations, num_hops), twin
    )


def _of_graph(csc: Csc, config: SamplerConfig, edge_times: EdgeTimes | None) -> dict[str, Any]:
    """Return what every compiled pipeline takes of a graph and of the options."""
    return {
        "indptr": csc.indptr,
        "indices": csc.indices,
        "weight": csc.weight if config.weighted else None,
        "fanouts": list(config.fanouts),  # of as many hops as those of each relation
        "replace": config.replace,
        "blocks": config.layout == "blocks",
        "keep_edges": config.return_edge_id,
        "time": None if edge_times is None else edge_times.time,
        "last": edge_times is not None and edge_times.last,
    }


def _checked_threads(num_threads: int, depth: int, refill: int | None) -> dict[str, int]:
    """Return the options of a pipeline's threads.

    Args:
        num_threads: number of threads that prepare batches.
        depth: largest number of batches in preparation or waiting to be used.
        refill: once ``depth`` batches are ready, the threads rest until only this many are left. If None,
            they start the next batch as soon as there is room for one.

    Raises:
        ConfigError: a number is out of range.
    """
    num_threads = as_count(num_threads, "the number of sampling threads", least=1, most=MOST_THREADS)
    depth = as_count(depth, "the batches prepared ahead", least=1, most=MOST_AHEAD)
    refill = depth - 1 if refill is None else as_count(refill, "refill", most=depth)
    return {"num_threads": num_threads, "depth": depth, "refill": refill}


class _NativePipeline(Generic[Batch]):
    """Compiled threads of this process, which read arrays where they lie.

    They are made anew after a fork, which leaves the threads in the parent process, and after an array was
    sent to another process, which moves its memory.

    Args:
        kernels: the compiled module.
        start: starts the threads.
        arrays: what the threads read, which is kept alive.
        read: makes a batch of what a thread has prepared.
        twin: prepares batches without seeds, which the threads cannot.
    """

    def __init__(
        self,
        kernels: Any,
        start: Callable[[], Any],
        arrays: Sequence[Tensor | None],
        read: Callable[[tuple[Any, ...]], Batch],
        twin: _ReferencePipeline[Batch],
    ) -> None:
        self._kernels, self._start, self._arrays = kernels, start, arrays
        self._read, self._twin = read, twin
        self._process, self._places, self._pipeline = os.getpid(), self._places_now(), start()
        self._seconds_before = dict.fromkeys(COUNTED, 0.0)

    def run(self, schedule: SeedSchedule, epoch: int, first_step: int, last_step: int) -> Iterator[Batch]:
        run = self._kernels.Run(
            pipeline=self._own_pipeline(),
            seeds=schedule.seeds,
            batch_size=schedule.batch_size,
            shuffle=schedule.shuffle,
            seed=schedule.seed,
            epoch=epoch,
            first_step=first_step,
            last_step=last_step,
            part=schedule.part,
            num_parts=schedule.num_parts,
        )
        # Not a generator: it would hold on to a batch, and so keep its buffer from being reused, while it
        # waits for the next one.
        return map(self._read, iter(plain_errors()(run.next), None))

    def begin(
        self, seeds: Tensor, seed: int, epoch: int, step: int, constraints: Constraints | None = None
    ) -> Iterator[Batch]:
        if not seeds.numel():  # a schedule without seeds has no steps
            return self._twin.begin(seeds, seed, epoch, step, constraints)
        limits: dict[str, Any] = {}
        if constraints is not None:
            limits = {name: getattr(constraints, name) for name in ("disjoint", "times", "excluded")}
        run = self._kernels.Run(
            pipeline=self._own_pipeline(),
            seeds=seeds,
            batch_size=seeds.numel(),
            shuffle=False,
            seed=rng.seed_with_key(seed, epoch, step),
            epoch=0,
            first_step=0,
            last_step=1,
            **limits,
        )
        batches: Iterator[Any] = map(self._read, iter(plain_errors()(run.next), None))
        return (batch._replace(step=step) for batch in batches)

    def _own_pipeline(self) -> Any:
        if (self._process, self._places) != (os.getpid(), self._places_now()):
            if self._process == os.getpid():
                self._seconds_before = self.stage_seconds()
            self._process, self._places, self._pipeline = os.getpid(), self._places_now(), self._start()
        return self._pipeline

    def _places_now(self) -> tuple[int, ...]:
        return tuple(array.data_ptr() for array in self._arrays if array is not None)

    def stage_seconds(self) -> dict[str, float]:
        """Return the seconds spent in each stage since the start, summed over threads."""
        if self._process != os.getpid():
            return dict.fromkeys(COUNTED, 0.0)
        now = zip(COUNTED, self._pipeline.stage_seconds(), strict=True)
        return {name: self._seconds_before[name] + float(seconds) for name, seconds in now}

    def busy_threads(self) -> int:
        """Return the number of threads that are preparing batches or are about to."""
        return 0 if self._process != os.getpid() else int(self._pipeline.busy_threads())


def _as_prepared(batch: tuple[Any, ...]) -> PreparedBatch:
    step, n_id, input_id, arrays, nodes_per_hop, edges_per_hop, x, trees = batch
    edges = [SampledEdges(indptr=p, indices=i, positions=e) for p, i, e in arrays]
    sampled = Sampled(
        n_id=n_id, edges=edges, nodes_per_hop=nodes_per_hop, edges_per_hop=edges_per_hop, trees=trees
    )
    return PreparedBatch(step, input_id, sampled, x)


def _as_typed_prepared(batch: tuple[Any, ...], num_relations: int, num_hops: int) -> TypedPreparedBatch:
    step, n_id, input_id, arrays, nodes_per_hop, edges_per_hop, x, trees = batch
    edges = [SampledEdges(indptr=p, indices=i, positions=e) for p, i, e in arrays]
    sampled = TypedSampled(
        n_id=n_id,
        edges=[edges[relation::num_relations] for relation in range(num_relations)],
        nodes_per_hop=_parts(nodes_per_hop, num_hops + 1),
        edges_per_hop=_parts(edges_per_hop, num_hops),
        trees=trees,
    )
    return TypedPreparedBatch(step, input_id, sampled, x)


def _parts(counts: list[int], size: int) -> list[list[int]]:
    return [counts[begin : begin + size] for begin in range(0, len(counts), size)]


class _ReferencePipeline(Generic[Batch]):
    """The same interface without threads: batches are prepared when they are asked for.

    Args:
        sample: samples for seeds, with a key, as constraints say.
        gather: reads the feature rows of a sample.
        batch: makes the record of a batch.
        num_seed_nodes: number of nodes that seeds may be.
    """

    def __init__(
        self,
        sample: Callable[[Tensor, int, Constraints | None], Any],
        gather: Callable[[Any], Any],
        batch: type[Batch],
        num_seed_nodes: int,
    ) -> None:
        self._sample, self._gather, self._batch = sample, gather, batch
        self._num_seed_nodes = num_seed_nodes
        self._seconds = dict.fromkeys(COUNTED, 0.0)

    def run(self, schedule: SeedSchedule, epoch: int, first_step: int, last_step: int) -> Iterator[Batch]:
        check_ids(schedule.seeds, self._num_seed_nodes, "seeds")
        for step in range(first_step, last_step):
            input_id = schedule.positions_of(epoch, step)
            key = rng.batch_key(schedule.seed, epoch, step)
            yield self._prepared(step, input_id, schedule.seeds[input_id], key, None)

    def begin(
        self, seeds: Tensor, seed: int, epoch: int, step: int, constraints: Constraints | None = None
    ) -> Iterator[Batch]:
        check_ids(seeds, self._num_seed_nodes, "seeds")
        key = rng.batch_key(seed, epoch, step)
        yield self._prepared(step, torch.arange(seeds.numel()), seeds, key, constraints)

    def _prepared(
        self, step: int, input_id: Tensor, seeds: Tensor, key: int, constraints: Constraints | None
    ) -> Batch:
        started = perf_counter()
        sampled = self._sample(seeds, key, constraints)
        between = perf_counter()
        x = self._gather(sampled)
        self._seconds["sample"] += between - started
        self._seconds["gather"] += perf_counter() - between
        self._seconds["batches"] += 1
        return self._batch(step, input_id, sampled, x)

    def stage_seconds(self) -> dict[str, float]:
        return dict(self._seconds)

    def busy_threads(self) -> int:
        return 0  # batches are prepared on the caller's thread
