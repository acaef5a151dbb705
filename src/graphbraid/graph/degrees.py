"""In-degrees and self-loops of a whole graph, by which layers normalise the blocks drawn from it."""

from __future__ import annotations

import torch
from torch import Tensor

from graphbraid.graph.csc import Csc

_EDGES_AT_A_TIME = 1 << 20
"""Edges, and nodes, that :func:`degrees_and_loops` counts at a time."""


def degrees_and_loops(csc: Csc) -> tuple[Tensor, Tensor | None]:
    """Compute :attr:`Csc.src_degree` and :attr:`Csc.src_loop` for all nodes of a whole graph."""
    degree, loop = torch.empty(csc.num_dst), None
    start = 0
    while start < csc.num_dst:  # nodes by their edges, so that no temporary is as large as these
        end = int(torch.searchsorted(csc.indptr, csc.indptr[start] + _EDGES_AT_A_TIME, right=True)) - 1
        end = min(max(end, start + 1), start + _EDGES_AT_A_TIME, csc.num_dst)
        low, high = int(csc.indptr[start]), int(csc.indptr[end])
        owner = torch.arange(end - start).repeat_interleave(csc.indptr[start : end + 1].diff())
        weight = torch.ones(high - low) if csc.weight is None else csc.weight[low:high].clone()
        at = (csc.indices[low:high] == owner + start).nonzero().squeeze(1)
        if at.numel():
            loop = torch.full((csc.num_dst,), torch.nan) if loop is None else loop
            loop[owner[at] + start] = weight[at]
        weight[at] = 0
        degree[start:end] = torch.zeros(end - start).index_add_(0, owner, weight)
        start = end
    return degree, loop
