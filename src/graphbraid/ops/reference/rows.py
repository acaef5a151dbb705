"""Plain PyTorch twins of the kernels that work on rows: copies, epilogues, normalisation and products.

Their annotations say which arrays each kernel takes. A test compares each twin with the compiled kernel's
entry and with Triton's launcher: names, order, defaults, numbers of dimensions and dtypes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from graphbraid.ops.library import RowEpilogue, sum_dtype
from graphbraid.ops.rng import keep_mask

if TYPE_CHECKING:
    from graphbraid.ops.gather import TierTable


class Kind(NamedTuple):
    """Requirements on an array."""

    dimensions: int
    dtypes: tuple[torch.dtype, ...]


_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)

Indptr = Annotated[Tensor, Kind(1, (torch.int64,))]
"""``(num_rows + 1,)``: row ``v`` has the edges ``[indptr[v], indptr[v + 1])``."""
Indices = Annotated[Tensor, Kind(1, (torch.int32, torch.int64))]
"""``(num_edges,)`` node at the other end of each edge."""
Ids = Annotated[Tensor, Kind(1, (torch.int64,))]
"""``(count,)`` numbers of rows or of edges."""
RowPlaces = Annotated[Tensor, Kind(1, (torch.int32,))]
"""``(count,)`` numbers of rows, -1 for none."""
Vector = Annotated[Tensor, Kind(1, _FLOATS)]
"""``(count,)``: a value per node, edge or column, in the dtype of the sums."""
Matrix = Annotated[Tensor, Kind(2, _FLOATS)]
"""``(num_nodes or num_edges, width)``, or a value per node or edge and head; head by head."""
Vector32 = Annotated[Tensor, Kind(1, (torch.float32,))]
Matrix32 = Annotated[Tensor, Kind(2, (torch.float32,))]
"""A matrix of the kernels that multiply, or that widen rows."""
WordMatrix = Annotated[Tensor, Kind(2, (torch.int32,))]
"""Bits, 32 to a word, or a count or a position for each element."""
StepMatrix = Annotated[Tensor, Kind(2, (torch.int64,))]
"""Steps of a message."""
ByteMatrix = Annotated[Tensor, Kind(2, (torch.uint8,))]
"""Rows of any dtype as bytes."""
Matrix8 = Annotated[Tensor, Kind(2, (torch.int8,))]
"""Rows of int8, which scales multiply."""


def gather_rows(table: ByteMatrix, ids: Ids, out: ByteMatrix) -> None:
    """Twin of ``gather.inl``: ``out[i] = table[ids[i]]``."""
    torch.index_select(table, 0, ids, out=out)


def take_rows(table: ByteMatrix, slots: RowPlaces, out: ByteMatrix) -> None:
    """Twin of ``spread.cpp``: ``out[i] = table[slots[i]]``; where that is -1, ``out`` stays as it is."""
    is_there = slots >= 0
    out[is_there] = table[slots[is_there].long()]


def put_rows(rows: ByteMatrix, slots: RowPlaces, table: ByteMatrix) -> None:
    """Twin of ``spread.cpp``: ``table[slots[i]] = rows[i]`` in the order of ``i``; -1 stands for no row."""
    for row, slot in zip(rows, slots.tolist(), strict=True):
        if slot >= 0:
            table[slot] = row


def gather_as_float(table: Matrix, ids: Ids, out: Matrix32) -> None:
    """Twin of ``gather.inl``: ``out[i] = float(table[ids[i]])``."""
    out.copy_(table[ids])


def gather_scaled(table: Matrix8, scale: Vector32, ids: Ids, out: Matrix32) -> None:
    """Twin of ``gather.inl``: ``out[i] = scale[ids[i]] * float(table[ids[i]])``."""
    torch.mul(table[ids].float(), scale[ids].unsqueeze(1), out=out)


def gather_tiered(table: TierTable, ids: Tensor, out: Tensor) -> None:
    """Twin of ``ops/triton/gather.py``: each part gives the rows that lie in it."""
    positions = ids if table.positions is None else table.positions[ids].long()
    begin = 0
    for tier in table.tiers:
        offsets = positions - begin
        begin += tier.num_rows
        inside = (offsets >= 0) & (offsets < tier.num_rows)
        for number, part in enumerate(tier.parts):
            chosen = (inside & (offsets % len(tier.parts) == number)).nonzero().squeeze(1)
            found = (offsets[chosen] // len(tier.parts)).to(part.device)
            rows = part[found].to(out.dtype)
            if tier.scales:
                rows *= tier.scales[number][found].unsqueeze(1)
            out[chosen] = rows.to(out.device)


def spread_rows(rows: Matrix32, place: RowPlaces, out: Matrix32) -> None:
    """Twin of ``spread.cpp``: ``out[v] = rows[place[v]]``, zeros where that is -1."""
    is_there = place >= 0
    out.zero_()[is_there] = rows[place[is_there].long()]


def add_rows(rows: Matrix32, ids: Indices, out: Matrix32) -> None:
    """Twin of ``spread.cpp``'s ``add_rows``: ``out[ids[i]] += rows[i]`` in the order of ``i``."""
    out.index_add_(0, ids, rows)


