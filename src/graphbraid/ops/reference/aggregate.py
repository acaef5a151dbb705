"""Plain PyTorch twins of the kernels that aggregate in-neighbours or messages, and multiply along edges."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from graphbraid.ops.library import RowEpilogue, sum_dtype
from graphbraid.ops.reference.attention import destinations
from graphbraid.ops.reference.rows import (
    Ids,
    Indices,
    Indptr,
    Matrix,
    Matrix32,
    StepMatrix,
    Vector,
    Vector32,
    WordMatrix,
    apply_epilogue,
)

if TYPE_CHECKING:
    from graphbraid.ops.peers import PeerTable, PipelinePlan

# ruff: noqa: PLR0917 - the kernels take their arguments by position


def spmm(
    indptr: Indptr,
    indices: Indices,
    x: Matrix,
    weight: Vector | None,
    src_scale: Vector | None,
    dst_scale: Vector | None,
    loop: Vector | None,
    loop_scale: float,
    num_loops: int,
    skip_loops: bool,
    mean: bool,
    addend: Matrix | None,
    out: Matrix,
    after: RowEpilogue | None = None,
) -> None:
    """Twin of ``spmm.inl``, which gives the formula."""
    x = x.to(sum_dtype(x.dtype))
    scaled = x if src_scale is None else x * src_scale[:, None]
    src, dst = indices.long(), destinations(indptr)
    rows = scaled[src]
    if weight is not None:
        rows *= weight[:, None]
    if skip_loops:
        rows[src == dst] = 0
    total = x.new_zeros(out.shape).index_add_(0, dst, rows)
    if num_loops:
        own = scaled[:num_loops] * loop_scale
        total[:num_loops] += own if loop is None else own * loop[:, None]
    if mean:
        total /= indptr.diff().clamp(min=1)[:, None]
    if dst_scale is not None:
        total *= dst_scale[:, None]
    if addend is not None:
        total[: addend.shape[0]] += addend
    out.copy_(total)
    apply_epilogue(out, after)


def spmm_max(
    indptr: Indptr,
    indices: Indices,
    x: Matrix,
    weight: Vector | None,
    ties: int,
    out: Matrix,
    found: WordMatrix | None,
) -> None:
    """Twin of ``spmm_max.inl``; ``ops/spmm.py`` describes ``ties`` and ``found``, which backward needs."""
    width = x.shape[1]
    rows = _messages(indices, x, weight)
    degrees = indptr.diff()
    dst = destinations(indptr)[:, None].expand(-1, width)
    best = rows.new_full(out.shape, -torch.inf).scatter_reduce_(0, dst, rows, "amax")
    is_best = rows == best.gather(0, dst)
    if found is None:
        pass
    elif ties == 0:
        position = torch.arange(indices.numel(), device=x.device) - indptr[:-1].repeat_interleave(degrees)
        last = torch.iinfo(torch.int64).max
        first = torch.full(out.shape, last, dtype=torch.int64, device=x.device)
        candidates = torch.where(is_best | rows.isnan(), position[:, None], last)
        first.scatter_reduce_(0, dst, candidates, "amin")
        found.copy_(first.masked_fill_((degrees == 0)[:, None], -1))
    else:
        count = torch.zeros(out.shape, dtype=torch.int64, device=x.device)
        count.scatter_add_(0, dst, is_best.long())
        if ties == 2:  # the initial zero counts as well
            count += (best == 0) & (degrees > 0)[:, None]
        found.copy_(count)
    best[degrees == 0] = 0
    out.copy_(best)


def _messages(indices: Tensor, x: Tensor, weight: Tensor | None) -> Tensor:
    """Return the ``(num_edges, width)`` messages in the dtype of the sums."""
    rows = x.to(sum_dtype(x.dtype))[indices.long()]
    return rows if weight is None else rows * weight[:, None]


def spmm_max_backward(
    indptr: Indptr,
    indices: Indices,
    perm: Ids,
    forward_indptr: Indptr,
    grad: Matrix,
    weight: Vector | None,
    winner: WordMatrix,
    out: Matrix,
) -> None:
    """Twin of the kernel of that name; ``weight`` is in the order of the transpose."""
    dst = indices.long()
    position = perm - forward_indptr[dst]
    rows = torch.where(winner[dst] == position[:, None], grad.to(sum_dtype(grad.dtype))[dst], 0)
    if weight is not None:
        rows = rows * weight[:, None]
    out.copy_(rows.new_zeros(out.shape).index_add_(0, destinations(indptr), rows))


def spmm_max_shared_backward(
    indptr: Indptr,
    indices: Indices,
    share: Matrix,
    weight: Vector | None,
    largest: Matrix,
    x: Matrix,
    out: Matrix,
) -> None:
    """Twin of the kernel of that name, over the transpose; ``x`` has one row per row of the transpose."""
    src, dst = destinations(indptr), indices.long()
    dtype = sum_dtype(share.dtype)
    message = _messages(src, x, weight)
    below = message < largest.to(dtype)[dst]  # otherwise it is equal, or the maximum is NaN
    given = _messages(dst, share, weight).masked_fill_(below, 0)
    out.copy_(given.new_zeros(out.shape).index_add_(0, src, given))


def sddmm(
    indptr: Indptr,
    indices: Indices,
    dst: Matrix,
    src: Matrix,
    dst_scale: Vector | None,
    src_scale: Vector | None,
    out: Matrix,
) -> None:
    """Twin of ``sddmm.inl``: the scaled inner product of both ends' rows, per edge and head."""
    dtype = sum_dtype(dst.dtype)
    left, right = dst.to(dtype), src.to(dtype)
    left = left if dst_scale is None else left * dst_scale[:, None]
    right = right if src_scale is None else right * src_scale[:, None]
    products = left[destinations(indptr)] * right[indices.long()]
    out.copy_(products.reshape(*out.shape, products.shape[1] // out.shape[1]).sum(-1))


def gine(
    indptr: Indptr, indices: Indices, x: Matrix, edges: Matrix, loop_scale: float, num_loops: int, out: Matrix
) -> None:
    """Twin of ``gine.inl``, which gives the formula."""
    x, edges = (rows.to(sum_dtype(rows.dtype)) for rows in (x, edges))
    total = x.new_zeros(out.shape)
    total.index_add_(0, destinations(indptr), (x[indices.long()] + edges).relu())
    total[:num_loops] += loop_scale * x[:num_loops]
    out.copy_(total)


def gine_backward(
    indptr: Indptr,
    indices: Indices,
    perm: Ids,
    grad: Matrix,
    x: Matrix | None,
    edges: Matrix,
    loop_scale: float,
    num_loops: int,
    out: Matrix,
) -> None:
    """Twin of the kernel of that name, over the transpose; without ``x``, ``edges`` holds edge gradients."""
    source, dtype = destinations(indptr), sum_dtype(grad.dtype)
    rows, grad = edges.to(dtype)[perm], grad.to(dtype)
    if x is not None:
        rows = grad[indices.long()].masked_fill(x.to(dtype)[source] + rows <= 0, 0)
    total = grad.new_zeros(out.shape).index_add_(0, source, rows)
    total[:num_loops] += loop_scale * grad[:num_loops]
    out.copy_(total)


def gine_edge_backward(
    indptr: Indptr, indices: Indices, x: Matrix, edges: Matrix, grad: Matrix, out: Matrix
) -> None:
    """Twin of the kernel of that name; ``out`` may be ``edges``."""
    dtype = sum_dtype(x.dtype)
    sums = x.to(dtype)[indices.long()] + edges.to(dtype)
    out.copy_(grad[destinations(indptr)].masked_fill(sums <= 0, 0))


def pipelined_sum(plan: PipelinePlan, table: PeerTable, addend: Tensor | None, out: Tensor) -> None:
    """Twin of ``ops/triton/pipelined_sum.py``: sums of partitions, then of each row, in their order."""
    dtype = sum_dtype(table.dtype)
    messages = _peer_messages(plan, table, dtype)
    partition = destinations(plan.indptr)
    sums = messages.new_zeros(plan.target.numel(), table.width).index_add_(0, partition, messages)
    total = messages.new_zeros(out.shape)
    alone = plan.target >= 0
    total[plan.target[alone]] = sums[alone]
    partial = sums.new_empty(int((~alone).sum()), table.width)
    partial[-1 - plan.target[~alone]] = sums[~alone]
    total.index_add_(0, plan.rest[destinations(plan.rest_first)], partial)
    if plan.dst_scale is not None:
        total *= plan.dst_scale.to(dtype).unsqueeze(1)
    if addend is not None:
        total[: addend.shape[0]] += addend.to(dtype)
    out.copy_(total)


def _peer_messages(plan: PipelinePlan, table: PeerTable, dtype: torch.dtype) -> Tensor:
    """Return each edge's row times its factor."""
    num_local = plan.indices.numel() - plan.owner.numel()
    owner = torch.cat([plan.owner.new_full((num_local,), table.rank), plan.owner])
    messages = torch.empty(owner.numel(), table.width, dtype=dtype, device=table.device)
    for rank, part in enumerate(table.parts):
        chosen = (owner == rank).nonzero().squeeze(1)
        messages[chosen] = part[plan.indices[chosen].long().to(part.device)].to(messages)
    if plan.factor is not None:
        messages *= plan.factor.to(dtype).unsqueeze(1)
    return messages


COMPUTED: tuple[Callable[[Tensor, Tensor, float], Tensor], ...] = (
    lambda x, y, _: x + y,
    lambda x, y, _: x - y,
    lambda x, y, _: x * y,
    lambda x, y, _: x / y,
    lambda x, y, _: x.masked_fill(y <= 0, 0.0),
    lambda x, y, number: torch.where(y > 0, x, x * number),
    lambda x, y, _: x * (1 - y) * y,
    lambda x, y, _: x * (1 - y * y),
    lambda x, y, _: torch.where(y > 0, x, torch.where(y < 0, -x, 0.0)),
    lambda x, y, _: (x == y).to(x.dtype),
    lambda x, y, _: x.masked_fill(y == 0, 0.0),
    lambda x, _, __: x.relu(),
    lambda x, _, number: F.leaky_relu(x, number),
    lambda x, _, __: x.sigmoid(),
    lambda x, _, __: x.tanh(),
    lambda x, _, __: x.exp(),
    lambda x, _, __: x.abs(),
)
"""What steps from number 7 on compute from rows as wide as theirs, in the order of :class:`.MessageOp`."""
_FIRST_COMPUTED = 7
_SUM_COLUMNS = _FIRST_COMPUTED + len(COMPUTED)
"""The step that sums each head's columns; the one behind it spreads its number over them."""
_LOG_SUM_EXP, _OVER_ALL = 3, 4
"""The results that are logarithms of sums of exponentials, and those that are sums over all edges."""


def reduce_messages(
    indptr: Indptr,
    indices: Indices,
    perm: Ids | None,
    by_source: bool,
    heads: int,
    steps: StepMatrix,
    numbers: Vector32,
    x: Matrix32 | None,
    x2: Matrix32 | None,
    x3: Matrix32 | None,
    x4: Matrix32 | None,
    y: Matrix32 | None,
    y2: Matrix32 | None,
    y3: Matrix32 | None,
    y4: Matrix32 | None,
    y5: Matrix32 | None,
    y6: Matrix32 | None,
    y7: Matrix32 | None,
    y8: Matrix32 | None,
    y9: Matrix32 | None,
    y10: Matrix32 | None,
    edges: Matrix32 | None,
    weight: Vector32 | None,
    parameters: Matrix32,
    results: StepMatrix,
    adds: bool,
    out: Matrix32 | None,
    out2: Matrix32 | None,
    out3: Matrix32 | None,
    out4: Matrix32 | None,
    count: WordMatrix | None,
    to_parameters: Matrix32 | None,
) -> None:
    """Twin of ``messages.inl``; see there for the formula."""
    own, other = destinations(indptr), indices.long()
    src, dst = (own, other) if by_source else (other, own)
    edge = torch.arange(other.numel(), device=own.device) if perm is None else perm
    matrices = [((x, x2, x3, x4), src), ((y, y2, y3, y4, y5, y6, y7, y8, y9, y10), dst), ((edges,), edge)]
    width = parameters.shape[1]
    values, given_steps = list[Tensor](), steps.tolist()
    for (op, first, second, narrow), number in zip(given_steps, numbers.tolist(), strict=True):
        columns = heads if narrow else width
        if op < len(matrices):
            rows, ids = matrices[op][0][first], matrices[op][1]
            assert rows is not None
            values.append(rows[ids])
        elif op in (3, 6):
            of_edges = weight if op == 3 else None if edges is None else edges[:, first]
            assert of_edges is not None
            values.append(of_edges[edge, None].expand(-1, width))
        elif op == 4:
            values.append(parameters[first, :columns].expand(other.numel(), -1))
        elif op == 5:
            values.append(parameters.new_full((other.numel(), width), number))
        elif op == _SUM_COLUMNS:
            values.append(values[first].unflatten(1, (heads, width // heads)).sum(2))
        elif op > _SUM_COLUMNS:
            values.append(values[first].repeat_interleave(width // heads, 1))
        else:
            given = [values[i][:, :columns] for i in (first, second)]
            values.append(COMPUTED[op - _FIRST_COMPUTED](*given, number))
    to, counted = (out, out2, out3, out4), 0
    for kind, step, place in results.tolist():
        found = values[step][:, : heads if given_steps[step][3] else width]
        if kind == _OVER_ALL:
            assert to_parameters is not None
            to_parameters[place, : found.shape[1]] = found.sum(0)
            continue
        target = to[place]
        assert target is not None
        if kind == 0:
            (target if adds else target.zero_()).index_add_(0, own, found)
            continue
        places, how = own[:, None].expand_as(found), "amin" if kind == 2 else "amax"
        target.zero_().scatter_reduce_(0, places, found, how, include_self=False)
        if kind == _LOG_SUM_EXP:
            _logs(found, own, target, to[place + 1])
            continue
        _count(found == target[own], own, None if count is None else count[:, counted:])
        counted += found.shape[1]


def _count(is_equal: Tensor, own: Tensor, count: Tensor | None) -> None:
    """Count the messages that equal the extremum, in the first columns of the counts."""
    if count is not None:
        count[:, : is_equal.shape[1]].zero_().index_add_(0, own, is_equal.to(count.dtype))


def _logs(found: Tensor, own: Tensor, largest: Tensor, out: Tensor | None) -> None:
    """Compute the logarithms of the sums of exponentials below the largest rows."""
    assert out is not None
    shift = largest.masked_fill(largest == -torch.inf, 0.0)
    out.zero_().index_add_(0, own, (found - shift[own]).exp())
    has_any = own.new_zeros(len(out), 1, dtype=torch.bool).index_fill_(0, own, value=True)
    out.copy_(torch.where(has_any, out.log(), 0.0))
