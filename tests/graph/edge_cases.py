"""Edge lists that tests share: edge cases by hand, and random ones."""

import torch
from torch import Tensor

# (num_nodes, sources, destinations)
EDGE_CASES = {
    "no nodes": (0, [], []),
    "one node, no edges": (1, [], []),
    "one node, a self-loop": (1, [0], [0]),
    "no edges": (5, [], []),
    "isolated nodes at both ends": (6, [2, 3], [3, 2]),
    "a hub of in-edges": (50, list(range(50)), [7] * 50),
    "a hub of out-edges": (50, [7] * 50, list(range(49, -1, -1))),
    "duplicates": (3, [0, 1, 0, 0, 1], [1, 2, 1, 1, 2]),
    "self-loops, some twice": (4, [0, 1, 1, 3, 2], [0, 1, 1, 3, 3]),
    "falling order": (4, [3, 2, 1, 0], [3, 3, 1, 0]),
}


def random_edges(num_nodes: int, num_edges: int, *, seed: int = 0, hubs: bool = True) -> Tensor:
    """``(2, num_edges)`` with duplicates and self-loops; with hubs, a tenth of the ends lie on few nodes."""
    generator = torch.Generator().manual_seed(seed)
    edges = torch.randint(num_nodes, (2, num_edges), generator=generator)
    if hubs:
        at_hub = torch.rand(2, num_edges, generator=generator) < 0.1
        edges[at_hub] = edges[at_hub] % max(1, num_nodes // 50)
    return edges