def drop_values(
    indptr: Indptr,
    columns: Indices,
    values: Vector32,
    places: Ids,
    p: float,
    seed: int | Tensor,
    by_row: Vector32,
    by_column: Vector32,
    ids: Ids | None = None,
) -> None:
    """Twin of ``spread.cpp``'s: dropout of values of CSR rows, written by row and to their ``places``."""
    rows = torch.arange(len(indptr) - 1, device=indptr.device) if ids is None else ids
    kept = keep_mask(rows.repeat_interleave(indptr.diff()), columns.unsqueeze(1), p, seed).squeeze(1)
    by_row.copy_(torch.where(kept, values * (1 / (1 - p)), 0))
    by_column[places] = by_row


# ruff: noqa: PLR0917 - the kernels take their arguments by position


def epilogue(
    x: Matrix,
    bias: Vector | None,
    act: int,
    slope: float,
    p: float,
    seed: int | Tensor,
    out: Matrix,
    ids: Ids | None = None,
) -> None:
    """Twin of ``epilogue.inl``, with its numbers of activations."""
    y = x.to(sum_dtype(x.dtype))
    y = y if bias is None else y + bias
    y = (y, y.relu(), F.leaky_relu(y, slope), F.elu(y))[act]
    out.copy_(y if p == 0 else y * _mask(y.shape, p, seed, y, ids))


def epilogue_backward(
    grad: Matrix,
    out: Matrix,
    act: int,
    slope: float,
    p: float,
    seed: int | Tensor,
    grad_x: Matrix,
    grad_bias: Vector | None,
    ids: Ids | None = None,
) -> None:
    """Twin of the kernel of that name; computes the activation's slope from its output."""
    y, g = out.to(sum_dtype(out.dtype)), grad.to(sum_dtype(out.dtype))
    if p > 0:
        g, y = g * _mask(y.shape, p, seed, y, ids), y * (1 - p)
    if act == 1:  # where y is NaN, g passes, as in PyTorch; where y is 0, g is not read: it may be NaN
        g = torch.where(y <= 0, 0.0, g)
    else:
        g = torch.where(y > 0, g, (g, g, g * slope, g * (y + 1))[act])
    grad_x.copy_(g)
    if grad_bias is not None:
        grad_bias.copy_(column_sums(g))


def apply_epilogue(out: Tensor, after: RowEpilogue | None) -> None:
    """Apply an epilogue to the rows that a kernel wrote."""
    if after is not None:
        epilogue(out, after.bias, after.act, after.slope, after.p, after.seed, out, after.ids)


def column_sums(rows: Tensor) -> Tensor:
    """Sum over rows in order; ``sum(0)`` would split them by threads, which changes the rounding."""
    only = torch.zeros(rows.shape[0], dtype=torch.int64, device=rows.device)
    return rows.new_zeros(1, rows.shape[1]).index_add_(0, only, rows)[0]


def _mask(shape: torch.Size, p: float, seed: int | Tensor, like: Tensor, ids: Tensor | None) -> Tensor:
    rows = torch.arange(shape[0], device=like.device) if ids is None else ids
    return keep_mask(rows, shape[1], p, seed).to(like.dtype) / (1 - p)


def layer_norm(
    x: Matrix,
    weight: Vector | None,
    bias: Vector | None,
    eps: float,
    out: Matrix,
    mean: Vector | None,
    rstd: Vector | None,
) -> None:
    """Twin of the kernel of that name; ``norm.inl`` gives the formulas."""
    if x.numel() == 0:
        return
    rows = x.to(sum_dtype(x.dtype))
    variance, average = torch.var_mean(rows, 1, correction=0)
    factor = (variance + eps).rsqrt()
    out.copy_(_affine((rows - average[:, None]) * factor[:, None], weight, bias))
    if mean is not None:
        mean.copy_(average)
    if rstd is not None:
        rstd.copy_(factor)


