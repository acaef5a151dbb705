"""TritonPipeline: the sampler on a CUDA device, with the interface of the compiled CPU sampler and its bits.

A hop counts the edges of its rows, draws their positions, reads the sources and assigns local ids to them.
The numbers of rows and edges stay on the device: buffers and grids have the sizes that ``bounds`` gives. One
copy of the counts per batch goes to the host, which waits for it only after launching the next batch.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from time import perf_counter

import torch
from torch import Tensor

from graphbraid.arguments import check_choice
from graphbraid.errors import ConfigError, DataError
from graphbraid.graph.csc import Csc
from graphbraid.ops import rng
from graphbraid.ops.gather import TierTable
from graphbraid.ops.triton.gather import gather_rows, gather_tiered
from graphbraid.ops.triton.launch import on_device_of
from graphbraid.sampling.config import SamplerConfig, SeedSchedule
from graphbraid.sampling.sample import ListReads, PreparedBatch, Sampled, keep_share
from graphbraid.sampling.triton import draw, relabel, topology
from graphbraid.sampling.triton.draw import PlacedWeights
from graphbraid.sampling.triton.relabel import (
    BatchBounds,
    Counts,
    DrawnHop,
    GraphBounds,
    Table,
    check_positions,
    cut_blocks,
    cut_subgraph,
    no_edges,
    place_seeds,
    steps_of,
)
from graphbraid.sampling.triton.rng import signed
from graphbraid.sampling.triton.topology import PLACEMENTS, HopRows, PlacedTopology, place

Span = tuple[str, torch.cuda.Event, torch.cuda.Event]


class StageClock:
    """A clock that adds up the seconds of each stage, by CUDA events or, on the CPU, by the host's clock."""

    def __init__(self, device: torch.device) -> None:
        self._on_device = device.type == "cuda"
        self._seconds = {"sample": 0.0, "gather": 0.0}
        self._batches = 0
        self._open: deque[Span] = deque()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count everything launched inside the ``with`` block towards the stage ``name``."""
        if not self._on_device:
            started = perf_counter()
            yield
            self._seconds[name] += perf_counter() - started
            return
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        yield
        end.record()
        self._open.append((name, begin, end))

    def count_batch(self) -> None:
        """Count one more batch, and add up the spans that have ended."""
        self._batches += 1
        while self._open and self._open[0][2].query():
            self._add(self._open.popleft())

    def seconds(self) -> dict[str, float]:
        """Return the seconds per stage and the number of ``batches``; waits for the device."""
        while self._open:
            self._open[0][2].synchronize()
            self._add(self._open.popleft())
        return {**self._seconds, "batches": float(self._batches)}

    def _add(self, span: Span) -> None:
        name, begin, end = span
        self._seconds[name] += 1e-3 * begin.elapsed_time(end)


UNREAD_EDGES = 1 << 24
"""Most edges a hop may have for its buffers to be allocated by the upper bound. For a larger hop the host
first waits for the actual number: 2**24 edges take some 600 MB of buffers, and the wait is short compared
with drawing that many."""


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Launched:
    """A batch that the device is preparing."""

    step: int
    input_id: Tensor
    n_id: Tensor
    hops: list[DrawnHop]
    counts: Counts
    share: tuple[Tensor, int] | None = None
    """The seeds whose share of the batch is kept, and its reach; None for the whole batch."""


class TritonPipeline:
    """A pipeline that prepares mini-batches on a CUDA device; :mod:`graphbraid.sampling.cpu` has its twins.

    Batches equal those of the CPU bit for bit, for every option of :class:`SamplerConfig`; their tensors are
    on the device. Kernels go to the stream that is current while :meth:`run` is iterated; a pipeline serves
    one stream and one run at a time.

    Args:
        csc: the graph, on the CPU.
        config: options of the sampler.
        x: ``(num_nodes, F)`` contiguous feature rows to gather, or a table of rows in several memories that
            the device reads. If None, only nodes and edges are sampled.
        device: a CUDA device. The CPU, on which Triton interprets the kernels, is for tests.
        topology: ``device`` copies the graph to the device; ``host`` leaves it in page-locked memory, from
            which the kernels read one adjacency list at a time over the link.
        features: the same for ``x``.
        hot_lists: ``(num_hot,)`` int64 distinct nodes whose adjacency lists, with ``indptr``, are copied to
            the device although the topology is on the host. If None, none.

    Raises:
        ConfigError: a placement is unknown, or ``hot_lists`` is given with a topology on the device.
        DataError: ``config.weighted`` is set and the graph has no weights, or ``x`` does not fit the graph.
    """

    def __init__(
        self,
        csc: Csc,
        config: SamplerConfig,
        x: Tensor | TierTable | None,
        *,
        device: torch.device | str = "cuda",
        topology: str = "device",
        features: str = "device",
        hot_lists: Tensor | None = None,
    ) -> None:
        check_choice(topology, "topology", PLACEMENTS)
        if hot_lists is not None and topology != "host":
            raise ConfigError(
                f"hot_lists are lists of a topology on the host; got topology={topology!r}: leave them out"
            )
        check_choice(features, "features", PLACEMENTS)
        if isinstance(x, Tensor) and (x.ndim != 2 or not x.is_contiguous() or x.shape[0] != csc.num_dst):
            raise DataError(
                f"x must be contiguous rows, one for each of {csc.num_dst} nodes; got shape {tuple(x.shape)}"
            )
        if config.weighted and csc.weight is None:
            raise DataError("weighted sampling needs edge weights; the graph has none")
        self._config = config
        self._device = torch.empty(0, device=device).device  # resolves "cuda" to the current device
        self._degrees = csc.degrees() if -1 in config.fanouts else None
        self._bounds = GraphBounds.of(csc, config)
        self._topology = PlacedTopology(csc, topology, hot_lists, self._device)
        self._x = place(x.detach(), features, self._device) if isinstance(x, Tensor) else x
        self._weights = (
            PlacedWeights(self._topology, csc, config, topology, self._device) if config.weighted else None
        )
        self._table = Table(csc.num_dst, self._device)
        self._clock = StageClock(self._device)
        self._scheduled: tuple[SeedSchedule, Tensor, int] | None = None
        weakref.finalize(self, _end_work, self._device).atexit = False

    @property
    def list_counts(self) -> Tensor | None:
        """The sums that :meth:`list_reads` reads, ``(4,)`` int64 on the device. None if no list is hot."""
        return self._topology.reads

    @property
    def weight_bytes(self) -> Tensor | None:
        """Bytes of weights that draws have read over the link so far, ``()`` int64 on the device.

        None where the device has the weights, or draws use none.
        """
        return None if self._weights is None else self._weights.read_bytes

    def list_reads(self) -> ListReads | None:
        """Return the reads of lists since the start; waits for the device. None without hot lists."""
        return self._topology.list_reads()

    def run(
        self, schedule: SeedSchedule, epoch: int, first_step: int, last_step: int
    ) -> Iterator[PreparedBatch]:
        """Yield the batches of ``[first_step, last_step)`` in order; the next is prepared meanwhile."""
        waiting: Launched | None = None
        for step in range(first_step, last_step):
            launched = self.launch(schedule, epoch, step)
            if waiting is not None:
                yield self.finish(waiting)
            waiting = launched
        if waiting is not None:
            yield self.finish(waiting)

    def launch(self, schedule: SeedSchedule, epoch: int, step: int) -> Launched:
        """Launch the sampling of a step's batch on the device; :meth:`finish` waits for it."""
        seeds, seed_edges = self._seeds_of(schedule)
        begin, end = schedule.sampled.bounds_of(step)
        launched = self._launch(
            seeds,
            begin,
            end - begin,
            key=rng.batch_key(schedule.seed, epoch, step),
            shuffle_key=rng.shuffle_key(schedule.seed, epoch) if schedule.shuffle else None,
            seed_edges=seed_edges,
            step=step,
        )
        if schedule.reach is None:
            return launched
        return replace(launched, share=(schedule.own_of(step).to(self._device), schedule.reach))

    def finish(self, launched: Launched) -> PreparedBatch:
        """Wait for the batch's sizes, trim its buffers to them, launch the gather, and return the batch."""
        sampled, input_id = self._sampled(launched), launched.input_id
        if launched.share is not None:
            own, reach = launched.share
            with on_device_of(own), self._clock.stage("sample"):
                sampled, input_id = keep_share(sampled, [(0, 0)], [own], reach), input_id[own]
        rows = None
        if self._x is not None:
            with on_device_of(sampled.n_id), self._clock.stage("gather"):
                rows = _rows_of(self._x, sampled.n_id)
        self._clock.count_batch()
        return PreparedBatch(launched.step, input_id, sampled, [rows])

    def sample(self, seeds: Tensor, key: int) -> Sampled:
        """Sample one batch and wait for it; twin of :func:`graphbraid.sampling.sample_batch`."""
        edges = 0 if self._degrees is None else int(self._degrees[seeds.cpu()].sum())
        seeds = seeds.to(self._device)
        launched = self._launch(seeds, 0, seeds.numel(), key=key, shuffle_key=None, seed_edges=edges, step=0)
        return self._sampled(launched)

    def stage_seconds(self) -> dict[str, float]:
        """Return the seconds per stage since the start by the device's clock; waits for the device."""
        return self._clock.seconds()

    def busy_threads(self) -> int:
        """Return 0, as the device prepares the batches."""
        return 0

    def _seeds_of(self, schedule: SeedSchedule) -> tuple[Tensor, int]:
        """Return all seeds, on the device, and a bound on the in-edges of one step's; cached per schedule."""
        if self._scheduled is None or self._scheduled[0] is not schedule:
            self._scheduled = (
                schedule,
                schedule.seeds.to(self._device),
                self._most_edges_into(schedule.sampled),
            )
        return self._scheduled[1:]

    def _most_edges_into(self, schedule: SeedSchedule) -> int:
        if self._degrees is None:
            return 0
        return int(self._degrees[schedule.seeds].topk(schedule.most_seeds).values.sum())

    def _launch(
        self,
        seeds: Tensor,
        first: int,
        count: int,
        *,
        key: int,
        shuffle_key: int | None,
        seed_edges: int,
        step: int,
    ) -> Launched:
        """Launch a batch's kernels without waiting, except for hops that may exceed ``UNREAD_EDGES``."""
        config = self._config
        with on_device_of(seeds), self._clock.stage("sample"):
            counts = Counts(len(config.fanouts), self._device)
            input_id, n_id = seeds.new_empty(count), seeds.new_empty(count)
            self._table.begin_batch()
            if count:
                place_seeds(
                    seeds, self._table, counts.nodes, input_id, n_id, first=first, shuffle_key=shuffle_key
                )
            bounds = BatchBounds(self._bounds, config, num_seeds=count, seed_edges=seed_edges)
            hops = []
            for hop in range(len(config.fanouts)):
                drawn, n_id = self._launch_hop(hop, n_id, counts, bounds, count, signed(key))
                hops.append(drawn)
            counts.send()
        return Launched(step=step, input_id=input_id, n_id=n_id, hops=hops, counts=counts)

    def _launch_hop(
        self, hop: int, n_id: Tensor, counts: Counts, bounds: BatchBounds, num_seeds: int, key: int
    ) -> tuple[DrawnHop, Tensor]:
        """Launch one hop; return it and ``n_id``, enlarged to hold the nodes that it finds."""
        rows = HopRows(
            n_id=n_id,
            node_bounds=counts.nodes,
            capacity=bounds.rows,
            hop=hop,
            fanout=self._config.fanouts[hop],
            replace=self._config.replace,
            blocks=self._config.layout == "blocks",
            key=key,
        )
        num_edges = bounds.edges
        if num_edges:
            available = None if self._weights is None else self._weights.available
            edges = topology.count_edges(rows, self._topology, available)
            if num_edges > UNREAD_EDGES:
                num_edges = int(edges.offsets[-1])
        bounds.advance(num_edges)
        check_positions(bounds.positions)
        if not num_edges:
            counts.nodes[hop + 2] = counts.nodes[hop + 1]
            counts.edges[hop + 1] = counts.edges[hop]
            return no_edges(rows.capacity, n_id, keep_positions=self._config.return_edge_id), n_id
        places = n_id.new_empty(num_edges)
        if self._weights is None:
            draw.draw_edges(rows, edges, places)
        else:
            self._weights.draw_edges(rows, edges, places)
        n_id = _with_room(n_id, bounds.nodes)
        local = relabel.relabel(
            self._table,
            self._topology.indices,
            places,
            edges.offsets[-1:],
            counts.nodes,
            counts.edges,
            n_id,
            num_seeds=num_seeds,
            hop=hop,
            keep_places=self._config.return_edge_id,
        )
        kept = self._topology.positions_of(rows, edges, places) if self._config.return_edge_id else None
        return DrawnHop(offsets=edges.offsets, local=local, positions=kept), n_id

    def _sampled(self, launched: Launched) -> Sampled:
        nodes, edges = launched.counts.read()
        cut = cut_blocks if self._config.layout == "blocks" else cut_subgraph
        return Sampled(
            n_id_by_type=[launched.n_id[: nodes[-1]]],
            edges_by_relation=[cut(launched.hops, nodes, edges)],
            nodes_by_type=[steps_of(nodes)],
            counts_by_relation=[steps_of(edges)],
        )


def _end_work(device: torch.device) -> None:
    """Wait for a batch that was launched and dropped: host memory is reused without regard to its reads."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _rows_of(x: Tensor | TierTable, ids: Tensor) -> Tensor:
    """Gather rows from any memory by kernels, compiled or interpreted."""
    if isinstance(x, TierTable):
        rows = torch.empty((ids.numel(), x.width), dtype=x.given_dtype, device=ids.device)
        gather_tiered(x, ids, rows)
    else:
        rows = torch.empty((ids.numel(), x.shape[1]), dtype=x.dtype, device=ids.device)
        gather_rows(x.view(torch.uint8), ids, rows.view(torch.uint8))
    return rows


def _with_room(n_id: Tensor, capacity: int) -> Tensor:
    grown = n_id.new_empty(capacity)
    grown[: n_id.numel()].copy_(n_id)
    return grown
