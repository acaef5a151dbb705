"""TierCounts: what was read of tiers, since they were made or in an epoch."""

from __future__ import annotations

from typing import NamedTuple


class TierCounts(NamedTuple):
    """What was read of the tiers of rows."""

    host_rows: int
    """Reads of rows that lay in memory, by a device itself or by who prepares its batches."""
    disk_rows: int
    """Reads of rows that came from the file."""
    filled_rows: int
    """Rows read to fill memory beforehand."""
    disk_requests: int
    disk_bytes: int
    """Whole blocks, for all of these."""
    hot_rows: int = 0
    """Reads of rows that a device had."""
    link_rows: int = 0
    """Rows that travelled to a device, or that it read of the host's memory."""
    link_bytes: int = 0
    """Bytes of these rows."""

    @property
    def reads(self) -> int:
        """Reads of all tiers."""
        return self.hot_rows + self.host_rows + self.disk_rows

    @property
    def host_share(self) -> float:
        """Share of the reads that memory served; 0 before the first."""
        return self.host_rows / max(self.reads, 1)

    def since(self, before: TierCounts) -> TierCounts:
        """Return what was read after ``before``."""
        return TierCounts(*(now - then for now, then in zip(self, before, strict=True)))