def layer_norm_backward(
    grad: Matrix,
    x: Matrix,
    weight: Vector | None,
    mean: Vector,
    rstd: Vector,
    grad_x: Matrix | None,
    grad_weight: Vector | None,
    grad_bias: Vector | None,
) -> None:
    """Twin of the kernel of that name."""
    dtype = sum_dtype(x.dtype)
    given = grad.to(dtype)
    y = (x.to(dtype) - mean[:, None]) * rstd[:, None]
    if grad_weight is not None:
        torch.sum(given * y, 0, out=grad_weight)
    if grad_bias is not None:
        torch.sum(given, 0, out=grad_bias)
    if grad_x is not None and x.shape[1]:
        h = _affine(given, weight, None)
        along = (h * y).mean(1, keepdim=True)
        grad_x.copy_(rstd[:, None] * (h - h.mean(1, keepdim=True) - y * along))


def column_moments(x: Matrix, mean: Vector, var: Vector) -> None:
    """Twin of the kernel of that name: mean and variance over the rows, 0 if there are none."""
    if x.shape[0] == 0:
        mean.zero_()
        var.zero_()
        return
    variance, average = torch.var_mean(x.to(sum_dtype(x.dtype)), 0, correction=0)
    mean.copy_(average)
    var.copy_(variance)


def batch_norm(
    x: Matrix, mean: Vector, rstd: Vector, weight: Vector | None, bias: Vector | None, out: Matrix
) -> None:
    """Twin of the kernel of that name."""
    out.copy_(_affine((x.to(sum_dtype(x.dtype)) - mean) * rstd, weight, bias))


def batch_norm_backward(
    grad: Matrix,
    x: Matrix,
    mean: Vector,
    rstd: Vector,
    weight: Vector | None,
    from_rows: bool,
    grad_x: Matrix | None,
    grad_weight: Vector,
    grad_bias: Vector,
) -> None:
    """Twin of the kernel of that name; with ``from_rows``, mean and rstd are those of the rows of ``x``."""
    dtype = sum_dtype(x.dtype)
    given = grad.to(dtype)
    y = (x.to(dtype) - mean) * rstd
    torch.sum(given * y, 0, out=grad_weight)
    torch.sum(given, 0, out=grad_bias)
    if grad_x is None:
        return
    if from_rows and x.shape[0]:
        given = given - (grad_bias + y * grad_weight) / x.shape[0]
    grad_x.copy_(_affine(given * rstd, weight, None))


