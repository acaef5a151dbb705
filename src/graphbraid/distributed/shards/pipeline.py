"""ShardedPipeline: mini-batches drawn where the lists are, the same to the bit for any number of ranks."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from graphbraid import native
from graphbraid.distributed.shards.exchange import Routed, swap
from graphbraid.distributed.shards.feature_rows import (
    NOTHING,
    FeatureRows,
    GroupRows,
    RowTraffic,
    forecast,
    known_ahead,
)
from graphbraid.errors import ConfigError
from graphbraid.sampling import rng
from graphbraid.sampling.batch_seeds import Constraints
from graphbraid.sampling.config import SamplerConfig
from graphbraid.sampling.cpu import COUNTED, HostPipeline, make_pipeline
from graphbraid.sampling.reference import I64, edges_of_hops, relabel
from graphbraid.sampling.sample import PreparedBatch, Sampled
from graphbraid.sampling.schedule import SeedSchedule
from graphbraid.sampling.share import keep_share

if TYPE_CHECKING:
    from graphbraid.distributed.shards.sharded_graph import ShardedGraph

GROUP = 4
"""Number of batches in a group. Their messages travel together."""
AHEAD = 2
"""Groups that are prepared or waiting while one is used."""
UNDER_WAY = GROUP * (1 + AHEAD)
"""Batches with feature rows that a rank holds at most."""
_CLOSING_SECONDS = 5.0
"""Longest wait for a thread of an iteration that was left early."""


class _Turns:
    """How many groups the threads of an iteration may begin. The number must be the same on all ranks.

    All ranks leave an iteration early at the same step. Each of them begins every group that may begin by
    then: a rank that skipped a group would keep the others waiting.
    """

    def __init__(self) -> None:
        self._allowed: float = AHEAD
        self._is_closed = False
        self._changed = threading.Condition()

    def wait_for(self, number: int) -> bool:
        """Wait until group ``number`` may begin; return False if it never will."""
        with self._changed:
            self._changed.wait_for(lambda: number < self._allowed or self._is_closed)
            return number < self._allowed

    def allow_next(self, *, all_others: bool) -> None:
        """Allow one more group after one was used, or all: a rank without steps left still answers others."""
        with self._changed:
            self._allowed = float("inf") if all_others else self._allowed + 1
            self._changed.notify_all()

    def close(self) -> bool:
        """Allow no more groups; return whether the threads end soon, so whether they can be joined."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            return self._allowed < float("inf")


class _Draft:
    """A batch while it is drawn, hop by hop."""

    def __init__(self, seeds: Tensor, seed: int) -> None:
        self.n_id: I64 = seeds.numpy()
        self.seed = seed
        """Seed whose step 0 of epoch 0 has the batch's key."""
        self.nodes_per_hop = [seeds.numel()]
        self.hops: list[tuple[I64, I64, I64]] = []

    def drawing(self, config: SamplerConfig) -> Tensor:
        """Return the nodes that draw at the next hop: all of them, or those that the last hop found."""
        first = 0 if config.layout == "blocks" else len(self.n_id) - self.nodes_per_hop[-1]
        return torch.from_numpy(self.n_id[first:])

    def add(self, counts: Tensor, sources: Tensor, positions: Tensor) -> None:
        """Take in what a hop drew for the nodes of :meth:`drawing`, in their order."""
        before = len(self.n_id)
        found = sources.long()
        if (kernels := native.kernels()) is None:
            self.n_id, local = relabel(self.n_id, found.numpy())
        else:
            ids, places = kernels.relabel(torch.from_numpy(self.n_id), found)
            self.n_id, local = ids.numpy(), places.numpy()
        self.nodes_per_hop.append(len(self.n_id) - before)
        self.hops.append((counts.numpy().astype(np.int64), local, positions.numpy()))

    def finished(self, config: SamplerConfig) -> Sampled:
        """Return the batch as any sampler does."""
        by_layer = config.layout == "blocks"
        groups = [[hop] for hop in self.hops] if by_layer else [self.hops]
        return Sampled(
            n_id_by_type=[torch.from_numpy(self.n_id)],
            edges_by_relation=[[edges_of_hops(group, config) for group in groups]],
            nodes_by_type=[self.nodes_per_hop],
            counts_by_relation=[[len(local) for _, local, _ in self.hops]],
        )


