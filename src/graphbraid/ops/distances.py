"""distances: the distance of each query from each row, without memory for each query, row and column."""

from typing import Any, Literal

import torch
from torch import Tensor

from graphbraid.ops import reference
from graphbraid.ops.kernels import backend, plain, row_contiguous
from graphbraid.ops.library import once_differentiable, operator


def distances(query: Tensor, rows: Tensor, kind: Literal["absolute", "euclidean", "moduli"]) -> Tensor:
    """Compute the distance of each query from each row, in float32 or wider.

    Results do not depend on the number of threads. The gradient of a difference of 0 is 0. The gradients of
    queries are summed in up to eight parts of the rows; each part takes the memory of ``query`` once more.

    Args:
        query: ``(num_queries, width)``.
        rows: ``(num_rows, width)`` of the same dtype.
        kind: ``absolute`` sums up the absolute values of differences, ``euclidean`` is their length, and
            ``moduli`` sums up the moduli of complex differences; real parts are the first half of a row.

    Returns:
        ``(num_queries, num_rows)``.
    """
    wide = torch.promote_types(query.dtype, torch.float32)
    return _distances(query.to(wide), rows.to(wide), reference.DISTANCES.index(kind))


def _kernels(rows: Tensor) -> Any:
    return backend(rows) if rows.is_cpu else reference  # there is no Triton kernel


class _Distances(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, rows: Tensor, kind: int) -> Tensor:
        out = query.new_empty(query.shape[0], rows.shape[0])
        _kernels(query).distances(row_contiguous(plain(query)), row_contiguous(plain(rows)), kind, out)
        ctx.kind = kind
        ctx.save_for_backward(query, rows, out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        query, rows, out = ctx.saved_tensors
        of_query, of_rows = query.new_empty(query.shape), rows.new_empty(rows.shape)
        given = row_contiguous(plain(query)), row_contiguous(plain(rows))
        _kernels(query).distances_backward(*given, ctx.kind, out, grad.contiguous(), of_query, of_rows)
        return of_query, of_rows, None


_distances = operator("distances", _Distances, lambda a: a.query.new_empty(a.query.shape[0], a.rows.shape[0]))
