"""DeviceCache: feature rows that stay in a device's memory, and joining of a batch's rows there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from graphbraid.arguments import check_tensor
from graphbraid.errors import DataError, ResourceError
from graphbraid.files.writing import format_bytes
from graphbraid.graph.scaled_features import ScaledFeatures
from graphbraid.graph.scans import first_out_of_range
from graphbraid.ops.gather import Tier, TierTable, gather_tiered
from graphbraid.sampling.rows.by_id import row_sectors
from graphbraid.signatures import typed

Gather = Callable[[Tensor], Tensor]
"""Returns the rows of ids; both are on the CPU."""
_COPIED_BYTES = 64 << 20  # of rows on their way to the device at a time


def copied_rows(ids: Tensor, source: Gather, device: torch.device) -> Tensor:
    """Return rows of int64 ids on a device, ``(num_ids, F)``, ready for every stream, or ResourceError."""
    some = source(ids[:1])
    row_bytes = some[:1].nbytes
    nbytes, free = row_bytes * len(ids), free_bytes(device)
    if free is not None and nbytes > free:
        raise _no_room(device, len(ids), nbytes, f"{format_bytes(free)} are free")
    try:
        table = torch.empty((len(ids), *some.shape[1:]), dtype=some.dtype, device=device)
    except torch.OutOfMemoryError as error:
        raise _no_room(device, len(ids), nbytes, "the allocation failed") from error
    at_a_time = max(_COPIED_BYTES // max(row_bytes, 1), 1)
    for begin in range(0, len(ids), at_a_time):
        table[begin : begin + at_a_time].copy_(source(ids[begin : begin + at_a_time]))
    wait_for(device)
    return table


def wait_for(device: torch.device) -> None:
    """Wait for copies, since streams other than the current one also read them."""
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


class HotReads(NamedTuple):
    """Reads of rows by batches."""

    reads: int
    own: int
    """Reads of rows that the device keeps for itself."""
    peers: int
    """Reads of rows that are interleaved over devices that read each other's."""
    direct: int
    """Reads of the host's rows by sampling devices."""
    sectors: int = 0
    """Sectors that moved for reads of the host's rows."""


class HotCounts:
    """Counts of reads since the object was made; threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reads = self._own = self._peers = self._direct_reads = 0
        self._direct_hits: dict[torch.device, Tensor] = {}

    def add(self, reads: int, own: int, peers: int = 0) -> None:
        """Count all rows of a batch, the device's own rows among them, and the interleaved ones."""
        with self._lock:
            self._reads += reads
            self._own += own
            self._peers += peers

    def add_places(self, places: Tensor, num_own: int, num_rows: int, host: Tensor | ScaledFeatures) -> None:
        """Count the rows of a batch that a device reads through a table, on its current stream.

        Places in the table are of ``num_own`` rows that the device keeps for itself, then of interleaved ones
        up to ``num_rows``, then of the others, ``host``, in the order of their places.
        """
        sectors = torch.where(places < num_rows, 0, row_sectors(host, places.long() - num_rows))
        hits = torch.stack([(places < num_own).sum(), (places < num_rows).sum(), sectors.sum()])
        with self._lock:
            self._direct_reads += len(places)
            known = self._direct_hits.get(places.device)
            self._direct_hits[places.device] = hits if known is None else known.add_(hits)

    def now(self) -> HotReads:
        """Return the counts so far; waits for sampling devices."""
        with self._lock:
            found = [hits.tolist() for hits in self._direct_hits.values()]
            own, hot, sectors = (sum(hits[bound] for hits in found) for bound in range(3))
            return HotReads(
                reads=self._reads + self._direct_reads,
                own=self._own + own,
                peers=self._peers + hot - own,
                direct=self._direct_reads - hot,
                sectors=sectors,
            )


MAP_BYTES = 4
"""Bytes that the map of :class:`DeviceCache` takes for each node, if hot rows are not the first nodes."""


