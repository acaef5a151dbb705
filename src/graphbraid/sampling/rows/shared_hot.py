"""SharedHotRows: hot rows of a device whose peers keep the next ones between them, each reading all."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from graphbraid.ops.gather import Tier
from graphbraid.sampling.rows.hot import HotRows
from graphbraid.sampling.rows.peers import AllGather, PeerRows


class PeerPlace(NamedTuple):
    """A process among those whose devices read each other."""

    rank: int
    """Its number among them."""
    num_peers: int
    device: torch.device
    """The one on which its rows are."""
    exchange: AllGather
    """Gives every process what each of them gave."""


class SharedHotRows(HotRows):
    """Hot rows on several devices: the first on each, the next interleaved over all.

    All processes make it together, and :meth:`close` it together; after that only a device's own rows are
    hot. While it is open, slots are those of own rows, then of interleaved ones.

    Args:
        hot: the rows that this device would keep without peers, whose source and counts are taken over.
        ids: ``(num_hot,)`` int64 distinct rows, those read most first; the same in every process.
        num_own: how many of them each device keeps for itself, the first.
        place: this process's.

    Raises:
        ConfigError: the device cannot read that of another.
        DataError: an id is no row, or is there twice.
        ResourceError: the device does not have the memory of its part.
    """

    def __init__(self, hot: HotRows, ids: Tensor, num_own: int, place: PeerPlace) -> None:
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
        """Interleaved rows that this device keeps while this is open."""
        return len(range(self._place.rank, self.num_shared, self.num_peers))

    def device_bytes(self, row_bytes: int) -> int:
        """Return the memory that own rows, this device's part of the others, and the map take of it."""
        kept = self._num_own + (0 if self._peers is None else self._peers.own_rows)
        return kept * row_bytes + self.map_bytes

    def count(self, slots: Tensor, num_missing: int) -> None:
        """Count the rows of a batch that was split, own and interleaved ones apart."""
        own, hot = int((slots < self._num_own).sum()), len(slots) - num_missing
        self.read.add(len(slots), own, hot - own)

    def tiers_with(self, table: Tensor) -> list[Tier]:
        """Return the tiers of own rows and of interleaved ones."""
        own = super().tiers_with(table)
        return own if self._peers is None else [*own, self._peers.tier]

    def close(self) -> None:
        """Wait until no process reads the interleaved rows any more, and let go of them.

        Own rows stay hot. All processes do so together, and none prepares a batch meanwhile.
        """
        if self._peers is not None:
            self._peers.close()
            self._forget_peers()

    def abandon(self) -> None:
        """Let go of the interleaved rows without a word to the others, as where one of them was lost."""
        if self._peers is not None:
            self._peers.abandon()
            self._forget_peers()

    def _forget_peers(self) -> None:
        self._peers = None
        self._keep_only(self._num_own)

    def __repr__(self) -> str:
        shared = f"{self.num_shared:,} over {self.num_peers}" if self._peers else "no others any more"
        return f"SharedHotRows({self._num_own:,} of {self.num_nodes:,} rows on each device, {shared})"
