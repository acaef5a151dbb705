"""Reads of rows by id: their sources, RowPart (rows that a device still needs), and counts of all transfers.

TierCounts counts reads by tier and transfers to devices; TransferCounter counts what goes to devices.
"""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from graphbraid.graph.scaled_features import ScaledFeatures, kept_row_bytes

if TYPE_CHECKING:
    from graphbraid.sampling.minibatch.mini_batch import MiniBatch
    from graphbraid.sampling.rows.device_cache import DeviceCache
    from graphbraid.sampling.sample import Sampled


@runtime_checkable
class FeatureSource(Protocol):
    """Features of a graph's nodes by id. It alone knows which tier has a row.

    Pipelines ask it for the rows of batches and do not know where they come from.
    """

    @property
    def shape(self) -> torch.Size:
        """``(num_nodes, F)``."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the rows that are given."""
        ...

    @property
    def lookahead(self) -> int:
        """Number of batches that should be announced before they are gathered."""
        ...

    @property
    def hot(self) -> DeviceCache | None:
        """Rows that devices keep in their memory; None if there are none."""
        ...

    @property
    def in_memory(self) -> Tensor | ScaledFeatures | None:
        """All rows, ``(num_nodes, F)``, if they lie in memory; else None."""
        ...

    def announce(self, ids: Tensor) -> int:
        """Announce the rows of a coming batch, in the order of the batches; return its number."""
        ...

    def gather(self, ids: Tensor, out: Tensor | None = None, *, batch: int = -1) -> Tensor:
        """``(num_ids, F)`` rows of ``ids``, int64 on the CPU; ``batch``: the number it was announced by."""
        ...

    def forget(self) -> None:
        """Forget announced batches that will not come."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class RowPart:
    """The feature rows of a batch that the device does not hold yet, and the places of all its rows.

    The device keeps its hot rows (:class:`.device_cache.DeviceCache`), and the rows copied last in
    a ring buffer if there is one; a row's position rises from each appended row to the next.
    """

    rows: Tensor
    """Rows to append to the ring, ``(num_missing, F)``; without one, of this batch only."""
    slots: Tensor
    """Slot of each of the batch's rows, ``(num_nodes,)`` int32: hot rows first, then the ring or ``rows``."""
    first: int
    """Position of ``rows[0]``; -1 if they stay out of the ring."""
    generation: int
    """Number of restarts of the ring before this batch."""
    ring_rows: int = 0
    """Number of the batch's rows that earlier batches brought to the ring."""

    @property
    def nbytes(self) -> int:
        """Bytes copied to the device."""
        return self.rows.nbytes + self.slots.nbytes

    def apply(self, change: Callable[[Tensor], Tensor]) -> RowPart:
        """Return a part with ``change`` applied to both tensors, such as a copy to another device."""
        rows, slots = change(self.rows), change(self.slots)
        return dataclasses.replace(self, rows=rows, slots=slots)


def tensor_bytes(tensor: Tensor) -> int:
    """Return the bytes of a tensor; in COO, of its indices and values."""
    if tensor.layout != torch.sparse_coo:
        return tensor.nbytes
    return tensor._indices().nbytes + tensor._values().nbytes


# ---- counts of reads by tier, and of transfers to devices


