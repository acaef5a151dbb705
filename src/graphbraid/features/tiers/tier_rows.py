"""The rows of a report of tiers: contents and reads of devices, host and file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from graphbraid.features.rows.memory import MemoryRows
from graphbraid.features.tiers.tier_report import RING, ReadShareCurve, TierReport, TierRow
from graphbraid.sampling.rows.shared_cache import SharedDeviceCache
from graphbraid.sampling.rows.tier_counts import TierCounts

if TYPE_CHECKING:
    from graphbraid.features.tiers.tiered_features import TieredFeatures


class SeenTiers:
    """The tiers of a store of rows and their counts of reads, as a report shows them.

    Args:
        store: the store.
        last: counts of the last epoch. If None, no epoch has ended.
    """

    def __init__(self, store: TieredFeatures, last: TierCounts | None) -> None:
        self._store, self._last, self._counts = store, last, store.counts
        self._served = None if store.score is None else ReadShareCurve(store.score)
        self._epoch_reads = store.epoch_reads
        if self._epoch_reads is None and last is not None:
            self._epoch_reads = float(last.reads)

    def report(self) -> TierReport:
        """Return the tiers as a record."""
        store, served = self._store, self._served
        return TierReport(
            num_rows=len(store),
            row_bytes=store.row_bytes,
            dtype=str(store.dtype) if store.scale is None else f"{torch.int8} with a scale each",
            tiers=self._rows(),
            counts=self._counts,
            epoch=self._last,
            filled_by=store.filled_by,
            curve=() if served is None else served.curve(store.row_bytes, self._epoch_reads),
        )

    def _rows(self) -> tuple[TierRow, ...]:
        """Return a row for each tier, fastest first, and one for look-ahead's ring."""
        tiers = (self._device(), self._peers(), self._ring(), self._host(), self._file())
        return tuple(tier for tier in tiers if tier is not None)

    def _device(self) -> TierRow | None:
        hot = self._store.hot
        if hot is None:
            return None
        num_own = len(hot.own_ids)
        share = None if self._served is None else self._served.share(num_own)
        found = ("found by a comparison" if hot.is_prefix else "found by a map") if num_own else ""
        detail = "; ".join(part for part in (found, hot.reason) if part)
        kept = {"nbytes": num_own * self._kept_bytes, "notes_bytes": hot.map_bytes}
        return self._line("device", "hot_rows", num_own, share, detail, **kept)

    def _peers(self) -> TierRow | None:
        hot = self._store.hot
        if not isinstance(hot, SharedDeviceCache) or not hot.num_shared:
            return None
        share = None if self._served is None else self._share_from(len(hot.own_ids), hot.num_shared)
        detail = f"interleaved over {hot.num_peers} devices while they train: {hot.own_shared:,} are here"
        kept = {"nbytes": hot.num_shared * self._kept_bytes}
        return self._line("peers", "peer_rows", hot.num_shared, share, detail, **kept)

    def _ring(self) -> TierRow | None:
        """Return the line of rows that earlier batches had brought; the score expects them in other tiers."""
        if not self._counts.ring_rows:
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
        upto, ahead = self._upto, f", {self._store.lookahead} batches ahead" if self._store.lookahead else ""
        share = None if self._served is None else self._share_from(self._num_hot, upto - self._num_hot)
        rows = upto - self._num_hot if self._store.disk is None else self._store.cache.num_rows
        detail = (
            "as the graph has them"
            if self._store.disk is None
            else f"policy {self._store.cache.policy}{ahead}"
        )
        return self._line(
            "host", "host_rows", rows, share, detail, notes_bytes=self._store.cache.overhead_bytes
        )

    def _file(self) -> TierRow | None:
        if self._store.disk is None:
            return None
        share = None if self._served is None else 1 - self._served.share(self._upto)
        return self._line("disk", "disk_rows", len(self._store) - self._upto, share, self._store.disk.how())

    def _line(
        self, name: str, reads: str, rows: int, share: float | None, detail: str, **others: int | None
    ) -> TierRow:
        """Return the line of a tier.

        Args:
            name: name of the tier.
            reads: the field of the counts that counts its reads.
            rows: number of rows there.
            share: expected share of the reads.
            detail: the way rows come from there.
            others: further fields of the line.
        """
        measured = None if self._last is None else getattr(self._last, reads) * self._store.row_bytes
        fields: dict[str, Any] = {
            "nbytes": rows * self._store.row_bytes,
            "epoch_bytes": self._epoch_bytes(share),
            "measured_bytes": measured,
            "measured_share": self._of_reads(getattr(self._counts, reads)),
            **others,
        }
        return TierRow(name=name, rows=rows, expected_share=share, detail=detail, **fields)

    @property
    def _num_hot(self) -> int:
        """Number of rows on devices, including rows interleaved during a run."""
        hot = self._store.hot
        if hot is None:
            return 0
        return len(hot.own_ids) + (hot.num_shared if isinstance(hot, SharedDeviceCache) else 0)

    @property
    def _kept_bytes(self) -> int:
        """Bytes of a row on a device, with its scale."""
        scale = None if isinstance(self._store.cache, MemoryRows) else self._store.cache.scale
        return self._store.row_bytes + (0 if scale is None else scale.itemsize)

    def _share_from(self, first: int, count: int) -> float:
        assert self._served is not None
        return self._served.share(first + count) - self._served.share(first)

    @property
    def _upto(self) -> int:
        """Number of highest rows that devices and the host have."""
        return min(self._num_hot + self._store.cache.num_rows, len(self._store))

    def _of_reads(self, rows: int) -> float | None:
        return rows / self._counts.reads if self._counts.reads else None

    def _epoch_bytes(self, share: float | None) -> float | None:
        if share is None or self._epoch_reads is None:
            return None
        return share * self._epoch_reads * self._store.row_bytes
