"""TierReport: the contents of each tier, its reads, and the gain by more memory; and its rows, SeenTiers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from graphbraid.features.rows.caches import MemoryRows
from graphbraid.files.writing import format_bytes
from graphbraid.sampling.rows.by_id import SECTOR_BYTES, TierCounts
from graphbraid.sampling.rows.shared_cache import SharedDeviceCache

if TYPE_CHECKING:
    from graphbraid.features.tiers.tiered_features import TieredFeatures


SHARES = (0.05, 0.1, 0.25, 0.5, 0.75, 1.0)
"""Shares of the rows, or of the lists' bytes: the points of a curve of tiers."""
COUNTED_KINDS = ("inclusion", "presampled", "lookahead")
"""Kinds of scores whose values are reads per epoch; values of the others give only an order."""


RING = "from the batch before"
"""Name of the line of rows that look-ahead left out of copies. They are part of the reads but no tier."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TierRow:
    """One tier: its contents, and its share of the reads."""

    name: str
    """``device``, ``host`` or ``disk``; or :data:`RING`, for rows that an earlier batch had brought."""
    rows: int
    """Number of rows that are there and in no faster tier."""
    nbytes: int
    """Bytes of these rows."""
    notes_bytes: int = 0
    """Bytes of bookkeeping for the rows."""
    expected_share: float | None = None
    """Expected share of the reads by the score; None without a score."""
    measured_share: float | None = None
    """Share of the reads so far; None before the first read."""
    epoch_bytes: float | None = None
    """Bytes of rows that an epoch is expected to read here, by the score; whole blocks of a file are more.
    None if no epoch has ended and the score does not count reads."""
    measured_bytes: int | None = None
    """Bytes of rows that the last epoch read here; None before its end."""
    detail: str = ""
    """The way rows come from there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CurvePoint:
    """A point of the curve: memory for some rows, and the reads that it would serve."""

    rows: int
    nbytes: int
    """Bytes of these rows."""
    share: float
    """Share of the reads that go to the rows of the highest scores."""
    epoch_bytes: float | None = None
    """Bytes of rows that an epoch would still read from slower tiers; None if its reads are not known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TierReport:
    """The tiers of a store of rows, fastest first. Printing shows a table and the curve."""

    num_rows: int
    row_bytes: int
    dtype: str
    tiers: tuple[TierRow, ...]
    counts: TierCounts
    """Counts of all reads so far."""
    epoch: TierCounts | None = None
    """Counts of the last epoch of training; None before its end."""
    filled_by: str = ""
    """Score by which tiers are filled, with the reason; empty if the score has no name."""
    curve: tuple[CurvePoint, ...] = ()
    """Gain by more memory; empty without a score."""

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        content = dataclasses.asdict(self)
        derived = ("reads", "disk_bytes", "disk_requests", "link_bytes")
        named = {name: getattr(self.counts, name) for name in derived}
        epoch = None if self.epoch is None else self.epoch._asdict()
        return content | named | {"counts": self.counts._asdict(), "epoch": epoch}

    def __str__(self) -> str:
        whole = format_bytes(self.num_rows * self.row_bytes)
        lines = [
            f"{self.num_rows:,} rows of {format_bytes(self.row_bytes)} ({self.dtype}, {whole})",
            *aligned([_HEADER, *(self._cells(tier) for tier in self.tiers)]),
        ]
        lines += [f"{tier.name}: {tier.detail}" for tier in self.tiers if tier.detail]
        if self.filled_by:
            lines.append(f"filled by the score {self.filled_by}")
        if self.counts.reads:
            lines += [_read(self.counts, "so far"), *_sectors(self.counts, "so far")]
        if self.epoch is not None:
            lines += [_read(self.epoch, "in the last epoch"), *_sectors(self.epoch, "in the last epoch")]
        if self.curve:
            lines.append("with other amounts of memory for rows:")
            lines += aligned([_CURVE_HEADER, *(self._point(point) for point in self.curve)])
        return "\n".join(lines)

    def _cells(self, tier: TierRow) -> list[str]:
        lies = [f"{tier.rows:,}", f"{tier.rows / max(self.num_rows, 1):.1%}", format_bytes(tier.nbytes)]
        return [
            tier.name,
            *(["", "", ""] if tier.name == RING else lies),
            format_bytes(tier.notes_bytes) if tier.notes_bytes else "",
            _share(tier.expected_share),
            _share(tier.measured_share),
            _bytes(tier.epoch_bytes),
            _bytes(tier.measured_bytes),
        ]

    def _point(self, point: CurvePoint) -> list[str]:
        share = point.rows / max(self.num_rows, 1)
        return [f"{share:.0%}", format_bytes(point.nbytes), _share(point.share), _bytes(point.epoch_bytes)]


def reads_per_epoch(score: object, values: Tensor) -> float | None:
    """Return the reads of an epoch by a record of scores; None if it does not count reads."""
    return float(values.sum()) if getattr(score, "kind", None) in COUNTED_KINDS else None


class ReadShareCurve:
    """The cumulative access curve of a score: the share of the reads that go to its top rows.

    Scores below 0 count as 0.
    """

    def __init__(self, score: Tensor) -> None:
        ordered = score.double().clamp_min(0).sort(descending=True).values
        self._upto = torch.cat([ordered.new_zeros(1), ordered.cumsum(0)])

    def share(self, num_rows: int) -> float:
        """Return the share of the reads that go to the ``num_rows`` highest rows."""
        total = float(self._upto[-1])
        return float(self._upto[num_rows]) / total if total else 0.0

    def curve(
        self, row_bytes: int, epoch_reads: float | None, shares: Sequence[float] = SHARES
    ) -> tuple[CurvePoint, ...]:
        """Return the points of the curve for shares of the rows; ``epoch_reads`` None is not known."""
        num_rows = self._upto.numel() - 1
        points = []
        for part in shares:
            rows = int(num_rows * part)
            served = self.share(rows)
            left = None if epoch_reads is None else (1 - served) * epoch_reads * row_bytes
            points.append(CurvePoint(rows=rows, nbytes=rows * row_bytes, share=served, epoch_bytes=left))
        return tuple(points)


_HEADER = ["tier", "rows", "of all", "bytes", "notes", "expected", "measured", "an epoch", "the last one"]
_CURVE_HEADER = ["rows", "bytes", "served", "left an epoch"]


def _read(counts: TierCounts, when: str) -> str:
    link = ""
    if counts.link_bytes:
        parts = {
            "rows": counts.link_row_bytes,
            "lists": counts.link_list_bytes,
            "labels": counts.link_label_bytes,
        }
        listed = ", ".join(f"{name} {format_bytes(nbytes)}" for name, nbytes in parts.items() if nbytes)
        link = f"{format_bytes(counts.link_bytes)} over the link ({listed}), "
    disk = f"{format_bytes(counts.disk_bytes)} from disk by {counts.disk_requests:,} requests"
    return f"{counts.reads:,} reads {when}; {link}{disk}"


def _sectors(counts: TierCounts, when: str) -> list[str]:
    """Return a line on the sectors moved for rows that devices read from the host, if there were any."""
    if not counts.link_sector_bytes:
        return []
    moved = format_bytes(counts.link_sector_bytes)
    return [f"whole sectors of {SECTOR_BYTES} bytes that devices read for rows {when}: {moved}"]


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _bytes(value: float | None) -> str:
    return "" if value is None else format_bytes(int(value))


def aligned(cells: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table: names to the left, figures to the right, empty columns left out."""
    columns = [column for column in zip(*cells, strict=True) if any(column[1:])]
    widths = [max(map(len, column)) for column in columns]
    lines = []
    for row in zip(*columns, strict=True):
        first, *others = (
            cell.ljust(width) if place == 0 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join(["", first, *others]).rstrip())
    return lines


class SeenTiers:
    """The tiers of a store of rows and their counts of reads, also of the last epoch that has ended."""

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
        """Return the line of a tier; ``reads`` is the field of the counts that counts its reads."""
        row_bytes, counts, expected = self._store.row_bytes, self._counts, self._epoch_reads
        fields: dict[str, Any] = {
            "nbytes": rows * row_bytes,
            "epoch_bytes": None if share is None or expected is None else share * expected * row_bytes,
            "measured_bytes": None if self._last is None else getattr(self._last, reads) * row_bytes,
            "measured_share": getattr(counts, reads) / counts.reads if counts.reads else None,
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
