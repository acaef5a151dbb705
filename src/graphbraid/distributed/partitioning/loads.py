"""Loads: what a node costs its part, and how evenly parts are loaded."""

from __future__ import annotations

import torch
from torch import Tensor

from graphbraid.distributed.partitioning.records import Balance
from graphbraid.graph.csc import Csc

PER_EDGE_AND_NODE: dict[Balance, tuple[int, int]] = {"edges": (1, 0), "nodes": (0, 1), "work": (1, 4)}
"""Load of an in-edge and of the node itself. Work: a row's own cost is that of four edges, as the compiled
kernels share rows among threads (``csrc/threads/balance.h``)."""


def node_loads(csc: Csc, balance: Balance) -> Tensor:
    """Return the load of each node, ``(num_nodes,)`` int64: what its owner does for it in a layer."""
    per_edge, per_node = PER_EDGE_AND_NODE[balance]
    return csc.degrees() * per_edge + per_node


def part_loads(part_of: Tensor, loads: Tensor, num_parts: int) -> Tensor:
    """Return the sum of each part's loads, ``(num_parts,)`` int64."""
    return torch.zeros(num_parts, dtype=torch.int64).index_add_(0, part_of, loads)


def imbalance(sums: Tensor) -> float:
    """Return the largest of the parts' loads by their mean; 1 where there is no load at all."""
    total = int(sums.sum())
    return float(sums.max()) * sums.numel() / total if total else 1.0
