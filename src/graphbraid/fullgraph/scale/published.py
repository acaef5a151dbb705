"""Graphs by their published sizes, and small random graphs that stand for them while a model is lowered."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from graphbraid.graph import Graph
from graphbraid.graph.csc import Csc

MINIATURE_NODES = 1 << 12


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphSize:
    """The sizes of a graph that need not be at hand."""

    name: str
    num_nodes: int
    num_edges: int
    num_features: int
    num_classes: int
    num_train: int
    feature_bytes: int = 4
    """Bytes of a feature in memory."""
    source: str = ""
    """Where the sizes are from."""

    @property
    def mean_degree(self) -> float:
        """Edges by nodes."""
        return self.num_edges / self.num_nodes


PUBLISHED = (
    GraphSize(
        name="papers100M",
        num_nodes=111_059_956,
        num_edges=1_615_685_872,
        num_features=128,
        num_classes=172,
        num_train=1_207_179,
        source="ogbn-papers100M, directed edges",
    ),
    GraphSize(
        name="MAG240M",
        num_nodes=121_751_666,
        num_edges=1_297_748_926,
        num_features=768,
        num_classes=153,
        num_train=1_112_392,
        feature_bytes=2,
        source="OGB-LSC: papers and citations, float16 features",
    ),
    GraphSize(
        name="10 billion edges",
        num_nodes=500_000_000,
        num_edges=10_000_000_000,
        num_features=128,
        num_classes=64,
        num_train=5_000_000,
        source="invented sizes",
    ),
)
"""The graphs that an epoch is predicted for beside the one at hand."""


def miniature(size: GraphSize, num_nodes: int = MINIATURE_NODES) -> Graph:
    """Return a random graph of a given one's mean degree, features, classes and share of training nodes."""
    draw = torch.Generator().manual_seed(0)
    num_nodes = min(num_nodes, size.num_nodes)
    num_edges = round(num_nodes * size.mean_degree)
    rows = torch.randint(num_nodes, (num_edges,), generator=draw)
    indptr = torch.zeros(num_nodes + 1, dtype=torch.int64)
    torch.cumsum(torch.bincount(rows, minlength=num_nodes), 0, out=indptr[1:])
    indices = torch.randint(num_nodes, (num_edges,), generator=draw, dtype=torch.int32)
    num_train = max(1, round(num_nodes * size.num_train / size.num_nodes))
    return Graph(
        csc=Csc(indptr, indices, num_nodes),
        x=torch.randn(num_nodes, size.num_features, generator=draw),
        y=torch.randint(size.num_classes, (num_nodes,), generator=draw),
        splits={"train": torch.arange(num_train)},
        name=size.name,
    )


__all__ = ["MINIATURE_NODES", "PUBLISHED", "GraphSize", "miniature"]