class _Drawn(NamedTuple):
    counts: Tensor
    """``(num_nodes,)`` edges of each node that drew."""
    sources: Tensor
    """``(num_edges,)`` ids in the whole graph."""
    positions: Tensor
    """``(num_edges,)`` int64 positions in the whole graph; empty unless they are kept."""


class Frontiers:
    """The draws of one hop at a time, made by the owners of the nodes that draw.

    Args:
        graph: the graph, whose lists are with their nodes.
        config: options of the sampler.
        num_threads: number of threads that draw for others and for this rank.
    """

    def __init__(self, graph: ShardedGraph, config: SamplerConfig, num_threads: int) -> None:
        self._graph, self._shards, self._config = graph, graph.shards, config
        self._threads = num_threads
        self._by_hop = [self._sampler_of(hop) for hop in range(len(config.fanouts))]

    def _sampler_of(self, hop: int) -> HostPipeline:
        """Return a sampler that draws for its seeds as they would at ``hop``.

        In layout ``blocks`` all known nodes draw at every hop. Earlier hops draw nothing here, so the known
        nodes are the seeds.
        """
        fanouts = (0,) * hop + (self._config.fanouts[hop],)
        config = replace(self._config, fanouts=fanouts, layout="blocks")
        return make_pipeline(self._graph, config, num_threads=self._threads, depth=2 * self._threads)

    def sample(self, drafts: Sequence[_Draft]) -> list[Sampled]:
        """Draw all hops of several batches; all ranks must call it together, with as many batches."""
        for hop in range(len(self._config.fanouts)):
            drawing = [draft.drawing(self._config) for draft in drafts]
            for draft, drawn in zip(drafts, self._draw(hop, drafts, drawing), strict=True):
                draft.add(*drawn)
        return [draft.finished(self._config) for draft in drafts]

    def _draw(self, hop: int, drafts: Sequence[_Draft], drawing: Sequence[Tensor]) -> list[_Drawn]:
        shards, comm = self._shards, self._shards.comm
        routes = [Routed.by_owner(shards.owners(nodes), comm.size) for nodes in drawing]
        # For each owner and batch: the number of nodes that draw, and their key of random numbers.
        sizes = torch.tensor([route.counts for route in routes], dtype=torch.int64).view(-1, comm.size).t()
        seeds = torch.tensor([_signed(draft.seed) for draft in drafts], dtype=torch.int64)
        asked = swap(comm, torch.stack([sizes, seeds.expand(comm.size, -1)], 2))
        by_batch = [
            torch.split(nodes[route.order], route.counts)
            for nodes, route in zip(drawing, routes, strict=True)
        ]
        by_owner = [[of_batch[rank] for of_batch in by_batch] for rank in range(comm.size)]
        send_rows, receive_rows = sizes.sum(1).tolist(), asked[:, :, 0].sum(1).tolist()
        ids = self._graph.csc.indices.dtype
        nodes = comm.all_to_all(_joined(by_owner, ids), send_rows, receive_rows).wait().long()
        answers = self._answers(hop, nodes, asked)
        return self._asked(routes, sizes, answers)

    def _answers(self, hop: int, nodes: Tensor, asked: Tensor) -> list[list[_Drawn]]:
        """Draw for all ranks; return what each batch of each rank gets."""
        sampler, given = self._by_hop[hop], torch.split(nodes, asked[:, :, 0].reshape(-1).tolist())
        seeds = asked[:, :, 1].reshape(-1).tolist()
        begun = [sampler.begin(one, seed % (1 << 64), 0, 0) for one, seed in zip(given, seeds, strict=True)]
        drawn = [self._drawn(hop, one, next(batch).sampled) for one, batch in zip(given, begun, strict=True)]
        num_batches = asked.shape[1]
        return [drawn[at : at + num_batches] for at in range(0, len(drawn), num_batches)]

    def _drawn(self, hop: int, nodes: Tensor, sampled: Sampled) -> _Drawn:
        edges, csc = sampled.edges[hop], self._graph.csc
        counts = edges.indptr.diff()
        positions = torch.empty(0, dtype=torch.int64)
        if edges.positions is not None:
            offsets = edges.positions - torch.repeat_interleave(csc.indptr[nodes], counts)
            positions = self._shards.positions(nodes, counts, offsets)
        return _Drawn(counts, sampled.n_id[edges.indices.long()], positions)

    def _asked(self, routes: Sequence[Routed], sizes: Tensor, answers: list[list[_Drawn]]) -> list[_Drawn]:
        """Give every rank its answers, and return those to this rank's questions, in the nodes' order."""
        comm, ids = self._shards.comm, self._graph.csc.indices.dtype
        edges = torch.tensor([[one.sources.numel() for one in of_rank] for of_rank in answers])
        num_edges = swap(comm, edges.view(comm.size, -1))
        parts = [[*(one.counts for one in of_rank), *(one.sources for one in of_rank)] for of_rank in answers]
        send_rows = [sum(part.numel() for part in of_rank) for of_rank in parts]
        receive_rows = (sizes.sum(1) + num_edges.sum(1)).tolist()
        got = comm.all_to_all(_joined(parts, ids), send_rows, receive_rows).wait()
        pieces = torch.split(got, torch.cat([sizes, num_edges], 1).reshape(-1).tolist())
        width, count = 2 * len(routes), len(routes)
        kept = [torch.empty(0, dtype=torch.int64)] * (count * comm.size)
        if self._config.return_edge_id:
            positions = [[one.positions for one in of_rank] for of_rank in answers]
            rows = [sum(part.numel() for part in of_rank) for of_rank in positions]
            taken = comm.all_to_all(_joined(positions, torch.int64), rows, num_edges.sum(1).tolist()).wait()
            kept = list(torch.split(taken, num_edges.reshape(-1).tolist()))
        found = []
        for batch, route in enumerate(routes):
            counts = torch.cat([pieces[rank * width + batch] for rank in range(comm.size)]).long()
            sources = torch.cat([pieces[rank * width + count + batch] for rank in range(comm.size)])
            positions_of = torch.cat([kept[rank * count + batch] for rank in range(comm.size)])
            found.append(_in_order(route.order, _Drawn(counts, sources, positions_of)))
        return found


