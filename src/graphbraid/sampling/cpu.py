"""Sampling on the CPU: compiled pipelines of persistent threads, and references with the same interface.

:func:`sample_budget` is the reference of budget sampling; :mod:`graphbraid.sampling.reference` is the one of
sampling by fanouts. It is HGSampling of Hu et al., "Heterogeneous Graph Transformer" (2020), as PyG's
``HGTLoader`` has it. A node that joins the sample gives each in-neighbour outside of it ``1 / d`` of budget,
for each relation of ``d`` in-edges. Each hop draws a number of nodes of each type without replacement, with
probability proportional to the square of their budget. All edges between sampled nodes are then found. A node
with more than :data:`MOST_READ` in-edges in a relation reads only so many, drawn anew at each hop and for the
edges.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from graphbraid import native
from graphbraid.arguments import MOST_THREADS, as_count
from graphbraid.errors import ConfigError, DataError
from graphbraid.graph import Graph
from graphbraid.graph.scans import check_ids
from graphbraid.graph.types import Types
from graphbraid.native import plain_errors
from graphbraid.ops import rng
from graphbraid.sampling import reference
from graphbraid.sampling.batch_seeds import Constraints, EdgeTimes
from graphbraid.sampling.config import MOST_READ, SamplerConfig, SeedSchedule
from graphbraid.sampling.reference import I64, draw_rows, edges_of_hops
from graphbraid.sampling.sample import NeighborLists, PreparedBatch, Sampled, SampledEdges

_DRAWN = SamplerConfig(fanouts=(MOST_READ,))


def sample_budget(types: Types, config: SamplerConfig, seed_type: int, seeds: Tensor, key: int) -> Sampled:
    """Sample one mini-batch: the twin of ``csrc/sampling/budget_sample.inl``, to the bit.

    ``seeds`` are int64 ids within the type. Each copy of a repeated seed keeps a row; edges from that node
    refer to the first.
    """
    assert config.num_samples is not None, "samples by a budget"
    num_types, relations = len(types.nodes), types.relations()
    names = [np.zeros(0, np.int64) for _ in range(num_types)]
    names[seed_type] = seeds.numpy().astype(np.int64)
    local: list[dict[int, int]] = [{} for _ in range(num_types)]
    for place, seed in enumerate(names[seed_type].tolist()):
        local[seed_type].setdefault(seed, place)
    budgets: list[dict[int, float]] = [{} for _ in range(num_types)]
    newest, nodes_per_hop = list(names), [[len(ids)] for ids in names]
    for hop in range(len(config.fanouts)):
        for relation in relations:
            nodes = newest[relation.destination]
            counts, _, sources = _read(types, relation.number, nodes, key, hop)
            shares = np.repeat(1.0 / np.maximum(counts, 1), counts)
            budget, known = budgets[relation.source], local[relation.source]
            for source, share in zip(sources.tolist(), shares.tolist(), strict=True):
                if source not in known:
                    budget[source] = budget.get(source, 0.0) + share
        for number in range(num_types):
            count = config.num_samples[number][hop]
            chosen = _drawn(budgets[number], count, key, hop, len(relations) + number)
            for place, node in enumerate(chosen.tolist(), len(names[number])):
                local[number][node] = place
                del budgets[number][node]
            newest[number] = chosen
            nodes_per_hop[number].append(len(chosen))
            names[number] = np.concatenate([names[number], chosen])
    edges = []
    for relation in relations:
        nodes, known = names[relation.destination], local[relation.source]
        counts, positions, sources = _read(types, relation.number, nodes, key, len(config.fanouts))
        found = np.array([known.get(source, -1) for source in sources.tolist()], dtype=np.int64)
        rows = np.repeat(np.arange(len(nodes)), counts)[found >= 0]
        counts = np.bincount(rows, minlength=len(nodes))
        edges.append([*edges_of_hops([(counts, found[found >= 0], positions[found >= 0])], config)])
    return Sampled(
        n_id_by_type=[torch.from_numpy(ids) for ids in names],
        edges_by_relation=edges,
        nodes_by_type=nodes_per_hop,
        counts_by_relation=[[one.indices.numel(), *[0] * (len(config.fanouts) - 1)] for [one] in edges],
        by_hop=False,
    )


def _read(types: Types, number: int, nodes: I64, key: int, hop: int) -> tuple[I64, I64, I64]:
    """Return the in-edges that some destinations of a relation read.

    The result is their number by node, and the position and source of each edge.
    """
    relation = types.relations()[number]
    keys = rng.relation_keys(key, hop, number, nodes)
    at = relation.first_row + nodes * relation.stride
    counts, positions = draw_rows(types.rows, _DRAWN, at, MOST_READ, keys)
    sources = types.rows.indices.numpy()[positions].astype(np.int64) - relation.first_source
    return counts, positions, sources


def _drawn(budget: dict[int, float], count: int, key: int, hop: int, race: int) -> I64:
    """Return the first ``count`` nodes of an exponential race by squared budgets."""
    nodes = np.array(list(budget), dtype=np.int64)
    squared = np.array(list(budget.values()), dtype=np.float64) ** 2
    bits = rng.draws(rng.relation_keys(key, hop, race, nodes), 1)[:, 0]
    arrival = -rng.log_of_draw(bits) / squared
    chosen: I64 = nodes[np.lexsort((np.arange(len(nodes)), arrival))[:count]]
    return chosen


MOST_AHEAD = 1 << 20
"""Largest number of mini-batches prepared ahead of their use."""
COUNTED = ("sample", "gather", "batches")
"""Names of the counts of a pipeline."""


class HostPipeline(Protocol):
    """A pipeline that prepares mini-batches on the CPU ahead of their use."""

    def run(
        self, schedule: SeedSchedule, epoch: int, first_step: int, last_step: int
    ) -> Iterator[PreparedBatch]:
        """Yield the batches of the steps ``[first_step, last_step)`` in order."""
        ...

    def begin(
        self,
        seeds: Tensor,
        seed: int,
        epoch: int,
        step: int,
        constraints: Constraints | None = None,
        *,
        share: tuple[Tensor, int] | None = None,
    ) -> Iterator[PreparedBatch]:
        """Start preparing the batch of ``seeds`` at a step; return an iterator that waits for it."""
        ...

    def stage_seconds(self) -> dict[str, float]:
        """Return the seconds spent in each stage since the start, summed over threads."""
        ...

    def busy_threads(self) -> int:
        """Return the number of threads that are preparing batches or are about to."""
        ...


def make_pipeline(
    graph: Graph,
    config: SamplerConfig,
    x: Sequence[Tensor | None] | None = None,
    *,
    num_threads: int,
    depth: int,
    refill: int | None = None,
    seed_type: str | None = None,
    lists: NeighborLists | None = None,
    edge_times: EdgeTimes | None = None,
) -> HostPipeline:
    """Make a compiled pipeline, or a reference pipeline if kernels are missing or switched off.

    Args:
        graph: the graph, on the CPU.
        config: options of the sampler.
        x: for each node type ``(num_nodes, F)`` contiguous feature rows to gather, or None. If None, only
            nodes and edges are sampled.
        num_threads: number of threads that prepare batches.
        depth: largest number of batches in preparation or waiting to be used.
        refill: once ``depth`` batches are ready, the threads rest until only this many are left. If None,
            they start the next batch as soon as there is room for one.
        seed_type: node type of the seeds. If None, seeds are of any type, as ids in the whole graph.
        lists: source of the adjacency lists of a graph of one type. If None, they are in memory or mapped.
        edge_times: times of the edges, for batches that are constrained by times; rows must be sorted by it.

    Raises:
        ConfigError: the number of threads or of batches is out of range.
        DataError: the graph has no such type or other relations, edge weights are needed and are missing or
            negative, or ``x`` does not fit the graph.
        ResourceError: the system cannot start that many threads.
    """
    threads = {
        "num_threads": as_count(num_threads, "the number of sampling threads", least=1, most=MOST_THREADS),
        "depth": as_count(depth, "the batches prepared ahead", least=1, most=MOST_AHEAD),
    }
    if refill is None:
        threads["refill"] = threads["depth"] - 1
    else:
        threads["refill"] = as_count(refill, "refill", most=threads["depth"])
    types = graph.all_types
    number = config.type_of_seeds(types, seed_type)
    if config.weighted:
        reference.check_odds(types.rows)
    sizes = [nodes.num_nodes for nodes in types.nodes.values()]
    tables = [None] * len(sizes) if x is None else [None if rows is None else rows.detach() for rows in x]
    for size, rows in zip(sizes, tables, strict=True):
        if rows is not None and (rows.ndim != 2 or rows.shape[0] != size):
            raise DataError(f"x must have a row for each of the {size} nodes; got {tuple(rows.shape)}")

    def sample(seeds: Tensor, key: int, constraints: Constraints | None) -> Sampled:
        if config.num_samples is not None:
            assert number is not None
            return sample_budget(types, config, number, seeds, key)
        drawn = {"lists": lists, "constraints": constraints, "edge_times": edge_times}
        return reference.sample_checked(types, config, number, seeds, key, **drawn)  # type: ignore[arg-type]

    def shared(sampled: Sampled, seeds: Tensor, own: Tensor, reach: int) -> Sampled:
        if config.layout == "blocks" or config.num_samples is not None:
            raise ConfigError("a share is cut from edges that are drawn by fanouts, in layout 'subgraph'")
        from graphbraid.sampling.sample import keep_share, own_by_type  # here: compiled kernels do without

        ends = [(relation.source, relation.destination) for relation in types.relations()]
        kept = keep_share(sampled, ends, own_by_type(types, number, seeds, own), reach)
        place = torch.zeros_like(seeds).index_copy_(0, own, torch.arange(own.numel()))
        trees = None if kept.trees_by_type is None else [place[one] for one in kept.trees_by_type]
        return replace(kept, trees_by_type=trees)

    twin = _ReferencePipeline(
        sample,
        shared,
        tables,
        sum(sizes) if number is None else sizes[number],
    )
    kernels = native.kernels()
    if kernels is None:
        return twin
    csc = graph.csc if lists is None else lists.csc
    time = None if edge_times is None else edge_times.time

    def start() -> Any:
        by_type: dict[str, Any] = {"x": tables[0], "lists": None if lists is None else lists.native}
        if graph.is_typed:
            typed = kernels.Types(
                indptr=types.rows.indptr,
                num_nodes=sizes,
                relations=[[relation.source, relation.destination] for relation in types.relations()],
                fanouts=[list(fanouts) for fanouts in config.all_fanouts],
                seed_type=number,
                untimed=[] if edge_times is None else sorted(edge_times.untimed),
                num_samples=[list(counts) for counts in config.num_samples or ()],
            )
            for place, rows in enumerate(tables):
                if rows is not None:
                    typed.gather(place, rows)
            by_type = {"x": None, "types": typed}
        return kernels.Pipeline(
            indptr=csc.indptr,
            indices=csc.indices,
            weight=csc.weight if config.weighted else None,
            fanouts=list(config.fanouts),  # of as many hops as those of each relation
            replace=config.replace,
            blocks=config.layout == "blocks",
            keep_edges=config.return_edge_id,
            time=time,
            last=edge_times is not None and edge_times.last,
            **by_type,
            **threads,
        )

    arrays = types.rows.indptr, csc.indptr, csc.indices, csc.weight, time, *tables
    counts = (len(types.edges), len(config.fanouts)) if graph.is_typed else None
    return _NativePipeline(kernels, start, arrays, counts, twin, by_hop=config.num_samples is None)


class _NativePipeline:
    """A pipeline of compiled threads, which read the graph's arrays without a copy.

    Threads are made anew after a fork, which leaves them in the parent process. They also are after an array
    was sent to another process, which moves its memory. ``arrays`` are kept alive for them; ``typed`` has the
    numbers of relations and hops; ``twin`` prepares batches without seeds, which the threads do not support.
    """

    def __init__(
        self,
        kernels: Any,
        start: Callable[[], Any],
        arrays: Sequence[Tensor | None],
        typed: tuple[int, int] | None,
        twin: _ReferencePipeline,
        *,
        by_hop: bool,
    ) -> None:
        self._by_hop = by_hop
        self._kernels, self._start, self._arrays = kernels, start, arrays
        self._typed, self._twin = typed, twin
        self._process, self._places, self._pipeline = os.getpid(), self._places_now(), start()
        self._seconds_before = dict.fromkeys(COUNTED, 0.0)

    def run(
        self, schedule: SeedSchedule, epoch: int, first_step: int, last_step: int
    ) -> Iterator[PreparedBatch]:
        """Yield the batches of the steps ``[first_step, last_step)`` in order."""
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
            reach=schedule.reach,
        )
        # Not a generator: it would hold on to a batch, and so keep its buffer from being reused, while it
        # waits for the next one.
        return map(partial(self._read, reach=schedule.reach), iter(plain_errors()(run.next), None))

    def begin(
        self,
        seeds: Tensor,
        seed: int,
        epoch: int,
        step: int,
        constraints: Constraints | None = None,
        *,
        share: tuple[Tensor, int] | None = None,
    ) -> Iterator[PreparedBatch]:
        """Start preparing the batch of int64 ``seeds`` at a step; return an iterator that waits for it.

        The batch's ``input_id`` holds positions in ``seeds``. ``share`` has arguments of :func:`.keep_share`:
        the ascending positions of the seeds whose share of the batch is kept, and its reach; None is the
        whole batch.
        """
        if not seeds.numel() or (share is not None and not share[0].numel()):  # a schedule has no such steps
            return self._twin.begin(seeds, seed, epoch, step, constraints, share=share)
        limits: dict[str, Any] = {} if share is None else {"own": share[0], "reach": share[1]}
        if constraints is not None:
            limits |= {name: getattr(constraints, name) for name in ("disjoint", "times", "excluded")}
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
        read = partial(self._read, reach=None if share is None else share[1])
        batches: Iterator[Any] = map(read, iter(plain_errors()(run.next), None))
        return (batch._replace(step=step) for batch in batches)

    def _read(self, batch: tuple[Any, ...], reach: int | None) -> PreparedBatch:
        """Return a batch that a thread has prepared, with lists by hop and relation one after another."""
        step, n_id, input_id, arrays, nodes_per_hop, edges_per_hop, x, trees = batch
        edges = [SampledEdges(indptr=p, indices=i, positions=e) for p, i, e in arrays]
        if self._typed is None:
            sampled = Sampled(
                n_id_by_type=[n_id],
                edges_by_relation=[edges],
                nodes_by_type=[nodes_per_hop],
                counts_by_relation=[edges_per_hop],
                trees_by_type=None if trees is None else [trees],
            )
            return PreparedBatch(step, input_id, sampled, [x])
        num_relations, num_hops = self._typed
        num_hops = num_hops if reach is None else reach
        sampled = Sampled(
            n_id_by_type=n_id,
            edges_by_relation=[edges[relation::num_relations] for relation in range(num_relations)],
            nodes_by_type=_parts(nodes_per_hop, num_hops + 1, len(n_id)),
            counts_by_relation=_parts(edges_per_hop, num_hops, num_relations),
            trees_by_type=trees,
            by_hop=self._by_hop,
        )
        return PreparedBatch(step, input_id, sampled, x)

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


def _parts(counts: list[int], size: int, number: int) -> list[list[int]]:
    return [counts[place * size : (place + 1) * size] for place in range(number)]


class _ReferencePipeline:
    """The same interface without threads: a batch is prepared when it is requested."""

    def __init__(
        self,
        sample: Callable[[Tensor, int, Constraints | None], Sampled],
        share: Callable[[Sampled, Tensor, Tensor, int], Sampled],
        x: Sequence[Tensor | None],
        num_seed_nodes: int,
    ) -> None:
        self._sample, self._share, self._x = sample, share, x
        self._num_seed_nodes = num_seed_nodes
        self._seconds = dict.fromkeys(COUNTED, 0.0)

    def run(
        self, schedule: SeedSchedule, epoch: int, first_step: int, last_step: int
    ) -> Iterator[PreparedBatch]:
        check_ids(schedule.seeds, self._num_seed_nodes, "seeds")
        for step in range(first_step, last_step):
            input_id = schedule.sampled.positions_of(epoch, step)
            share = None if schedule.reach is None else (schedule.own_of(step), schedule.reach)
            key = rng.batch_key(schedule.seed, epoch, step)
            yield self._prepared(step, input_id, schedule.seeds[input_id], key, constraints=None, share=share)

    def begin(
        self,
        seeds: Tensor,
        seed: int,
        epoch: int,
        step: int,
        constraints: Constraints | None = None,
        *,
        share: tuple[Tensor, int] | None = None,
    ) -> Iterator[PreparedBatch]:
        check_ids(seeds, self._num_seed_nodes, "seeds")
        key = rng.batch_key(seed, epoch, step)
        yield self._prepared(
            step, torch.arange(seeds.numel()), seeds, key, constraints=constraints, share=share
        )

    def _prepared(
        self,
        step: int,
        input_id: Tensor,
        seeds: Tensor,
        key: int,
        *,
        constraints: Constraints | None,
        share: tuple[Tensor, int] | None,
    ) -> PreparedBatch:
        started = perf_counter()
        sampled = self._sample(seeds, key, constraints)
        if share is not None:
            sampled, input_id = self._share(sampled, seeds, *share), input_id[share[0]]
        between = perf_counter()
        x = [
            None if rows is None else torch.index_select(rows, 0, ids)
            for rows, ids in zip(self._x, sampled.n_id_by_type, strict=True)
        ]
        self._seconds["sample"] += between - started
        self._seconds["gather"] += perf_counter() - between
        self._seconds["batches"] += 1
        return PreparedBatch(step, input_id, sampled, x)

    def stage_seconds(self) -> dict[str, float]:
        return dict(self._seconds)

    def busy_threads(self) -> int:
        return 0  # batches are prepared on the caller's thread
