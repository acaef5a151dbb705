"""Rows by id, copied from tables in one memory or in several, and scattered back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from graphbraid.arguments import check_tensor
from graphbraid.errors import DataError
from graphbraid.graph.scaled_features import ScaledFeatures
from graphbraid.graph.scans import first_out_of_range, unchanged
from graphbraid.ops import reference
from graphbraid.ops.kernels import backend, plain, row_contiguous, triton_kernels
from graphbraid.signatures import typed


@typed
def gather_rows(
    x: Tensor,
    ids: Tensor,
    *,
    dtype: torch.dtype | None = None,
    scale: Tensor | None = None,
    trusted: bool = False,
) -> Tensor:
    """Gather rows by id: ``out[i] = x[ids[i]]``, widened to float32 on the way if that is asked for.

    It has no gradient: it is meant for features, not for activations.

    Args:
        x: ``(num_rows, width)`` of any dtype.
        ids: ``(num_ids,)`` int64 in ``[0, num_rows)``, in any order, repeated or not.
        dtype: of the result: ``x``'s, or float32 for float16 and bfloat16. None: ``x``'s, but float32 with
            ``scale``.
        scale: ``(num_rows,)`` float32 for an ``x`` of int8: ``out[i] = scale[ids[i]] * x[ids[i]]``.
        trusted: skip the check of the ids. Only for ids known to be in range: others read out of bounds.

    Returns:
        ``(num_ids, width)``.

    Raises:
        DataError: shapes or dtypes do not fit, there is no such conversion, or an id is out of range.
    """
    check_tensor(x, "x")
    check_tensor(ids, "ids")
    if x.ndim != 2 or ids.ndim != 1 or ids.dtype != torch.int64:
        raise DataError(
            f"gather_rows takes a 2-d x and 1-d int64 ids; got x of shape {tuple(x.shape)} and ids of "
            f"{ids.dtype} and shape {tuple(ids.shape)}"
        )
    if not trusted:
        _check_range(ids, x.shape[0], "ids", "x")
    x = x.detach()
    converts = dtype is not None or scale is not None
    if converts and _given(x.dtype, dtype, is_scaled=scale is not None) != x.dtype:
        return _as_float(x, scale, ids)
    if not x.is_contiguous() or x.numel() == 0 or ids.numel() == 0:
        return torch.index_select(x, 0, ids)
    out = x.new_empty(ids.numel(), x.shape[1])
    table, rows = x.view(torch.uint8), out.view(torch.uint8)  # the kernel copies bytes, whatever the dtype
    backend(table).gather_rows(table, ids.contiguous(), rows)
    return out


def gather_features(x: Tensor | ScaledFeatures, ids: Tensor, *, trusted: bool = False) -> Tensor:
    """Gather the feature rows of nodes as :func:`gather_rows` does; those of int8 become float32.

    Raises:
        DataError: an id is out of range.
    """
    if isinstance(x, ScaledFeatures):
        return gather_rows(x.values, ids, scale=x.scale, trusted=trusted)
    return gather_rows(x, ids, trusted=trusted)


def _check_range(ids: Tensor, count: int, name: str, of: str) -> None:
    at = first_out_of_range(ids, count)
    if at >= 0:
        raise DataError(f"{name} must be rows of {of}, in [0, {count}); {name}[{at}] is {int(ids[at])}")


def _given(stored: torch.dtype, asked: torch.dtype | None, *, is_scaled: bool) -> torch.dtype:
    """Return the dtype in which rows are given: their own, or float32 for 16 bits or int8 with scales."""
    usual = torch.float32 if is_scaled else stored
    given = usual if asked is None else asked
    widened = (torch.int8,) if is_scaled else (torch.float16, torch.bfloat16)
    if not (given == torch.float32 and stored in widened) and (given != stored or is_scaled):
        raise DataError(
            f"rows of {stored}{' with scales' * is_scaled} are given as {usual}, those of float16 and "
            f"bfloat16 also as float32, and scales are for int8; asked for was {given}"
        )
    return given


def _as_float(x: Tensor, scale: Tensor | None, ids: Tensor) -> Tensor:
    out = torch.empty(ids.numel(), x.shape[1], device=x.device)
    if scale is not None:
        check_tensor(scale, "scale", ndim=1)
        if scale.dtype != torch.float32 or len(scale) != len(x) or scale.device != x.device:
            raise DataError(
                f"scale must be float32 on {x.device}, one for each of {len(x)} rows; got {scale.dtype} of "
                f"shape {tuple(scale.shape)} on {scale.device}"
            )
        if out.numel():
            backend(x).gather_scaled(x.contiguous(), scale.contiguous(), ids.contiguous(), out)
    elif out.numel():
        backend(x).gather_as_float(x.contiguous(), ids.contiguous(), out)
    return out


@typed
@dataclass(frozen=True, eq=False, slots=True)
class Tier:
    """Rows in one kind of memory, such as the device's own, its peers', or the host's.

    With ``g`` parts, row ``o`` of the tier is row ``o // g`` of ``parts[o % g]``: the parts are interleaved,
    so that all of them are read, whichever rows are read.
    """

    parts: tuple[Tensor, ...]
    """``(num_rows_of_part, width)`` contiguous tensors of one dtype."""
    scales: tuple[Tensor, ...] = ()
    """``(num_rows_of_part,)`` float32 of each part: a row is that many times its int8 numbers. Or none."""

    @property
    def num_rows(self) -> int:
        """Rows of all parts."""
        return sum(len(part) for part in self.parts)

    @property
    def nbytes(self) -> int:
        """Bytes of all parts and scales."""
        return sum(table.nbytes for table in (*self.parts, *self.scales))


@unchanged("positions")
@typed
class TierTable:
    """Where each row of a table is: tiers one after the other, each a range of positions.

    Args:
        tiers: tiers of one width and dtype; those without rows are left out.
        positions: ``(num_rows,)`` int32 or int64, each row's position in the order of the tiers; there may be
            positions that no row has. If None, a row's position is its id: nodes are renumbered by score.
        device: the device that gathers. It can read every part: its own memory, a peer's, or page-locked
            memory of the host. If None, the first part's.

    Raises:
        DataError: shapes, dtypes or numbers of rows do not fit.
    """

    def __init__(
        self, tiers: Sequence[Tier], positions: Tensor | None = None, *, device: torch.device | None = None
    ) -> None:
        _check_tiers(tiers)
        first = tiers[0].parts[0]
        self.tiers = tuple(tier for tier in tiers if tier.num_rows) or tuple(tiers[:1])
        self.dtype, self.width = first.dtype, first.shape[1]
        self.device = first.device if device is None else torch.empty(0, device=device).device
        self.is_scaled = bool(tiers[0].scales)
        self.positions = None if positions is None else self._checked_positions(positions)
        self.num_rows = self.bounds[-1] if positions is None else len(positions)
        self.addresses = tuple(part.data_ptr() for tier in self.tiers for part in tier.parts)
        scales = [scale.data_ptr() for tier in self.tiers for scale in tier.scales] or self.addresses
        layout = [number for line in self._lines() for number in line]
        numbers = torch.tensor([*layout, *self.addresses, *scales], dtype=torch.int64).to(self.device)
        bases, scale_bases = len(layout), len(layout) + len(self.addresses)
        self.layout, self.bases = numbers[:bases], numbers[bases:scale_bases]
        self.scale_bases = numbers[scale_bases:]
        """Numbers for kernels, int64 on the device: first position, number of parts and first part of each
        tier, ``(num_tiers * 3,)``; addresses of the parts, ``(num_parts,)``; and of their scales."""

    @property
    def bounds(self) -> tuple[int, ...]:
        """The position behind the last row of each tier."""
        return tuple(accumulate(tier.num_rows for tier in self.tiers))

    @property
    def given_dtype(self) -> torch.dtype:
        """Dtype of the rows that :func:`gather_tiered` gives unless it is told otherwise."""
        return torch.float32 if self.is_scaled else self.dtype

    def _lines(self) -> list[tuple[int, int, int]]:
        begins = (0, *self.bounds)
        firsts = accumulate((len(tier.parts) for tier in self.tiers), initial=0)
        return [
            (begin, len(tier.parts), first)
            for begin, tier, first in zip(begins, self.tiers, firsts, strict=False)
        ]

    def _checked_positions(self, positions: Tensor) -> Tensor:
        check_tensor(positions, "positions", ndim=1)
        if positions.dtype not in (torch.int32, torch.int64):
            raise DataError(f"positions must be int32 or int64; got {positions.dtype}")
        _check_range(positions, self.bounds[-1], "positions", "the tiers")
        return positions.to(self.device).contiguous()


def _check_tiers(tiers: Sequence[Tier]) -> None:
    parts = [part for tier in tiers for part in tier.parts]
    if not parts:
        raise DataError("a tier table needs at least one tier with a part; give one, of no rows if need be")
    first = parts[0]
    for part in parts:
        if part.ndim != 2 or not part.is_contiguous() or part.dtype != first.dtype:
            raise DataError(
                f"parts of tiers must be 2-d, contiguous and of one dtype, {first.dtype} as the first is; "
                f"got {part.dtype} of shape {tuple(part.shape)}" + " with gaps" * (not part.is_contiguous())
            )
        if part.shape[1] != first.shape[1]:
            raise DataError(
                f"parts of tiers must have rows of one width; got {first.shape[1]} and {part.shape[1]}"
            )
    is_scaled = bool(tiers[0].scales)
    for tier in tiers:
        _check_interleaving(tier)
        if [len(scale) for scale in tier.scales] != [len(part) for part in tier.parts if is_scaled]:
            raise DataError("each part of each tier needs a scale for each of its rows, or none has any")
        if any(scale.dtype != torch.float32 or not scale.is_contiguous() for scale in tier.scales):
            raise DataError("scales must be contiguous float32")
    if is_scaled and first.dtype != torch.int8:
        raise DataError(f"scales belong to rows of int8; these are {first.dtype}")


def _check_interleaving(tier: Tier) -> None:
    num_parts, found = len(tier.parts), [len(part) for part in tier.parts]
    fitting = [len(range(part, tier.num_rows, num_parts)) for part in range(num_parts)]
    if found != fitting:
        raise DataError(
            f"{tier.num_rows} rows interleaved over {num_parts} parts make parts of {fitting} rows; "
            f"got {found}"
        )


@typed
def gather_tiered(
    table: TierTable, ids: Tensor, *, dtype: torch.dtype | None = None, trusted: bool = False
) -> Tensor:
    """Gather rows by id, wherever they lie: ``out[i]`` is row ``ids[i]`` of ``table``.

    Args:
        table: where the rows are.
        ids: ``(num_ids,)`` int64 in ``[0, table.num_rows)`` on ``table.device``, repeated or not.
        dtype: of the result: the table's, or float32 for rows of float16, bfloat16, or int8 with scales.
            None: ``table.given_dtype``.
        trusted: skip the check of the ids, which waits for the device. Only for ids known to be in range.

    Returns:
        ``(num_ids, width)`` on ``table.device``.

    Raises:
        DataError: ids do not fit, or there is no such conversion.
    """
    check_tensor(ids, "ids", ndim=1)
    given = _given(table.dtype, dtype, is_scaled=table.is_scaled)
    if ids.dtype != torch.int64 or ids.device != table.device:
        raise DataError(f"ids must be int64 on {table.device}; got {ids.dtype} on {ids.device}")
    if not trusted:
        _check_range(ids, table.num_rows, "ids", "the table")
    ids = ids.contiguous()
    if table.device.type == "cpu" and len(table.addresses) == 1:
        [tier], positions = table.tiers, table.positions
        rows = ids if positions is None else positions[ids].long()
        scale = tier.scales[0] if table.is_scaled else None
        return gather_rows(tier.parts[0], rows, dtype=given, scale=scale, trusted=True)
    out = torch.empty(ids.numel(), table.width, dtype=given, device=table.device)
    found = triton_kernels() if table.device.type == "cuda" else None
    (reference if found is None else found).gather_tiered(table, ids, out)
    return out


def places_of(ids: Tensor, num_out: int, dtype: torch.dtype = torch.int32) -> Tensor:
    """Return each row's position in ``ids`` (int64, distinct) as ``(num_out,)``; -1 if it is absent."""
    places = torch.full((num_out,), -1, dtype=dtype, device=ids.device)
    places[ids] = torch.arange(ids.numel(), dtype=dtype, device=ids.device)
    return places


