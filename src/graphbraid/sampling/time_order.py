"""Adjacency lists in the order of their edges' times, of which those up to a time are the first ones."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from graphbraid.graph.csc import Csc


def sorted_by_time(csc: Csc, time: Tensor) -> tuple[Csc, Tensor]:
    """Sort the in-edges of each node by time, equal ones as they stand.

    Args:
        csc: the adjacency.
        time: ``(num_edges,)`` int64 time of each stored edge.

    Returns:
        The sorted adjacency, and the ``(num_edges,)`` int64 position in ``csc`` of each of its edges.
    """
    order = torch.from_numpy(np.lexsort((time.numpy(), csc.destinations().numpy())))
    weight = None if csc.weight is None else csc.weight[order]
    return Csc(csc.indptr, csc.indices[order], csc.num_src, weight, trusted=True), order
