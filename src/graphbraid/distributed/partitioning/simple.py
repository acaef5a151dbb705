"""Partitions without a search for few cut edges: contiguous ranges, random ones, and packing by load."""

import numpy as np
import torch
from torch import Tensor

from graphbraid import native
from graphbraid.distributed.partitioning import reference
from graphbraid.graph.csc import Csc, indptr_of


def contiguous(loads: Tensor, num_parts: int) -> Tensor:
    """Cut the nodes, in their order, into ranges of about equal int64 load, by binary search.

    The edge-balanced node split of Wang et al., "MGG" (Algorithm 1). Departs from it in two ways: a cut is
    searched for its share of the whole load, not of what the cuts before left, so that a hub's excess is not
    carried along; and of the two nodes around a share the nearer one is taken. Returns int32 parts, never
    falling.
    """
    if not int(loads.sum()):
        loads = torch.ones_like(loads)
    before = indptr_of(loads)
    total = int(before[-1])
    shares = torch.tensor([total * cut // num_parts for cut in range(1, num_parts)], dtype=torch.int64)
    above = torch.searchsorted(before, shares)
    below = (above - 1).clamp(min=0)
    cuts = torch.where(shares - before[below] < before[above] - shares, below, above)
    return torch.searchsorted(cuts, torch.arange(loads.numel()), right=True).to(torch.int32)


def at_random(num_nodes: int, num_parts: int, seed: int) -> Tensor:
    """Deal the nodes out at random, int32: the baseline, with numbers of nodes that differ by one at most."""
    order = torch.randperm(num_nodes, generator=torch.Generator().manual_seed(seed))
    part_of = torch.empty(num_nodes, dtype=torch.int32)
    part_of[order] = (torch.arange(num_nodes) % num_parts).to(torch.int32)
    return part_of


_AT_A_TIME = 1 << 16


def pack(loads: Tensor, num_parts: int) -> Tensor:
    """Give each item, those of the largest int64 load first, to the lightest part; return int32 parts.

    This is phase III of Morphling's Algorithm 4 for nodes. The largest load of a part is at most 4/3 of the
    least possible one. Items without a load are spread evenly.
    """
    part_of = torch.empty(loads.numel(), dtype=torch.int32)
    order = loads.argsort(descending=True, stable=True)
    (native.kernels() or reference).pack_by_load(order, loads, num_parts, part_of)
    return part_of


def components(csc: Csc) -> tuple[int, Tensor]:
    """Return the number of weakly connected components and the one of each node, ``(num_nodes,)`` int64.

    Computed by SciPy, with a copy of the edges.
    """
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import connected_components

    if csc.num_dst == 0:
        return 0, torch.empty(0, dtype=torch.int64)
    there = np.ones(csc.num_edges, np.bool_)  # bool: sums of repeated edges cannot overflow to zero
    adjacency = csr_matrix((there, csc.indices.numpy(), csc.indptr.numpy()), (csc.num_dst, csc.num_dst))
    count, component_of = connected_components(adjacency, directed=True, connection="weak")
    return int(count), torch.from_numpy(component_of.astype(np.int64))


def pack_components(component_of: Tensor, num_components: int, loads: Tensor, num_parts: int) -> Tensor:
    """Keep each component whole: phase II of Morphling's Algorithm 4, by loads, not numbers of nodes."""
    of_components = torch.zeros(num_components, dtype=torch.int64).index_add_(0, component_of, loads)
    return pack(of_components, num_parts)[component_of]


def spread(part_of: Tensor, nodes: Tensor, num_parts: int) -> None:
    """Give nodes without a load to the parts with the fewest nodes, so that these numbers become alike."""
    part_of[nodes] = -1
    sizes = torch.zeros(num_parts + 1, dtype=torch.int64)
    for begin in range(0, part_of.numel(), _AT_A_TIME):
        sizes += torch.bincount(part_of[begin : begin + _AT_A_TIME] + 1, minlength=num_parts + 1)
    sizes = sizes[1:]
    low, high = int(sizes.min()), int(sizes.max()) + nodes.numel()
    while low < high:  # the least level up to which the parts hold all nodes
        level = (low + high) // 2
        has_room = int((level - sizes).clamp(min=0).sum()) >= nodes.numel()
        low, high = (low, level) if has_room else (level + 1, high)
    room = (low - sizes).clamp(min=0)
    excess = int(room.sum()) - nodes.numel()
    room[room.nonzero().squeeze(1)[:excess]] -= 1
    part_of[nodes] = torch.arange(num_parts, dtype=torch.int32).repeat_interleave(room)
