"""gather_rows: copies rows by id, which brings features into a mini-batch."""

from __future__ import annotations

import torch
from torch import Tensor

from graphbraid.arguments import check_tensor
from graphbraid.errors import DataError
from graphbraid.graph.scaled_features import ScaledFeatures
from graphbraid.graph.scans import first_out_of_range
from graphbraid.ops.aggregation import backend
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
    at = -1 if trusted else first_out_of_range(ids, x.shape[0])
    if at >= 0:
        raise DataError(f"ids must be rows of x, in [0, {x.shape[0]}); ids[{at}] is {int(ids[at])}")
    x = x.detach()
    if scale is not None:
        return _scaled(x, scale, ids, dtype)
    if dtype not in (None, x.dtype):
        return _widened(x, ids, dtype)
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


def _widened(x: Tensor, ids: Tensor, dtype: torch.dtype | None) -> Tensor:
    if dtype != torch.float32 or x.dtype not in (torch.float16, torch.bfloat16):
        raise DataError(
            f"rows of float16 and bfloat16 are given as float32, too; got {x.dtype} to give as {dtype}"
        )
    out = torch.empty(ids.numel(), x.shape[1], device=x.device)
    if out.numel():
        backend(x).gather_as_float(x.contiguous(), ids.contiguous(), out)
    return out


def _scaled(x: Tensor, scale: Tensor, ids: Tensor, dtype: torch.dtype | None) -> Tensor:
    check_tensor(scale, "scale", ndim=1)
    if x.dtype != torch.int8 or dtype not in (None, torch.float32):
        raise DataError(f"rows of int8 with scale= are given as float32; got {x.dtype} to give as {dtype}")
    if scale.dtype != torch.float32 or len(scale) != len(x) or scale.device != x.device:
        raise DataError(
            f"scale must be float32 on {x.device}, one for each of {len(x)} rows; got {scale.dtype} of shape "
            f"{tuple(scale.shape)} on {scale.device}"
        )
    out = torch.empty(ids.numel(), x.shape[1], device=x.device)
    if out.numel():
        backend(x).gather_scaled(x.contiguous(), scale.contiguous(), ids.contiguous(), out)
    return out
