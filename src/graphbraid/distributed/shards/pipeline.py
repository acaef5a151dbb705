"""ShardedPipeline: mini-batches drawn where the lists are, the same to the bit for any number of ranks."""

from __future__ import annotations

import itertools
import math
import queue
import threading
from collections import deque
from collections.abc import Collection, Generator, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import torch
from torch import Tensor

from graphbraid.distributed.parts.rows import divided_by_type
from graphbraid.distributed.shards.exchange import NO_IDS
from graphbraid.distributed.shards.feature_rows import (
    FeatureRows,
    GroupRows,
    RowsByType,
    RowTraffic,
    known_ahead,
    lookahead_of,
    total,
)
from graphbraid.distributed.shards.frontiers import Frontiers
from graphbraid.errors import ConfigError
from graphbraid.graph.types import first_ids
from graphbraid.sampling.batch_seeds import BatchSeeds, SeedSource, begin_batch
from graphbraid.sampling.config import SamplerConfig, SeedSchedule
from graphbraid.sampling.cpu import COUNTED, HostPipeline, make_pipeline
from graphbraid.sampling.links.link_seeds import LinkSeeds, QuestionSeeds
from graphbraid.sampling.sample import X_BY_TYPE, PreparedBatch

if TYPE_CHECKING:
    from graphbraid.distributed.shards.sharded_graph import ShardedGraph

T = TypeVar("T")
_Queue = queue.SimpleQueue[T | BaseException | None]
"""From one thread to another: items, and at the end None or an error."""
_Group = list[PreparedBatch]
_Span = tuple[int, range, list[int]]
"""An epoch, this rank's steps of it, and the batches of each group, on the rank that has most."""
_Asked = tuple[_Group, dict[int, GroupRows]]
GROUP = 4
"""Number of batches in a group. Their messages travel together."""
_FIRST_GROUPS = (1, 1, 2)
"""Batches in the first groups: training waits for the first one alone, and the link begins early. Epochs that
follow without a pause have none, as their first groups travel while the epoch before trains."""
AHEAD = 4
"""Groups that are prepared or waiting while one is used. With two, a link of 1 Gbit/s was idle at times."""
UNDER_WAY = GROUP * (2 + AHEAD)
"""Batches with feature rows that a rank holds at most: the rows of one more group travel."""
_REFUSED = "batches of a graph that is divided among ranks come by a schedule: {}. Use the whole graph"
_CLOSING_SECONDS = 5.0
"""Longest wait for a thread of an iteration that was left early."""


def _items(passed: _Queue[T]) -> Iterator[T]:
    """Yield the items that a thread puts into a queue as they come, or raise its error."""
    while (item := passed.get()) is not None:
        if isinstance(item, BaseException):
            raise item
        yield item


class Iteration:
    """The threads that prepare groups of batches. They use the communicators of the graph.

    How many groups they may begin must be the same on all ranks. All ranks leave an iteration early at the
    same step. Each of them begins every group that may begin by then: a rank that skipped a group would keep
    the others waiting.
    """

    def __init__(self) -> None:
        self._threads = list[threading.Thread]()
        self._allowed: float = AHEAD
        self._is_closed = False
        self._changed = threading.Condition()

    def passed(self, name: str, items: Generator[T], ahead: float = math.inf) -> _Queue[T]:
        """Start a thread that makes items, as many ahead of those that may begin; return their queue."""
        passed = _Queue[T]()

        def put_all() -> None:
            try:
                with closing(items):
                    for number in itertools.count():
                        if not self._wait_for(number - ahead) or (item := next(items, None)) is None:
                            break
                        passed.put(item)
                passed.put(None)
            except BaseException as error:
                passed.put(error)

        thread = threading.Thread(target=put_all, name=f"graphbraid-{name}", daemon=True)
        self._threads.append(thread)
        thread.start()
        return passed

    def _wait_for(self, number: float) -> bool:
        """Wait until group ``number`` may begin; return False if it never will."""
        with self._changed:
            self._changed.wait_for(lambda: number < self._allowed or self._is_closed)
            return number < self._allowed

    def allow(self, count: float) -> None:
        """Allow more groups: one for each that was used, or all, as a rank without steps answers others."""
        with self._changed:
            self._allowed += count
            self._changed.notify_all()

    def end(self, seconds: float | None = None) -> None:
        """Allow no more groups, and wait until the threads have finished what all ranks have begun.

        With ``seconds``, the longest wait for each, threads that may begin all groups go on.
        """
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if seconds is None or self._allowed < math.inf:
            for thread in self._threads:
                thread.join(seconds)


