"""The rows of a report of tiers: what devices, the host and the file hold, and what was read of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from graphbraid.features.rows.caches import RowCache
from graphbraid.features.rows.disk import DiskRows
from graphbraid.features.rows.memory import MemoryRows
from graphbraid.features.tiers.tier_report import RING, ReadShareCurve, TierRow
from graphbraid.sampling.rows.device_cache import DeviceCache
from graphbraid.sampling.rows.shared_cache import SharedDeviceCache
from graphbraid.sampling.rows.tier_counts import TierCounts


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class SeenTiers:
    """The tiers of a store of rows, with what was read of them, as a report shows them."""

    disk: DiskRows | None
    cache: RowCache | MemoryRows
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
        detail = "; ".join(part for part in (found, hot.reason) if part)
        kept = {"nbytes": num_own * self._kept_bytes, "notes_bytes": hot.map_bytes}
        return self._line("device", "hot_rows", num_own, share, detail, **kept)

    def _peers(self) -> TierRow | None:
        hot = self.hot
        if not isinstance(hot, SharedDeviceCache) or not hot.num_shared:
            return None
        share = None if self.served is None else self._share_from(len(hot.own_ids), hot.num_shared)
        detail = f"interleaved over {hot.num_peers} devices while they train: {hot.own_shared:,} are here"
        kept = {"nbytes": hot.num_shared * self._kept_bytes}
        return self._line("peers", "peer_rows", hot.num_shared, share, detail, **kept)

    def _ring(self) -> TierRow | None:
        """Return the line of rows that batches before had brought, which the score expects in other tiers."""
        if not self.counts.ring_rows:
            return None
        return self._line(
            RING,
            "ring_rows",
            0,
            None,
            "the device had them, so that they did not travel again",
            epoch_bytes=None,
        )

    def _host(self) -> TierRow:
        upto, ahead = self._upto, f", {self.lookahead} batches ahead" if self.lookahead else ""
        share = None if self.served is None else self._share_from(self._num_hot, upto - self._num_hot)
        rows = upto - self._num_hot if self.disk is None else self.cache.num_rows
        detail = "as the graph has them" if self.disk is None else f"policy {self.cache.policy}{ahead}"
        return self._line("host", "host_rows", rows, share, detail, notes_bytes=self.cache.overhead_bytes)

    def _file(self) -> TierRow | None:
        if self.disk is None:
            return None
        share = None if self.served is None else 1 - self.served.share(self._upto)
        return self._line("disk", "disk_rows", self._num_rows - self._upto, share, self.disk.how())

    def _line(
        self, name: str, reads: str, rows: int, share: float | None, detail: str, **others: int | None
    ) -> TierRow:
        """Return the line of a tier.

        Args:
            name: of the tier.
            reads: the field of the counts that counts its reads.
            rows: rows that lie there.
            share: expected share of the reads.
            detail: how rows come from there.
            others: fields of the line that do not follow from these.
        """
        measured = None if self.epoch is None else getattr(self.epoch, reads) * self.row_bytes
        fields: dict[str, Any] = {
            "nbytes": rows * self.row_bytes,
            "epoch_bytes": self._epoch_bytes(share),
            "measured_bytes": measured,
            "measured_share": self._of_reads(getattr(self.counts, reads)),
            **others,
        }
        return TierRow(name=name, rows=rows, expected_share=share, detail=detail, **fields)

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
        scale = self.cache.scale if isinstance(self.cache, RowCache) else None
        return self.row_bytes + (0 if scale is None else scale.itemsize)

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
