"""ScaledFeatures: node features as rows of int8 with a scale each, in about a quarter of float32's memory."""

from __future__ import annotations

from dataclasses import InitVar, dataclass

import torch
from torch import Tensor

from graphbraid.arguments import as_flag, check_tensor
from graphbraid.errors import DataError
from graphbraid.graph.scans import check_finite, check_ids, first_unsound_weight
from graphbraid.graph.sparse_features import FEATURE_DTYPES, SparseFeatures

STEPS = 127
"""Largest absolute value of a row's int8 numbers."""
_SPARE_BITS = 7
"""Low bits of a scale that are 0, so that its product with any of the numbers is exact in float32."""
_CHUNK = 1 << 16  # numbers that are rounded at a time: in float64 they fit a core's cache


@dataclass(frozen=True, kw_only=True, eq=False, slots=True, weakref_slot=True)
class ScaledFeatures:
    """Dense feature rows in int8: row ``v`` is ``scale[v] * values[v]``, float32 wherever it is read.

    Raises:
        DataError: names the array that does not fit, or the first scale that is wrong and where it stands.
    """

    values: Tensor
    """``(num_rows, num_cols)`` int8."""
    scale: Tensor
    """``(num_rows,)`` float32, finite and not negative."""
    trusted: InitVar[bool] = False
    """Skip the checks. Only for arrays known to be valid."""

    def __post_init__(self, trusted: bool) -> None:
        if as_flag(trusted, "trusted"):
            return
        values, scale = check_tensor(self.values, "int8 features"), check_tensor(self.scale, "scale")
        if values.ndim != 2 or values.dtype != torch.int8 or values.layout != torch.strided:
            raise DataError(
                f"scaled features must be a dense 2-d int8 tensor; got {values.dtype} of shape "
                f"{tuple(values.shape)}. ScaledFeatures.from_dense(x) makes them of floats"
            )
        if scale.dtype != torch.float32 or scale.shape != values.shape[:1] or scale.device != values.device:
            raise DataError(
                f"scale must be float32 on {values.device}, one for each of {len(values)} rows; got "
                f"{scale.dtype} of shape {tuple(scale.shape)} on {scale.device}"
            )
        if not (values.is_contiguous() and scale.is_contiguous()):
            raise DataError("int8 features and scale must be contiguous; make them so with .contiguous()")
        check_scale(scale)

    @property
    def shape(self) -> torch.Size:
        """``(num_rows, num_cols)``."""
        return self.values.shape

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the rows as they are read: float32."""
        return self.scale.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of both arrays."""
        return self.values.nbytes + self.scale.nbytes

    def rows(self, ids: Tensor) -> Tensor:
        """Return the rows named by ``ids`` in float32, ``(num_ids, num_cols)``.

        Args:
            ids: ``(num_ids,)`` int32 or int64 row numbers in ``[0, num_rows)``.

        Raises:
            DataError: names the first id that is out of range.
        """
        check_ids(ids, len(self.values), "row ids")
        return widened(self.values[ids.long()], self.scale[ids.long()])

    def to_dense(self) -> Tensor:
        """Return all rows as float32, ``(num_rows, num_cols)`` (a copy)."""
        return widened(self.values, self.scale)

    def to(self, device: torch.device) -> ScaledFeatures:
        """Return the same rows on a device; copies only if they are not there."""
        if self.values.device == device:
            return self
        return ScaledFeatures(values=self.values.to(device), scale=self.scale.to(device), trusted=True)

    @classmethod
    def from_dense(cls, dense: Tensor) -> ScaledFeatures:
        """Round each row to multiples of its scale: its largest absolute value over 127, or slightly more.

        A number differs from its multiple by at most half the row's scale. A row of zeros has scale 0.

        Args:
            dense: ``(num_rows, num_cols)`` finite float32, float16 or bfloat16.

        Raises:
            DataError: the dtype or shape is another, or names the first number that is not finite.
        """
        check_tensor(dense, "dense features")
        if dense.ndim != 2 or dense.dtype not in FEATURE_DTYPES or dense.layout != torch.strided:
            raise DataError(
                "rows of int8 are made of a dense 2-d float32, float16 or bfloat16 tensor; "
                f"got {dense.dtype} of shape {tuple(dense.shape)}"
            )
        values = torch.empty(dense.shape, dtype=torch.int8, device=dense.device)
        scale = torch.empty(len(dense), device=dense.device)
        for begin in range(0, len(dense), rows_at_a_time(dense)):
            part = slice(begin, begin + rows_at_a_time(dense))
            check_finite(dense[part], begin)
            values[part], scale[part] = rounded(dense[part].detach())
        return cls(values=values, scale=scale, trusted=True)


