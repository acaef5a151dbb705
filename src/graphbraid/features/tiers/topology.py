"""TieredTopology: adjacency lists in a file, hot ones in memory. HostTiers: one budget for rows and lists."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from graphbraid import native
from graphbraid.arguments import as_budget, check_type
from graphbraid.errors import ConfigError
from graphbraid.features import reference
from graphbraid.features.budgets import (
    Curve,
    hot_ids_in,
    list_blocks,
    list_options_for,
    options_for,
    order_of,
    require_free,
    row_bytes_kept,
    split,
    values_of,
)
from graphbraid.features.rows.caches import checked_score
from graphbraid.features.rows.disk import DiskOptions, DiskRows
from graphbraid.features.scores import walks
from graphbraid.features.tiers.tier_report import SHARES
from graphbraid.features.tiers.tiered_features import TieredFeatures
from graphbraid.files import mapped
from graphbraid.files.block_sums import BLOCK_BYTES
from graphbraid.files.writing import format_bytes
from graphbraid.graph import Graph
from graphbraid.graph.csc import Csc
from graphbraid.graph.identity import topology_mark
from graphbraid.graph.scaled_features import ScaledFeatures, kept_row_bytes, stored_rows
from graphbraid.native import plain_errors
from graphbraid.sampling.config import SamplerConfig, SeedSchedule
from graphbraid.sampling.rows.by_id import TierCounts
from graphbraid.signatures import typed

_LIST_BYTES = 8  # noted of each hot list: where it begins
_NODES_PER_WORD, _WORD_BYTES = 64, 16  # csrc/disk/neighbor_lists.h
_READ_AT_ONCE = 1 << 20  # edges


class ExpectedReads(NamedTuple):
    """Expected reads of the lists in memory, from a curve of all lists."""

    share: float
    """Share of the reads that the lists in memory serve."""
    points: tuple[tuple[float, int, float], ...]
    """Shares of the bytes of all lists, the bytes, and the share of reads that they would serve."""

    @classmethod
    def of(cls, curve: Curve, count: int) -> ExpectedReads:
        """Return the expected reads with the first ``count`` lists of a curve in memory."""
        sizes = curve.size.cumsum(0)
        whole = int(sizes[-1]) if len(curve) else 0
        held = [int(torch.searchsorted(sizes, int(whole * part), right=True)) for part in SHARES]
        points = zip(SHARES, map(curve.num_bytes, held), map(curve.share, held), strict=True)
        return cls(curve.share(count), tuple(points))


class TieredTopology:
    """The adjacency lists of a graph in a store: hot lists in memory, the others read from the file.

    Batches are the same to the bit for any division. A batch is sampled ahead of its use. Each hop draws for
    all its nodes, then reads the drawn ids at once in the order of the file.
    :class:`graphbraid.loader.NeighborLoader` and :class:`graphbraid.Trainer` take it as ``topology``.
    :meth:`build` makes it. Threads may share it.
    """

    def __init__(
        self,
        disk: DiskRows,
        csc: Csc,
        hot: Tensor | None,
        *,
        expected: ExpectedReads | None = None,
        mark: str = "",
    ) -> None:
        self.mark = mark
        """:func:`.graph.identity.topology_mark` of the lists; empty if not known."""
        self.disk, self._csc, self._hot, self._expected = disk, csc, hot, expected
        self._process, self._native = os.getpid(), self._make()
        self._last_epoch: TierCounts | None = None

    @classmethod
    @typed
    def build(
        cls, graph: Graph, *, host: int | str, score: Any = None, disk: DiskOptions | None = None
    ) -> TieredTopology:
        """Make tiers of a graph's adjacency lists.

        Args:
            graph: graph with a topology mapped from a store, as by :func:`graphbraid.datasets.open_store`.
            host: memory for lists and for their bookkeeping, in bytes or as ``"4GiB"``; 0 reads all from the
                file. ``"all"``, or more than the topology needs, keeps all in memory.
            score: ``(num_nodes,)`` expected reads of each node's list; lists with most reads per byte are
                held. None: a node's number of out-edges, by which hops find it.
            disk: options of reads from the file. None takes the defaults, with fewer requests for a small
                ``host``.

        Raises:
            ConfigError: a size is invalid, or too small for the bookkeeping of all lists.
            DataError: the topology is not mapped from a store, or the score does not fit it.
            ResourceError: the memory is not free, or the file cannot be read.
        """
        parts = ListParts.of(graph, disk or list_options_for(host))
        budget = min(as_budget(host, "host"), parts.whole_bytes)
        if budget in (0, parts.whole_bytes):
            require_free(budget, f"host={host!r}")
            return parts.hold(None if budget else torch.empty(0, dtype=torch.int64))
        if budget < parts.notes_bytes:
            raise ConfigError(
                f"host={host!r} does not hold the bookkeeping of all {parts.num_nodes:,} adjacency lists, "
                f"{format_bytes(parts.notes_bytes)}. Give more, or 0 to read all from the file"
            )
        require_free(budget, f"host={host!r}")
        reads = walks.out_degree(graph.csc) if score is None else checked_score(score, parts.num_nodes)
        curve = parts.curve(reads)
        [count] = split(budget - parts.notes_bytes, [curve])
        return parts.hold(curve.order[:count], curve)

    @property
    def csc(self) -> Csc:
        """The topology: ``indptr`` is in memory unless nothing is held, ``indices`` in memory or mapped."""
        return self._csc

    @property
    def native(self) -> Any | None:
        """The reader of the lists; a forked process opens a new one. None if all are in memory."""
        if self._process != os.getpid():
            self._process, self._native = os.getpid(), self._make()
        return self._native

    @property
    def num_lists(self) -> int:
        """Number of lists in memory. Empty lists count only if all lists are there."""
        return self._csc.num_dst if self._hot is None else self._hot.numel()

    @property
    def host_bytes(self) -> int:
        """Memory of the host's tier: lists and their bookkeeping."""
        if self._native is None:
            return self._csc.indptr.nbytes + self._csc.indices.nbytes + self.disk.buffer_bytes
        held = self._native.hot_edges() * self._csc.indices.itemsize
        return int(held + self._native.overhead_bytes()) + (self._csc.indptr.nbytes if self.num_lists else 0)

    @property
    def counts(self) -> TierCounts:
        """Counts of reads since the tiers were made. If all lists are in memory, nothing is counted."""
        reader, disk = self.native, self.disk.counts
        kept_lists, kept_edges, lists, edges = (0, 0, 0, 0) if reader is None else reader.counts()
        return disk._replace(host_rows=kept_lists, host_edges=kept_edges, disk_rows=lists, disk_edges=edges)

    def note_epoch(self, before: TierCounts) -> None:
        """Record the reads since ``before``, earlier :attr:`counts`, as an epoch of training, for reports."""
        self._last_epoch = self.counts.since(before)

    def explain(self) -> str:
        """Return the tiers as text: lists, bytes, expected and measured shares, gains by more memory."""
        csc, kept = self._csc, self.num_lists
        lines = [
            f"{csc.num_dst:,} adjacency lists of {csc.num_edges:,} edges "
            f"({csc.indices.dtype}, {format_bytes(csc.indices.nbytes)})",
            f"host  {kept:,} lists ({kept / max(csc.num_dst, 1):.1%}), {format_bytes(self.host_bytes)} "
            "with the bookkeeping of all",
        ]
        if self._native is None:
            return "\n".join(lines)
        held = self._native.hot_edges()
        lines.append(
            f"disk  the others, {format_bytes((csc.num_edges - held) * csc.indices.itemsize)}; "
            f"{self.disk.how()}"
        )
        if self._expected is not None:
            lines.append(f"expected: {self._expected.share:.1%} of the reads from memory")
        measured = (("measured", self.counts), ("the last epoch", self._last_epoch))
        lines += [
            f"{what}: {_read(counts)}" for what, counts in measured if counts is not None and counts.reads
        ]
        if self._expected is not None:
            lines += ["with other amounts of memory for lists, the share of reads from memory:"]
            lines += [
                f"  {part:4.0%}  {format_bytes(size):>10}  {share:.1%}"
                for part, size, share in self._expected.points
            ]
        return "\n".join(lines)

    def _make(self) -> Any | None:
        if self._hot is None:
            return None
        kernels = native.kernels() or reference
        with plain_errors():
            return kernels.NeighborLists(disk=self.disk.native, indptr=self._csc.indptr, hot=self._hot)

    def __reduce__(self) -> tuple[Any, ...]:
        csc = self._csc
        weight = None if csc.weight is None else mapped.sent(csc.weight)
        arrays = mapped.sent(csc.indptr), mapped.sent(csc.indices), weight
        named = {"expected": self._expected, "mark": self.mark}
        return _remade, (self.disk, arrays, csc.num_src, self._hot, named)

    def __repr__(self) -> str:
        csc = self._csc
        return f"TieredTopology({csc.num_dst:,} lists, {csc.num_edges:,} edges, {self.num_lists:,} in memory)"


