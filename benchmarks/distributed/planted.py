"""Random graphs for ranks: :func:`planted` and :func:`skewed` of blocks, :func:`scattered` without."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from graphbraid.distributed import Partition
from graphbraid.graph import Graph
from graphbraid.graph.csc import coo_to_csc
from graphbraid.nn import GCN

DEGREE, FEATURES, HIDDEN, CLASSES, LAYERS = 15, 64, 64, 32, 3


def planted(num_nodes: int, num_blocks: int, visible: float) -> Graph:
    """A random graph whose halo is known: each block's first rows have an edge to each other block.

    Args:
        num_nodes: number of nodes, which is rounded down to a multiple of ``num_blocks``.
        num_blocks: number of blocks, of consecutive nodes.
        visible: share of a block's nodes that each other block reads.
    """
    draw = torch.Generator().manual_seed(0)
    size = num_nodes // num_blocks
    within = torch.randint(size, (2, num_blocks, size * DEGREE), generator=draw)
    within += size * torch.arange(num_blocks)[:, None]
    sources, destinations = [within[0].flatten()], [within[1].flatten()]
    rows = torch.arange(round(visible * size))
    for block in range(num_blocks):
        for other in range(num_blocks):
            if other != block:
                sources.append(rows + block * size)
                destinations.append(torch.randint(size, rows.shape, generator=draw) + other * size)
    return _graph("planted", torch.cat(sources), torch.cat(destinations), num_blocks * size, draw)


def scattered(num_nodes: int) -> Graph:
    """A random graph without blocks: each of two ranks has about half of its edges from the other's rows."""
    draw = torch.Generator().manual_seed(0)
    source, destination = torch.randint(num_nodes, (2, num_nodes * DEGREE), generator=draw)
    return _graph("scattered", source, destination, num_nodes, draw)


def skewed(num_nodes: int, num_blocks: int, crossing: float) -> Graph:
    """A random graph of blocks in which few nodes are the sources of most edges.

    Args:
        num_nodes: number of nodes, which is rounded down to a multiple of ``num_blocks``.
        num_blocks: number of blocks, of consecutive nodes.
        crossing: share of the edges that come from another block.
    """
    draw = torch.Generator().manual_seed(0)
    size = num_nodes // num_blocks
    num_edges = size * num_blocks * DEGREE
    destination = torch.randint(size * num_blocks, (num_edges,), generator=draw)
    away = torch.randint(1, max(num_blocks, 2), (num_edges,), generator=draw)
    away *= torch.rand(num_edges, generator=draw) < crossing
    place = (size * torch.rand(num_edges, generator=draw) ** 3).long()  # the cube: half of all from an eighth
    source = (destination // size + away) % num_blocks * size + place
    return _graph("skewed", source, destination, size * num_blocks, draw)


def _graph(name: str, source: Tensor, destination: Tensor, num_nodes: int, draw: torch.Generator) -> Graph:
    csc, _ = coo_to_csc(source, destination, num_nodes, num_nodes)
    return Graph(
        csc=csc,
        x=torch.randn(num_nodes, FEATURES, generator=draw),
        y=torch.randint(CLASSES, (num_nodes,), generator=draw),
        splits={"train": torch.arange(num_nodes)},
        name=name,
    )


def partition_of(graph: Graph, num_blocks: int) -> Partition:
    """The blocks as a partition."""
    size = graph.num_nodes // num_blocks
    part_of = (torch.arange(graph.num_nodes) // size).to(torch.int32)
    return Partition(part_of=part_of, num_parts=num_blocks, strategy="planted", balance="nodes")


def make_model(graph: Graph) -> nn.Module:
    """The model that is trained on it."""
    return GCN(graph.num_features, HIDDEN, graph.num_classes, LAYERS, dropout=0.5)
