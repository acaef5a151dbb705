"""The walks of csrc/graph/scores.cpp in plain PyTorch, for tests."""

from __future__ import annotations

import torch
from torch import Tensor

MOST_NATS = 40.0
UNITS_PER_NAT = 2.0**46
_MOST_UNITS = int(MOST_NATS * UNITS_PER_NAT)
_NEWTON_STEPS = 64


def push_shares(indptr: Tensor, indices: Tensor, shares: Tensor, sums: Tensor) -> None:
    """For each source, sum the shares of its edges' destinations.

    Args:
        indptr: ``(num_nodes + 1,)`` int64.
        indices: ``(num_edges,)`` int32 or int64 sources.
        shares: ``(num_nodes,)`` int64, not negative, such that no sum reaches ``2**63``.
        sums: ``(num_nodes,)`` int64, written.
    """
    sums.zero_().index_add_(0, indices.long(), shares[_rows(indptr)])


def push_draws(  # noqa: PLR0917 - as the compiled one
    indptr: Tensor,
    indices: Tensor,
    weight: Tensor | None,
    chance: Tensor,
    fanout: int,
    replace: bool,
    sums: Tensor,
    missed: Tensor,
) -> None:
    """Multiply ``missed`` by each node's probability that no destination of its out-edges draws it.

    Args:
        indptr: ``(num_nodes + 1,)`` int64.
        indices: ``(num_edges,)`` int32 or int64 sources.
        weight: ``(num_edges,)`` float32 odds, or None.
        chance: ``(num_nodes,)`` float64 probability that a node draws.
        fanout: number of in-edges that it draws; -1 takes all.
        replace: whether it draws with replacement.
        sums: ``(num_nodes,)`` int64, written: minus the logarithm of the probability, in units of 2**-46.
        missed: ``(num_nodes,)`` float64, changed.
    """
    sums.zero_()
    if fanout == 0 or not indices.numel():
        return
    rows, sources = _rows(indptr), indices.long()
    if weight is None:
        drawn = _chance_of_degree(indptr.diff().double(), fanout, replace)[rows]
    else:
        drawn = _chance_by_weight(rows, weight.double(), indptr.numel() - 1, fanout, replace)
    nats = -torch.log1p(-(chance[rows] * drawn).clamp(max=1.0))
    units = (nats.clamp(max=MOST_NATS) * UNITS_PER_NAT).round().long()
    sums.index_add_(0, sources, units)  # may wrap, where the next line says that it is far too much
    is_full = torch.zeros_like(missed).index_add_(0, sources, units.double()) >= _MOST_UNITS
    sums[is_full] = _MOST_UNITS
    missed *= torch.exp(-sums.double() / UNITS_PER_NAT)


def count_ids(ids: Tensor, counts: Tensor) -> None:
    """Add 1 to ``(num_nodes,)`` int64 ``counts`` for each of the int64 ``ids``."""
    counts += torch.bincount(ids, minlength=counts.numel())


def _rows(indptr: Tensor) -> Tensor:
    return torch.repeat_interleave(torch.arange(indptr.numel() - 1), indptr.diff())


def _chance_of_degree(degree: Tensor, fanout: int, replace: bool) -> Tensor:
    """Return the probability that a row of each degree draws a given one of its edges."""
    if replace:
        return -torch.expm1(fanout * torch.log1p(-1.0 / degree))  # degree 1: log 0, and the chance is 1
    return torch.ones_like(degree) if fanout < 0 else (fanout / degree).clamp(max=1.0)


def _chance_by_weight(rows: Tensor, weight: Tensor, num_rows: int, fanout: int, replace: bool) -> Tensor:
    """Return each edge's probability when its row draws; without replacement, by the race's expected end."""

    def summed(values: Tensor) -> Tensor:
        return torch.zeros(num_rows, dtype=torch.float64).index_add_(0, rows, values)

    total, runners = summed(weight), summed((weight > 0).double())
    if replace:
        share = (weight / total[rows]).nan_to_num(0.0)  # a row whose weights are all zero draws nothing
        return -torch.expm1(fanout * torch.log1p(-share))
    takes_all = (runners <= fanout) | (fanout < 0)
    time = torch.where(takes_all, 0.0, fanout / total)
    for _ in range(_NEWTON_STEPS):
        runs = torch.exp(-weight * time[rows])
        missing, rate = fanout - summed(1.0 - runs), summed(weight * runs)
        goes_on = ~takes_all & (rate > 0) & (missing > 1e-12 * fanout)
        time = torch.where(goes_on, time + missing / rate, time)
    return torch.where(takes_all[rows], (weight > 0).double(), -torch.expm1(-weight * time[rows]))
