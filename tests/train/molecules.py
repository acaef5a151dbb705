"""Many small graphs: rings and paths."""

import torch
from torch_geometric.data import Data

SPLITS = {"train": torch.arange(26), "val": torch.arange(26, 33), "test": torch.arange(33, 40)}


def molecules(count=40, *, dtype=torch.float64, seed=0, least=1):
    """Rings (class 1) and paths (class 0) with extra atoms; one has no edges, another a self-loop."""
    drawn = torch.Generator().manual_seed(seed)
    found = []
    for number in range(count):
        size = int(torch.randint(least, 9, (1,), generator=drawn))
        at = torch.arange(size)
        path = torch.stack([at[:-1], at[1:]]) if size else torch.empty(2, 0, dtype=torch.int64)
        is_ring = number % 2 == 1 and size > 2
        ring = torch.tensor([[size - 1], [0]]) if is_ring else torch.empty(2, 0, dtype=torch.int64)
        edges = torch.cat([path, path.flip(0), ring, ring.flip(0)], 1)
        found.append(
            Data(
                x=torch.randn(size, 3, generator=drawn, dtype=dtype),
                edge_index=edges,
                edge_attr=torch.randn(edges.shape[1], 2, generator=drawn, dtype=dtype),
                kind=torch.randint(0, 5, (size,), generator=drawn),
                charge=torch.randn(1, 4, generator=drawn, dtype=dtype),
                y=torch.tensor([int(is_ring)]),
                smiles=f"molecule {number}",
            )
        )
    return found
