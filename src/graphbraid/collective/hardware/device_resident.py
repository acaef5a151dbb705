"""Chooses the parts, feature rows and adjacency lists that a sampling device keeps in its free memory.

One budget serves adjacency lists and feature rows.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar, cast

import torch
from torch import Tensor

from graphbraid.collective.run.stages import Context
from graphbraid.features.budgets import Curve, list_blocks, split
from graphbraid.features.scores import walks
from graphbraid.files.writing import format_bytes
from graphbraid.graph import ScaledFeatures, SparseFeatures
from graphbraid.graph.csc import Csc, index_dtype
from graphbraid.graph.scaled_features import kept_row_bytes, scale_of, stored_rows
from graphbraid.graph.scans import is_plain
from graphbraid.ops.gather import gather_rows
from graphbraid.sampling.rows.by_id import (
    SECTOR_BYTES,
    SUM_BYTES,
    WEIGHT_BYTES,
    TierCounts,
    list_bytes_read,
    row_sectors,
)
from graphbraid.sampling.rows.device_cache import MAP_BYTES, DeviceCache
from graphbraid.sampling.sample import ListReads, Sampled
from graphbraid.sampling.source import BatchSource

if TYPE_CHECKING:
    from graphbraid.sampling.triton.sampler import TritonPipeline

T = TypeVar("T")
PlacedPart = Literal["topology", "labels", "features"]
PARTS: tuple[PlacedPart, ...] = ("topology", "labels", "features")
"""Parts of a graph in the order in which they are made resident. Topology comes first: over the link a read
of it moves a whole cache line for one number, whereas a read of features moves whole rows."""
PartPlacement = Mapping[PlacedPart, str]
"""Placement of each part: ``device`` or ``host``."""


def choose_placement(part_bytes: Mapping[PlacedPart, int], room: int) -> PartPlacement:
    """Return the placement that makes parts resident in ``room`` bytes, taken in the order of ``PARTS``."""
    placement: dict[PlacedPart, str] = {}
    for part in PARTS:
        fits = part_bytes[part] <= room
        placement[part] = "device" if fits else "host"
        room -= part_bytes[part] if fits else 0
    return placement


def part_bytes_of(context: Context) -> dict[PlacedPart, int]:
    """Return the bytes of each part of the source that a loader's batches are read from."""
    csc, x = context.source.graph.csc, context.source.graph.x
    draws_by_running_sums = context.sampler.weighted and context.sampler.replace
    return {
        "topology": csc.indptr.nbytes + csc.indices.nbytes + 8 * csc.num_edges * draws_by_running_sums,
        "labels": sum(table.nbytes for table in _label_tables(context)),
        "features": 0 if isinstance(x, SparseFeatures | None) or not _can_read(context.source) else x.nbytes,
    }


LOCAL_ID_BYTES = 8
"""Bytes of each node in the table of the device's sampler."""


def sampled_part_bytes(room: int, context: Context) -> int:
    """Return the bytes of topology, labels and local ids on a device that samples, if ``room`` holds them."""
    sizes, local_ids = part_bytes_of(context), LOCAL_ID_BYTES * context.source.graph.num_nodes
    placement = choose_placement(sizes, room - local_ids)
    return local_ids + sum(sizes[part] for part in PARTS[:2] if placement[part] == "device")


def placed_source(
    context: Context, placement: PartPlacement, place: Callable[[Tensor, str], Tensor]
) -> BatchSource:
    """Return the source with all tables that batches look up by id placed where the device reads them.

    The topology is left in place, since the sampler places its own copy. So are sparse features, whose rows
    are read on the CPU.
    """
    source, graph = context.source, context.source.graph
    by_edge = context.sampler.return_edge_id  # without edge ids nothing is looked up by edge

    def placed(table: T) -> T:  # rows of any other table are taken by torch where it is
        if not isinstance(table, Tensor) or not is_plain(table):
            return table
        return cast("T", place(table, placement["labels"]))

    def label(table: Tensor | None, needed: bool = True) -> Tensor | None:
        return table if table is None or not needed else placed(table)

    csc = Csc(graph.csc.indptr, graph.csc.indices, graph.csc.num_src, label(graph.csc.weight), trusted=True)
    x, is_read = graph.x, _can_read(source)
    if isinstance(x, ScaledFeatures) and is_read:
        values, scale = (place(part, placement["features"]) for part in (x.values, x.scale))
        x = ScaledFeatures(values=values, scale=scale, trusted=True)
    elif isinstance(x, Tensor) and is_read:
        x = place(x, placement["features"])
    return dataclasses.replace(
        source,
        rows=None if is_read else source.rows,
        given_link=source.link,
        graph=graph.replace(
            csc=csc,
            x=x,
            y=label(graph.y),
            edge_id=label(graph.edge_id, by_edge),
            edge_attr=label(graph.edge_attr, by_edge),
        ),
        node_attrs={
            one: {name: placed(table) for name, table in attrs.items()}
            for one, attrs in source.node_attrs.items()
        },
        edge_attrs={
            one: {name: placed(table) if by_edge else table for name, table in attrs.items()}
            for one, attrs in source.edge_attrs.items()
        },
        src_degree=label(source.src_degree),
        src_loop=label(source.src_loop),
    )


