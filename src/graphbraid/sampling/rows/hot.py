"""HotRows: the feature rows that a device keeps in its own memory, and how a batch's come together there."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from graphbraid.arguments import check_tensor
from graphbraid.errors import DataError, ResourceError
from graphbraid.files.writing import format_bytes
from graphbraid.graph.scaled_features import ScaledFeatures
from graphbraid.graph.scans import first_out_of_range
from graphbraid.ops.gather.gather_rows import gather_rows
from graphbraid.ops.gather.gather_tiered import Tier, TierTable, gather_tiered
from graphbraid.sampling.rows.peers import PeerRows
from graphbraid.signatures import typed

Gather = Callable[[Tensor], Tensor]
"""Gives the rows of ids, both on the CPU."""
MAP_BYTES = 4
"""Bytes that the map of :class:`HotRows` takes for each node, where hot rows are not the first nodes."""
_COPIED_BYTES = 64 << 20  # of rows on their way to the device at a time


@typed
class HotRows:
    """Rows that stay in the memory of each device that reads them, for as long as this object is.

    A row's slot is its place among ``ids``. Where these are the first nodes, as in a graph renumbered by
    score, a comparison finds it; else a map of 4 bytes a node does. Threads may share it.

    Args:
        ids: ``(num_hot,)`` int64 distinct rows, those read most first.
        num_nodes: rows that there are.
        source: gives the rows that a device keeps, once for each device, beside all counting of reads.
        scale: ``(num_nodes,)`` float32 where ``source`` gives rows of int8: a row is that many times its
            numbers. If None, rows are what it gives.

    Raises:
        DataError: an id is no row, or is there twice.
    """

    def __init__(self, ids: Tensor, num_nodes: int, source: Gather, scale: Tensor | None = None) -> None:
        check_tensor(ids, "ids", ndim=1)
        self.ids, self.num_nodes, self._source = ids.long().contiguous(), num_nodes, source
        at = first_out_of_range(self.ids, num_nodes)
        if at >= 0:
            raise DataError(f"hot rows must be in [0, {num_nodes}); ids[{at}] is {int(self.ids[at])}")
        self._map = None if torch.equal(self.ids, torch.arange(len(ids))) else self._make_map()
        self._scale = scale
        self._tables: dict[torch.device, Tensor] = {}
        self._scales: dict[torch.device, Tensor] = {}
        self._copying, self._counting = threading.Lock(), threading.Lock()
        self._reads = self._hits = self._direct_reads = 0
        self._direct_hits: dict[torch.device, Tensor] = {}

    @property
    def num_rows(self) -> int:
        """Rows that are hot."""
        return len(self.ids)

    @property
    def is_prefix(self) -> bool:
        """Whether the hot rows are the first nodes in their order, so that no map is needed."""
        return self._map is None

    @property
    def map_bytes(self) -> int:
        """Memory of the map from ids to slots."""
        return 0 if self._map is None else self._map.nbytes

    @property
    def counts(self) -> tuple[int, int]:
        """Rows of batches so far, and those of them that were hot; waits for devices that sample."""
        return self._reads + self._direct_reads, self._hits + self._hits_of_devices()

    @property
    def direct_rows(self) -> int:
        """Rows that devices that sample have read of the host themselves so far; waits for them."""
        return self._direct_reads - self._hits_of_devices()

    def slots(self, ids: Tensor) -> Tensor:
        """Return the slot of each of ``ids``, -1 where it is not hot: ``(num_ids,)`` int32 on the CPU."""
        if self._map is not None:
            return self._map[ids]
        return torch.where(ids < self.num_rows, ids, -1).int()

    def split(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Say which of a batch's rows are not hot, and where each is once these follow the hot ones.

        Args:
            ids: ``(num_ids,)`` int64 on the CPU.

        Returns:
            Indices into ``ids`` of the rows that are not hot, int64, and each row's slot, ``(num_ids,)``
            int32: ``num_rows + k`` for the k-th of these.
        """
        slots = self.slots(ids)
        missing = (slots < 0).nonzero().squeeze(1)
        slots[missing] = torch.arange(self.num_rows, self.num_rows + len(missing), dtype=torch.int32)
        return missing, slots

    def count(self, reads: int, hits: int) -> None:
        """Count the rows of a batch that was split, and those of them that are hot."""
        with self._counting:
            self._reads += reads
            self._hits += hits

    def count_in(self, table: TierTable, ids: Tensor) -> None:
        """Count the rows of a batch that a device reads through a table from :meth:`tier_table`.

        Nothing waits for the device, which adds up itself on the current stream.

        Args:
            table: these rows first.
            ids: ``(num_ids,)`` int64 on its device.
        """
        places = ids if table.positions is None else table.positions[ids]
        hits = (places < self.num_rows).sum()
        with self._counting:
            self._direct_reads += len(ids)
            known = self._direct_hits.get(ids.device)
            self._direct_hits[ids.device] = hits if known is None else known.add_(hits)

    def _hits_of_devices(self) -> int:
        with self._counting:
            return sum(int(hits) for hits in self._direct_hits.values())

    def table_on(self, device: torch.device) -> Tensor:
        """Return the hot rows on a device as they are kept, ``(num_rows, F)``; the first call copies them.

        Raises:
            ResourceError: the device does not have the memory.
        """
        with self._copying:
            if device not in self._tables:
                self._tables[device] = self._copied(device)
            return self._tables[device]

    def scales_on(self, device: torch.device) -> Tensor | None:
        """Return the scales of the hot rows on a device, ``(num_rows,)``; None where rows have none."""
        if self._scale is None:
            return None
        with self._copying:
            if device not in self._scales:
                self._scales[device] = self._scale[self.ids].to(device)
                _wait_for(device)
            return self._scales[device]

    def joined(self, table: Tensor, others: Tensor, slots: Tensor) -> Tensor:
        """Return a batch's rows as :func:`joined` does; hot rows of int8 are widened, as ``others`` are.

        Args:
            table: from :meth:`table_on`.
            others: ``(num_others, F)`` rows that are not hot, on its device.
            slots: ``(num_ids,)`` int32, hot rows first, then ``others``.
        """
        scales = self.scales_on(table.device)
        return joined(table, others, slots) if scales is None else _widened(table, scales, others, slots)

    def assembled(self, ids: Tensor, gather: Gather) -> Tensor:
        """Return the rows of ids that are on a device: only those that are not hot travel.

        Args:
            ids: ``(num_ids,)`` int64 on the device; the call waits for them.
            gather: gives the others.

        Raises:
            ResourceError: the device does not have the memory of the hot rows.
        """
        wanted = ids.cpu()
        missing, slots = self.split(wanted)
        self.count(len(wanted), len(wanted) - len(missing))
        table = self.table_on(ids.device)
        return self.joined(table, gather(wanted[missing]).to(ids.device), slots.to(ids.device))

    def tier_table(
        self, hot: Tensor, host: Tensor | ScaledFeatures, peers: PeerRows | None = None
    ) -> TierTable:
        """Return a table of hot rows, of rows on peers, and of all rows in memory that their device can read.

        Args:
            hot: from :meth:`table_on`.
            host: ``(num_nodes, F)``, page-locked where the device is none of the CPU's.
            peers: rows that are not hot here and that the devices of other processes keep, too. If None,
                there are none.
        """
        scales = self.scales_on(hot.device)
        tiers = [Tier((hot,), () if scales is None else (scales,))] + ([] if peers is None else [peers.tier])
        first = self.ids if peers is None else torch.cat([self.ids, peers.ids])
        count = len(first)
        if torch.equal(first, torch.arange(count)):
            return TierTable([*tiers, tier_of(host, count)], device=hot.device)
        positions = torch.arange(count, count + self.num_nodes)
        positions[first] = torch.arange(count)
        if count + self.num_nodes <= torch.iinfo(torch.int32).max:
            positions = positions.int()
        return TierTable([*tiers, tier_of(host)], positions, device=hot.device)

    def _make_map(self) -> Tensor:
        slots = torch.full((self.num_nodes,), -1, dtype=torch.int32)
        slots[self.ids] = torch.arange(len(self.ids), dtype=torch.int32)
        if int((slots >= 0).sum()) != len(self.ids):
            raise DataError("hot rows must be distinct; some of ids are there twice")
        return slots

    def _copied(self, device: torch.device) -> Tensor:
        some = self._source(self.ids[:1])
        row_bytes, nbytes = some.nbytes, some.nbytes * self.num_rows
        free = free_bytes(device)
        if free is not None and nbytes > free:
            raise _no_room(device, self.num_rows, nbytes, f"{format_bytes(free)} are free")
        try:
            table = torch.empty((self.num_rows, *some.shape[1:]), dtype=some.dtype, device=device)
        except torch.OutOfMemoryError as error:
            raise _no_room(device, self.num_rows, nbytes, "they could not be had") from error
        at_a_time = max(_COPIED_BYTES // max(row_bytes, 1), 1)
        for begin in range(0, self.num_rows, at_a_time):
            table[begin : begin + at_a_time].copy_(self._source(self.ids[begin : begin + at_a_time]))
        _wait_for(device)
        return table

    def __reduce__(self) -> tuple[Any, ...]:
        return HotRows, (
            self.ids,
            self.num_nodes,
            self._source,
            self._scale,
        )  # each process copies the rows to its device itself

    def __repr__(self) -> str:
        return f"HotRows({self.num_rows:,} of {self.num_nodes:,} rows)"


def tier_of(rows: Tensor | ScaledFeatures, first: int = 0) -> Tier:
    """Return a tier of all rows from ``first`` on."""
    if isinstance(rows, ScaledFeatures):
        return Tier((rows.values[first:],), (rows.scale[first:],))
    return Tier((rows[first:],))


def joined(hot: Tensor, others: Tensor, slots: Tensor) -> Tensor:
    """Return a batch's rows: by slot, those of ``hot`` and then those of ``others``, all on one device."""
    table = TierTable([Tier((hot,)), Tier((others,))])
    return gather_tiered(table, slots.long(), trusted=True)


def _widened(hot: Tensor, scales: Tensor, others: Tensor, slots: Tensor) -> Tensor:
    """Join int8 rows with those that came widened; both are read for each slot, to wait for no size."""
    if not len(hot) or not len(others):
        return (
            others[slots.long()]
            if not len(hot)
            else gather_rows(hot, slots.long(), scale=scales, trusted=True)
        )
    is_hot = slots < len(hot)
    widened = gather_rows(hot, slots.clamp(max=len(hot) - 1).long(), scale=scales, trusted=True)
    return torch.where(is_hot.unsqueeze(1), widened, others[(slots - len(hot)).clamp(min=0).long()])


def _wait_for(device: torch.device) -> None:
    """Wait for a copy, since other streams than the current one read it, too."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


def free_bytes(device: torch.device) -> int | None:
    """Return the free memory of a device; None if that is not known."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None


def _no_room(device: torch.device, num_rows: int, nbytes: int, why: str) -> ResourceError:
    return ResourceError(
        f"{num_rows:,} hot rows take {format_bytes(nbytes)} on {device}, and {why}. Give a smaller hot=: the "
        "other rows are read from the host"
    )
