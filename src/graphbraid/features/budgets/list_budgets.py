"""Budgets of adjacency lists: how a file is read within one, and what drawing from a list reads."""

from __future__ import annotations

import torch
from torch import Tensor

from graphbraid.arguments import as_budget
from graphbraid.errors import ResourceError
from graphbraid.features.rows.disk import DiskOptions
from graphbraid.files.block_sums import BLOCK_BYTES
from graphbraid.files.writing import format_bytes
from graphbraid.machine.hardware import free_memory_bytes

_LONGEST_BYTES = 4 * BLOCK_BYTES
_FEWEST_REQUESTS = 4


def options_for(host: int | str) -> DiskOptions:
    """How to read lists for a budget: requests under way take an eighth of it at most, where that is some."""
    size = as_budget(host, "host")
    whole = DiskOptions(longest_bytes=_LONGEST_BYTES)
    fit = size // 8 // _LONGEST_BYTES if size else whole.depth
    if fit >= _FEWEST_REQUESTS:
        return DiskOptions(longest_bytes=_LONGEST_BYTES, depth=min(fit, whole.depth))
    return DiskOptions(longest_bytes=BLOCK_BYTES, depth=_FEWEST_REQUESTS)


def list_blocks(degrees: Tensor, fanout: int, itemsize: int, block_bytes: int = BLOCK_BYTES) -> Tensor:
    """Blocks that drawing ``fanout`` edges of each list is expected to touch.

    Args:
        degrees: ``(num_nodes,)`` int64.
        fanout: edges drawn, alike and independently; -1 takes all.
        itemsize: bytes of an id.
        block_bytes: read at a time, from a file or over a link.

    Returns:
        ``(num_nodes,)`` float64; 0 for empty lists.
    """
    # A list begins anywhere in a block: it lies in as many as it would fill, and the rest of one more.
    spans = ((degrees - 1) * itemsize / block_bytes + 1.0).clamp(min=0.0) * (degrees > 0)
    if fanout < 0:
        return spans
    drawn = degrees.clamp(max=fanout).double()
    return torch.where(spans > 1.0, spans * -torch.expm1(drawn * torch.log1p(-1.0 / spans)), spans)


def require_free(num_bytes: int, what: str) -> None:
    """Check that a budget is free memory.

    Raises:
        ResourceError: it is not.
    """
    free = free_memory_bytes()
    if free is not None and num_bytes > free:
        raise ResourceError(
            f"{what} takes {format_bytes(num_bytes)} of memory; {format_bytes(free)} are free. Give less: "
            "the others are read from the file"
        )
