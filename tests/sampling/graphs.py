"""Graphs for the sampler's tests."""

import numpy as np
import torch

from graphbraid.graph.csc import Csc


def power_law_csc(num_nodes=1000, num_edges=8000, *, seed=0, wide=False, weighted=False):
    """Hubs, isolated nodes, repeated edges and self-loops; a fifth of the weights are zero."""
    rng = np.random.default_rng(seed)
    dst = np.sort(np.minimum((rng.pareto(1.2, num_edges) * 3).astype(np.int64), num_nodes - 1))
    indptr = np.concatenate([[0], np.cumsum(np.bincount(dst, minlength=num_nodes))])
    indices = rng.integers(0, num_nodes, num_edges).astype(np.int64 if wide else np.int32)
    weight = np.where(rng.random(num_edges) < 0.2, 0, rng.random(num_edges)).astype(np.float32)
    return Csc(
        torch.from_numpy(indptr),
        torch.from_numpy(indices),
        num_nodes,
        torch.from_numpy(weight) if weighted else None,
    )


def star_csc(degree):
    """Node 0 has the in-neighbours 1..degree, once each."""
    indptr = torch.cat([torch.zeros(1), torch.full((degree + 1,), degree)]).long()
    return Csc(indptr, torch.arange(1, degree + 1, dtype=torch.int32), degree + 1)


def drawn_data(types, relations, seed=0):
    """Data of so many nodes and edges of each type, which have features."""
    from tests.beside_pyg import HeteroData

    draw, data = torch.Generator().manual_seed(seed), HeteroData()
    for name, count in types.items():
        data[name].x = torch.rand(count, 3, generator=draw)
    for (source, name, destination), count in relations.items():
        ends = [torch.randint(types[end], (count,), generator=draw) for end in (source, destination)]
        data[source, name, destination].edge_index = torch.stack(ends)
        data[source, name, destination].edge_attr = torch.rand(count, 2, generator=draw)
    return data
