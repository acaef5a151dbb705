"""gather_rows: copies rows by id, which brings features into a mini-batch."""

from __future__ import annotations

import torch
from torch import Tensor

from graphbraid.arguments import check_tensor
from graphbraid.errors import DataError
from graphbraid.graph.scans import first_out_of_range
from graphbraid.ops.aggregation import backend
from graphbraid.signatures import typed


@typed
def gather_rows(x: Tensor, ids: Tensor, *, trusted: bool = False) -> Tensor:
    """Gather rows by id: ``out[i] = x[ids[i]]``.

    It has no gradient: it is meant for features, not for activations.

    Args:
        x: ``(num_rows, width)`` of any dtype.
        ids: ``(num_ids,)`` int64 in ``[0, num_rows)``, in any order, repeated or not.
        trusted: skip the check of the ids. Only for ids known to be in range: others read out of bounds.

    Returns:
        ``(num_ids, width)`` of ``x``'s dtype.

    Raises:
        DataError: shapes or dtypes do not fit, or an id is out of range.
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
    if not x.is_contiguous() or x.numel() == 0 or ids.numel() == 0:
        return torch.index_select(x, 0, ids)
    out = x.new_empty(ids.numel(), x.shape[1])
    table, rows = x.view(torch.uint8), out.view(torch.uint8)  # the kernel copies bytes, whatever the dtype
    backend(table).gather_rows(table, ids.contiguous(), rows)
    return out
