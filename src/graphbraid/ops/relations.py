"""Sums of several relations, or by several weights, side by side in one matrix or added up in place.

A layer over relations computes ``sum over r of A_r x_s(r) W_r`` for each destination type, where ``A_r``
aggregates relation ``r`` and ``x_s(r)`` are the rows of its source type. There are two orders:

- *columns*: aggregate first. Each relation writes its own columns of one matrix per destination type, so that
  one product with the stacked weights follows (:func:`relation_columns`);
- *sums*: transform first. One product per source type makes the rows of all its relations side by side, and
  each relation adds to the result in place (:func:`relation_sums`).

:func:`weighted_columns` writes columns as well, one for each of several weights of the same edges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from graphbraid.arguments import check_tensor
from graphbraid.errors import DataError
from graphbraid.graph.csc import Csc
from graphbraid.ops.aggregation import Aggregation, aggregated
from graphbraid.ops.kernels import check_rows, row_contiguous, sum_dtype
from graphbraid.ops.library import once_differentiable, operator
from graphbraid.ops.sddmm import edge_dot
from graphbraid.signatures import typed


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Relations:
    """The aggregations of a layer between node types, which are numbered from 0."""

    hows: tuple[Aggregation, ...]
    """Aggregation of each relation."""
    sources: tuple[int, ...]
    """Number of the type of each relation's sources."""
    destinations: tuple[int, ...]
    """Number of the type of each relation's destinations."""
    num_dst: tuple[int, ...]
    """Rows to compute of each type, a prefix of its rows."""

    def __post_init__(self) -> None:
        for how, number in zip(self.hows, self.destinations, strict=True):
            if how.csc.num_dst != self.num_dst[number]:
                raise DataError(
                    f"a relation into type {number} must have {self.num_dst[number]} destinations; got "
                    f"{how.csc.num_dst}"
                )

    def into(self, number: int) -> list[int]:
        """Return the relations into a type."""
        return [relation for relation, type_ in enumerate(self.destinations) if type_ == number]

    def of_source(self, number: int) -> list[int]:
        """Return the relations out of a type."""
        return [relation for relation, type_ in enumerate(self.sources) if type_ == number]

    def check(self, xs: Sequence[Tensor], name: str) -> None:
        """Raise DataError unless each type has a matrix, with a row for each source of its relations."""
        if len(xs) != len(self.num_dst):
            raise DataError(f"{name} must have a matrix for each of {len(self.num_dst)} types; got {len(xs)}")
        for relation, number in enumerate(self.sources):
            check_rows(xs[number], f"{name}[{number}]", self.hows[relation].csc.num_src, "source node")


def relation_columns(relations: Relations, xs: Sequence[Tensor], *, own: bool = True) -> tuple[Tensor, ...]:
    """Aggregate each relation into columns of its own, one matrix per destination type.

    Args:
        relations: the aggregations.
        xs: ``(num_rows, width)`` for each type, all of the same width and dtype.
        own: whether the last columns are the destinations' own rows.

    Returns:
        For each type ``(num_dst, (number of relations into it + own) * width)``, in the relations' order.

    Raises:
        DataError: the matrices do not fit the relations or each other.
    """
    relations.check(xs, "xs")
    width, dtype = xs[0].shape[1], xs[0].dtype
    for number, (x, count) in enumerate(zip(xs, relations.num_dst, strict=True)):
        if x.ndim != 2 or x.shape[1] != width or x.dtype != dtype:
            raise DataError(
                f"xs[{number}] must be {dtype} of shape (num_rows, {width}) as xs[0] is; got {x.dtype} of "
                f"{tuple(x.shape)}"
            )
        if x.shape[0] < count:
            raise DataError(f"xs[{number}] must have at least {count} rows; got {x.shape[0]}")
    return cast("tuple[Tensor, ...]", _relation_columns(relations, own, *xs))


