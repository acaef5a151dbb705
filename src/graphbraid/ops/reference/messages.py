"""Plain PyTorch twins of the kernels of messages, part of :mod:`graphbraid.ops.reference`."""

# ruff: noqa: PLR0917 - the kernels take their arguments by position
from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from graphbraid.ops.reference.attention import destinations
from graphbraid.ops.reference.kinds import (
    Ids,
    Indices,
    Indptr,
    Matrix32,
    StepMatrix,
    Vector32,
    WordMatrix,
)

_COMPUTED: tuple[Callable[[Tensor, Tensor, float], Tensor], ...] = (
    lambda x, y, _: x + y,
    lambda x, y, _: x - y,
    lambda x, y, _: x * y,
    lambda x, y, _: x / y,
    lambda x, _, __: x.relu(),
    lambda x, _, number: F.leaky_relu(x, number),
    lambda x, _, __: x.sigmoid(),
    lambda x, _, __: x.tanh(),
    lambda x, _, __: x.exp(),
    lambda x, _, __: x.abs(),
    lambda x, _, __: x.sum(1, keepdim=True).expand_as(x),
)
"""What steps from number 6 on compute, in the order of :class:`.MessageOp`."""


def _messages(
    steps: Tensor, numbers: Tensor, read: tuple[Tensor | None, ...], parameters: Tensor, count: int
) -> Tensor:
    """Return each edge's message; ``read``: rows of x, x2, y, y2, the edges and the weights, by edge."""
    values: list[Tensor] = []
    for (op, first, second), number in zip(steps.tolist(), numbers.tolist(), strict=True):
        given = {0: read[:2], 1: read[2:4], 2: read[4:5], 3: read[5:]}.get(op)
        if given is not None:
            rows = given[first]
            assert rows is not None
            values.append(rows)
        elif op == 4:
            values.append(parameters[first].expand(count, -1))
        elif op == 5:
            values.append(parameters.new_full((count, parameters.shape[1]), number))
        else:
            values.append(_COMPUTED[op - 6](values[first], values[second], number))
    return values[-1]


def message_forward(
    indptr: Indptr,
    indices: Indices,
    steps: StepMatrix,
    numbers: Vector32,
    x: Matrix32 | None,
    x2: Matrix32 | None,
    y: Matrix32 | None,
    y2: Matrix32 | None,
    edges: Matrix32 | None,
    weight: Vector32 | None,
    parameters: Matrix32,
    reduction: int,
    out: Matrix32,
    count: WordMatrix | None,
) -> None:
    """Twin of ``messages.inl``'s forward, which says what it computes."""
    src, dst = indices.long(), destinations(indptr)
    read = tuple(
        None if rows is None else rows[ids] for rows, ids in ((x, src), (x2, src), (y, dst), (y2, dst))
    )
    wide = None if weight is None else weight[:, None].expand(-1, out.shape[1])
    found = _messages(steps, numbers, (*read, edges, wide), parameters, indices.numel())
    if count is None:
        out.copy_(torch.zeros_like(out).index_add_(0, dst, found))
        return
    places = dst[:, None].expand_as(found)
    out.zero_().scatter_reduce_(0, places, found, ("", "amax", "amin")[reduction], include_self=False)
    equal = (found == out[dst]).to(count.dtype)
    count.copy_(torch.zeros_like(count).index_add_(0, dst, equal))


def message_backward(
    indptr: Indptr,
    indices: Indices,
    perm: Ids | None,
    by_source: bool,
    steps: StepMatrix,
    numbers: Vector32,
    x: Matrix32 | None,
    x2: Matrix32 | None,
    y: Matrix32 | None,
    y2: Matrix32 | None,
    edges: Matrix32 | None,
    weight: Vector32 | None,
    parameters: Matrix32,
    grad: Matrix32,
    largest: Matrix32 | None,
    to_rows: Matrix32 | None,
    to_rows2: Matrix32 | None,
    to_parameters: Matrix32 | None,
) -> None:
    """Twin of ``messages.inl``'s backward; gradients of rows are added to, those of parameters written."""
    own, other = destinations(indptr), indices.long()
    src, dst = (own, other) if by_source else (other, own)
    edge = torch.arange(other.numel()) if perm is None else perm
    with torch.enable_grad():
        read = [
            None if rows is None else rows.detach()[ids].requires_grad_()
            for rows, ids in ((x, src), (x2, src), (y, dst), (y2, dst))
        ]
        learned = parameters.detach().clone().requires_grad_()
        wide = None if weight is None else weight[edge, None].expand(-1, grad.shape[1])
        of_edges = None if edges is None else edges[edge]
        found = _messages(steps, numbers, (*read, of_edges, wide), learned, other.numel())
    given = grad[dst] if largest is None else grad[dst].masked_fill(found.detach() != largest[dst], 0)
    walked = read[:2] if by_source else read[2:]
    leaves = [leaf for leaf in (*walked, learned) if leaf is not None]
    found_grads = torch.autograd.grad(found, leaves, given, allow_unused=True) if found.requires_grad else ()
    grads = {id(leaf): one for leaf, one in zip(leaves, found_grads, strict=False) if one is not None}
    for target, leaf in zip((to_rows, to_rows2), walked, strict=True):
        if target is not None and id(leaf) in grads:
            target.index_add_(0, own, grads[id(leaf)])
    if to_parameters is not None:
        to_parameters.copy_(grads.get(id(learned), torch.zeros_like(parameters)))
