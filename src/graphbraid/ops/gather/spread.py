"""spread_rows: scatters rows into a matrix of zeros, the inverse of gathering them."""

from __future__ import annotations

import torch
from torch import Tensor

from graphbraid.ops.aggregation import backend


def places_of(ids: Tensor, num_out: int) -> Tensor:
    """Return each row's position in ``ids`` (int64, distinct) as ``(num_out,)`` int32; -1 if it is absent."""
    places = torch.full((num_out,), -1, dtype=torch.int32, device=ids.device)
    places[ids] = torch.arange(ids.numel(), dtype=torch.int32, device=ids.device)
    return places


def spread_rows(rows: Tensor, places: Tensor, out: Tensor) -> None:
    """Set ``out[v] = rows[places[v]]``, or zeros if ``places[v]`` is -1. On the CPU, without autograd.

    Args:
        rows: ``(num_rows, width)`` float32.
        places: ``(num_out,)`` int32 from :func:`places_of`, each -1 or below ``num_rows``.
        out: ``(num_out, width)`` float32, contiguous, written.
    """
    backend(out).spread_rows(rows.detach().contiguous(), places, out)


__all__ = ["places_of", "spread_rows"]