def relation_sums(
    relations: Relations, hs: Sequence[Tensor], addends: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """Add up each destination type's relations.

    Args:
        relations: the aggregations.
        hs: for each type ``(num_rows, number of relations out of it * width)``: the rows that its relations
            aggregate, side by side in the relations' order.
        addends: for each type ``(num_dst, width)``, to which its relations add.

    Returns:
        For each type ``(num_dst, width)``.

    Raises:
        DataError: the matrices do not fit the relations or each other.
    """
    relations.check(hs, "hs")
    if len(addends) != len(hs):
        raise DataError(f"addends must have a matrix for each of {len(hs)} types; got {len(addends)}")
    width = addends[0].shape[-1]
    for number, (h, addend) in enumerate(zip(hs, addends, strict=True)):
        wanted = (relations.num_dst[number], width)
        if tuple(addend.shape) != wanted:
            raise DataError(f"addends[{number}] must have shape {wanted}; got {tuple(addend.shape)}")
        columns = len(relations.of_source(number)) * width
        if h.shape[1] != columns or h.dtype != addend.dtype:
            raise DataError(
                f"hs[{number}] must be {addend.dtype} with {columns} columns; got {h.dtype} of "
                f"{tuple(h.shape)}"
            )
    return cast("tuple[Tensor, ...]", _sums(relations, *hs, *addends))


class _RelationColumns(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, relations: Relations, own: bool, *xs: Tensor) -> tuple[Tensor, ...]:
        ctx.relations, ctx.own, ctx.shapes = relations, own, [x.shape for x in xs]
        ctx.set_materialize_grads(False)
        width, outs = xs[0].shape[1], []
        for number, count in enumerate(relations.num_dst):
            into = relations.into(number)
            out = xs[number].new_empty(count, (len(into) + own) * width)
            for column, relation in enumerate(into):
                source = xs[relations.sources[relation]]
                aggregated(relations.hows[relation], source, out=_part(out, column, width))
            if own:
                _part(out, len(into), width).copy_(xs[number][:count])
            outs.append(out)
        return tuple(outs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        relations: Relations = ctx.relations
        found: list[Tensor | None] = [None] * len(ctx.shapes)
        for number, given in enumerate(grads):
            if given is None:
                continue
            grad, width, into = row_contiguous(given), ctx.shapes[number][1], relations.into(number)
            for column, relation in enumerate(into):
                source = relations.sources[relation]
                if ctx.needs_input_grad[2 + source]:
                    part, before = _part(grad, column, width), found[source]
                    found[source] = relations.hows[relation].backward(part, addend=before, out=before)
            if ctx.own and ctx.needs_input_grad[2 + number]:
                rows = found[number]
                if rows is None:
                    rows = found[number] = grad.new_zeros(ctx.shapes[number])
                rows[: grad.shape[0]] += _part(grad, len(into), width)
        return None, None, *found


_relation_columns = operator(
    "relation_columns",
    _RelationColumns,
    lambda a: [
        x.new_empty(count, (len(a.relations.into(number)) + a.own) * x.shape[1])
        for number, (x, count) in enumerate(zip(a.xs, a.relations.num_dst, strict=True))
    ],
)


class _Sums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, relations: Relations, *tensors: Tensor) -> tuple[Tensor, ...]:
        num_types = len(relations.num_dst)
        hs, addends = tensors[:num_types], tensors[num_types:]
        ctx.relations, ctx.shapes, ctx.width = relations, [h.shape for h in hs], addends[0].shape[1]
        ctx.set_materialize_grads(False)
        outs = []
        for number, addend in enumerate(addends):
            out = None
            for relation in relations.into(number):
                rows = _rows_of(relations, relation, hs[relations.sources[relation]], ctx.width)
                before = addend if out is None else out
                out = torch.empty_like(addend, memory_format=torch.contiguous_format) if out is None else out
                aggregated(relations.hows[relation], rows, addend=before, out=out)
            outs.append(addend.clone() if out is None else out)
        return tuple(outs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        relations: Relations = ctx.relations
        found: list[Tensor | None] = [None] * len(ctx.shapes)
        for source, shape in enumerate(ctx.shapes):
            own = relations.of_source(source)
            given = [grads[relations.destinations[relation]] for relation in own]
            some = next((grad for grad in given if grad is not None), None)
            if some is None or not ctx.needs_input_grad[1 + source]:
                continue
            rows = found[source] = some.new_empty(shape)
            for relation, grad in zip(own, given, strict=True):
                part = _rows_of(relations, relation, rows, ctx.width)
                if grad is None:
                    part.zero_()
                else:
                    relations.hows[relation].backward(row_contiguous(grad), out=part)
        return None, *found, *grads


_sums = operator(
    "relation_sums",
    _Sums,
    lambda a: [addend.new_empty(addend.shape) for addend in a.tensors[len(a.relations.num_dst) :]],
)


def _part(matrix: Tensor, column: int, width: int) -> Tensor:
    return matrix[:, column * width : (column + 1) * width]


def _rows_of(relations: Relations, relation: int, h: Tensor, width: int) -> Tensor:
    """Return a relation's columns of its source type's rows."""
    return _part(h, relations.of_source(relations.sources[relation]).index(relation), width)


@typed
def weighted_columns(csc: Csc, x: Tensor, weight: Tensor, *, own: bool = False) -> Tensor:
    """Sum in-neighbours by several weights: ``out[v, k] = sum of weight[e, k] * x[u]`` over ``e = u -> v``.

    It gives what :func:`graphbraid.ops.spmm` gives for each column of weights. No copy joins the columns, and
    no row per edge is stored, forward or backward.

    Args:
        csc: the graph or block; its own ``weight`` is not used.
        x: ``(num_src, width)`` float32, float64, float16 or bfloat16.
        weight: ``(num_edges, count)`` weights, which may require a gradient.
        own: whether the last columns are the destinations' own rows, the first of ``x``.

    Returns:
        ``(num_dst, (count + own) * width)`` of ``x``'s dtype; sums run in float32 (float64 for float64).

    Raises:
        DataError: ``x`` or ``weight`` does not fit the graph.
    """
    check_rows(x, "x", csc.num_src, "source node")
    if check_tensor(weight, "weight", ndim=2, floating=True).shape[0] != csc.num_edges:
        raise DataError(
            f"weight must have one row per edge ({csc.num_edges}); got shape {tuple(weight.shape)}"
        )
    if own and csc.num_src < csc.num_dst:
        raise DataError(f"own rows of {csc.num_dst} destinations need as many sources; got {csc.num_src}")
    return _weighted_columns(csc, x, weight.to(sum_dtype(x.dtype)), own)


class _WeightedColumns(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, csc: Csc, x: Tensor, weight: Tensor, own: bool) -> Tensor:
        ctx.csc, ctx.own = csc, own
        ctx.save_for_backward(x, weight)
        width, count = x.shape[1], weight.shape[1]
        out = x.new_empty(csc.num_dst, (count + own) * width)
        for column, how in enumerate(_hows(csc, weight)):
            aggregated(how, x, out=_part(out, column, width))
        if own:
            _part(out, count, width).copy_(x[: csc.num_dst])
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, given: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        csc, grad, width = ctx.csc, row_contiguous(given), x.shape[1]
        grad_x, grad_weight = None, None
        if ctx.needs_input_grad[1]:
            grad_x = torch.zeros_like(x, memory_format=torch.contiguous_format)
            if ctx.own:
                grad_x[: csc.num_dst] = _part(grad, weight.shape[1], width)
            reverse, perm = csc.transpose()
            for column, how in enumerate(_hows(reverse, weight[perm])):
                aggregated(how, _part(grad, column, width), addend=grad_x, out=grad_x)
        if ctx.needs_input_grad[2]:
            grad_weight = torch.empty_like(weight)
            for column in range(weight.shape[1]):
                dots = edge_dot(csc, _part(grad, column, width), x.to(grad.dtype))
                grad_weight[:, column] = dots.squeeze(1)
        return None, grad_x, grad_weight, None


_weighted_columns = operator(
    "weighted_columns",
    _WeightedColumns,
    lambda a: a.x.new_empty(a.csc.num_dst, (a.weight.shape[1] + a.own) * a.x.shape[1]),
)


def _hows(csc: Csc, weight: Tensor) -> list[Aggregation]:
    """Return the sum by each column of weights."""
    return [Aggregation(csc=csc, weight=column) for column in weight.detach().t().contiguous()]
