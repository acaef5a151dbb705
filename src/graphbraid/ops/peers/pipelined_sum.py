"""pipelined_sum: sums over in-neighbours in one launch, which reads peers' rows where they are."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from graphbraid.errors import DataError
from graphbraid.ops import reference
from graphbraid.ops.kernels import check_out, row_contiguous, triton_kernels
from graphbraid.ops.peers.peer_rows import PeerTable
from graphbraid.ops.peers.pipeline_plan import PipelinePlan
from graphbraid.signatures import typed


@typed
def pipelined_sum(
    plan: PipelinePlan, table: PeerTable, *, addend: Tensor | None = None, out: Tensor | None = None
) -> Tensor:
    """Sum own and peers' rows: ``out[v] = dst_scale[v] * sum of factor[e] * rows[owner(e)][u] + addend[v]``.

    The kernel of Wang et al., "MGG" (sections 3.1 to 3.3): warps sum neighbour partitions, those of peers'
    rows in turns with those of own rows, and read peers' rows where they are, by their address. Departs from
    it in how partial sums come together: each is written to a row of its own, and a second pass adds up those
    of a node, so that no atomic operation is needed. Sums run in float32 (float64 for float64): within a
    partition edge by edge, then over a row's partitions, local ones first, in an order that their number and
    the width of a row fix. So the bits depend on the size of a partition, and on neither ``dist`` nor ``wpb``
    nor on which warp comes first.

    Whoever calls this sees to it that peers have written their rows and leave them as they are until it has
    run (:class:`graphbraid.distributed.peers.peer_sum.SharedRows`). It records nothing for autograd; the
    gradient is the sum over the reversed edges, as which :class:`.PeerSum` computes it.

    Args:
        plan: of this rank, with its arrays on the table's device.
        table: the rows of all ranks, float32, float64, float16 or bfloat16.
        addend: ``(at most num_rows, width)`` of the result's dtype, added to its first rows.
        out: ``(num_rows, width)`` of the rows' dtype or the one they are summed in, with contiguous rows,
            which may be strided. If None, a new matrix of the rows' dtype.

    Raises:
        DataError: the plan is of other ranks than the table, reads rows that are not there, or is elsewhere;
            ``addend`` or ``out`` does not fit.
    """
    _check_plan(plan, table)
    num_rows = plan.edges.num_rows
    if out is None:
        out = torch.empty(num_rows, table.width, dtype=table.dtype, device=table.device)
    check_out(out, table.dtype, (num_rows, table.width))
    if addend is not None:
        _check_addend(addend, out)
        addend = row_contiguous(addend.detach())
    if out.numel():
        _kernels(table).pipelined_sum(plan, table, addend, out.detach())
    return out


def _kernels(table: PeerTable) -> Any:
    found = None
    if table.device.type == "cuda" and table.dtype != torch.float64:
        found = triton_kernels()
    return reference if found is None else found


def _check_plan(plan: PipelinePlan, table: PeerTable) -> None:
    edges = plan.edges
    if (edges.rank, edges.num_ranks) != (table.rank, table.num_ranks):
        raise DataError(
            f"the plan is of rank {edges.rank} of {edges.num_ranks}, and the table of rank {table.rank} of "
            f"{table.num_ranks}"
        )
    for rank, (read, there) in enumerate(zip(edges.rows_read, table.num_rows, strict=True)):
        if read > there:
            raise DataError(f"the plan reads row {read - 1} of rank {rank}, which has {there} rows")
    if plan.work.device.type != table.device.type:
        raise DataError(
            f"the plan must be on the table's device, {table.device}; it is on {plan.work.device}: "
            "plan.to(table.device)"
        )


def _check_addend(addend: Tensor, out: Tensor) -> None:
    fits = addend.ndim == 2 and addend.shape[0] <= out.shape[0] and addend.shape[1] == out.shape[1]
    if not fits or addend.dtype != out.dtype:
        raise DataError(
            f"addend must be {out.dtype} of shape (at most {out.shape[0]}, {out.shape[1]}); got "
            f"{addend.dtype} of {tuple(addend.shape)}"
        )
