"""spread_rows: rows to their places among others that are zero; gathering them is the way back."""

from __future__ import annotations

import torch
from torch import Tensor

from graphbraid.ops.aggregation import backend


def places_of(ids: Tensor, num_out: int) -> Tensor:
    """``(num_out,)`` int32: where in ``ids``, int64 and each once, a row stands; -1 where it does not."""
    places = torch.full((num_out,), -1, dtype=torch.int32, device=ids.device)
    places[ids] = torch.arange(ids.numel(), dtype=torch.int32, device=ids.device)
    return places


def spread_rows(rows: Tensor, places: Tensor, out: Tensor) -> None:
    """``out[v] = rows[places[v]]``, zeros where ``places[v]`` is -1. On the CPU; not seen by autograd.

    Args:
        rows: ``(num_rows, width)`` float32.
        places: ``(num_out,)`` int32 below ``num_rows``.
        out: ``(num_out, width)`` float32, contiguous, written.
    """
    backend(out).spread_rows(rows.detach().contiguous(), places, out)


__all__ = ["places_of", "spread_rows"]