class ListParts:
    """Sizes of a stored graph's adjacency lists and their bookkeeping, from which memory is divided."""

    def __init__(self, csc: Csc, disk: DiskRows) -> None:
        self.csc, self.disk = csc, disk
        self.num_nodes = csc.num_dst

    @classmethod
    def of(cls, graph: Graph, options: DiskOptions) -> ListParts:
        """Return the lists of a graph mapped from a store; DataError for others, or ResourceError."""
        check_type(graph, "graph", Graph, "a graphbraid.Graph", error=ConfigError)
        return cls(graph.csc, DiskRows.behind(graph.csc.indices, options=options, what="adjacency lists"))

    @property
    def notes_bytes(self) -> int:
        """Memory for the bookkeeping of all lists if some are read from the file."""
        words = -(-self.num_nodes // _NODES_PER_WORD) * _WORD_BYTES
        return self.csc.indptr.nbytes + words + _LIST_BYTES + self.disk.buffer_bytes

    @property
    def whole_bytes(self) -> int:
        """Memory for the whole topology."""
        return self.csc.indptr.nbytes + self.csc.indices.nbytes + self.disk.buffer_bytes

    def curve(self, reads: Tensor) -> Curve:
        """Return the savings by holding each list that is not empty.

        A unit for ``reads`` is :func:`.budgets.list_blocks`.
        """
        degrees = self.csc.degrees()
        filled = degrees.nonzero().flatten()
        sizes = degrees[filled] * self.csc.indices.itemsize + _LIST_BYTES
        curve = Curve.of(reads[filled], sizes)
        return Curve(order=filled[curve.order], size=curve.size, saved=curve.saved)

    def hold(self, nodes: Tensor | None, curve: Curve | None = None) -> TieredTopology:
        """Return tiers with the lists of ``nodes`` in memory, ``(num_lists,)`` int64; None: all."""
        csc = self.csc
        if nodes is None:
            indices = torch.empty_like(csc.indices)
            for begin in range(0, csc.num_edges, _READ_AT_ONCE):
                end = min(begin + _READ_AT_ONCE, csc.num_edges)
                self.disk.gather(torch.arange(begin, end), indices[begin:end])
            held = Csc(csc.indptr.clone(), indices, csc.num_src, csc.weight)
            return TieredTopology(self.disk, held, None, mark=topology_mark(csc))
        indptr = csc.indptr.clone() if nodes.numel() else csc.indptr
        held = Csc(indptr, csc.indices, csc.num_src, csc.weight, trusted=True)
        expected = None if curve is None else ExpectedReads.of(curve, nodes.numel())
        return TieredTopology(
            self.disk, held, nodes.sort().values, expected=expected, mark=topology_mark(csc)
        )


def _read(counts: TierCounts) -> str:
    return (
        f"{counts.host_share:.1%} of {counts.reads:,} reads of lists from memory; "
        f"{format_bytes(counts.disk_bytes)} from disk by {counts.disk_requests:,} requests"
    )


_Array = Tensor | mapped.Sent


def _remade(
    disk: DiskRows,
    arrays: tuple[_Array, _Array, _Array | None],
    num_src: int,
    hot: Tensor | None,
    named: dict[str, Any],
) -> TieredTopology:
    indptr, indices, weight = (None if array is None else mapped.received(array) for array in arrays)
    assert indptr is not None
    assert indices is not None
    return TieredTopology(disk, Csc(indptr, indices, num_src, weight, trusted=True), hot, **named)


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class HostTiers:
    """Feature rows and adjacency lists of a stored graph, some in memory, the others in its files."""

    features: TieredFeatures
    """The rows; loaders and Trainers take them as ``tiers``."""
    topology: TieredTopology | None
    """The lists; loaders and Trainers take them as ``topology``. None if the topology is not mapped."""
    reason: str
    """The division of memory and its reasons, in words."""

    @classmethod
    @typed
    def build(
        cls,
        graph: Graph,
        *,
        host: int | str | None,
        hot: int | str = 0,
        row_reads: Any = None,
        list_reads: Tensor | None = None,
        policy: str = "belady",
    ) -> HostTiers:
        """Divide memory between rows and lists by the disk reads that each saves per byte.

        Args:
            graph: dense features mapped from a store. Its topology is placed if it is also mapped.
            host: memory for both and for their bookkeeping, in bytes or as ``"4GiB"``; 0 reads everything
                from the files. ``"all"``, or more than both need, keeps everything in memory. None: the graph
                is used as it is.
            hot: memory of each device for feature rows, as in :class:`TieredFeatures`.
            row_reads: ``(num_nodes,)`` reads of each row in a period, such as expected reads of an epoch, or
                a record with them as ``values`` (:func:`graphbraid.features.score`). None: in proportion to a
                node's number of out-edges.
            list_reads: ``(num_nodes,)`` blocks read in the same period for each list that is not held
                (:func:`expected_list_blocks`). None: one block for each read.
            policy: policy of the rows, as in :class:`TieredFeatures`.

        Raises:
            ConfigError: a size is invalid, or too small for the bookkeeping and one row.
            DataError: the features are not dense or not mapped from a store, or reads do not fit the graph.
            ResourceError: the memory is not free, or a file cannot be read.
        """
        x, indices = graph.x, graph.csc.indices
        features: dict[str, Any] = {"policy": policy, "score": row_reads, "hot": hot}
        if host is None:
            alone = TieredFeatures.build(graph, **features)
            return cls(features=alone, topology=None, reason="the host has the graph as it is")
        stored = stored_rows(x)
        if stored is None or mapped.find(indices.data_ptr(), indices.nbytes) is None:
            alone = TieredFeatures.build(graph, host=host, **features)
            return cls(features=alone, topology=None, reason="the topology is in memory: all is for rows")
        rows = DiskRows.behind(stored, options=options_for(host))
        parts = ListParts.of(graph, list_options_for(host))
        scaled = isinstance(x, ScaledFeatures)
        notes, kept = row_bytes_kept(rows, ranked=row_reads is not None, scaled=scaled)
        whole = parts.whole_bytes + notes + kept * len(stored)
        budget = min(as_budget(host, "host"), whole)
        require_free(budget, f"host={host!r}")
        features["disk"] = rows.options
        if budget in (0, whole):
            return cls(
                features=TieredFeatures.build(graph, host="all" if budget else 0, **features),
                topology=parts.hold(None if budget else torch.empty(0, dtype=torch.int64)),
                reason="memory holds everything" if budget else "memory holds nothing",
            )
        least = notes + kept + parts.notes_bytes
        if budget < least:
            raise ConfigError(
                f"host={host!r} holds no row: the bookkeeping of all {len(stored):,} rows and adjacency "
                f"lists, and a row, take {format_bytes(least)}. Give more, or 0 to read all from the files"
            )
        reads = _reads_of_host(graph, row_reads, hot)
        curves = (_curve_of_lists(parts, graph, list_reads), _curve_of_rows(rows, reads, kept))
        num_lists, num_rows = _divided(budget - notes, parts, curves)
        holds_all = num_lists == len(curves[0])
        return cls(
            features=TieredFeatures.build(graph, host=notes + kept * max(num_rows, 1), **features),
            topology=parts.hold(None if holds_all else curves[0].order[:num_lists], curves[0]),
            reason=_reason(budget, curves, (num_lists, num_rows)),
        )

    def explain(self) -> str:
        """Return the division of memory, and the tiers of rows and lists, in words."""
        parts = [self.reason] + ([] if self.topology is None else [self.topology.explain()])
        return "\n\n".join([*parts, self.features.explain()])


@typed
def expected_list_blocks(csc: Csc, sampler: SamplerConfig, schedule: SeedSchedule) -> Tensor:
    """Return the expected number of blocks that an epoch reads for each list that is not held.

    Each hop that draws from a list reads it, and each draw touches a block. So lists are read more often than
    rows, which a batch reads once.

    Returns:
        ``(num_nodes,)`` float64.
    """
    degrees, blocks = csc.degrees(), torch.zeros(csc.num_dst, dtype=torch.float64)
    for fanout, reads in walks.expansions(csc, sampler, schedule):
        if fanout:
            blocks += reads * list_blocks(degrees, fanout, csc.indices.itemsize)
    return blocks


def _curve_of_lists(parts: ListParts, graph: Graph, reads: Tensor | None) -> Curve:
    return parts.curve(
        walks.out_degree(graph.csc) if reads is None else checked_score(reads, parts.num_nodes)
    )


def _reads_of_host(graph: Graph, score: Any, hot: int | str) -> Tensor:
    """Return each row's reads from the host; rows that devices keep have none."""
    known = None if score is None else checked_score(values_of(score), graph.num_nodes)
    reads = (walks.out_degree(graph.csc) if known is None else known).double()
    x = graph.x
    if as_budget(hot, "hot") and isinstance(x, Tensor | ScaledFeatures):
        reads = reads.clone()
        reads[hot_ids_in(hot, order_of(reads), kept_row_bytes(x))] = 0.0
    return reads


def _curve_of_rows(rows: DiskRows, reads: Tensor, kept: int) -> Curve:
    """The curve of the rows, by blocks read, like that of the lists."""
    # Rows begin at a block: one that divides it lies in a single one.
    straddle = 0.0 if BLOCK_BYTES % rows.row_bytes == 0 else (rows.row_bytes - 1) / BLOCK_BYTES
    blocks = max(1.0 + straddle, rows.row_bytes / BLOCK_BYTES)
    return Curve.of(reads * blocks, kept)


def _divided(room: int, parts: ListParts, curves: tuple[Curve, Curve]) -> tuple[int, int]:
    """Return the numbers of lists and rows that a budget holds beside bookkeeping; one row at least.

    If all lists fit, their bookkeeping is smaller, and more rows fit.
    """
    [lists, rows] = curves
    num_lists, num_rows = split(room - parts.notes_bytes, curves)
    if num_lists == len(lists):
        return num_lists, split(room - parts.whole_bytes, [rows])[0]
    if num_rows == 0:
        [num_lists] = split(room - parts.notes_bytes - int(rows.size[0]), [lists])
        num_rows = 1
    return num_lists, num_rows


def _reason(budget: int, curves: Iterable[Curve], counts: tuple[int, int]) -> str:
    held = [
        f"{format_bytes(curve.num_bytes(count))} to {count:,} of {len(curve):,} {name} "
        f"({curve.share(count):.1%} of the expected cost of reads)"
        for name, curve, count in zip(("adjacency lists", "feature rows"), curves, counts, strict=True)
    ]
    return f"host {format_bytes(budget)}: " + " and ".join(held) + ", by reads of the disk saved per byte"
