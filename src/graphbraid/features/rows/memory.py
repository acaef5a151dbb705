"""MemoryRows: features in memory, with the interface of rows in a file."""

from __future__ import annotations

import threading

import torch
from torch import Tensor

from graphbraid.errors import DataError
from graphbraid.graph.scaled_features import ScaledFeatures, stored_rows
from graphbraid.ops.gather import gather_features, gather_rows
from graphbraid.sampling.rows.tier_counts import TierCounts
from graphbraid.signatures import typed


@typed
class MemoryRows:
    """All rows of a tensor in memory, with the interface of :class:`graphbraid.features.RowCache`.

    Threads may share it.

    Args:
        x: ``(num_rows, width)`` on the CPU; int8 rows are returned as float32.

    Raises:
        DataError: it is not.
    """

    policy = "static"

    def __init__(self, x: Tensor | ScaledFeatures) -> None:
        rows = stored_rows(x)
        assert rows is not None
        if rows.ndim != 2 or rows.device.type != "cpu":
            raise DataError(
                f"features in memory must be 2-d on the CPU; got shape {tuple(rows.shape)} on {rows.device}"
            )
        self.x = x if isinstance(x, ScaledFeatures) else x.detach()
        self.shape: torch.Size = rows.shape
        self.dtype, self.nbytes = x.dtype, x.nbytes
        self.num_rows, self.overhead_bytes = len(rows), 0
        self._stored = rows.detach()
        self._reads, self._lock = 0, threading.Lock()

    @property
    def counts(self) -> TierCounts:
        """Reads so far; memory served all of them."""
        return TierCounts(host_rows=self._reads)

    def announce(self, ids: Tensor) -> int:
        """Do nothing, since nothing is read ahead; return -1."""
        return -1

    def forget(self) -> None:
        """Do nothing: nothing was announced."""

    def gather(self, ids: Tensor, out: Tensor | None = None, *, batch: int = -1) -> Tensor:
        """``out[i] = x[ids[i]]``.

        Args:
            ids: ``(num_ids,)`` int64 rows.
            out: ``(num_ids, width)``; None makes one.
            batch: not used.

        Raises:
            DataError: an id is no row.
        """
        rows = gather_features(self.x, ids)
        with self._lock:
            self._reads += len(ids)
        return rows if out is None else out.copy_(rows)

    def uncounted(self, ids: Tensor) -> Tensor:
        """Rows of ids as they are kept; not counted as reads."""
        return gather_rows(self._stored, ids)

    def __reduce__(self) -> tuple[type[MemoryRows], tuple[Tensor | ScaledFeatures]]:
        return MemoryRows, (self.x,)

    def __repr__(self) -> str:
        return f"MemoryRows({self.num_rows:,} rows)"
