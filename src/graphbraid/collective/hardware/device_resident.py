"""What of a loader's graph is on the device that samples: what is to be there, and what was placed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from torch import Tensor

from graphbraid.collective.hardware.device_placement import PARTS, PartPlacement, PlacedPart, shown
from graphbraid.sampling.gpu import GpuPipeline
from graphbraid.sampling.list_reads import ListReads
from graphbraid.sampling.rows.device_cache import DeviceCache
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
