"""HotCounts: how many rows of batches a device had, counted by whoever looks them up."""

from __future__ import annotations

import threading
from typing import NamedTuple

import torch
from torch import Tensor

from graphbraid.graph.scaled_features import ScaledFeatures
from graphbraid.sampling.rows.sectors import row_sectors


class HotReads(NamedTuple):
    """Reads of rows by batches."""

    reads: int
    """All of them."""
    own: int
    """Reads of rows that the device keeps for itself."""
    peers: int
    """Reads of rows that are interleaved over devices that read each other's."""
    direct: int
    """Reads of the host's rows by devices that sample."""
    sectors: int = 0
    """Sectors that moved for these."""


class HotCounts:
    """Counts of reads since this was made; threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reads = self._own = self._peers = self._direct_reads = 0
        self._direct_hits: dict[torch.device, Tensor] = {}

    def add(self, reads: int, own: int, peers: int = 0) -> None:
        """Count the rows of a batch, those that the device keeps for itself, and interleaved ones."""
        with self._lock:
            self._reads += reads
            self._own += own
            self._peers += peers

    def add_places(self, places: Tensor, num_own: int, num_rows: int, host: Tensor | ScaledFeatures) -> None:
        """Count the rows of a batch that a device reads through a table.

        Nothing waits for the device, which adds up itself on the current stream.

        Args:
            places: ``(num_ids,)`` positions in the table, on the device: own rows, interleaved ones, others.
            num_own: rows that the device keeps for itself.
            num_rows: these and interleaved ones.
            host: the others' rows, in the order of their places.
        """
        sectors = torch.where(places < num_rows, 0, row_sectors(host, places.long() - num_rows))
        hits = torch.stack([(places < num_own).sum(), (places < num_rows).sum(), sectors.sum()])
        with self._lock:
            self._direct_reads += len(places)
            known = self._direct_hits.get(places.device)
            self._direct_hits[places.device] = hits if known is None else known.add_(hits)

    def now(self) -> HotReads:
        """Return the counts so far; waits for devices that sample."""
        with self._lock:
            found = [hits.tolist() for hits in self._direct_hits.values()]
            own, hot, sectors = (sum(hits[bound] for hits in found) for bound in range(3))
            return HotReads(
                reads=self._reads + self._direct_reads,
                own=self._own + own,
                peers=self._peers + hot - own,
                direct=self._direct_reads - hot,
                sectors=sectors,
            )