@typed
class DeviceCache:
    """Rows that stay in the memory of each device that reads them while this object lives.

    A row's slot is its place in ``ids``. If ``ids`` are the first nodes, as in a graph renumbered by score, a
    comparison finds the slot; else a map of 4 bytes a node does. Threads may share it.

    Args:
        ids: ``(num_hot,)`` int64 distinct rows, those read most first.
        num_nodes: number of all rows.
        source: returns the rows that a device keeps; called once for each device, and not counted as reads.
        scale: ``(num_nodes,)`` float32 scale of rows of int8. If None, rows are used as ``source`` returns
            them.

    Raises:
        DataError: an id is no row, or is there twice.
    """

    def __init__(self, ids: Tensor, num_nodes: int, source: Gather, scale: Tensor | None = None) -> None:
        check_tensor(ids, "ids", ndim=1)
        self.ids, self.num_nodes, self.source = ids.long().contiguous(), num_nodes, source
        at = first_out_of_range(self.ids, num_nodes)
        if at >= 0:
            raise DataError(f"hot rows must be in [0, {num_nodes}); ids[{at}] is {int(self.ids[at])}")
        self._map = self._make_map()
        self.scale, self.read = scale, HotCounts()
        self.reason = ""
        """Reason for the choice of these rows, for explanations; may be empty."""
        self._tables: dict[torch.device, Tensor] = {}
        self._scales: dict[torch.device, Tensor] = {}
        self._copying = threading.Lock()

    @property
    def num_rows(self) -> int:
        """Number of hot rows."""
        return len(self.ids)

    @property
    def own_ids(self) -> Tensor:
        """``(num_own,)`` int64 rows that each device keeps for itself: all, or the first of them."""
        return self.ids

    @property
    def is_prefix(self) -> bool:
        """Whether the hot rows are the first nodes in their order, so that no map is needed."""
        return self._map is None

    @property
    def map_bytes(self) -> int:
        """Memory of the map from ids to slots."""
        return 0 if self._map is None else self._map.nbytes

    def device_bytes(self, row_bytes: int) -> int:
        """Return the device memory that these rows, of ``row_bytes`` as kept, and their map take."""
        return self.num_rows * row_bytes + self.map_bytes

    @property
    def counts(self) -> tuple[int, int]:
        """Rows of batches so far, and the hot ones among them; waits for sampling devices."""
        read = self.read.now()
        return read.reads, read.own + read.peers

    def slots(self, ids: Tensor) -> Tensor:
        """Return the slot of each of ``ids``, -1 where it is not hot: ``(num_ids,)`` int32 on the CPU."""
        if self._map is not None:
            return self._map[ids]
        return torch.where(ids < self.num_rows, ids, -1).int()

    def split(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return the int64 places in ``ids``, on the CPU, of rows that are not hot, and all int32 slots.

        The k-th row that is not hot has slot ``num_rows + k``.
        """
        slots = self.slots(ids)
        missing = (slots < 0).nonzero().squeeze(1)
        slots[missing] = torch.arange(self.num_rows, self.num_rows + len(missing), dtype=torch.int32)
        return missing, slots

    def count(self, slots: Tensor, num_missing: int) -> None:
        """Count a batch's reads: ``num_missing`` of its rows are not hot, the others are."""
        self.read.add(len(slots), len(slots) - num_missing)

    def count_in(self, table: TierTable, ids: Tensor) -> None:
        """Count rows that a device reads through a table of :meth:`tier_table`; nothing waits for it."""
        places = ids if table.positions is None else table.positions[ids]
        self.read.add_places(places, len(self.own_ids), self.num_rows, _rows_of_last(table))

    def table_on(self, device: torch.device) -> Tensor:
        """Return ``(num_own, F)`` hot rows of a device, copied by the first call, or ResourceError."""
        with self._copying:
            if device not in self._tables:
                self._tables[device] = copied_rows(self.own_ids, self.source, device)
            return self._tables[device]

    def forget_copies(self) -> None:
        """Free the copies on devices; the next read makes new ones."""
        with self._copying:
            self._tables.clear()
            self._scales.clear()

    def scales_on(self, device: torch.device) -> Tensor | None:
        """Return the scales of a device's own hot rows, ``(num_own,)``; None where rows have none."""
        if self.scale is None:
            return None
        with self._copying:
            if device not in self._scales:
                self._scales[device] = self.scale[self.own_ids].to(device)
                wait_for(device)
            return self._scales[device]

    def tiers_with(self, table: Tensor) -> list[Tier]:
        """Return the tiers of the hot rows of :meth:`table_on`, in the order of their slots."""
        scales = self.scales_on(table.device)
        return [Tier((table,), () if scales is None else (scales,))]

    def joined(self, table: Tensor, others: Tensor, slots: Tensor) -> Tensor:
        """Return a batch's rows as :func:`joined` does, hot rows of int8 as float32, as ``others`` are."""
        tiers = self.tiers_with(table)
        if self.scale is None:
            return joined(tiers, others, slots, table.device)
        return _widened(tiers, others, slots, self.num_rows)

    def assembled(self, ids: Tensor, gather: Gather) -> Tensor:
        """Return rows of int64 ids on a device, which it waits for; ``gather`` returns those not hot."""
        wanted = ids.cpu()
        missing, slots = self.split(wanted)
        self.count(slots, len(missing))
        table = self.table_on(ids.device)
        return self.joined(table, gather(wanted[missing]).to(ids.device), slots.to(ids.device))

    def tier_table(self, hot: Tensor, host: Tensor | ScaledFeatures) -> TierTable:
        """Return a table of ``hot`` rows, and of all rows in memory that their device can read.

        ``host`` is ``(num_nodes, F)``, page-locked unless the device is the CPU.
        """
        tiers, count = self.tiers_with(hot), self.num_rows
        if self.is_prefix:
            return TierTable([*tiers, tier_of(host, count)], device=hot.device)
        positions = torch.arange(count, count + self.num_nodes)
        positions[self.ids] = torch.arange(count)
        if count + self.num_nodes <= torch.iinfo(torch.int32).max:
            positions = positions.int()
        return TierTable([*tiers, tier_of(host)], positions, device=hot.device)

    def _make_map(self) -> Tensor | None:
        if torch.equal(self.ids, torch.arange(len(self.ids))):
            return None
        slots = torch.full((self.num_nodes,), -1, dtype=torch.int32)
        slots[self.ids] = torch.arange(len(self.ids), dtype=torch.int32)
        if int((slots >= 0).sum()) != len(self.ids):
            raise DataError("hot rows must be distinct; some of ids are there twice")
        return slots

    def __reduce__(self) -> tuple[Any, ...]:
        return DeviceCache, (
            self.ids,
            self.num_nodes,
            self.source,
            self.scale,
        )  # each process copies the rows to its device itself

    def __repr__(self) -> str:
        return f"DeviceCache({self.num_rows:,} of {self.num_nodes:,} rows)"


def _rows_of_last(table: TierTable) -> Tensor | ScaledFeatures:
    """Return the rows of a table's last tier, the host's, if it has one."""
    [rows], scales = table.tiers[-1].parts[-1:], table.tiers[-1].scales[-1:]
    return ScaledFeatures(values=rows, scale=scales[0], trusted=True) if scales else rows


def tier_of(rows: Tensor | ScaledFeatures, first: int = 0) -> Tier:
    """Return a tier of all rows from ``first`` on."""
    if isinstance(rows, ScaledFeatures):
        return Tier((rows.values[first:],), (rows.scale[first:],))
    return Tier((rows[first:],))


def joined(hot: Sequence[Tier], others: Tensor, slots: Tensor, device: torch.device) -> Tensor:
    """Return a batch's rows by slot: those of tiers of ``hot`` and then ``others``, read by ``device``."""
    table = TierTable([*hot, Tier((others,))], device=device)
    return gather_tiered(table, slots.long(), trusted=True)


def _widened(hot: Sequence[Tier], others: Tensor, slots: Tensor, num_hot: int) -> Tensor:
    """Join int8 rows with float32 rows; both are read for each slot, since sizes would need a wait."""
    if not num_hot:
        return others[slots.long()]
    table = TierTable(hot, device=others.device)
    widened = gather_tiered(table, slots.clamp(max=num_hot - 1).long(), trusted=True)
    if not len(others):
        return widened
    is_hot = slots < num_hot
    return torch.where(is_hot.unsqueeze(1), widened, others[(slots - num_hot).clamp(min=0).long()])