def _taken(
    drawn: queue.SimpleQueue[list[PreparedBatch] | BaseException | None],
) -> Iterator[list[PreparedBatch]]:
    """Yield the groups that another thread draws, or raise its error."""
    while (group := drawn.get()) is not None:
        if isinstance(group, BaseException):
            raise group
        yield group


def foreseen(
    graph: ShardedGraph, config: SamplerConfig, schedule: SeedSchedule, epochs: range, num_threads: int = 1
) -> RowTraffic:
    """Return what training will have read and sent after some epochs; all ranks call it together.

    Args:
        graph: the graph, with the cache that training will use. No row of it was read yet.
        config: options of the sampler.
        schedule: seeds of this rank's share of each step.
        epochs: the epochs, the first of the run first.
        num_threads: number of threads that draw.
    """
    pipeline = ShardedPipeline(graph, config, gathers=False, num_threads=num_threads)

    def groups(epoch: int) -> Iterator[list[Tensor]]:
        batches = pipeline.run(schedule, epoch, 0, schedule.num_steps)
        while group := [one.sampled.n_id for one in itertools.islice(batches, GROUP)]:
            yield group

    return forecast(graph.shards.rows, map(groups, epochs))


def _signed(seed: int) -> int:
    return seed - (1 << 64) if seed >> 63 else seed


def _joined(parts: Sequence[Sequence[Tensor]], dtype: torch.dtype) -> Tensor:
    """Return all parts, those for rank 0 first, as one tensor."""
    return torch.cat(
        [torch.empty(0, dtype=dtype), *(part.to(dtype) for of_rank in parts for part in of_rank)]
    )


