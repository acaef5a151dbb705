"""Messages made of steps in Triton; ``csrc/aggregate/messages.inl`` computes the same on the CPU.

There is one kernel. It is compiled for each list of steps, so an edge's steps run in registers, and no row
per edge is written unless a result asks for one. A tile is (EDGES, HEADS, CHANNELS). A narrow row, of one
number for each head, is (EDGES, HEADS, 1), and meets wide rows by broadcasting. What does not depend on the
edge is read before the loop. Where no step is narrow, a head stands for some columns that fit a tile.
"""

# Tuples in kernels grow while they are compiled, which their types do not follow.
# mypy: disable-error-code="assignment,no-redef,var-annotated"

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from graphbraid.ops import reference
from graphbraid.ops.message_steps import CHANGES_WIDTH, MessageOp, MessageStep
from graphbraid.ops.triton.epilogue import column_sums
from graphbraid.ops.triton.launch import launch, like
from graphbraid.ops.triton.partition import (
    HubSegments,
    edges_of,
    heads_tile,
    over_rows,
    row_tile,
    segments_of,
)
from graphbraid.ops.triton.spmm_max import NAN_KEY, NO_KEY, keep_larger, number_of_key, ordered_key

_KIND_NAMES = ("SUM", "MAX", "MIN", "EXP_SUM", "EDGE")
_OPS, _KINDS = tl.constexpr(tuple(op.name for op in MessageOp)), tl.constexpr(_KIND_NAMES)
_LOWEST = tl.constexpr(-1e38)  # finite, so that the difference of two empty maxima is 0 and not NaN


@triton.jit
def computed(x, y, number, inside, OP: tl.constexpr):
    """Compute one step of rows ``x`` and ``y``; see :class:`.MessageOp`. ``inside`` masks columns."""
    if _OPS[OP] == "ADD":
        z = x + y
    elif _OPS[OP] == "SUBTRACT":
        z = x - y
    elif _OPS[OP] == "MULTIPLY":
        z = x * y
    elif _OPS[OP] == "DIVIDE":
        z = x / y
    elif _OPS[OP] == "RELU_GRADIENT":
        z = tl.where(y <= 0, 0.0, x)
    elif _OPS[OP] == "LEAKY_RELU_GRADIENT":
        z = tl.where(y > 0, x, x * number)
    elif _OPS[OP] == "SIGMOID_GRADIENT":
        z = x * (1 - y) * y
    elif _OPS[OP] == "TANH_GRADIENT":
        z = x * (1 - y * y)
    elif _OPS[OP] == "ABS_GRADIENT":
        z = tl.where(y > 0, x, tl.where(y < 0, -x, 0.0))
    elif _OPS[OP] == "EQUAL":
        z = tl.where(x == y, 1.0, 0.0)
    elif _OPS[OP] == "WHERE":
        z = tl.where(y == 0, 0.0, x)
    elif _OPS[OP] == "RELU":
        z = tl.where(x < 0, 0.0, x)  # lets a NaN through
    elif _OPS[OP] == "LEAKY_RELU":
        z = tl.where(x < 0, x * number, x)
    elif _OPS[OP] == "SIGMOID":
        z = 1 / (1 + tl.exp(-x))
    elif _OPS[OP] == "TANH":
        z = tanh(x)
    elif _OPS[OP] == "EXP":
        z = tl.exp(x)
    elif _OPS[OP] == "ABS":
        z = tl.abs(x)
    elif _OPS[OP] == "SUM_COLUMNS":
        z = tl.sum(tl.where(inside, x, 0.0), axis=2, keep_dims=True)
    else:  # SPREAD: the next step broadcasts
        z = x
    return z