class TierCounts(NamedTuple):
    """Counts of reads of feature rows or adjacency lists from tiers, a cache or a file."""

    host_rows: int = 0
    """Reads of rows or lists that lay in memory, by a device or by threads that prepare its batches."""
    disk_rows: int = 0
    """Reads of rows or lists that came from the file; without a cache, each row counts once per call."""
    filled_rows: int = 0
    """Rows read to fill memory beforehand."""
    disk_requests: int = 0
    disk_bytes: int = 0
    """Bytes of the whole blocks read for all of these."""
    host_edges: int = 0
    """Drawn edges of lists that lay in memory."""
    disk_edges: int = 0
    """Drawn edges of lists that came from the file."""
    hot_rows: int = 0
    """Reads of a device's own hot rows."""
    link_rows: int = 0
    """Rows that were copied to a device, or that it read from the host's memory."""
    link_row_bytes: int = 0
    """Bytes of these rows."""
    link_list_bytes: int = 0
    """Bytes of sampled lists that went to a device: ids and edges of batches with their attributes, and the
    weights of lists on the host that draws by weight read."""
    link_label_bytes: int = 0
    """Bytes of labels that went to a device."""
    ring_rows: int = 0
    """Reads of rows that an earlier batch had brought to the device."""
    peer_rows: int = 0
    """Reads of rows that are interleaved over devices that read each other."""
    link_sector_bytes: int = 0
    """Bytes of the whole sectors that moved for rows that devices read from the host themselves. More than
    the rows' own bytes if rows do not begin and end with sectors. Not part of :attr:`link_bytes`, which
    counts the rows' own bytes; copies move only those."""

    @property
    def reads(self) -> int:
        """Reads from all tiers, and of rows that an earlier batch had brought."""
        return self.hot_rows + self.peer_rows + self.ring_rows + self.host_rows + self.disk_rows

    @property
    def link_bytes(self) -> int:
        """Bytes of all transfers to a device: rows, lists and labels."""
        return self.link_row_bytes + self.link_list_bytes + self.link_label_bytes

    @property
    def host_share(self) -> float:
        """Share of the reads that memory served; 0 before the first."""
        return self.host_rows / max(self.reads, 1)

    def plus(self, more: TierCounts) -> TierCounts:
        """Return the sums of both."""
        return TierCounts(*map(sum, zip(self, more, strict=True)))

    def since(self, before: TierCounts) -> TierCounts:
        """Return the counts since ``before``."""
        return TierCounts(*(now - then for now, then in zip(self, before, strict=True)))


SECTOR_BYTES = 32
"""Bytes of a sector, which begins at a multiple of them. Even a drawn id of 4 bytes moves a sector."""


def row_sectors(table: Tensor | ScaledFeatures, ids: Tensor) -> Tensor:
    """Return how many sectors, int64, reading each of ``ids`` from a table moves, by where it lies.

    A row that does not begin and end with sectors moves more than its own bytes. Rows are counted one by one:
    two rows in one sector move it twice, unless a cache has it by chance. A scale of int8 moves another one.
    """
    if isinstance(table, ScaledFeatures):
        return row_sectors(table.values, ids) + row_sectors(table.scale, ids)
    row_bytes = table[:1].nbytes
    if not row_bytes:
        return torch.zeros_like(ids)
    first = (table.data_ptr() % SECTOR_BYTES + ids * row_bytes) % SECTOR_BYTES
    return (first + (row_bytes + SECTOR_BYTES - 1)) // SECTOR_BYTES


WEIGHT_BYTES, SUM_BYTES = 4, 8
"""Bytes of an edge's weight, and of the running sum that draws with replacement read instead."""
AT_ONCE = 128
"""Number of a list's weights that a device keeps while it draws; later ones are read again for each draw."""


def weight_bytes(degrees: Tensor, drawable: Tensor, fanout: int, *, replace: bool) -> Tensor:
    """Return the int64 bytes of weights that a device's kernels read to draw from each list.

    Without replacement the race reads all weights, and for each draw again those after the first
    :data:`AT_ONCE`; a list that is taken whole is read once. With replacement the last running sum is read,
    and for each draw those of a bisection, counted with its largest number of steps. ``degrees`` are 0 of
    lists that are not read from the host; ``drawable`` are the edges of a weight above 0.
    """
    if replace:
        steps = torch.frexp(degrees.double()).exponent.long()  # the bits of a degree
        return torch.where((degrees > 0) & (drawable > 0), 1 + fanout * steps, 0) * SUM_BYTES
    behind = (degrees - AT_ONCE).clamp(min=0)
    raced = degrees.clamp(max=AT_ONCE) + fanout * behind
    is_whole = drawable <= fanout if fanout >= 0 else torch.ones_like(drawable, dtype=torch.bool)
    return torch.where(is_whole, degrees, raced) * WEIGHT_BYTES


_ROWS, _LABELS = ("x", "features"), ("y", "seed_y")  # attributes of a batch; all else belongs to its lists
_BOUNDS_BYTES = 16  # the two int64 of indptr between which a list lies


