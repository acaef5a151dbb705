"""ListReads: what a device that samples read of adjacency lists."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class ListReads(NamedTuple):
    """Adjacency lists of which edges were drawn, and these edges, by where they were read."""

    device_lists: int
    device_edges: int
    host_lists: int
    host_edges: int

    @classmethod
    def of(cls, counted: Tensor) -> ListReads:
        """Return what a device has added up in ``(4,)`` int64, in this order; waits for it."""
        return cls(*counted.tolist())

    @property
    def device_share(self) -> float:
        """The device's share of the reads of lists; 0 before the first."""
        return self.device_lists / max(self.device_lists + self.host_lists, 1)
