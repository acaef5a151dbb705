"""MemoryRows and WidenedCache: features that lie in memory, and int8 rows of a cache, given as float32."""

from __future__ import annotations

import threading

import torch
from torch import Tensor

from graphbraid.arguments import shown
from graphbraid.errors import DataError
from graphbraid.features.rows.caches import RowCache
from graphbraid.features.rows.disk import DiskRows
from graphbraid.features.rows.tier_counts import TierCounts
from graphbraid.graph.scaled_features import ScaledFeatures, stored_rows, widened
from graphbraid.ops.gather import gather_features, gather_rows
from graphbraid.signatures import typed


class WidenedCache:
    """A :class:`graphbraid.features.RowCache` of int8 rows, and the scale of every row, which memory keeps.

    Threads may share it.

    Args:
        cache: of the int8 rows.
        scale: ``(rows of the file,)`` float32.
    """

    def __init__(self, cache: RowCache, scale: Tensor) -> None:
        self.cache, self.scale = cache, scale
        self.dtype = scale.dtype

    @property
    def disk(self) -> DiskRows:
        """Where the int8 rows come from."""
        return self.cache.disk

    @property
    def policy(self) -> str:
        """Which rows stay."""
        return self.cache.policy

    @property
    def num_rows(self) -> int:
        """Rows kept, at most."""
        return self.cache.num_rows

    @property
    def nbytes(self) -> int:
        """Memory of the rows it may keep, without scales."""
        return self.cache.nbytes

    @property
    def overhead_bytes(self) -> int:
        """Memory it takes beside them, the scales of all rows included."""
        return self.cache.overhead_bytes + self.scale.nbytes

    @property
    def counts(self) -> TierCounts:
        """What was read from where; see :attr:`RowCache.counts`."""
        return self.cache.counts

    def announce(self, ids: Tensor) -> int:
        """Announce a batch; see :meth:`RowCache.announce`."""
        return self.cache.announce(ids)

    def forget(self) -> None:
        """Forget announced batches; see :meth:`RowCache.forget`."""
        self.cache.forget()

    def gather(self, ids: Tensor, out: Tensor | None = None, *, batch: int = -1) -> Tensor:
        """``out[i] = scale[ids[i]] * rows[ids[i]]`` in float32; otherwise as :meth:`RowCache.gather`.

        Raises:
            DataError: ``out`` does not fit; or as there.
        """
        shape = torch.Size((ids.numel(), *self.disk.shape[1:]))
        if out is not None and (out.shape, out.dtype) != (shape, self.dtype):
            raise DataError(f"out must be {self.dtype} of {tuple(shape)}; got {shown(out)}")
        return widened(self.cache.gather(ids, batch=batch), self.scale[ids], out)

    def uncounted(self, ids: Tensor) -> Tensor:
        """The int8 rows of ids from the file, as :meth:`RowCache.uncounted`."""
        return self.cache.uncounted(ids)

    def __reduce__(self) -> tuple[type[WidenedCache], tuple[RowCache, Tensor]]:
        return WidenedCache, (self.cache, self.scale)

    def __repr__(self) -> str:
        return f"WidenedCache({self.cache!r})"


@typed
class MemoryRows:
    """All rows of a tensor in memory, by id, beside :class:`graphbraid.features.RowCache` over a file.

    Threads may share it.

    Args:
        x: ``(num_rows, width)`` on the CPU; rows of int8 are given as float32.

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
        """Take no notice: nothing is read ahead; gives -1."""
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
        """Rows of ids as they are kept, which are no reads of a batch."""
        return gather_rows(self._stored, ids)

    def __reduce__(self) -> tuple[type[MemoryRows], tuple[Tensor | ScaledFeatures]]:
        return MemoryRows, (self.x,)

    def __repr__(self) -> str:
        return f"MemoryRows({self.num_rows:,} rows)"