class TransferCounter:
    """Counts of transfers to devices since the object was made; threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = TierCounts()
        self._by_devices: list[Callable[[], int]] = []

    def add(self, more: TierCounts) -> None:
        """Add to the counts."""
        with self._lock:
            self._counts = self._counts.plus(more)

    def add_direct(self, rows: Tensor | ScaledFeatures, ids: Tensor) -> None:
        """Count those of contiguous rows that a device reads from the host itself; waits for it."""
        moved = SECTOR_BYTES * int(row_sectors(rows, ids).sum())
        nbytes = len(ids) * kept_row_bytes(rows)
        self.add(TierCounts(link_rows=len(ids), link_row_bytes=nbytes, link_sector_bytes=moved))

    def add_attribute(self, name: str, value: Tensor) -> None:
        """Count an attribute that is copied after its batch, or that a device reads from the host."""
        nbytes = tensor_bytes(value)
        if name in _ROWS:
            self.add(TierCounts(link_rows=len(value), link_row_bytes=nbytes))
        elif name in _LABELS:
            self.add(TierCounts(link_label_bytes=nbytes))
        else:
            self.add(TierCounts(link_list_bytes=nbytes))

    def watch(self, list_bytes: Callable[[], int]) -> None:
        """Add the bytes of lists that a device has read and counts itself; the call may wait for it."""
        with self._lock:
            self._by_devices.append(list_bytes)

    @property
    def counts(self) -> TierCounts:
        """The counts so far; waits for devices that count themselves."""
        with self._lock:
            counts, by_devices = self._counts, tuple(self._by_devices)
        return counts.plus(TierCounts(link_list_bytes=sum(count() for count in by_devices)))

    def __reduce__(self) -> tuple[type[TransferCounter], tuple[()]]:
        return TransferCounter, ()  # each process counts what it moves itself


def bytes_of(batch: MiniBatch) -> TierCounts:
    """Return the bytes that a copy of a batch to a device moves now: all tensors that it holds."""
    part = batch.row_part
    whole = [value for name in _ROWS if isinstance(value := batch.held(name), Tensor)]
    rows = [*whole, *(() if part is None else (part.rows,))]
    labels = sum(tensor_bytes(value) for name in _LABELS if isinstance(value := batch.held(name), Tensor))
    row_bytes = sum(map(tensor_bytes, rows))
    return TierCounts(
        link_rows=sum(map(len, rows)),
        link_row_bytes=row_bytes,
        link_label_bytes=labels,
        link_list_bytes=batch.travelling_bytes - row_bytes - labels,
    )


def list_bytes_read(sampled: Sampled, layout: str, indices: Tensor) -> int:
    """Return the bytes that a device reads to draw a batch of lists that all lie on the host.

    These are the drawn edges, and begin and end of each list that they come from; layout ``blocks`` draws for
    all nodes in each hop. Weights of draws are counted by the device.
    """
    nodes = sampled.nodes_per_hop[:-1]
    lists = sum(itertools.accumulate(nodes) if layout == "blocks" else nodes)
    return sum(sampled.edges_per_hop) * indices.itemsize + lists * _BOUNDS_BYTES


def sent(value: Tensor, device: torch.device, name: str, link: TransferCounter | None) -> Tensor:
    """Return an attribute of a batch on the batch's device; a copy to it is counted by ``link``."""
    if value.device == device:
        return value
    if link is not None:
        link.add_attribute(name, value)
    return value.to(device)


def link_of(rows: FeatureSource | None) -> TransferCounter | None:
    """Return the counter of a source's transfers; None if it has none."""
    link = getattr(rows, "link", None)
    return link if isinstance(link, TransferCounter) else None


def travelled(rows: FeatureSource, ids: Tensor) -> Tensor:
    """Return the rows of ``ids`` on their device; rows that are not hot are copied there and counted."""
    link = link_of(rows)

    def gathered(wanted: Tensor) -> Tensor:
        found = rows.gather(wanted)
        if link is not None:
            link.add_attribute("x", found)
        return found

    if rows.hot is None:
        return gathered(ids.cpu()).to(ids.device)
    return rows.hot.assembled(ids, gathered)
