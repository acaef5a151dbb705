"""Plain PyTorch twin of the kernel of messages, part of :mod:`graphbraid.ops.reference`."""

# ruff: noqa: PLR0917 - the kernels take their arguments by position
from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from graphbraid.ops.reference.attention import destinations
from graphbraid.ops.reference.kinds import Ids, Indices, Indptr, Matrix32, StepMatrix, Vector32, WordMatrix

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
"""What steps from number 6 on compute from rows as wide as theirs, in the order of :class:`.MessageOp`."""
_SUM_COLUMNS = 6 + len(COMPUTED)
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
        elif op == 3:
            assert weight is not None
            values.append(weight[edge, None].expand(-1, width))
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
            values.append(COMPUTED[op - 6](*given, number))
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
