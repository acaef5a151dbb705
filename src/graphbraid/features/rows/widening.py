"""WidenedCache: a cache of a file's int8 rows that gives them as float32, by scales that lie in memory."""

from __future__ import annotations

import torch
from torch import Tensor

from graphbraid.arguments import shown
from graphbraid.errors import DataError
from graphbraid.features.rows.caches import CacheCounts, RowCache
from graphbraid.features.rows.disk import DiskRows
from graphbraid.graph.scaled_features import widened


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
    def counts(self) -> CacheCounts:
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