def _in_order(order: Tensor, drawn: _Drawn) -> _Drawn:
    """Return what was drawn for nodes that stood at ``order``, in the order in which they stood."""
    place = torch.empty_like(order)
    place[order] = torch.arange(order.numel())
    counts = drawn.counts[place]
    begins = (drawn.counts.cumsum(0) - drawn.counts)[place]
    ahead = begins - (counts.cumsum(0) - counts)
    at = torch.repeat_interleave(ahead, counts) + torch.arange(drawn.sources.numel())
    return _Drawn(
        counts, drawn.sources[at], drawn.positions[at] if drawn.positions.numel() else drawn.positions
    )


class ShardedPipeline:
    """Mini-batches of a :class:`.ShardedGraph`, prepared ahead by two threads that all ranks run alike.

    One draws, and goes ahead as far as kept rows are chosen by what is known of coming groups; the other
    brings rows. Each has a communicator of its own, so that rows travel while the next groups are drawn. The
    batches are those that a pipeline of the whole graph gives for the same schedule. All ranks must iterate
    together: each with its own part of the steps, for as long as any has steps.

    Args:
        graph: the graph.
        config: options of the sampler.
        gathers: whether batches have feature rows.
        num_threads: number of threads that draw.
        of_edges: names of the edge attributes that batches have: weights, features, ``e_id``.

    Raises:
        ConfigError: batches are to have edge ids, and the graph's are not held.
    """

    def __init__(
        self,
        graph: ShardedGraph,
        config: SamplerConfig,
        *,
        gathers: bool,
        num_threads: int,
        of_edges: Collection[str] = (),
    ) -> None:
        if "e_id" in of_edges and graph.shards.has_edge_ids:
            raise ConfigError(
                "batches are to have edge ids, and parts do not hold the original ids of edges; partition "
                "the graph without them (graph.replace(edge_id=None)), or use a model that reads no edge ids"
            )
        self._graph, self._config = graph, config
        self._gathers, self._of_edges = gathers, of_edges
        self._whole = None
        self._frontiers = None
        if graph.shards.lists == "whole":
            self._whole = make_pipeline(graph, config, num_threads=num_threads, depth=GROUP)
        else:
            self._frontiers = Frontiers(graph, config, num_threads)
        self._seconds = dict.fromkeys(COUNTED, 0.0)
        self._threads = list[threading.Thread]()

    def run(
        self, schedule: SeedSchedule, epoch: int, first_step: int, last_step: int
    ) -> Iterator[PreparedBatch]:
        """Yield the batches of the steps ``[first_step, last_step)`` in order; all ranks call it together."""
        for thread in self._threads:
            thread.join()  # it finishes what all ranks have begun
        rows = self._graph.shards.rows if self._gathers else None
        lookahead = 0 if rows is None else rows.lookahead
        steps, turns = range(first_step, last_step), _Turns()
        drawn = queue.SimpleQueue[list[PreparedBatch] | BaseException | None]()
        done = queue.SimpleQueue[list[PreparedBatch] | BaseException]()

        def draw() -> None:
            try:
                most = torch.tensor([len(steps)])
                num_steps = int(self._graph.shards.comm.all_reduce(most, "max").wait())
                for number, begin in enumerate(range(0, num_steps, GROUP)):
                    if not turns.wait_for(number - lookahead):
                        break
                    own = steps[begin : begin + GROUP]
                    drawn.put(self._drawn(schedule, epoch, own, min(GROUP, num_steps - begin)))
                drawn.put(None)
            except BaseException as error:
                drawn.put(error)

        def announce(group: list[PreparedBatch]) -> GroupRows:
            return NOTHING if rows is None else rows.announce([one.sampled.n_id for one in group])

        def gather() -> None:
            try:
                for number, (group, wanted) in enumerate(known_ahead(_taken(drawn), announce, lookahead)):
                    if not turns.wait_for(number):
                        break
                    done.put(self._gathered(group, rows, wanted))
            except BaseException as error:
                done.put(error)
            finally:
                if rows is not None:
                    rows.forget()

        self._threads = [
            threading.Thread(target=work, name=f"graphbraid-{work.__name__}", daemon=True)
            for work in (draw, gather)
        ]
        for thread in self._threads:
            thread.start()
        left = len(steps)
        try:
            while left:
                group = done.get()
                if isinstance(group, BaseException):
                    raise group
                left -= len(group)
                group.reverse()
                while group:
                    if len(group) == 1:
                        turns.allow_next(all_others=not left)
                    yield group.pop()
            turns.allow_next(all_others=True)
        finally:
            if turns.close():
                for thread in self._threads:
                    thread.join(_CLOSING_SECONDS)

    def _drawn(self, schedule: SeedSchedule, epoch: int, steps: range, count: int) -> list[PreparedBatch]:
        """Draw a group of ``count`` batches, without feature rows; return this rank's, those of ``steps``."""
        started = perf_counter()
        input_ids = [schedule.sampled.positions_of(epoch, step) for step in steps]
        seeds = [rng.seed_with_key(schedule.seed, epoch, step) for step in steps]
        nodes = [schedule.seeds[ids] for ids in input_ids]
        none = torch.empty(0, dtype=torch.int64)
        if self._frontiers is not None:
            drafts = [_Draft(ids, seed) for ids, seed in zip(nodes, seeds, strict=True)]
            drafts += [_Draft(none, 0) for _ in range(count - len(drafts))]
            sampled = self._frontiers.sample(drafts)[: len(steps)]
        else:
            assert self._whole is not None
            begun = [self._whole.begin(ids, seed, 0, 0) for ids, seed in zip(nodes, seeds, strict=True)]
            sampled = [next(batch).sampled for batch in begun]
        if schedule.reach is not None:  # the whole batch was drawn, and this rank's share of it is kept
            own = [schedule.own_of(step) for step in steps]
            sampled = [
                keep_share(one, [(0, 0)], [kept], schedule.reach)
                for one, kept in zip(sampled, own, strict=True)
            ]
            input_ids = [ids[kept] for ids, kept in zip(input_ids, own, strict=True)]
        self._seconds["sample"] += perf_counter() - started
        return [
            PreparedBatch(step, ids, one, [None])
            for step, ids, one in zip(steps, input_ids, sampled, strict=True)
        ]

    def _gathered(
        self, group: list[PreparedBatch], rows: FeatureRows | None, wanted: GroupRows
    ) -> list[PreparedBatch]:
        """Return the batches of a group with their feature rows, and with what they read of edges."""
        started = perf_counter()
        if rows is not None:
            x = rows.gather(wanted)
            group = [one._replace(x=[of_one]) for one, of_one in zip(group, x, strict=True)]
        if self._frontiers is not None:
            group = self._with_edge_rows(group)
        self._seconds["gather"] += perf_counter() - started
        self._seconds["batches"] += len(group)
        return group

    def _with_edge_rows(self, group: list[PreparedBatch]) -> list[PreparedBatch]:
        sampled = [one.sampled for one in group]
        names = [name for name in self._of_edges if name != "e_id"]
        weights = self._graph.weight_name if self._graph.csc.weight is not None else None
        tables = ["weight" if name == weights else name for name in names]
        read = self._graph.shards.edges.gather(sampled, tables) if tables else [[]] * len(group)
        found = [dict(zip(names, rows, strict=True)) for rows in read]
        if "e_id" in self._of_edges:
            ids = [one.positions() for one in sampled]
            found = [
                rows | {"e_id": of_one} for rows, of_one in zip(found, ids, strict=True) if of_one is not None
            ]
        return [one._replace(edge_rows=rows) for one, rows in zip(group, found, strict=True)]

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
        """Refuse batches of other seeds than a schedule's."""
        raise ConfigError(
            "batches of a graph that is divided among ranks come by a schedule of nodes: links, times, "
            "disjoint trees, and calls with ids are not drawn from parts. Use the whole graph"
        )

    def stage_seconds(self) -> dict[str, float]:
        """Return the seconds of each stage since the start, of the thread that prepares."""
        return dict(self._seconds)

    def busy_threads(self) -> int:
        """Return 0, as the threads that draw do so for all ranks."""
        return 0
