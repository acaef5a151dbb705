"""What draws by weight read of a topology on the host, beside the drawn edges."""

from __future__ import annotations

import torch
from torch import Tensor

WEIGHT_BYTES, SUM_BYTES = 4, 8
"""Bytes of an edge's weight, and of the running sum that draws with replacement read in its place."""
AT_ONCE = 128
"""Weights of a list that a device keeps while it draws; those behind them are read again for each draw."""


def weight_bytes(degrees: Tensor, drawable: Tensor, fanout: int, *, replace: bool) -> Tensor:
    """Return the bytes of weights that a device's kernels read to draw from each list.

    Without replacement the race reads all weights, and those behind the first :data:`AT_ONCE` again for each
    draw; a list that is taken whole is read once. With replacement the last running sum is read, and those
    of a bisection for each draw, which counts with its most steps.

    Args:
        degrees: ``(num_lists,)`` int64 edges of each list; 0 for one that is not read of the host.
        drawable: ``(num_lists,)`` edges of a weight above 0.
        fanout: edges drawn; -1 takes all.
        replace: whether draws are with replacement.

    Returns:
        ``(num_lists,)`` int64.
    """
    if replace:
        steps = torch.frexp(degrees.double()).exponent.long()  # the bits of a degree
        return torch.where((degrees > 0) & (drawable > 0), 1 + fanout * steps, 0) * SUM_BYTES
    behind = (degrees - AT_ONCE).clamp(min=0)
    raced = degrees.clamp(max=AT_ONCE) + fanout * behind
    is_whole = drawable <= fanout if fanout >= 0 else torch.ones_like(drawable, dtype=torch.bool)
    return torch.where(is_whole, degrees, raced) * WEIGHT_BYTES


__all__ = ["AT_ONCE", "SUM_BYTES", "WEIGHT_BYTES", "weight_bytes"]