def copy_rows(rows: Tensor, out: Tensor) -> Tensor:
    """Copy rows to others of the same shape, and return these. Without autograd.

    For 32,768 numbers PyTorch wakes its threads, which takes longer than to copy them.
    """
    if not (rows.is_cpu and out.is_cpu and rows.dtype == out.dtype == torch.float32):
        return out.copy_(plain(rows))
    backend(out).epilogue(row_contiguous(plain(rows)), None, 0, 0.0, 0.0, 0, out)  # an empty epilogue
    return out


def spread_rows(rows: Tensor, places: Tensor, out: Tensor) -> None:
    """Set ``out[v] = rows[places[v]]``, or zeros if ``places[v]`` is -1. On the CPU, without autograd.

    Args:
        rows: ``(num_rows, width)`` float32.
        places: ``(num_out,)`` int32 from :func:`places_of`, each -1 or below ``num_rows``.
        out: ``(num_out, width)`` float32, contiguous, written.
    """
    backend(out).spread_rows(rows.detach().contiguous(), places, out)


def take_rows(table: Tensor, slots: Tensor, out: Tensor) -> None:
    """Set ``out[i] = table[slots[i]]``; rows of slot -1 stay as they are. On the CPU, without autograd.

    Args:
        table: ``(num_rows, width)`` contiguous.
        slots: ``(num_out,)`` int32, each -1 or below ``num_rows``.
        out: ``(num_out, width)`` of the same dtype, contiguous, written.
    """
    if table.numel() and out.numel():
        backend(out).take_rows(table.view(torch.uint8), slots, out.view(torch.uint8))


def put_rows(rows: Tensor, slots: Tensor, table: Tensor) -> None:
    """Set ``table[slots[i]] = rows[i]`` in the order of ``i``; slot -1 takes none. See :func:`take_rows`."""
    if table.numel() and rows.numel():
        backend(table).put_rows(rows.view(torch.uint8), slots, table.view(torch.uint8))


def add_rows(rows: Tensor, ids: Tensor, out: Tensor) -> None:
    """Add ``out[ids[i]] += rows[i]``, for each row of ``out`` in the order of ``i``. Without autograd.

    The compiled kernel is for float32 on the CPU; PyTorch adds all others, on the CPU in the same order.

    Args:
        rows: ``(num_rows, width)``.
        ids: ``(num_rows,)`` int32 or int64 rows of ``out``, repeated or not.
        out: ``(num_out, width)`` of the same dtype, contiguous, written.
    """
    if rows.dtype != torch.float32 or rows.device.type != "cpu":
        out.index_add_(0, ids, rows.detach())
        return
    backend(out).add_rows(rows.detach().contiguous(), ids, out)