def _can_read(source: BatchSource) -> bool:
    """Return whether the device can read all features: they are in memory, not in a file."""
    return source.rows is None or source.rows.in_memory is not None


def _label_tables(context: Context) -> list[Tensor]:
    """Return the tables that :func:`placed_source` places besides features: labels, masks, weights, ids."""
    source, graph = context.source, context.source.graph
    tables = [graph.y, graph.csc.weight, source.src_degree, source.src_loop]
    if context.sampler.return_edge_id:
        of_edges = source.edge_attrs.values()
        tables += [graph.edge_id, graph.edge_attr, *(t for attrs in of_edges for t in attrs.values())]
    of_nodes = [table for attrs in source.node_attrs.values() for table in attrs.values()]
    return [t for t in (*tables, *of_nodes) if isinstance(t, Tensor) and is_plain(t)]


def shown(placement: PartPlacement, part_bytes: Mapping[PlacedPart, int]) -> str:
    """Return the parts on the device with their sizes, in words."""
    resident = [part for part in PARTS if placement[part] == "device"]
    return ", ".join(f"{part} ({format_bytes(part_bytes[part])})" for part in resident)


class DeviceSplit(NamedTuple):
    """The lists and rows on a device that cannot hold the whole topology."""

    lists: Tensor | None
    """``(num_lists,)`` int64 nodes whose adjacency lists are on the device; None: none."""
    rows: Tensor | None
    """``(num_rows,)`` int64 nodes whose feature rows are on the device, most read first; None: none."""
    reason: str
    """How memory is divided, in words."""


def divide(room: int, context: Context, *, with_rows: bool) -> DeviceSplit:
    """Divide device memory between adjacency lists and feature rows by the link's bytes that each saves.

    Each batch that has a node reads its row once. Each hop that draws from a list reads one sector of it for
    each draw. Both counts are expected values for the sampler's fanouts and seeds. The items that save most
    per byte are chosen first, until nothing more fits. ``room`` is in bytes, also for their bookkeeping.
    Without rows, lists get all of it.
    """
    csc, x = context.source.graph.csc, context.source.graph.x
    by_list = _curve_of_lists(context)
    notes, rows_notes = _notes_of_lists(csc), MAP_BYTES * csc.num_dst
    if not with_rows or isinstance(x, SparseFeatures | None):
        [num_lists] = split(room - notes, [by_list])
        return _divided(room, (by_list, num_lists), None)
    reads = walks.inclusion(csc, context.sampler, context.schedule)
    row_bytes = max(kept_row_bytes(x), 1)
    sectors = row_sectors(x, torch.arange(csc.num_dst))
    by_row = Curve.of(reads * (sectors * SECTOR_BYTES), row_bytes)
    num_lists, num_rows = split(room - notes - rows_notes, (by_list, by_row))
    if not num_lists:  # then they need no bookkeeping, and there is room for more rows
        [num_rows] = split(room - rows_notes, [by_row])
    if not num_rows:
        [num_lists] = split(room - notes, [by_list])
    return _divided(room, (by_list, num_lists), (by_row, num_rows))


def _divided(room: int, lists: tuple[Curve, int], rows: tuple[Curve, int] | None) -> DeviceSplit:
    said = []
    for name, part in (("adjacency lists", lists), ("feature rows", rows)):
        if part is not None:
            curve, count = part
            said.append(
                f"{format_bytes(curve.num_bytes(count))} to {count:,} of {len(curve):,} {name} "
                f"({curve.share(count):.1%} of the expected bytes over the link)"
            )
    return DeviceSplit(
        lists=_first(*lists),
        rows=None if rows is None else _first(*rows),
        reason=f"device {format_bytes(max(room, 0))}: " + " and ".join(said) + ", by bytes saved per byte",
    )


