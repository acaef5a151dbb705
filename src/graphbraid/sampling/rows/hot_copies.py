"""Copies of hot rows to a device: a part at a time, and an error that says what would fit."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from graphbraid.errors import ResourceError
from graphbraid.files.writing import format_bytes

Gather = Callable[[Tensor], Tensor]
"""Gives the rows of ids, both on the CPU."""
_COPIED_BYTES = 64 << 20  # of rows on their way to the device at a time


def copied_rows(ids: Tensor, source: Gather, device: torch.device) -> Tensor:
    """Return the rows of ids on a device, ``(num_ids, F)``, ready for every stream.

    Args:
        ids: ``(num_ids,)`` int64 rows on the CPU.
        source: gives their rows.
        device: where they go.

    Raises:
        ResourceError: the device does not have the memory.
    """
    some = source(ids[:1])
    row_bytes = some[:1].nbytes
    nbytes, free = row_bytes * len(ids), free_bytes(device)
    if free is not None and nbytes > free:
        raise _no_room(device, len(ids), nbytes, f"{format_bytes(free)} are free")
    try:
        table = torch.empty((len(ids), *some.shape[1:]), dtype=some.dtype, device=device)
    except torch.OutOfMemoryError as error:
        raise _no_room(device, len(ids), nbytes, "they could not be had") from error
    at_a_time = max(_COPIED_BYTES // max(row_bytes, 1), 1)
    for begin in range(0, len(ids), at_a_time):
        table[begin : begin + at_a_time].copy_(source(ids[begin : begin + at_a_time]))
    wait_for(device)
    return table


def wait_for(device: torch.device) -> None:
    """Wait for copies, since other streams than the current one read them, too."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


def free_bytes(device: torch.device) -> int | None:
    """Return the free memory of a device; None if that is not known."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None


def _no_room(device: torch.device, num_rows: int, nbytes: int, why: str) -> ResourceError:
    return ResourceError(
        f"{num_rows:,} hot rows take {format_bytes(nbytes)} on {device}, and {why}. Give a smaller hot=: the "
        "other rows are read from the host"
    )
