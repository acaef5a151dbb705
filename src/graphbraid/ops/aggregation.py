"""Aggregation: a weighted sum over in-neighbours with given coefficients, and its transpose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from graphbraid.errors import DataError
from graphbraid.graph.csc import Csc
from graphbraid.ops.kernels import (
    backend,
    check_results,
    check_rows,
    new_rows,
    plain,
    row_contiguous,
    sum_dtype,
)
from graphbraid.ops.library import RowEpilogue, inverse_degrees
from graphbraid.signatures import typed


@typed
@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Aggregation:
    """A linear map of node rows: sums over in-neighbours with constant coefficients.

    ``out[v] = dst_scale[v] * sum of weight[e] * src_scale[u] * x[u]`` over the edges ``e = u -> v``. Every
    factor is optional. If ``loop_scale`` is not zero, the sum also includes ``loop_scale * loop[v] *
    src_scale[v] * x[v]``, an implicit self-loop of each of the first ``min(num_src, num_dst)`` nodes.
    Coefficients are constants to autograd; :func:`graphbraid.ops.spmm` takes trainable weights.
    """

    csc: Csc
    mean: bool = False
    """Divide each row by its number of edges."""
    weight: Tensor | None = None
    """``(num_edges,)`` edge weights, or None for ones."""
    src_scale: Tensor | None = None
    """``(num_src,)`` factors of the sources, or None for ones."""
    dst_scale: Tensor | None = None
    """``(num_dst,)`` factors of the destinations, or None for ones."""
    loop: Tensor | None = None
    """``(num_loops,)`` coefficients of the implicit self-loops, or None for ones."""
    loop_scale: float = 0.0
    """Factor of all implicit self-loops; 0 if there are none."""
    skip_loops: bool = False
    """Whether to ignore stored edges ``v -> v``."""

    def __post_init__(self) -> None:
        for name in ("weight", "src_scale", "dst_scale", "loop"):
            factor = getattr(self, name)
            if factor is not None and factor.ndim != 1:
                raise DataError(f"{name} must be a vector; got shape {tuple(factor.shape)}")

    @property
    def num_loops(self) -> int:
        """Number of rows with an implicit self-loop."""
        return min(self.csc.num_src, self.csc.num_dst) if self.loop_scale != 0 else 0

    @typed
    def forward(
        self,
        x: Tensor,
        *,
        addend: Tensor | None = None,
        out: Tensor | None = None,
        after: RowEpilogue | None = None,
    ) -> Tensor:
        """Aggregate the rows of ``x``, without recording the operation for autograd.

        Args:
            x: ``(num_src, width)`` float32, float64, float16 or bfloat16; its rows may be strided.
            addend: ``(at most num_dst, width)`` of the result's dtype, added to its first rows.
            out: ``(num_dst, width)`` of ``x``'s dtype or the one it is summed in, with contiguous rows, which
                may be strided. If None, a new matrix of ``x``'s dtype.
            after: epilogue that the kernel applies to each row while the cache holds it.

        Raises:
            DataError: ``x`` or ``out`` does not fit the graph or each other.
        """
        check_rows(x, "x", self.csc.num_src, "source node")  # kernels do not know how many there are
        check_results(x, addend, out, self.csc.num_dst)
        return aggregated(self, x, addend=addend, out=out, after=after)

    @typed
    def backward(self, grad: Tensor, *, addend: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        """Apply the transposed map to ``grad``, ``(num_dst, width)``; otherwise like :meth:`forward`."""
        check_rows(grad, "grad", self.csc.num_dst, "destination node")
        check_results(grad, addend, out, self.csc.num_src)
        return summed_back(self, grad, addend=addend, out=out)

    def transposed(self, dtype: torch.dtype) -> Aggregation:
        """Return the transposed map for rows of ``dtype``, as an aggregation over the reversed edges."""
        weight = self.weight
        if weight is None:
            reverse = self.csc.reversed()
        else:
            reverse, perm = self.csc.transpose()
            weight = reverse.weight if weight is self.csc.weight else weight[perm]
        src, dst = self.scales(sum_dtype(dtype))
        return self.with_parts(csc=reverse, mean=False, src_scale=dst, dst_scale=src, weight=weight)

    def with_parts(self, **parts: Any) -> Aggregation:
        """Return a copy with other parts, which fit: ``dataclasses.replace`` without checks."""
        made = object.__new__(Aggregation)
        for name in self.__slots__:
            object.__setattr__(made, name, parts[name] if name in parts else getattr(self, name))
        return made

    def scales(self, dtype: torch.dtype) -> tuple[Tensor | None, Tensor | None]:
        """Return the factors per source and per destination in ``dtype``; the latter include the mean's."""
        src = None if self.src_scale is None else self.src_scale.to(dtype)
        dst = None if self.dst_scale is None else self.dst_scale.to(dtype)
        if self.mean:
            inverse = inverse_degrees(self.csc, dtype)
            dst = inverse if dst is None else dst * inverse
        return src, dst


def aggregated(
    how: Aggregation,
    x: Tensor,
    *,
    addend: Tensor | None = None,
    out: Tensor | None = None,
    after: RowEpilogue | None = None,
) -> Tensor:
    """Run :meth:`Aggregation.forward` without its checks, for operators that have checked their inputs."""
    csc, dtype = how.csc, sum_dtype(x.dtype)
    if out is None:
        out = new_rows(x, csc.num_dst, x.shape[1])
    if out.numel() == 0:
        return out
    factors = [
        None if factor is None else plain(factor).to(dtype).contiguous()
        for factor in (how.weight, how.src_scale, how.dst_scale, how.loop)
    ]
    loops = how.loop_scale, how.num_loops, how.skip_loops
    rows, added = row_contiguous(plain(x)), None if addend is None else row_contiguous(plain(addend))
    backend(x).spmm(csc.indptr, csc.indices, rows, *factors, *loops, how.mean, added, plain(out), after)
    return out


def summed_back(
    how: Aggregation, grad: Tensor, *, addend: Tensor | None = None, out: Tensor | None = None
) -> Tensor:
    """Run :meth:`Aggregation.backward` without its checks."""
    return aggregated(how.transposed(grad.dtype), grad, addend=addend, out=out)


def follow_up(out: Tensor, after: RowEpilogue | None) -> None:
    """Apply an epilogue in a separate pass, after a kernel that cannot apply it itself."""
    if after is not None and out.numel() > 0:
        bias, *how, ids = after
        backend(out).epilogue(out, bias, *how, out, ids)
