"""Graphs in both forms: a Csc for graphbraid's layers, the same edges in the same order for PyG's."""

import torch
from tests.ops.graphs import skewed, square
from torch import Tensor

from graphbraid.graph.csc import Csc


def edge_index(csc: Csc) -> Tensor:
    return torch.stack((csc.indices.long(), csc.destinations().long()))


def graph_with_weights(num_nodes: int = 50) -> Csc:
    csc = square(num_nodes)
    generator = torch.Generator().manual_seed(5)
    csc.weight = torch.rand(csc.num_edges, generator=generator) + 0.1
    return csc


def without_stored_loops(csc: Csc) -> Csc:
    kept = csc.indices != csc.destinations()
    indptr = torch.zeros_like(csc.indptr)
    indptr[1:] = torch.bincount(csc.destinations()[kept].long(), minlength=csc.num_dst).cumsum(0)
    return Csc(indptr, csc.indices[kept], csc.num_src, None if csc.weight is None else csc.weight[kept])


def blocks(num_layers: int = 2, *, seed: int = 0) -> list[Csc]:
    """Blocks of a mini-batch, outermost first; each one's destinations are the next one's sources."""
    sizes = [60, 40, 25, 12, 5][: num_layers + 1]
    return [skewed(sizes[i + 1], sizes[i], seed=seed + i) for i in range(num_layers)]
