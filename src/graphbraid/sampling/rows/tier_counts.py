"""TierCounts: reads of rows or adjacency lists by tier, and transfers to devices."""

from __future__ import annotations

from typing import NamedTuple


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
