"""Csc: the adjacency every kernel takes, of a whole graph or of one layer's block."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from graphbraid import kernels
from graphbraid.errors import DataError


@dataclass(eq=False, slots=True, weakref_slot=True)
class Csc:
    """In-edges by destination: the sources of node ``v`` are ``indices[indptr[v]:indptr[v + 1]]``.

    A whole graph has ``num_src == num_dst``; a block of a mini-batch is bipartite, its destinations a prefix of its
    sources. Immutable by convention: :meth:`transpose` is made once and kept.
    """

    indptr: Tensor
    """``(num_dst + 1,)`` int64, starts at 0, never falls."""
    indices: Tensor
    """``(num_edges,)`` int32 or int64, source of each in-edge, in ``[0, num_src)``."""
    num_src: int
    """Number of source nodes."""
    weight: Tensor | None = None
    """``(num_edges,)`` float32 edge weights, or None."""
    src_degree: Tensor | None = None
    """``(num_src,)`` float32 in-degrees (sums of weights) in the graph a block was drawn from, self-loops not counted;
    layers that normalise by degree then use the graph's instead of the block's. None on a whole graph."""
    _transposed: tuple[Csc, Tensor] | None = field(default=None, repr=False)

    @property
    def num_dst(self) -> int:
        """Number of destination nodes."""
        return self.indptr.numel() - 1

    @property
    def num_edges(self) -> int:
        """Number of edges."""
        return self.indices.numel()

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays, without the cached transpose."""
        tensors = [self.indptr, self.indices] + ([] if self.weight is None else [self.weight])
        return sum(t.numel() * t.element_size() for t in tensors)

    def degrees(self) -> Tensor:
        """``(num_dst,)`` int64 in-degrees."""
        return self.indptr.diff()

    def destinations(self) -> Tensor:
        """``(num_edges,)`` destination of each edge, in the dtype of ``indices``."""
        nodes = torch.arange(self.num_dst, dtype=self.indices.dtype, device=self.indices.device)
        return torch.repeat_interleave(nodes, self.degrees())

    def transpose(self) -> tuple[Csc, Tensor]:
        """The reversed edges, by source, and where each came from.

        Returns:
            The transposed :class:`Csc` (its rows are this one's sources, in rising order of destination) and
            ``perm``, ``(num_edges,)`` int64: edge ``e`` of the transpose is edge ``perm[e]`` here.
        """
        if self._transposed is None:
            indptr, destinations, perm = _transpose(self)
            weight = None if self.weight is None else self.weight[perm]
            self._transposed = Csc(indptr, destinations, self.num_dst, weight), perm
        return self._transposed


def _transpose(csc: Csc) -> tuple[Tensor, Tensor, Tensor]:
    native = kernels.native() if csc.indices.device.type == "cpu" else None
    if native is not None:
        return native.transpose_csc(csc.indptr, csc.indices, csc.num_src)
    perm = torch.argsort(csc.indices, stable=True)
    indptr = torch.zeros(csc.num_src + 1, dtype=torch.int64, device=csc.indices.device)
    torch.cumsum(torch.bincount(csc.indices, minlength=csc.num_src), 0, out=indptr[1:])
    return indptr, csc.destinations()[perm], perm


def index_dtype(num_nodes: int) -> torch.dtype:
    """The dtype node ids are stored in: int32 where every id fits, which halves the bytes a kernel reads."""
    return torch.int32 if num_nodes <= torch.iinfo(torch.int32).max else torch.int64


def check_csc(indptr: Tensor, indices: Tensor, *, num_src: int) -> None:
    """Check the cheap half of the invariants: shapes, dtypes and the ends of ``indptr``.

    Raises:
        DataError: names the array that does not fit.
    """
    if indptr.dtype != torch.int64 or indptr.ndim != 1 or indptr.numel() < 1:
        raise DataError(f"indptr must be a non-empty 1-d int64 tensor; got {indptr.dtype} of shape {tuple(indptr.shape)}")
    if indices.dtype not in (torch.int32, torch.int64) or indices.ndim != 1:
        raise DataError(f"indices must be a 1-d int32 or int64 tensor; got {indices.dtype} of shape {tuple(indices.shape)}")
    if int(indptr[0]) != 0 or int(indptr[-1]) != indices.numel():
        raise DataError(
            f"indptr must run from 0 to the number of edges ({indices.numel()}); "
            f"it runs from {int(indptr[0])} to {int(indptr[-1])}"
        )
    if num_src < 0:
        raise DataError(f"num_src must not be negative; got {num_src}")