def _first(curve: Curve, count: int) -> Tensor | None:
    return curve.order[:count].clone() if count else None


def _notes_of_lists(csc: Csc) -> int:
    """Bytes of ``indptr`` and of the map of the nodes, which go to the device with hot lists."""
    return csc.indptr.nbytes + csc.num_dst * index_dtype(csc.num_edges).itemsize


def held_list_bytes(lists: Tensor, context: Context) -> int:
    """Bytes of adjacency lists on a device with their bookkeeping; ``lists`` are ``(num_lists,)`` int64."""
    csc = context.source.graph.csc
    edge_bytes = csc.indices.itemsize + _weight_bytes(context)
    return _notes_of_lists(csc) + int(csc.degrees()[lists].sum()) * edge_bytes


def _curve_of_lists(context: Context) -> Curve:
    csc, sampler = context.source.graph.csc, context.sampler
    degrees = csc.degrees()
    filled = degrees.nonzero().flatten()
    sectors = torch.zeros(csc.num_dst, dtype=torch.float64)
    for fanout, reads in walks.expansions(csc, sampler, context.schedule):
        if fanout:
            sectors += reads * _sectors_of(degrees, fanout, context)
    size = degrees[filled] * (csc.indices.itemsize + _weight_bytes(context))
    curve = Curve.of(sectors[filled] * SECTOR_BYTES, size)
    return Curve(order=filled[curve.order], size=curve.size, saved=curve.saved)


def _weight_bytes(context: Context) -> int:
    if not context.sampler.weighted:
        return 0
    return SUM_BYTES if context.sampler.replace else WEIGHT_BYTES


def _sectors_of(degrees: Tensor, fanout: int, context: Context) -> Tensor:
    """Sectors that a hop reads of each list: of the drawn ids, and of the weights that decide the draws."""
    ids = list_blocks(degrees, fanout, context.source.graph.csc.indices.itemsize, SECTOR_BYTES)
    if not context.sampler.weighted:
        return ids
    if not context.sampler.replace:  # a race of all edges
        return ids + list_blocks(degrees, -1, _weight_bytes(context), SECTOR_BYTES)
    steps = (degrees + 1).log2().ceil().long()  # of a bisection for each draw
    return ids + list_blocks(degrees, 1, _weight_bytes(context), SECTOR_BYTES) * steps * fanout


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Resident:
    """The parts, rows and lists chosen for the device."""

    placement: PartPlacement
    rows: DeviceCache | None = None
    """Rows of features that are on the host."""
    lists: Tensor | None = None
    """Nodes whose adjacency lists are on the device, of a topology that is on the host."""
    reason: str = ""
    """How memory is divided between rows and lists; empty where the topology is there as a whole."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing was chosen."""
        return set(self.placement.values()) == {"host"} and self.rows is None and self.lists is None


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Placed:
    """The source of a loader placed where the device reads it, and its sampler."""

    source: BatchSource
    pipeline: TritonPipeline
    resident: Resident
    gathers_table: bool
    """Whether the sampler gathers rows from a table of those on the device and all on the host."""

    def count(self, sampled: Sampled, layout: str) -> None:
        """Count the rows that a batch read from the table, if any, and the lists it read from the host.

        Does not wait for the device. A device that holds some lists counts them itself: :meth:`watch_lists`.
        """
        table, rows, link = self.source.table, self.resident.rows, self.source.link
        if self.gathers_table and table is not None and rows is not None:
            rows.count_in(table, sampled.n_id)
        if link is not None and self.resident.placement["topology"] == "host" and self.resident.lists is None:
            nbytes = list_bytes_read(sampled, layout, self.source.graph.csc.indices)
            link.add(TierCounts(link_list_bytes=nbytes))

    def watch_lists(self) -> None:
        """Add the edges and weights that the device counts itself to the counts of transfers."""
        link, counted = self.source.link, self.pipeline.list_counts
        if link is not None and counted is not None:
            itemsize = self.source.graph.csc.indices.itemsize
            link.watch(lambda: ListReads.of(counted).host_edges * itemsize)
        weights = self.pipeline.weight_bytes
        if link is not None and weights is not None:
            link.watch(lambda: int(weights))

    def explain(self, part_bytes: Mapping[PlacedPart, int]) -> str:
        """Describe the device's contents with reasons, and the reads there and over the link; wait for it."""
        return "\n".join(self._lines(part_bytes))

    def _lines(self, part_bytes: Mapping[PlacedPart, int]) -> Iterator[str]:
        placement = self.resident.placement
        there = {part: "host" if where == "device" else "device" for part, where in placement.items()}
        sizes = {part: size for part, size in part_bytes.items() if size}
        on_device, on_host = (
            shown({part: where[part] if part in sizes else "host" for part in PARTS}, sizes)
            for where in (placement, there)
        )
        yield f"the device that samples holds {on_device or 'no part as a whole'}" + (
            f" and reads {on_host} over the link" if on_host else ""
        )
        if self.resident.reason:
            yield self.resident.reason
        if (lists := self.pipeline.list_reads()) is not None:
            reads, edges = lists.device_lists + lists.host_lists, lists.device_edges + lists.host_edges
            yield (
                f"lists: {lists.device_share:.1%} of {reads:,} reads on the device; {lists.host_edges:,} of "
                f"{edges:,} edges over the link"
            )
        if self.gathers_table and self.resident.rows is not None:
            hot = self.resident.rows
            reads, hits = hot.counts
            where = "the device" if len(hot.own_ids) == hot.num_rows else "the device and its peers"
            yield (
                f"rows: {hits / max(reads, 1):.1%} of {reads:,} reads on {where} "
                f"({hot.num_rows:,} rows); {reads - hits:,} over the link"
            )