def group_sizes(count: int, *, is_first: bool) -> list[int]:
    """Return how many of ``count`` batches each group of an epoch has, the last never one batch alone.

    A rank may have no share of the last batch. If that were a group of its own, and another pipeline had run
    before it, the other ranks would begin anew together, and wait for that rank. ``count`` is that of the
    rank that has most; ``is_first`` is whether training waits for the first group.
    """
    begins = [0, *itertools.accumulate(min(size, GROUP) for size in _FIRST_GROUPS if is_first)]
    begins += range(begins[-1] + GROUP, count, GROUP)
    begins = [begin for begin in begins if begin < count]
    if begins[-1:] == [count - 1] and count > 1:
        begins[-1] -= 1
    ends = itertools.pairwise([*dict.fromkeys(begins), count])
    return [end - begin for begin, end in ends]


class ShardedPipeline:
    """Mini-batches of a :class:`.ShardedGraph`, prepared ahead by three threads that all ranks run alike.

    One draws, and goes ahead as far as kept rows are chosen by what is known of coming groups. One asks the
    owners for missing rows. One sends and receives rows, and puts batches together while the rows of the next
    group travel. Each has a communicator of its own, so that none waits for another's messages. The batches
    are those that a pipeline of the whole graph gives for the same schedule. All ranks must iterate together:
    each with its own part of the steps, for as long as any has steps.

    The graph may have the nodes of several types without their types, as encoders of links draw. Then batches
    have the feature rows by type in :data:`X_BY_TYPE`.

    Args:
        graph: the graph.
        config: options of the sampler.
        gathers: whether batches have feature rows.
        num_threads: number of threads that draw.
        of_edges: names of the edge attributes that batches have: weights, features, ``e_id``; where there are
            types, also ``blocks``, for the weights of blocks.
        seed_type: node type of the seeds; None in a graph without types.
        seeds: inputs such as links, which are drawn where all lists are. If None, the nodes of the schedule.

    Raises:
        ConfigError: the type is not given; or seeds have times or trees, and lists lie with their nodes.
        DataError: there is no such type, or the fanouts are not those of the graph's relations.
    """

    def __init__(
        self,
        graph: ShardedGraph,
        config: SamplerConfig,
        *,
        gathers: bool,
        num_threads: int,
        of_edges: Collection[str] = (),
        seed_type: str | None = None,
        seeds: SeedSource | None = None,
    ) -> None:
        self._graph, self._gathers, self._of_edges, self._seeds = graph, gathers, of_edges, seeds
        types = graph.all_types
        if seed_type is None and graph.is_typed:
            raise ConfigError(f"say of which node type seeds are: {', '.join(graph.node_types)}")
        number = config.type_of_seeds(types, seed_type) or 0
        counts = [one.num_nodes for one in graph.shards.by_type]
        self._first_ids = first_ids(counts) if len(counts) > len(types.nodes) else None
        self._sampler: HostPipeline | Frontiers
        if graph.shards.lists == "whole":
            self._sampler = make_pipeline(
                graph,
                config,
                num_threads=num_threads,
                depth=GROUP,
                seed_type=seed_type,
                edge_times=None if seeds is None else seeds.edge_times,
            )
        elif isinstance(seeds, QuestionSeeds | None) or (isinstance(seeds, LinkSeeds) and seeds.fetch):
            self._sampler = Frontiers(graph, config, num_threads, number)
        else:
            raise ConfigError(_REFUSED.format("times and disjoint trees are not drawn from parts"))
        self._seconds = dict.fromkeys(COUNTED, 0.0)

    def run(
        self, schedule: SeedSchedule, epoch: int, first_step: int, last_step: int, then: int = 0
    ) -> Iterator[PreparedBatch]:
        """Yield the batches of the steps ``[first_step, last_step)`` in order; all ranks call it together.

        Another pipeline of the graph may run meanwhile, as for an evaluation. Then the batches that were
        prepared are used, and the threads begin anew. ``schedule`` has this rank's share of each step. After
        them follow ``then`` whole epochs, whose first groups travel while the epoch before trains.
        """
        left: tuple[int, int, int] | None = epoch, first_step, last_step
        while left is not None:
            left = yield from self._until_another(schedule, *left, epoch + then)

    def foreseen(self, schedule: SeedSchedule, epochs: range) -> RowTraffic:
        """Return what training will have read and sent after epochs that follow each other without a pause.

        It is exact, as a batch is a pure function of its step: batches are drawn, and owners are asked for
        their rows, which do not travel. All ranks call it together, when the graph has the cache that
        training will use. ResourceError: the memory is not free a second time. RankError: a rank was lost.
        """
        kept = self._graph.shards.rows.items()
        rows = {number: FeatureRows(one.shards, one.comm, one.cache.num_rows) for number, one in kept}
        spans = self._spans(schedule, epochs[0], range(schedule.num_steps), epochs[-1]) if epochs else []
        for _ in self._asked(self._groups(schedule, spans), rows):
            pass
        return total(one.traffic for one in rows.values())

    def _spans(self, schedule: SeedSchedule, epoch: int, steps: range, last_epoch: int) -> list[_Span]:
        """End the iteration under way; return steps of an epoch, and all of those after it up to the last."""
        shards = self._graph.shards
        if shards.iteration is not None:
            shards.iteration.end()
        counts = torch.tensor([len(steps), schedule.num_steps])
        most = shards.comm.all_reduce(counts, "max").wait().tolist()
        first, later = group_sizes(most[0], is_first=True), group_sizes(most[1], is_first=False)
        others = ((one, range(schedule.num_steps), later) for one in range(epoch + 1, last_epoch + 1))
        return [(epoch, steps, first), *others]

    def _until_another(
        self, schedule: SeedSchedule, epoch: int, first_step: int, last_step: int, last_epoch: int
    ) -> Generator[PreparedBatch, None, tuple[int, int, int] | None]:
        """Yield batches until another pipeline begins; return the epoch and its steps that are left then."""
        spans = self._spans(schedule, epoch, range(first_step, last_step), last_epoch)
        rows, mine = self._graph.shards.rows if self._gathers else {}, Iteration()
        drawn = mine.passed("draw", self._groups(schedule, spans), 1 + lookahead_of(rows))
        asked = mine.passed("ask", self._asked(_items(drawn), rows), 1)
        ready = _items(mine.passed("gather", self._put_together(asked)))
        self._graph.shards.iteration = mine
        try:
            for now, steps, sizes in spans:
                # One more group may begin for each that is used up. A rank may have no share of the last
                # batch: the last group counts as used without it.
                used, ends = 0, [*itertools.accumulate(sizes)]
                ends[-1:] = [max(1, end - 1) for end in ends[-1:]]
                for _ in sizes:
                    if now == last_epoch and used == len(steps):
                        break
                    if (group := next(ready, None)) is None:  # another iteration has begun
                        return now, steps.start + used, steps.stop
                    group.reverse()
                    while group:
                        used += 1
                        is_over = now == last_epoch and used == len(steps)
                        mine.allow(math.inf if is_over else int(used in ends))
                        yield group.pop()
            mine.allow(math.inf)
        finally:
            mine.end(_CLOSING_SECONDS)
        return None

    def _groups(self, schedule: SeedSchedule, spans: list[_Span]) -> Generator[_Group]:
        """Draw this rank's batches of each group."""
        for epoch, steps, sizes in spans:
            for begin, size in zip(itertools.accumulate(sizes, initial=0), sizes, strict=False):
                yield self._drawn(schedule, epoch, steps[begin : begin + size], size)

    def _asked(self, drawn: Iterator[_Group], rows: RowsByType) -> Generator[_Asked]:
        """Ask for the rows of each group, once those of the groups ahead of it are announced."""
        known = known_ahead(drawn, partial(self._announced, rows), lookahead_of(rows))
        try:
            for group, wanted in known:
                with_edges = self._with_edge_rows(group) if isinstance(self._sampler, Frontiers) else group
                for one in wanted.values():
                    one.ask()
                yield with_edges, wanted
        finally:
            for of_type in rows.values():
                of_type.cache.forget()

    def _drawn(self, schedule: SeedSchedule, epoch: int, steps: range, count: int) -> _Group:
        """Draw a group of ``count`` batches, without feature rows; return this rank's, those of ``steps``."""
        started = perf_counter()
        positions = [schedule.whole.positions_of(epoch, step) for step in steps]
        given, links = [self._seeds] * len(steps), None
        if isinstance(self._seeds, LinkSeeds) and self._seeds.fetch is not None:
            ends = self._seeds.fetch(torch.cat([*positions, NO_IDS]), self._graph.shards.comm)
            links = torch.split(ends, [one.numel() for one in positions], 1)
            given = [*map(self._seeds.with_ends, links)]
        elif isinstance(self._seeds, QuestionSeeds):
            links = tuple(map(self._seeds.links_of, positions))
        begun = [
            begin_batch(self._sampler.begin, schedule, of, ids, epoch=epoch, step=step)
            for step, of, ids in zip(steps, given, positions, strict=True)
        ]
        if isinstance(self._sampler, Frontiers):
            self._sampler.draw(count, links)
        group = [next(batch) for batch in begun]
        self._seconds["sample"] += perf_counter() - started
        return group

    def _announced(self, rows: RowsByType, group: _Group) -> dict[int, GroupRows]:
        """Announce the rows that a group reads, by the numbers of types that have rows."""
        first, sampled = self._first_ids, [one.sampled for one in group]
        ids = [one.n_id_by_type if first is None else divided_by_type(one.n_id, first) for one in sampled]
        return {at: GroupRows(one, [by_type[at] for by_type in ids]) for at, one in rows.items()}

    def _with_x(self, batch: PreparedBatch, x: list[Tensor | None]) -> PreparedBatch:
        if self._first_ids is None:
            return batch._replace(x=x)
        seeds = batch.seeds or BatchSeeds(nodes=batch.input_id)
        attributes: dict[str, Any] = {**seeds.attributes, X_BY_TYPE: x}
        return batch._replace(seeds=replace(seeds, attributes=attributes))

    def _put_together(self, asked: _Queue[_Asked]) -> Generator[_Group]:
        """Yield groups with their feature rows; rows of the next group begin to travel first if it is known.

        All ranks begin groups in their order. Each may finish one when it likes: that sends nothing.
        """
        coming = deque[_Asked]()
        for group, of_group in _items(asked):
            for one in of_group.values():
                one.begin()
            coming.append((group, of_group))
            while coming and (len(coming) > 1 or asked.empty()):
                yield self._gathered(*coming.popleft())
        yield from (self._gathered(*one) for one in coming)

    def _gathered(self, group: _Group, coming: dict[int, GroupRows]) -> _Group:
        started = perf_counter()
        if self._gathers:
            found = {number: one.finish() for number, one in coming.items()}
            types = range(len(self._graph.shards.by_type))
            x_of = ([found[one][at] if one in found else None for one in types] for at in range(len(group)))
            group = [*map(self._with_x, group, x_of)]
        self._seconds["gather"] += perf_counter() - started
        self._seconds["batches"] += len(group)
        return group

    def _with_edge_rows(self, group: _Group) -> _Group:
        """Return a group with the rows of its edges that batches are to have."""
        graph, sampled, names = self._graph, [one.sampled for one in group], self._of_edges
        are_positions = "edge_id" not in graph.shards.edges.tables
        e_ids = [one.positions() if "e_id" in names and are_positions else None for one in sampled]
        found: list[dict[Any, Tensor]] = [{} if ids is None else {"e_id": ids} for ids in e_ids]
        for relation in graph.all_types.relations():
            edges, tables = graph.edges_of(relation.edge_type), dict[str, str]()
            is_read = "blocks" in names or (edges.weighted and edges.weight_name in names)
            if graph.csc.weight is not None and is_read:
                tables["weight"] = edges.weight_name
            if edges.edge_attr is not None and "edge_attr" in names:
                tables[f"edge{relation.number}_attr" if graph.is_typed else "edge_attr"] = "edge_attr"
            if "e_id" in names and not are_positions:
                tables["edge_id"] = "e_id"
            if not tables:
                continue
            read = graph.shards.edges.gather(sampled, list(tables), relation)
            keys = [(relation.edge_type, name) if graph.is_typed else name for name in tables.values()]
            for rows, of_batch in zip(found, read, strict=True):
                rows.update(zip(keys, of_batch, strict=True))
        return [one._replace(edge_rows=rows) for one, rows in zip(group, found, strict=True)]

    def begin(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse batches of other seeds than a schedule's."""
        raise ConfigError(_REFUSED.format("calls with ids are not answered by all ranks together"))

    def stage_seconds(self) -> dict[str, float]:
        """Return the seconds of each stage since the start, of the thread that prepares."""
        return dict(self._seconds)

    def busy_threads(self) -> int:
        """Return 0, as the threads that draw do so for all ranks."""
        return 0
