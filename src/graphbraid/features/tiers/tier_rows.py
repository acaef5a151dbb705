"""The rows of a report of tiers: what devices, the host and the file hold, and what was read of each."""

from __future__ import annotations

from dataclasses import dataclass

from graphbraid.features.rows.caches import RowCache
from graphbraid.features.rows.disk import DiskRows
from graphbraid.features.rows.memory import MemoryRows, WidenedCache
from graphbraid.features.tiers.tier_report import RING, ReadShareCurve, TierCounts, TierRow
from graphbraid.sampling.rows.device_cache import DeviceCache
from graphbraid.sampling.rows.shared_cache import SharedDeviceCache


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class SeenTiers:
    """The tiers of a store of rows, with what was read of them, as a report shows them."""

    disk: DiskRows | None
    cache: RowCache | WidenedCache | MemoryRows
    hot: DeviceCache | None
    row_bytes: int
    """Bytes in which a row is kept."""
    lookahead: int
    """Batches that are announced ahead."""
    counts: TierCounts
    served: ReadShareCurve | None
    """Shares of the reads by the score; None without one."""
    epoch_reads: float | None
    """Reads per epoch by the score, or of the last epoch; None if neither is known."""
    epoch: TierCounts | None = None
    """What the last epoch read; None before its end."""

    def rows(self) -> tuple[TierRow, ...]:
        """Return a row for each tier there is, the fastest first, and one for look-ahead's ring."""
        tiers = (self._device(), self._peers(), self._ring(), self._host(), self._file())
        return tuple(tier for tier in tiers if tier is not None)

    def _device(self) -> TierRow | None:
        hot = self.hot
        if hot is None:
            return None
        num_own = len(hot.own_ids)
        share = None if self.served is None else self.served.share(num_own)
        found = ("found by a comparison" if hot.is_prefix else "found by a map") if num_own else ""
        return TierRow(
            name="device",
            rows=num_own,
            nbytes=num_own * self._kept_bytes,
            notes_bytes=hot.map_bytes,
            expected_share=share,
            measured_share=self._of_reads(self.counts.hot_rows),
            epoch_bytes=self._epoch_bytes(share),
            measured_bytes=None if self.epoch is None else self.epoch.hot_rows * self.row_bytes,
            detail="; ".join(part for part in (found, hot.reason) if part),
        )

    def _peers(self) -> TierRow | None:
        hot = self.hot
        if not isinstance(hot, SharedDeviceCache) or not hot.num_shared:
            return None
        share = None if self.served is None else self._share_from(len(hot.own_ids), hot.num_shared)
        return TierRow(
            name="peers",
            rows=hot.num_shared,
            nbytes=hot.num_shared * self._kept_bytes,
            expected_share=share,
            measured_share=self._of_reads(self.counts.peer_rows),
            epoch_bytes=self._epoch_bytes(share),
            measured_bytes=None if self.epoch is None else self.epoch.peer_rows * self.row_bytes,
            detail=f"interleaved over {hot.num_peers} devices while they train: {hot.own_shared:,} are here",
        )

    def _ring(self) -> TierRow | None:
        """Return the line of rows that batches before had brought, which the score expects in other tiers."""
        if not self.counts.ring_rows:
            return None
        return TierRow(
            name=RING,
            rows=0,
            nbytes=0,
            measured_share=self._of_reads(self.counts.ring_rows),
            measured_bytes=None if self.epoch is None else self.epoch.ring_rows * self.row_bytes,
            detail="the device had them, so that they did not travel again",
        )

    def _host(self) -> TierRow:
        ahead = f", {self.lookahead} batches ahead" if self.lookahead else ""
        upto, served = self._upto, self.served
        share = None if served is None else self._share_from(self._num_hot, upto - self._num_hot)
        rows = upto - self._num_hot if self.disk is None else self.cache.num_rows
        return TierRow(
            name="host",
            rows=rows,
            nbytes=rows * self.row_bytes,
            notes_bytes=self.cache.overhead_bytes,
            expected_share=share,
            measured_share=self._of_reads(self.counts.host_rows),
            epoch_bytes=self._epoch_bytes(share),
            measured_bytes=None if self.epoch is None else self.epoch.host_rows * self.row_bytes,
            detail="as the graph has them" if self.disk is None else f"policy {self.cache.policy}{ahead}",
        )

    def _file(self) -> TierRow | None:
        if self.disk is None:
            return None
        rows = self._num_rows - self._upto
        share = None if self.served is None else 1 - self.served.share(self._upto)
        return TierRow(
            name="disk",
            rows=rows,
            nbytes=rows * self.row_bytes,
            expected_share=share,
            measured_share=self._of_reads(self.counts.disk_rows),
            epoch_bytes=self._epoch_bytes(share),
            measured_bytes=None if self.epoch is None else self.epoch.disk_rows * self.row_bytes,
            detail=self.disk.how(),
        )

    @property
    def _num_rows(self) -> int:
        whole = self.cache if isinstance(self.cache, MemoryRows) else self.cache.disk
        return whole.shape[0]

    @property
    def _num_hot(self) -> int:
        """Rows on devices, those included that are interleaved while a run lasts."""
        hot = self.hot
        if hot is None:
            return 0
        return len(hot.own_ids) + (hot.num_shared if isinstance(hot, SharedDeviceCache) else 0)

    @property
    def _kept_bytes(self) -> int:
        """Bytes of a row on a device, with its scale."""
        return self.row_bytes + (self.cache.scale.itemsize if isinstance(self.cache, WidenedCache) else 0)

    def _share_from(self, first: int, count: int) -> float:
        assert self.served is not None
        return self.served.share(first + count) - self.served.share(first)

    @property
    def _upto(self) -> int:
        """Number of the highest rows that devices and the host have."""
        return min(self._num_hot + self.cache.num_rows, self._num_rows)

    def _of_reads(self, rows: int) -> float | None:
        return rows / self.counts.reads if self.counts.reads else None

    def _epoch_bytes(self, share: float | None) -> float | None:
        if share is None or self.epoch_reads is None:
            return None
        return share * self.epoch_reads * self.row_bytes
