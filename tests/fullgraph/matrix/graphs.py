"""The matrix's graphs, as PyG's data: with all an edge list can hold, directed, undirected, a real one."""

import numpy as np
import pytest
import torch
from tests.conftest import shared_data_folder
from torch_geometric.data import Data

NODES, CHANNELS, CLASSES = 24, 6, 4
GRAPHS = ("untidy", "directed", "undirected", "real")


def data_of(name):
    """Features, edges, labels, training mask, weights and edge features; the tests change copies of it."""
    return _real() if name == "real" else _drawn(name)


def _drawn(name):
    draw = torch.Generator().manual_seed(3)
    src, dst = torch.randint(NODES - 4, (2, 60), generator=draw)  # the last four nodes have no edges
    edges = torch.stack([src, dst])
    plain = edges[:, edges[0] != edges[1]]
    if name == "untidy":
        loops = torch.tensor([[0, 3, 3, 20], [0, 3, 3, 20]])
        edges = torch.cat([edges, edges[:, :9], loops], 1)
    elif name == "directed":
        edges = torch.unique(plain, dim=1)
    else:
        edges = torch.unique(torch.cat([plain, plain.flip(0)], 1), dim=1)
    return _filled(edges, NODES, torch.randn(NODES, CHANNELS, generator=draw), draw)


def _real():
    """The neighbourhood of some nodes of a real graph."""
    folder = shared_data_folder()
    path = None if folder is None else folder / "cora.npz"
    if path is None or not path.is_file():
        pytest.skip("the real graph, cora.npz, is not there; set GRAPHBRAID_TEST_DATA")
    held = np.load(path)
    edges = torch.from_numpy(held["edge_index"].astype(np.int64))
    inside = (edges < 300).all(0)
    draw = torch.Generator().manual_seed(4)
    return _filled(edges[:, inside], 300, torch.randn(300, CHANNELS, generator=draw), draw)


def _filled(edges, num_nodes, x, draw):
    mask = torch.zeros(num_nodes, dtype=torch.bool)
    mask[torch.randperm(num_nodes, generator=draw)[: num_nodes // 3]] = True
    count = edges.shape[1]
    return Data(
        x=x,
        edge_index=edges,
        y=torch.randint(CLASSES, (num_nodes,), generator=draw),
        train_mask=mask,
        edge_weight=torch.rand(count, generator=draw) + 0.2,
        num_nodes=num_nodes,
    )