def resident_in(room: int, context: Context) -> Resident:
    """Choose the parts that fit, and rows and lists of those that do not.

    ``room`` is in bytes, and holds the sampler's table of local ids, too. Nothing is placed.
    """
    rows, sizes = context.source.rows, part_bytes_of(context)
    room -= LOCAL_ID_BYTES * context.source.graph.num_nodes
    placement = choose_placement(sizes, room)
    # The device chooses hot rows itself where no tiers were given that choose them.
    may_choose = rows is None or (rows.hot is None and isinstance(rows.in_memory, ScaledFeatures))
    divides_rows = context.gathers_rows and may_choose
    if context.hot is not None or (divides_rows and placement["topology"] == "host"):
        placement = {**placement, "features": "host"}  # hot rows are copied to the device all the same
    divides_rows &= placement["features"] == "host"
    left = room - sum(sizes[part] for part in PARTS if placement[part] == "device")
    hot = None if rows is None else rows.hot
    if placement["topology"] == "device":
        return Resident(placement=placement, rows=hot_rows_in(left, context) if divides_rows else hot)
    found = divide(left - _hot_bytes(hot, context), context, with_rows=divides_rows)
    if divides_rows and found.rows is not None:
        if len(found.rows) == context.source.graph.num_nodes:
            placement = {**placement, "features": "device"}
            return Resident(placement=placement, lists=found.lists, reason=found.reason)
        hot = _hot_rows(found.rows, context)
    return Resident(placement=placement, rows=hot, lists=found.lists, reason=found.reason)


def resident_bytes(resident: Resident, context: Context) -> Mapping[str, int]:
    """Return the device memory of what was chosen: :data:`PARTS`, ``lists``, ``rows`` and ``local ids``."""
    sizes: dict[PlacedPart, int] = part_bytes_of(context)
    held = {part: sizes[part] if resident.placement[part] == "device" else 0 for part in PARTS}
    return held | {
        "lists": 0 if resident.lists is None else held_list_bytes(resident.lists, context),
        "rows": _hot_bytes(resident.rows, context),
        "local ids": LOCAL_ID_BYTES * context.source.graph.num_nodes,
    }


def hot_rows_in(room: int, context: Context) -> DeviceCache | None:
    """Return the rows of most out-edges that fit in ``room`` bytes with their map; None if no row does."""
    x, num_nodes = context.source.graph.x, context.source.graph.num_nodes
    assert isinstance(x, Tensor | ScaledFeatures)
    num_rows = (room - MAP_BYTES * num_nodes) // max(kept_row_bytes(x), 1)
    if num_rows < 1:
        return None
    order = walks.out_degree(context.source.graph.csc).argsort(descending=True, stable=True)
    return _hot_rows(order[:num_rows], context)


def _hot_rows(ids: Tensor, context: Context) -> DeviceCache:
    x = context.source.graph.x
    assert isinstance(x, Tensor | ScaledFeatures)
    rows = stored_rows(x)
    assert rows is not None
    return DeviceCache(ids, context.source.graph.num_nodes, functools.partial(gather_rows, rows), scale_of(x))


def _hot_bytes(hot: DeviceCache | None, context: Context) -> int:
    x = context.source.graph.x
    if hot is None or isinstance(x, SparseFeatures | None):
        return 0
    return hot.device_bytes(kept_row_bytes(x))
