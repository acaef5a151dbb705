"""Pipelines that prepare mini-batches of a graph with types: compiled threads, and the reference."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from time import perf_counter
from typing import Any, Protocol

import torch
from torch import Tensor

from graphbraid import native
from graphbraid.errors import DataError
from graphbraid.graph import Graph, Types
from graphbraid.graph.scans import check_ids
from graphbraid.native import plain_errors
from graphbraid.sampling import rng
from graphbraid.sampling.constraints import Constraints, EdgeTimes
from graphbraid.sampling.cpu import as_limits
from graphbraid.sampling.reference import check_odds
from graphbraid.sampling.sample import SampledEdges
from graphbraid.sampling.schedule import SeedSchedule
from graphbraid.sampling.threads import COUNTED, NativeThreads, checked_threads
from graphbraid.sampling.typed.config import TypedConfig
from graphbraid.sampling.typed.reference import sample_checked
from graphbraid.sampling.typed.sample import TypedPreparedBatch, TypedSampled

RowsByType = Sequence[Tensor | None]


class TypedPipeline(Protocol):
    """A pipeline that prepares mini-batches of a graph with types ahead of their use."""

    def run(
        self, schedule: SeedSchedule, epoch: int, first_step: int, last_step: int
    ) -> Iterator[TypedPreparedBatch]:
        """Yield the batches of the steps ``[first_step, last_step)`` in order."""
        ...

    def begin(
        self, seeds: Tensor, seed: int, epoch: int, step: int, constraints: Constraints | None = None
    ) -> Iterator[TypedPreparedBatch]:
        """Start preparing the batch of ``seeds`` at a step, and return an iterator that yields it.

        Its draws keep to ``constraints``, if given.
        """
        ...

    def stage_seconds(self) -> dict[str, float]:
        """Return the seconds spent in each stage since the start, summed over threads."""
        ...

    def busy_threads(self) -> int:
        """Return the number of threads that are preparing batches or are about to."""
        ...


def make_typed_pipeline(
    graph: Graph,
    config: TypedConfig,
    seed_type: str | None,
    x: RowsByType,
    *,
    num_threads: int,
    depth: int,
    refill: int | None = None,
    edge_times: EdgeTimes | None = None,
) -> TypedPipeline:
    """Make a compiled pipeline, or a reference pipeline if kernels are missing or switched off.

    Args:
        graph: a graph with types, on the CPU.
        config: options of the sampler.
        seed_type: node type of the seeds. If None, seeds are of any type, as ids in the whole graph.
        x: for each node type ``(num_nodes, F)`` contiguous feature rows to gather, or None.
        num_threads: number of threads that prepare batches.
        depth: largest number of batches in preparation or waiting to be used.
        refill: once ``depth`` batches are ready, the threads rest until only this many are left. If None,
            they start the next batch as soon as there is room for one.
        edge_times: when each edge arose, for batches that are constrained by times; the rows of the graph's
            types are sorted by it.

    Raises:
        ConfigError: the number of threads or of batches is out of range.
        DataError: the graph has no types or not those, weights are needed and are missing or negative, or
            ``x`` does not fit the graph.
        ResourceError: the system cannot start that many threads.
    """
    threads = checked_threads(num_threads, depth, refill)
    types = graph.types
    if types is None or len(types.edges) != len(config.relations):
        raise DataError(f"the graph needs types, and {len(config.relations)} relations")
    if seed_type is not None and seed_type not in types.nodes:
        raise DataError(f"there is no node type {seed_type!r} to draw seeds of")
    if config.options.weighted:
        check_odds(types.rows)
    for nodes, rows in zip(types.nodes.values(), x, strict=True):
        if rows is not None and (rows.ndim != 2 or rows.shape[0] != nodes.num_nodes):
            raise DataError(f"x must have a row for each of {nodes.num_nodes} nodes; got {tuple(rows.shape)}")
    kernels = native.kernels()
    number = None if seed_type is None else list(types.nodes).index(seed_type)
    if kernels is None:
        return _TypedReferencePipeline(types, config, number, x, edge_times)
    return _TypedNativePipeline(kernels, graph, config, number, x, edge_times=edge_times, **threads)


class _TypedNativePipeline(NativeThreads):
    def __init__(
        self,
        kernels: Any,
        graph: Graph,
        config: TypedConfig,
        seed_type: int | None,
        x: RowsByType,
        *,
        edge_times: EdgeTimes | None,
        **threads: int,
    ) -> None:
        assert graph.types is not None
        self._types, self._csc = graph.types, graph.csc
        self._config, self._seed_type, self._x = config, seed_type, x  # kept alive: the threads read them
        self._threads, self._edge_times = threads, edge_times
        super().__init__(kernels)

    def run(
        self, schedule: SeedSchedule, epoch: int, first_step: int, last_step: int
    ) -> Iterator[TypedPreparedBatch]:
        run = self._run_of(schedule, epoch, first_step, last_step)
        # Not a generator, which would hold on to a batch while it waits for the next one.
        return map(self._as_prepared, iter(plain_errors()(run.next), None))

    def begin(
        self, seeds: Tensor, seed: int, epoch: int, step: int, constraints: Constraints | None = None
    ) -> Iterator[TypedPreparedBatch]:
        if not seeds.numel():  # a schedule without seeds has no steps
            twin = _TypedReferencePipeline(
                self._types, self._config, self._seed_type, self._x, self._edge_times
            )
            return twin.begin(seeds, seed, epoch, step, constraints)
        run = self._run_of_seeds(seeds, seed, epoch, step, **as_limits(constraints))
        return (
            self._as_prepared(batch)._replace(step=step) for batch in iter(plain_errors()(run.next), None)
        )

    def _as_prepared(self, batch: tuple[Any, ...]) -> TypedPreparedBatch:
        step, n_id, input_id, arrays, nodes_per_hop, edges_per_hop, x, trees = batch
        edges = [SampledEdges(indptr=p, indices=i, positions=e) for p, i, e in arrays]
        num_relations, num_hops = len(self._config.relations), self._config.num_hops
        sampled = TypedSampled(
            n_id=n_id,
            edges=[edges[relation::num_relations] for relation in range(num_relations)],
            nodes_per_hop=_parts(nodes_per_hop, num_hops + 1),
            edges_per_hop=_parts(edges_per_hop, num_hops),
            trees=trees,
        )
        return TypedPreparedBatch(step, input_id, sampled, x)

    def _make(self) -> Any:
        options, csc, types, times = self._config.options, self._csc, self._types, self._edge_times
        typed = self._native.Types(
            indptr=types.rows.indptr,
            num_nodes=[nodes.num_nodes for nodes in types.nodes.values()],
            relations=[[relation.source, relation.destination] for relation in types.relations()],
            fanouts=[list(fanouts) for fanouts in self._config.fanouts],
            seed_type=self._seed_type,
            untimed=[] if times is None else sorted(times.untimed),
        )
        for number, rows in enumerate(self._x):
            if rows is not None:
                typed.gather(number, rows.detach())
        return self._native.Pipeline(
            indptr=csc.indptr,
            indices=csc.indices,
            weight=csc.weight if options.weighted else None,
            x=None,
            fanouts=list(options.fanouts),  # of as many hops as those of each relation
            replace=options.replace,
            blocks=options.layout == "blocks",
            keep_edges=options.return_edge_id,
            time=None if times is None else times.time,
            last=times is not None and times.last,
            types=typed,
            **self._threads,
        )

    def _arrays(self) -> Iterable[Tensor | None]:
        csc, times = self._csc, self._edge_times
        time = None if times is None else times.time
        return self._types.rows.indptr, csc.indptr, csc.indices, csc.weight, time, *self._x


def _parts(counts: list[int], size: int) -> list[list[int]]:
    return [counts[begin : begin + size] for begin in range(0, len(counts), size)]


class _TypedReferencePipeline:
    def __init__(
        self,
        types: Types,
        config: TypedConfig,
        seed_type: int | None,
        x: RowsByType,
        edge_times: EdgeTimes | None,
    ) -> None:
        self._sample = functools.partial(sample_checked, types, config, seed_type, edge_times=edge_times)
        sizes = [nodes.num_nodes for nodes in types.nodes.values()]
        self._num_seed_nodes = sum(sizes) if seed_type is None else sizes[seed_type]
        self._x, self._seconds = x, dict.fromkeys(COUNTED, 0.0)

    def run(
        self, schedule: SeedSchedule, epoch: int, first_step: int, last_step: int
    ) -> Iterator[TypedPreparedBatch]:
        check_ids(schedule.seeds, self._num_seed_nodes, "seeds")
        for step in range(first_step, last_step):
            input_id = schedule.positions_of(epoch, step)
            key = rng.batch_key(schedule.seed, epoch, step)
            yield self._prepared(step, input_id, schedule.seeds[input_id], key)

    def begin(
        self, seeds: Tensor, seed: int, epoch: int, step: int, constraints: Constraints | None = None
    ) -> Iterator[TypedPreparedBatch]:
        check_ids(seeds, self._num_seed_nodes, "seeds")
        key = rng.batch_key(seed, epoch, step)
        yield self._prepared(step, torch.arange(seeds.numel()), seeds, key, constraints)

    def _prepared(
        self, step: int, input_id: Tensor, seeds: Tensor, key: int, constraints: Constraints | None = None
    ) -> TypedPreparedBatch:
        started = perf_counter()
        sampled = self._sample(seeds, key, constraints=constraints)
        between = perf_counter()
        x = [
            None if rows is None else torch.index_select(rows.detach(), 0, ids)
            for rows, ids in zip(self._x, sampled.n_id, strict=True)
        ]
        self._seconds["sample"] += between - started
        self._seconds["gather"] += perf_counter() - between
        self._seconds["batches"] += 1
        return TypedPreparedBatch(step, input_id, sampled, x)

    def stage_seconds(self) -> dict[str, float]:
        return dict(self._seconds)

    def busy_threads(self) -> int:
        return 0  # batches are prepared on the caller's thread