def _affine(y: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


_MOST_PARTS, _LEAST_ROWS = 8, 1024
"""The limits that csrc/dense/dense.h has."""
DISTANCES = ("absolute", "euclidean", "moduli")
"""Kinds of distances, by their codes: sums of absolute values, lengths, and sums of complex moduli."""
_MODULI = DISTANCES.index("moduli")
_HELD = 1 << 16
"""Numbers of each temporary matrix of a sum of moduli: they stay in a core's cache."""


def gram_parts(num_rows: int) -> list[range]:
    """Return the rows of each part of a gram, which is summed by itself."""
    parts = min(max(num_rows // _LEAST_ROWS, 1), _MOST_PARTS)
    return [range(num_rows * part // parts, num_rows * (part + 1) // parts) for part in range(parts)]


def gram_sums_length(num_rows: int, height: int, width: int) -> int:
    """Return the elements that the sums of a ``(height, width)`` gram take, whichever kernel writes them."""
    whole_height, whole_width = (-(-columns // 16) * 16 for columns in (height, width))
    return len(gram_parts(num_rows)) * max(height * whole_width, width * whole_height)


def tall_gram_round(
    a: Matrix32, b: Matrix32, sums: Vector32, out: Matrix32, first: int, last: int, ends: bool
) -> None:
    """Add a round's rows to the sums of each part; at the end, compute ``out`` by adding these up.

    A round has the rows from ``first`` up to ``last`` of every part, as far as the part has them. ``a`` has
    all rows, ``b`` those of the round, one part's behind the other's. ``sums``, of :func:`gram_sums_length`,
    are kept from round to round; the first one clears them. The last round ``ends``.
    """
    parts, height, width = gram_parts(len(a)), a.shape[1], b.shape[1]
    totals = sums[: len(parts) * height * width].view(len(parts), height, width)
    if first == 0:
        totals.zero_()
    at = 0
    for total, part in zip(totals, parts, strict=True):
        rows = part[first:last]
        total.addmm_(a[rows.start : rows.stop].t(), b[at : at + len(rows)])
        at += len(rows)
    if ends:
        out.copy_(totals.sum(0))


WORD_BITS = 32
"""Number of bits in a word."""


def tall_product(
    a: Matrix32,
    b: Matrix32,
    out: Matrix32,
    add: bool = False,
    ids: Ids | None = None,
    after: RowEpilogue | None = None,
) -> None:
    """Compute ``out = a[ids] @ b`` or ``out += a[ids] @ b`` (all rows without ids), then the epilogue."""
    rows = a if ids is None else a[ids]
    if add:
        out.addmm_(rows, b)
    else:
        torch.mm(rows, b, out=out)
    apply_epilogue(out, after)


def bit_product(
    bits: WordMatrix,
    factors: Vector | None,
    b: Matrix32,
    out: Matrix32,
    add: bool = False,
    after: RowEpilogue | None = None,
) -> None:
    """Compute ``out = diag(factors) x b`` or ``out += ...`` for the matrix x of bits, then the epilogue."""
    rows = _unpacked(bits, b.shape[0], b.dtype)
    if factors is not None:
        rows *= factors[:, None]
    tall_product(rows, b, out, add, None, after)


def bit_gram(a: Matrix32, bits: WordMatrix, factors: Vector | None, out: Matrix32) -> None:
    """Compute ``out = a.t() diag(factors) x`` for the matrix x of bits."""
    scaled = a if factors is None else a * factors[:, None]
    torch.mm(scaled.t(), _unpacked(bits, a.shape[0], a.dtype).t(), out=out)


def _unpacked(bits: Tensor, depth: int, dtype: torch.dtype) -> Tensor:
    """Unpack to ``(num_rows, depth)`` zeros and ones: bit j of ``bits[w, i]`` is row i, column 32 w + j."""
    octets = bits.t().clone(memory_format=torch.contiguous_format).view(torch.uint8)  # little-endian
    each = octets[:, :, None] >> torch.arange(8, dtype=torch.uint8, device=bits.device) & 1
    return each.flatten(1)[:, :depth].to(dtype)


def tall_gram(a: Matrix32, b: Matrix32, out: Matrix32, ids: Ids | None = None) -> None:
    """Compute ``out = a.t() @ b[ids]`` (all rows without ids)."""
    torch.mm(a.t(), b if ids is None else b[ids], out=out)


def transpose(a: Matrix32, out: Matrix32) -> None:
    """Compute ``out = a.t()``."""
    out.copy_(a.t())


def distances(query: Matrix, rows: Matrix, kind: int, out: Matrix) -> None:
    """Compute ``out[i, j]``, the distance of ``query[i]`` from ``rows[j]``, of a kind of :data:`DISTANCES`.

    Rows are float32 or float64; complex ones are real, then imaginary parts.
    """
    if kind != _MODULI:
        # Squares of lengths less a product would save time, and cancel where rows are near each other.
        out.copy_(torch.cdist(query, rows, kind + 1, "donot_use_mm_for_euclid_dist"))
        return
    for i, j, _, moduli in _differences(query, rows):
        torch.sum(moduli, -1, out=out[i, j])


def distances_backward(
    query: Matrix, rows: Matrix, kind: int, out: Matrix, grad: Matrix, of_query: Matrix, of_rows: Matrix
) -> None:
    """Write the gradients of :func:`distances`, from that of ``out``; what has no difference has none."""
    if kind != _MODULI:
        norm, back = kind + 1, torch.ops.aten._cdist_backward
        of_query.copy_(back(grad, query, rows, norm, out))
        of_rows.copy_(back(grad.t().contiguous(), rows, query, norm, out.t().contiguous()))
        return
    of_query.zero_()
    of_rows.zero_()
    for i, j, parts, moduli in _differences(query, rows):
        share = (grad[i, j, None] / moduli).masked_fill_(moduli == 0, 0)
        for part, a, b in zip(parts, of_query[i].chunk(2, -1), of_rows[j].chunk(2, -1), strict=True):
            slope = part.mul_(share)
            a.add_(slope.sum(1))
            b.sub_(slope.sum(0))


def _differences(query: Tensor, rows: Tensor) -> Iterator[tuple[slice, slice, tuple[Tensor, Tensor], Tensor]]:
    """Yield blocks: which queries and rows, real and imaginary parts of their differences, and moduli."""
    width = max(1, query.shape[1] // 2)
    each = max(1, math.isqrt(_HELD // width))
    for i in (slice(begin, begin + each) for begin in range(0, query.shape[0], each)):
        for j in (slice(begin, begin + each) for begin in range(0, rows.shape[0], each)):
            (a, b), (c, d) = query[i, None].chunk(2, -1), rows[None, j].chunk(2, -1)
            real, imaginary = a - c, b - d
            yield i, j, (real, imaginary), torch.addcmul(real * real, imaginary, imaginary).sqrt_()