Features = Tensor | SparseFeatures | ScaledFeatures
"""Node features in one of the forms that a graph holds."""


def widened(values: Tensor, scale: Tensor, out: Tensor | None = None) -> Tensor:
    """Return ``scale[i] * values[i]`` for each row ``i`` of int8, in float32."""
    return torch.mul(values, scale.unsqueeze(1), out=out)


def rounded(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the int8 numbers and the scales of rows of finite floats.

    Scales have 17 significant bits. Their products with 7-bit numbers are exact in float32. So every kernel
    gives the same bits, and a widened number differs from its float by at most half a scale.
    """
    scale = _scales(rows)
    steps = torch.where(scale > 0, scale, 1.0).double().unsqueeze(1)
    return (rows.double() / steps).round_().to(torch.int8), scale


def rows_at_a_time(x: Tensor) -> int:
    """Return how many rows are rounded at a time, so that temporaries stay small."""
    return max(1, _CHUNK // max(1, x.shape[1]))


def _scales(rows: Tensor) -> Tensor:
    """Return the least scales of 17 significant bits by which each row's numbers are within 127 steps."""
    if not rows.shape[1]:
        return torch.zeros(len(rows), device=rows.device)
    most, info = rows.abs().amax(1).double(), torch.finfo(torch.float32)
    # As integers, the bits of positive floats rise with the floats: a scale without its spare bits is rounded
    # down, and with one more in the bits that are left, up.
    bits = (most / STEPS).float().view(torch.int32) >> _SPARE_BITS
    below, above = ((part << _SPARE_BITS).view(torch.float32) for part in (bits, bits + 1))
    # If a product of the larger scale is beyond float32, 127 steps of the smaller one come near enough.
    is_enough = (below.double() * STEPS >= most) | (above.double() * STEPS > info.max)
    scale = torch.where(is_enough, below, above).clamp(min=info.tiny)
    return torch.where(most > 0, scale, 0.0)


def check_scale(scale: Tensor) -> None:
    """Raise DataError that names the first scale that is not finite or negative."""
    position = first_unsound_weight(scale, may_be_negative=False)
    if position >= 0:
        raise DataError(
            f"scales of int8 features must be finite and not negative; scale[{position}] is "
            f"{float(scale[position])}"
        )


def stored_rows(x: Features | None) -> Tensor | None:
    """Return the array with a row per node in which dense features are kept; None for sparse ones or none."""
    return x.values if isinstance(x, ScaledFeatures) else x if isinstance(x, Tensor) else None


def scale_of(x: Features | None) -> Tensor | None:
    """Return the scale of each row of int8; None for features in another form."""
    return x.scale if isinstance(x, ScaledFeatures) else None


def is_widened(x: Features | None) -> bool:
    """Return whether dense features are kept in another dtype than float32, in which models compute."""
    rows = stored_rows(x)
    return rows is not None and rows.dtype != torch.float32


def kept_row_bytes(x: Tensor | ScaledFeatures) -> int:
    """Return the bytes in which a row of dense features is kept, its scale included."""
    rows = x.values if isinstance(x, ScaledFeatures) else x
    scale_bytes = x.scale.itemsize if isinstance(x, ScaledFeatures) else 0
    return rows.shape[1:].numel() * rows.itemsize + scale_bytes


def given_row_bytes(x: Features | None) -> int:
    """Return the bytes of a feature row as batches hold it; for sparse features, the mean of all rows."""
    if x is None:
        return 0
    if isinstance(x, ScaledFeatures):
        return x.shape[1] * x.dtype.itemsize
    return x.nbytes // max(x.shape[0], 1)
