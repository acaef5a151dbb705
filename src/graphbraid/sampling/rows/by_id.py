"""Reads of rows by id from tables on the device or the host, and RowPart: the rows a device still needs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch
from torch import Tensor

from graphbraid.graph.interop.convert import is_plain
from graphbraid.graph.scaled_features import ScaledFeatures, widened

if TYPE_CHECKING:
    from graphbraid.sampling.rows.device_cache import DeviceCache


@runtime_checkable
class FeatureSource(Protocol):
    """Features of a graph's nodes by id. It alone knows which tier has a row.

    Pipelines ask it for the rows of batches and do not know where they come from.
    """

    @property
    def shape(self) -> torch.Size:
        """``(num_nodes, F)``."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the rows that are given."""
        ...

    @property
    def lookahead(self) -> int:
        """Number of batches that should be announced before they are gathered."""
        ...

    @property
    def hot(self) -> DeviceCache | None:
        """Rows that devices keep in their memory; None if there are none."""
        ...

    @property
    def in_memory(self) -> Tensor | ScaledFeatures | None:
        """All rows, ``(num_nodes, F)``, if they lie in memory; else None."""
        ...

    def announce(self, ids: Tensor) -> int:
        """Announce the rows of a coming batch, in the order of the batches; return its number."""
        ...

    def gather(self, ids: Tensor, out: Tensor | None = None, *, batch: int = -1) -> Tensor:
        """``(num_ids, F)`` rows of ``ids``, int64 on the CPU; ``batch``: the number it was announced by."""
        ...

    def forget(self) -> None:
        """Forget announced batches that will not come."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class RowPart:
    """The feature rows of a batch that the device does not hold yet, and the places of all its rows.

    The device keeps its hot rows (:class:`.device_cache.DeviceCache`), and the rows copied last in
    a ring buffer if there is one; a row's position rises from each appended row to the next.
    """

    rows: Tensor
    """Rows to append to the ring, ``(num_missing, F)``; without one, of this batch only."""
    slots: Tensor
    """Slot of each of the batch's rows, ``(num_nodes,)`` int32: hot rows first, then the ring or ``rows``."""
    first: int
    """Position of ``rows[0]``; -1 if they stay out of the ring."""
    generation: int
    """Number of restarts of the ring before this batch."""
    ring_rows: int = 0
    """Number of the batch's rows that earlier batches brought to the ring."""

    @property
    def nbytes(self) -> int:
        """Bytes copied to the device."""
        return self.rows.nbytes + self.slots.nbytes

    def apply(self, change: Callable[[Tensor], Tensor]) -> RowPart:
        """Return a part with ``change`` applied to both tensors, such as a copy to another device."""
        rows, slots = change(self.rows), change(self.slots)
        return dataclasses.replace(self, rows=rows, slots=slots)


def take_rows(table: Tensor, ids: Tensor) -> Tensor:
    """Return ``table[ids]`` on the device of ``ids``.

    A plain table on another device must be contiguous and in page-locked host memory, which the device of
    ``ids`` reads over the link; the call does not wait for it. Rows of any other table are taken by torch
    where the table is, and copied.

    Args:
        table: ``(num_rows, ...)`` of any dtype, dense or in COO.
        ids: ``(num_ids,)`` int64 in ``[0, num_rows)``.
    """
    if is_plain(table):
        return table[ids] if is_beside(table, ids) else read_over_link(table, ids)
    return torch.index_select(table, 0, ids.to(table.device)).to(ids.device)


def take_features(x: Tensor | ScaledFeatures, ids: Tensor) -> Tensor:
    """Return the feature rows of ``ids`` as :func:`take_rows` does; those of int8 become float32."""
    if isinstance(x, ScaledFeatures):
        return widened(take_rows(x.values, ids), take_rows(x.scale, ids))
    return take_rows(x, ids)


def tensor_bytes(tensor: Tensor) -> int:
    """Return the bytes of a tensor; in COO, of its indices and values."""
    if tensor.layout != torch.sparse_coo:
        return tensor.nbytes
    return tensor._indices().nbytes + tensor._values().nbytes


def is_beside(table: Tensor, ids: Tensor) -> bool:
    """Return whether ``table`` is on the device of ``ids``."""
    return table.device == ids.device


def is_read_over_link(table: Tensor, ids: Tensor) -> bool:
    """Return whether the device of ``ids`` reads ``table`` from the host's memory."""
    return not is_beside(table, ids)


def read_over_link(table: Tensor, ids: Tensor) -> Tensor:
    """Return ``table[ids]`` by a kernel on the device of ``ids`` that reads a page-locked host table."""
    from graphbraid.ops.triton.gather import gather_rows
    from graphbraid.ops.triton.launch import on_device_of

    out = torch.empty((ids.numel(), *table.shape[1:]), dtype=table.dtype, device=ids.device)
    if out.numel():
        with on_device_of(ids):
            gather_rows(_bytes_of(table.detach()), ids, _bytes_of(out))
    return out


def _bytes_of(table: Tensor) -> Tensor:
    """Return a view of the same memory as ``(num_rows, row_bytes)`` uint8."""
    return table.view(table.shape[0], -1).view(torch.uint8)
