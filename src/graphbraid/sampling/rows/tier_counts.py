"""TierCounts: how often rows or adjacency lists were read of each tier, and what travelled to devices."""

from __future__ import annotations

from typing import NamedTuple


class TierCounts(NamedTuple):
    """What was read of tiers, of a cache or of a file: of feature rows, or of adjacency lists."""

    host_rows: int = 0
    """Reads of rows or lists that lay in memory, by a device itself or by who prepares its batches."""
    disk_rows: int = 0
    """Reads of rows or lists that came from the file; of a file alone, each once per call."""
    filled_rows: int = 0
    """Rows read to fill memory beforehand."""
    disk_requests: int = 0
    disk_bytes: int = 0
    """Whole blocks, for all of these."""
    host_edges: int = 0
    """Drawn edges of lists that lay in memory."""
    disk_edges: int = 0
    """Drawn edges of lists that came from the file."""
    hot_rows: int = 0
    """Reads of rows that a device had for itself."""
    link_rows: int = 0
    """Rows that travelled to a device, or that it read of the host's memory."""
    link_row_bytes: int = 0
    """Bytes of these rows."""
    link_list_bytes: int = 0
    """Bytes of sampled lists that went to a device: ids and edges of batches, what belongs to them, and the
    weights that draws by weight read of lists on the host."""
    link_label_bytes: int = 0
    """Bytes of labels that did."""
    ring_rows: int = 0
    """Reads of rows that a batch before had brought to the device."""
    peer_rows: int = 0
    """Reads of rows that were interleaved over devices that read each other's."""
    link_sector_bytes: int = 0
    """Bytes of the whole sectors that moved for rows which devices read of the host themselves, by where each
    row lies: more than these rows' own bytes where rows do not begin and end with sectors. No part of
    :attr:`link_bytes`, which are those of the rows themselves; copies move no more than these."""

    @property
    def reads(self) -> int:
        """Reads of all tiers, and of rows that a batch before had brought."""
        return self.hot_rows + self.peer_rows + self.ring_rows + self.host_rows + self.disk_rows

    @property
    def link_bytes(self) -> int:
        """Bytes of all that travelled to a device: rows, lists and labels."""
        return self.link_row_bytes + self.link_list_bytes + self.link_label_bytes

    @property
    def host_share(self) -> float:
        """Share of the reads that memory served; 0 before the first."""
        return self.host_rows / max(self.reads, 1)

    def plus(self, more: TierCounts) -> TierCounts:
        """Return the sums of both."""
        return TierCounts(*map(sum, zip(self, more, strict=True)))

    def since(self, before: TierCounts) -> TierCounts:
        """Return what was read after ``before``."""
        return TierCounts(*(now - then for now, then in zip(self, before, strict=True)))
