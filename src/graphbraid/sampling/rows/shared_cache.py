"""SharedDeviceCache: hot rows of devices that read each other: some on each, others divided among them."""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from graphbraid.arguments import as_count, check_tensor
from graphbraid.machine.shared_tensors import check_reads, handle_of, opened
from graphbraid.ops.gather import Tier, gather_rows
from graphbraid.sampling.rows.device_cache import DeviceCache, Gather, copied_rows

AllGather = Callable[[bytes], Sequence[bytes]]
"""An all-gather of one value a process, by rank; waits for all processes."""


class PeerRows:
    """Rows interleaved over the devices of a group of processes, so that each row is there once.

    Process ``r`` of ``g`` keeps rows ``r``, ``r + g`` and so on. The processes exchange handles of their
    parts (CUDA's inter-process memory handles; on the CPU, shared memory) and read each other's without
    copies; devices must be able to read each other's memory, or be the same device. The call waits for the
    whole group. A part must live while another process reads it, so call :meth:`close` in all of them at the
    end.

    Args:
        ids: ``(num_rows,)`` int64 rows, in the same order in every process.
        source: returns the rows of ids; called for this process's part only.
        rank: rank of this process in the group.
        num_peers: number of processes in the group.
        device: this process's.
        exchange: all-gather of the group; called twice here, and twice to close.
        scale: ``(num_nodes,)`` float32 scale of rows of int8. If None, rows are used as ``source`` returns
            them.

    Raises:
        ConfigError: there is no such rank, or the device cannot read that of another.
        ResourceError: the device does not have the memory of its part.
    """

    def __init__(
        self,
        ids: Tensor,
        source: Gather,
        *,
        rank: int,
        num_peers: int,
        device: torch.device,
        exchange: AllGather,
        scale: Tensor | None = None,
    ) -> None:
        check_tensor(ids, "ids", ndim=1)
        num_peers = as_count(num_peers, "num_peers", least=1)
        self.rank = as_count(rank, "rank", most=num_peers - 1)
        self.ids, self._exchange = ids, exchange
        own_ids = ids[self.rank :: num_peers]
        own = copied_rows(own_ids, source, device)
        scales: tuple[Tensor, ...] = ()
        if scale is not None:
            own_scale = copied_rows(own_ids, functools.partial(gather_rows, scale.view(-1, 1)), device)
        parts = self._read_by_all(own)
        if scale is not None:
            scales = tuple(part.view(-1) for part in self._read_by_all(own_scale))
        else:
            exchange(b"")
        self.tier = Tier(parts, scales)
        """The rows of all processes, as a table of tiers takes them."""

    @property
    def nbytes(self) -> int:
        """Bytes on all devices together."""
        return self.tier.nbytes

    @property
    def own_rows(self) -> int:
        """Number of rows that this process's device keeps."""
        return len(self.tier.parts[self.rank])

    def close(self) -> None:
        """Wait until all processes are done with the rows, then free them."""
        device = self.tier.parts[self.rank].device
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # what is queued may read the others' rows
        self._exchange(b"")
        self.abandon()
        self._exchange(b"")

    def abandon(self) -> None:
        """Free the rows without a message to the others, for example after a process was lost."""
        parts, scales = self.tier.parts, self.tier.scales
        self.tier = Tier(tuple(part[:0].clone() for part in parts), tuple(s[:0].clone() for s in scales))

    def _read_by_all(self, own: Tensor) -> tuple[Tensor, ...]:
        """Return the parts of all processes, each on its own device."""
        handles = self._exchange(handle_of(own) if len(own) else b"")  # memory of no rows is not shared
        parts = []
        for rank, handle in enumerate(handles):
            part = own if rank == self.rank else opened(handle) if handle else own[:0].clone()
            check_reads(own.device, part.device, "let each keep its own hot rows")
            parts.append(part)
        return tuple(parts)


class PeerPlace(NamedTuple):
    """A process in a group whose devices read each other."""

    rank: int
    num_peers: int
    device: torch.device
    """Device that holds its rows."""
    exchange: AllGather


class SharedDeviceCache(DeviceCache):
    """Hot rows on several devices: the first on each, the next interleaved over all.

    All processes make it together, and :meth:`close` it together; then only a device's own rows are hot.
    While it is open, slots number the own rows, then the interleaved ones.

    Args:
        hot: rows that this device would keep without peers; their source and counts are used.
        ids: ``(num_hot,)`` int64 distinct rows, those read most first; the same in every process.
        num_own: number of first rows that each device keeps for itself.
        place: place of this process in the group.

    Raises:
        ConfigError: the device cannot read that of another.
        DataError: an id is no row, or is there twice.
        ResourceError: the device does not have the memory of its part.
    """

    def __init__(self, hot: DeviceCache, ids: Tensor, num_own: int, place: PeerPlace) -> None:
        super().__init__(ids, hot.num_nodes, hot.source, hot.scale)
        self.alone, self.read, self._num_own, self._place = hot, hot.read, num_own, place
        hot.forget_copies()
        self.num_shared = len(ids) - num_own
        """Rows that are interleaved while this is open."""
        self._peers: PeerRows | None = PeerRows(
            self.ids[num_own:],
            hot.source,
            rank=place.rank,
            num_peers=place.num_peers,
            device=place.device,
            exchange=place.exchange,
            scale=hot.scale,
        )

    @property
    def num_peers(self) -> int:
        """Devices that the rows are interleaved over."""
        return self._place.num_peers

    @property
    def own_ids(self) -> Tensor:
        """``(num_own,)`` int64 rows that each device keeps for itself."""
        return self.ids[: self._num_own]

    @property
    def own_shared(self) -> int:
        """Number of interleaved rows on this device while this is open."""
        return len(range(self._place.rank, self.num_shared, self.num_peers))

    def device_bytes(self, row_bytes: int) -> int:
        """Return the memory of own rows, this device's part of the others, and the map."""
        kept = self._num_own + (0 if self._peers is None else self._peers.own_rows)
        return kept * row_bytes + self.map_bytes

    def count(self, slots: Tensor, num_missing: int) -> None:
        """Count the rows of a batch that was split; own and interleaved rows are counted separately."""
        own, hot = int((slots < self._num_own).sum()), len(slots) - num_missing
        self.read.add(len(slots), own, hot - own)

    def tiers_with(self, table: Tensor) -> list[Tier]:
        """Return the tiers of own rows and of interleaved ones."""
        own = super().tiers_with(table)
        return own if self._peers is None else [*own, self._peers.tier]

    def close(self) -> None:
        """Wait until no process reads the interleaved rows any more, then free them.

        Own rows stay hot. All processes do so together, and none prepares a batch meanwhile.
        """
        if self._peers is not None:
            self._peers.close()
            self._forget_peers()

    def abandon(self) -> None:
        """Free the interleaved rows without a message to the others, for example after a process was lost."""
        if self._peers is not None:
            self._peers.abandon()
            self._forget_peers()

    def _forget_peers(self) -> None:
        self._peers = None
        self.ids = self.ids[: self._num_own].clone()  # others are not hot any more
        self._map = self._make_map()

    def __repr__(self) -> str:
        shared = f"{self.num_shared:,} over {self.num_peers}" if self._peers else "no others any more"
        return f"SharedDeviceCache({self._num_own:,} of {self.num_nodes:,} rows on each device, {shared})"