@triton.jit
def tanh(x):
    """Compute tanh: by an odd polynomial near 0, where 1 - 2 / (exp(2 x) + 1) would cancel (Cephes)."""
    far = tl.abs(x)
    z = x * x
    p = z * -5.70498872745e-3 + 2.06390887954e-2
    p = p * z - 5.37397155531e-2
    p = p * z + 1.33314422036e-1
    p = p * z - 3.33332819422e-1
    positive = 1 - 2 / (tl.exp(2 * tl.minimum(far, 20.0)) + 1)
    found = tl.where(far < 0.625, p * z * x + x, tl.where(x < 0, -positive, positive))
    return tl.where(x != x, x, found)


@triton.jit
def read(matrix, i, at, mask):
    """Load columns ``at`` of rows ``i`` of a matrix, a pointer and its rows' distance, as float32."""
    return tl.load(matrix[0] + i * matrix[1] + at, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def nothing(KIND: tl.constexpr):
    """Return the neutral element of a reduction's state."""
    none: tl.constexpr = 0.0 if _KINDS[KIND] == "SUM" else (_LOWEST if _KINDS[KIND] == "EXP_SUM" else NO_KEY)
    return none


@triton.jit
def entered(value, mask, KIND: tl.constexpr):
    """Return an edge's numbers as :func:`join` takes them."""
    if _KINDS[KIND] == "SUM":
        found = (tl.where(mask, value, 0.0), 0)
    elif _KINDS[KIND] == "EXP_SUM":
        found = (tl.where(mask, value, -float("inf")), 1.0)
    else:
        key = ordered_key(0.0 - value if _KINDS[KIND] == "MIN" else value)
        found = (tl.where(mask, key, NO_KEY), mask.to(tl.int32))
    return found


@triton.jit
def join(state, value, extra, KIND: tl.constexpr):
    """Return the state of a reduction after more values, each with its count, or sum of exponentials."""
    if _KINDS[KIND] == "SUM":
        joined = (state[0] + value,)
    elif _KINDS[KIND] == "EXP_SUM":
        top = tl.maximum(state[0], value)
        joined = (top, state[1] * tl.exp(state[0] - top) + extra * tl.exp(value - top))
    else:
        joined = keep_larger(value, extra, state[0], state[1], 1)
    return joined


@triton.jit
def begin(KIND: tl.constexpr, EDGES: tl.constexpr, HEADS: tl.constexpr, COLUMNS: tl.constexpr):
    """Return the state of a reduction of nothing, in each of EDGES lanes."""
    if _KINDS[KIND] == "SUM":
        state = (tl.zeros((EDGES, HEADS, COLUMNS), tl.float32),)
    elif _KINDS[KIND] == "EXP_SUM":
        top = tl.full((EDGES, HEADS, COLUMNS), nothing(KIND), tl.float32)
        state = (top, tl.zeros((EDGES, HEADS, COLUMNS), tl.float32))
    else:
        key = tl.full((EDGES, HEADS, COLUMNS), nothing(KIND), tl.int32)
        state = (key, tl.zeros((EDGES, HEADS, COLUMNS), tl.int32))
    return state


@triton.jit
def end(state, KIND: tl.constexpr):
    """Return what all lanes hold: (1, HEADS, COLUMNS) numbers, and counts or sums of exponentials."""
    if _KINDS[KIND] == "SUM":
        found = (tl.sum(state[0], axis=0, keep_dims=True),)
    else:
        top = tl.max(state[0], axis=0, keep_dims=True)
        if _KINDS[KIND] == "EXP_SUM":
            found = (top, tl.sum(state[1] * tl.exp(state[0] - top), axis=0, keep_dims=True))
        else:
            found = (top, tl.sum(tl.where(state[0] == top, state[1], 0), axis=0, keep_dims=True))
    return found


@triton.jit
def write(
    state,
    item,  # a segment where PARTIAL, else the row v
    v,
    is_empty,  # whether the row has no edges
    out,
    count,
    partial,
    partial_extra,
    segment_first,
    columns,
    at,
    inside,
    KIND: tl.constexpr,
    ADDS: tl.constexpr,
    PARTIAL: tl.constexpr,
    EDGES: tl.constexpr,
):
    """Write a segment's part of a result, or a row's result together with the parts of its segments."""
    if PARTIAL:
        found = end(state, KIND)
        tl.store(partial + item * columns + at, found[0], mask=inside)
        if _KINDS[KIND] != "SUM":
            tl.store(partial_extra + item * columns + at, found[1], mask=inside)
    else:
        if segment_first is not None:
            last = tl.load(segment_first + v + 1)
            for first in range(tl.load(segment_first + v), last, EDGES):
                s = first + tl.arange(0, EDGES)[:, None, None]
                mask = (s < last) & inside
                value = tl.load(partial + s * columns + at, mask=mask, other=nothing(KIND))
                extra = value
                if _KINDS[KIND] != "SUM":
                    extra = tl.load(partial_extra + s * columns + at, mask=mask, other=0)
                state = join(state, value, extra, KIND)
        found = end(state, KIND)
        value = found[0]
        place = out[0] + v * out[1] + at
        if _KINDS[KIND] == "SUM":
            if ADDS:
                value += tl.load(place, mask=inside, other=0.0).to(tl.float32)
        elif _KINDS[KIND] == "EXP_SUM":
            tl.store(count[0] + v * count[1] + at, tl.where(is_empty, 1.0, found[1]), mask=inside)
            value = tl.where(is_empty, 0.0, value)
        else:
            shared = tl.where(value == NAN_KEY, 0, found[1])
            tl.store(count[0] + v * count[1] + at, shared, mask=inside)
            value = number_of_key(value)
            value = tl.where(is_empty, 0.0, 0.0 - value if _KINDS[KIND] == "MIN" else value)
        tl.store(place, value, mask=inside)


@triton.jit
def message_kernel(
    indptr,  # (num_rows + 1,) int64, of the walk
    indices,  # (num_edges,) int32 or int64: the other end of each edge; None if no step reads it
    perm,  # (num_edges,) int64: edge of the walk -> edge; None: the same
    sources,  # matrices of float32, float16 or bfloat16, each with the distance of its rows
    destinations,  # as sources
    edges,  # as sources
    weight,  # (num_edges,) float32 or None
    parameters,  # (num_parameters, width) float32 or None
    numbers,  # floats
    outs,  # of each result a matrix, of a row for each walked row, or edge; with the distance of its rows
    counts,  # as outs: int32 of a maximum or minimum, or sums of exponentials; else None
    partials,  # of each result (num_segments, width or heads): written where PARTIAL, else read
    partial_extras,  # as partials, for all results but sums
    heads,
    channels,
    width,
    segment_row,  # see partition.HubSegments
    segment_first,
    OPS: tl.constexpr,  # what each step computes, an index into _OPS
    FIRSTS: tl.constexpr,  # step that each one reads, or place of its matrix
    SECONDS: tl.constexpr,  # the other step that it reads
    NUMBERS: tl.constexpr,  # place of its number
    NARROWS: tl.constexpr,  # 1 for those whose rows are narrow
    KINDS: tl.constexpr,  # kind of each result, an index into _KINDS; those of a row for each edge last
    OF: tl.constexpr,  # step of each result
    BY_SOURCE: tl.constexpr,  # the walked rows are sources
    ADDS: tl.constexpr,  # sums are added to what outs hold
    PARTIAL: tl.constexpr,
    SEGMENT: tl.constexpr,
    EDGES: tl.constexpr,
    HEADS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Compute the messages of one walked row's edges, or of one segment of a hub, and reduce them.

    Bound by reading num_edges rows of the matrices of the other end and of the edges.
    """
    item = tl.program_id(0).to(tl.int64)  # int64: item * width passes 2**31
    h = (tl.program_id(1) * HEADS + tl.arange(0, HEADS))[None, :, None]
    c = tl.arange(0, CHANNELS)[None, None, :]
    at = h * channels + c
    ats = (at, h)  # columns of wide and of narrow rows
    insides = ((h < heads) & (c < channels) & (at < width), h < heads)
    v, begin_edge, end_edge = edges_of(item, indptr, segment_row, segment_first, SEGMENT, PARTIAL)
    own = ()
    for i in tl.static_range(len(OPS)):
        if _OPS[OPS[i]] == "SOURCE" and BY_SOURCE:
            own += (read(sources[FIRSTS[i]], v, ats[NARROWS[i]], insides[NARROWS[i]]),)
        elif _OPS[OPS[i]] == "DESTINATION" and not BY_SOURCE:
            own += (read(destinations[FIRSTS[i]], v, ats[NARROWS[i]], insides[NARROWS[i]]),)
        elif _OPS[OPS[i]] == "PARAMETER":
            own += (read((parameters, width), FIRSTS[i], ats[NARROWS[i]], insides[NARROWS[i]]),)
        else:
            own += (tl.zeros((1, 1, 1), tl.float32) + numbers[NUMBERS[i]],)
    states = ()
    for r in tl.static_range(len(KINDS)):
        if _KINDS[KINDS[r]] != "EDGE":
            states += (begin(KINDS[r], EDGES, HEADS, 1 if NARROWS[OF[r]] else CHANNELS),)
    for first in range(begin_edge, end_edge, EDGES):
        t = first + tl.arange(0, EDGES)
        if indices is not None:
            other = tl.load(indices + t, mask=t < end_edge, other=0).to(tl.int64)[:, None, None]
        e = t[:, None, None]
        if perm is not None:
            e = tl.load(perm + t, mask=t < end_edge, other=0)[:, None, None]
        live = (t < end_edge)[:, None, None]
        values = ()
        for i in tl.static_range(len(OPS)):
            if _OPS[OPS[i]] == "SOURCE" and not BY_SOURCE:
                values += (read(sources[FIRSTS[i]], other, ats[NARROWS[i]], live & insides[NARROWS[i]]),)
            elif _OPS[OPS[i]] == "DESTINATION" and BY_SOURCE:
                values += (read(destinations[FIRSTS[i]], other, ats[NARROWS[i]], live & insides[NARROWS[i]]),)
            elif _OPS[OPS[i]] == "EDGE":
                values += (read(edges[FIRSTS[i]], e, ats[NARROWS[i]], live & insides[NARROWS[i]]),)
            elif _OPS[OPS[i]] == "WEIGHT":
                values += (tl.load(weight + e, mask=live, other=0.0),)
            elif _OPS[OPS[i]] == "EDGE_NUMBER":
                values += (read(edges[0], e, FIRSTS[i], live),)
            elif (
                _OPS[OPS[i]] == "SOURCE"
                or _OPS[OPS[i]] == "DESTINATION"
                or _OPS[OPS[i]] == "PARAMETER"
                or _OPS[OPS[i]] == "NUMBER"
            ):
                values += (own[i],)
            else:
                number = numbers[NUMBERS[i]]
                values += (computed(values[FIRSTS[i]], values[SECONDS[i]], number, insides[0], OPS[i]),)
        joined = ()
        for r in tl.static_range(len(KINDS)):
            value = values[OF[r]]
            mask = live & insides[NARROWS[OF[r]]]
            if _KINDS[KINDS[r]] == "EDGE":
                row = outs[r][0] + e * outs[r][1]
                tl.store(row + ats[NARROWS[OF[r]]], tl.where(mask, value, 0.0), mask=mask)
            else:
                joined += (join(states[r], *entered(value, mask, KINDS[r]), KINDS[r]),)
        states = joined
    is_empty = tl.load(indptr + v) == tl.load(indptr + v + 1)
    for r in tl.static_range(len(KINDS)):
        if _KINDS[KINDS[r]] != "EDGE":
            write(
                states[r],
                item,
                v,
                is_empty,
                outs[r],
                counts[r],
                partials[r],
                partial_extras[r],
                segment_first,
                heads if NARROWS[OF[r]] else width,
                ats[NARROWS[OF[r]]],
                insides[NARROWS[OF[r]]],
                KINDS[r],
                ADDS,
                PARTIAL,
                EDGES,
            )


Result = tuple[str, int, Tensor, Tensor | None]
"""SUM, MAX, MIN, EXP_SUM or EDGE; the step; where it goes; where the count of an extremum goes, or the sum
of exponentials of EXP_SUM, whose largest exponent is the other result."""
_OVER_ALL = 4
"""The number of a result that is a sum over all edges, behind those of the first four kinds."""
_EXACT = ("MAX", "MIN")
_STEPS: WeakIdKeyDictionary = WeakIdKeyDictionary()
"""The steps of each matrix of them that a kernel has run."""


def run_steps(
    indptr: Tensor,
    indices: Tensor | None,
    steps: Sequence[MessageStep],
    results: Sequence[Result],
    *,
    width: int,
    heads: int = 1,
    perm: Tensor | None = None,
    by_source: bool = False,
    sources: Sequence[Tensor | None] = (),
    destinations: Sequence[Tensor | None] = (),
    edges: Sequence[Tensor | None] = (),
    weight: Tensor | None = None,
    parameters: Tensor | None = None,
    adds: bool = False,
) -> None:
    """Run steps on each edge and reduce them; see :func:`.reference.reduce_messages`.

    Rows must be contiguous, but may lie apart. A result ``EDGE`` is a row for each edge.
    """
    num_rows = indptr.numel() - 1
    num_edges = next(len(one) for one in (indices, *edges) if one is not None)
    if num_rows * width == 0:
        return
    segments = segments_of(indptr, num_edges)
    results = sorted(results, key=lambda one: one[0] == "EDGE")
    numbers = [*dict.fromkeys((0.0, *(step.number for step in steps)))]
    partials = [
        _partials(segments, indptr, kind, heads if steps[i].narrow else width) for kind, i, *_ in results
    ]
    a = SimpleNamespace(
        indptr=indptr,
        indices=indices,
        perm=perm,
        sources=_matrices(sources),
        destinations=_matrices(destinations),
        edges=_matrices(edges),
        weight=weight,
        parameters=parameters,
        numbers=tuple(numbers),
        outs=_matrices([out for _, _, out, _ in results]),
        counts=_matrices([count for *_, count in results]),
        partials=tuple(value for value, _ in partials),
        partial_extras=tuple(extra for _, extra in partials),
        width=width,
        OPS=tuple(int(step.op) for step in steps),
        FIRSTS=tuple(step.first for step in steps),
        SECONDS=tuple(step.second for step in steps),
        NUMBERS=tuple(numbers.index(step.number) for step in steps),
        NARROWS=tuple(int(step.narrow) for step in steps),
        KINDS=tuple(_KIND_NAMES.index(kind) for kind, *_ in results),
        OF=tuple(step for _, step, *_ in results),
        BY_SOURCE=by_source,
        ADDS=adds,
    )
    by_head = any(step.narrow or step.op in CHANGES_WIDTH for step in steps)
    tile = heads_tile(heads, width // heads) if by_head else _row_tile(width)
    # What a maximum is compared with later must have its bits: no product may be fused with a sum.
    exact = any(kind in _EXACT for kind, *_ in results) or any(step.op is MessageOp.EQUAL for step in steps)
    tiles = triton.cdiv(tile["heads"], tile["HEADS"])
    more: dict[str, Any] = {**tile, "enable_fp_fusion": not exact}
    over_rows(partial(launch, message_kernel, a=a, **more), segments, num_rows, tiles)


def _row_tile(width: int) -> dict[str, int]:
    """Return constants for rows without heads: a head is the columns of a tile."""
    tile = row_tile(width)
    columns = tile.pop("FEAT")
    heads = {"heads": triton.cdiv(width, columns), "channels": columns}
    return {**tile, **heads, "HEADS": 1, "CHANNELS": columns}


def _matrices(given: Sequence[Tensor | None]) -> tuple[tuple[Tensor | None, int], ...]:
    return tuple((one, 0 if one is None else one.stride(0)) for one in given)


def _partials(
    segments: HubSegments | None, like: Tensor, kind: str, width: int
) -> tuple[Tensor | None, Tensor | None]:
    """Return a result's buffers of one row per segment: values, and counts or sums of exponentials."""
    if segments is None or kind == "EDGE":
        return None, None
    dtype = torch.float32 if kind in ("SUM", "EXP_SUM") else torch.int32
    value = like.new_empty((segments.count, width), dtype=dtype)
    return value, None if kind == "SUM" else torch.empty_like(value)


@like(reference.reduce_messages)
def reduce_messages(a: Any) -> None:
    """Compute like the twin. A sum over all edges is that of the walked rows' sums, in a fixed order."""
    width, num_rows = a.parameters.shape[1], a.indptr.numel() - 1
    if (found := _STEPS.get(a.steps)) is None:
        found = _STEPS[a.steps] = _steps_of(a.steps.tolist(), a.numbers.tolist())
    steps, at = found
    outs, results = (a.out, a.out2, a.out3, a.out4), list[Result]()
    totals, logs, counted = list[tuple[int, Tensor]](), list[Tensor](), 0
    for kind, step, place in a.results.tolist():
        if kind == _OVER_ALL:
            columns = a.heads if steps[at[step]].narrow else width
            rows = a.parameters.new_zeros((num_rows, columns))
            totals.append((place, rows))
            results.append(("SUM", at[step], rows, None))
        elif _KIND_NAMES[kind] == "EXP_SUM":
            logs.append(outs[place + 1])
            results.append(("EXP_SUM", at[step], outs[place], logs[-1]))
        else:
            out, more = outs[place], None
            if _KIND_NAMES[kind] in _EXACT:
                if a.count is None:  # not asked for
                    more = torch.empty_like(out, dtype=torch.int32)
                else:
                    more = a.count[:, counted : counted + out.shape[1]]
                counted += out.shape[1]
            results.append((_KIND_NAMES[kind], at[step], out, more))
    destinations = (a.y, a.y2, a.y3, a.y4, a.y5, a.y6, a.y7, a.y8, a.y9, a.y10)
    read: dict[str, Any] = {"sources": (a.x, a.x2, a.x3, a.x4), "destinations": destinations}
    read |= {"edges": (a.edges,), "weight": a.weight, "parameters": a.parameters}
    how = {"width": width, "heads": a.heads, "perm": a.perm, "by_source": a.by_source, "adds": a.adds}
    run_steps(a.indptr, a.indices, steps, results, **how, **read)
    for sums in logs:
        sums.log_()
    for place, rows in totals:
        column_sums(rows, a.to_parameters[place, : rows.shape[1]])


def _steps_of(
    given: Sequence[Sequence[int]], numbers: Sequence[float]
) -> tuple[tuple[MessageStep, ...], tuple[int, ...]]:
    """Return steps as the kernel takes them, and the place of each one given.

    A narrow step may read a parameter of one number, which fills a wide row: it gets a narrow row of its own.
    """
    made, at = list[MessageStep](), list[int]()

    def place_of(i: int, *, narrow: bool) -> int:
        op, parameter, _, is_narrow = given[i]
        if not narrow or is_narrow or op != MessageOp.PARAMETER:
            return at[i]
        made.append(MessageStep(MessageOp.PARAMETER, parameter, narrow=True))
        return len(made) - 1

    for (code, first, second, is_narrow), number in zip(given, numbers, strict=True):
        op = MessageOp(code)
        reads = first, second
        if op >= MessageOp.ADD:
            narrow = op is MessageOp.SPREAD or (bool(is_narrow) and op is not MessageOp.SUM_COLUMNS)
            reads = (
                place_of(first, narrow=narrow),
                place_of(second, narrow=narrow) if op <= MessageOp.WHERE else 0,
            )
        made.append(MessageStep(op, *reads, number, bool(is_narrow)))
        at.append(len(made) - 1)
    return tuple(made), tuple(at)
