"""Partitions that look at no neighbour: contiguous ranges of nodes of equal load, and random ones."""

from __future__ import annotations

import torch
from torch import Tensor


def contiguous(loads: Tensor, num_parts: int) -> Tensor:
    """Cut the nodes, in their order, into ranges of about equal load, by binary search.

    The edge-balanced node split of Wang et al., "MGG" (Algorithm 1). Departs from it in two ways: a cut is
    searched for its share of the whole load, not of what the cuts before left, so that a hub's excess is not
    carried along; and of the two nodes around a share the nearer one is taken.

    Args:
        loads: ``(num_nodes,)`` int64, not negative.
        num_parts: Number of parts.

    Returns:
        ``(num_nodes,)`` int32 part of each node, never falling.
    """
    if not int(loads.sum()):
        loads = torch.ones_like(loads)
    before = torch.zeros(loads.numel() + 1, dtype=torch.int64)
    torch.cumsum(loads, 0, out=before[1:])
    total = int(before[-1])
    shares = torch.tensor([total * cut // num_parts for cut in range(1, num_parts)], dtype=torch.int64)
    above = torch.searchsorted(before, shares)
    below = (above - 1).clamp(min=0)
    cuts = torch.where(shares - before[below] < before[above] - shares, below, above)
    return torch.searchsorted(cuts, torch.arange(loads.numel()), right=True).to(torch.int32)


def at_random(num_nodes: int, num_parts: int, seed: int) -> Tensor:
    """Deal the nodes out at random: the baseline, with numbers of nodes that differ by one at most.

    Returns:
        ``(num_nodes,)`` int32 part of each node.
    """
    order = torch.randperm(num_nodes, generator=torch.Generator().manual_seed(seed))
    part_of = torch.empty(num_nodes, dtype=torch.int32)
    part_of[order] = (torch.arange(num_nodes) % num_parts).to(torch.int32)
    return part_of
