"""Parts, rows and lists of a graph that a device which samples keeps: chosen by free memory, and placed."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping

from torch import Tensor

from graphbraid.collective.hardware.device_placement import (
    PARTS,
    PartPlacement,
    PlacedPart,
    choose_placement,
    divide,
    held_list_bytes,
    may_choose_rows,
    part_bytes_of,
    shown,
)
from graphbraid.collective.run.stages import Context
from graphbraid.features.scores.walks import out_degree
from graphbraid.graph import ScaledFeatures, SparseFeatures
from graphbraid.graph.scaled_features import kept_row_bytes, scale_of, stored_rows
from graphbraid.ops.gather import gather_rows
from graphbraid.sampling.gpu import GpuPipeline
from graphbraid.sampling.lists import ListReads
from graphbraid.sampling.rows.device_cache import MAP_BYTES, DeviceCache
from graphbraid.sampling.rows.transfer_counter import list_bytes_read
from graphbraid.sampling.sample import Sampled
from graphbraid.sampling.source import BatchSource


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Resident:
    """What is to be on the device."""

    placement: PartPlacement
    rows: DeviceCache | None = None
    """Rows of features that are on the host."""
    lists: Tensor | None = None
    """Nodes whose adjacency lists are on the device, of a topology that is on the host."""
    reason: str = ""
    """How memory is divided between rows and lists; empty where the topology is there as a whole."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing is."""
        return set(self.placement.values()) == {"host"} and self.rows is None and self.lists is None


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Placed:
    """The source of a loader placed where the device reads it, and its sampler."""

    source: BatchSource
    pipeline: GpuPipeline
    resident: Resident
    gathers_table: bool
    """Whether the sampler gathers rows from a table of those on the device and all on the host."""

    def count(self, sampled: Sampled, layout: str) -> None:
        """Count the rows that a batch read of the table, if there is one, and the lists it read of the host.

        Nothing waits for the device, which counts itself where it holds some lists: :meth:`watch_lists`.

        Args:
            sampled: the batch.
            layout: of the batch.
        """
        table, rows, link = self.source.table, self.resident.rows, self.source.link
        if self.gathers_table and table is not None and rows is not None:
            rows.count_in(table, sampled.n_id)
        if link is not None and self.resident.placement["topology"] == "host" and self.resident.lists is None:
            link.add_lists(list_bytes_read(sampled, layout, self.source.graph.csc.indices))

    def watch_lists(self) -> None:
        """Have the edges and weights that the device counts itself among what travels."""
        link, counted = self.source.link, self.pipeline.list_counts
        if link is not None and counted is not None:
            itemsize = self.source.graph.csc.indices.itemsize
            link.watch(lambda: ListReads.of(counted).host_edges * itemsize)
        weights = self.pipeline.weight_bytes
        if link is not None and weights is not None:
            link.watch(lambda: int(weights))

    def explain(self, part_bytes: Mapping[PlacedPart, int]) -> str:
        """Return what is on the device, why, and what was read of it and over the link; waits for the device.

        Args:
            part_bytes: of each part of the source.
        """
        return "\n".join(self._lines(part_bytes))

    def _lines(self, part_bytes: Mapping[PlacedPart, int]) -> Iterator[str]:
        placement = self.resident.placement
        there = {part: "host" if where == "device" else "device" for part, where in placement.items()}
        sizes = {part: size for part, size in part_bytes.items() if size}
        on_device, on_host = (_sized(where, sizes) for where in (placement, there))
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


def _sized(placement: PartPlacement, sizes: Mapping[PlacedPart, int]) -> str:
    """Return the parts that are on the device, of those that have a size."""
    return shown({part: placement[part] if part in sizes else "host" for part in PARTS}, sizes)


LOCAL_ID_BYTES = 8
"""Bytes of each node in the table of the device's sampler."""


def resident_in(room: int, context: Context) -> Resident:
    """Choose parts as far as they fit, and rows and lists of those that do not.

    Args:
        room: bytes of device memory for all of it, the sampler's table of local ids included.
        context: of the loader. Nothing is placed.
    """
    rows, sizes = context.source.rows, part_bytes_of(context)
    room -= LOCAL_ID_BYTES * context.source.graph.num_nodes
    placement = choose_placement(sizes, room)
    divides_rows = context.gathers_rows and may_choose_rows(context.source)
    if context.hot is not None or (divides_rows and placement["topology"] == "host"):
        placement = {**placement, "features": "host"}  # but for the rows that are chosen
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
    order = out_degree(context.source.graph.csc).argsort(descending=True, stable=True)
    return _hot_rows(order[:num_rows], context)


def _hot_rows(ids: Tensor, context: Context) -> DeviceCache:
    x = context.source.graph.x
    assert isinstance(x, Tensor | ScaledFeatures)
    rows = stored_rows(x)
    assert rows is not None
    return DeviceCache(ids, context.source.graph.num_nodes, functools.partial(gather_rows, rows), scale_of(x))


def _hot_bytes(hot: DeviceCache | None, context: Context) -> int:
    """Device memory of rows that the features' tiers keep there."""
    x = context.source.graph.x
    if hot is None or isinstance(x, SparseFeatures | None):
        return 0
    return hot.device_bytes(kept_row_bytes(x))
