"""Graphs generated on the spot, for the GPU benchmarks first: that machine holds no data, reaches no network.

Sizes, widths and shares of training nodes are those of the graphs of the same names in
``benchmarks.graphs.rmat``; edges come from the library's own block model with its power-law degrees.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from graphbraid import Graph, SparseFeatures
from graphbraid.datasets.synthetic import BlockModel, generate


@dataclass(frozen=True, kw_only=True)
class Spec:
    """One graph."""

    num_nodes: int
    num_edges: int
    """Directed."""
    num_features: int
    num_classes: int
    train_share: float
    density: float = 1.0
    """Share of the features that is not zero; below 1 they are stored sparse."""


SPECS = {
    "physics-like": Spec(
        num_nodes=34_493,
        num_edges=520_000,
        num_features=8415,
        num_classes=5,
        train_share=0.5,
        density=0.0039,
    ),
    "flickr-like": Spec(
        num_nodes=89_250, num_edges=940_000, num_features=500, num_classes=7, train_share=0.5
    ),
    "arxiv-like": Spec(
        num_nodes=169_343, num_edges=2_440_000, num_features=128, num_classes=40, train_share=0.5
    ),
    "products-lite": Spec(
        num_nodes=500_000, num_edges=13_000_000, num_features=100, num_classes=47, train_share=0.08
    ),
    "reddit-lite": Spec(
        num_nodes=232_965, num_edges=12_000_000, num_features=602, num_classes=41, train_share=0.6
    ),
}
OTHERS = {
    "photo-like": Spec(
        num_nodes=7_650,
        num_edges=238_000,
        num_features=745,
        num_classes=8,
        train_share=0.6,
        density=0.347,
    ),
    "web-like": Spec(
        num_nodes=100_000, num_edges=5_600_000, num_features=128, num_classes=16, train_share=0.25
    ),
}
"""Seen furthest from their floor: small with many edges a node, and wide reads all over memory."""
SMOKE = {
    "dense": Spec(num_nodes=300, num_edges=2_400, num_features=24, num_classes=5, train_share=0.2),
    "sparse": Spec(
        num_nodes=300, num_edges=2_400, num_features=64, num_classes=5, train_share=0.5, density=0.05
    ),
}
"""Tiny ones, to run the benchmarks' logic anywhere."""


def make(name: str, spec: Spec) -> Graph:
    """The graph of a spec: equal specs give equal bits."""
    is_sparse = spec.density < 1
    model = BlockModel(
        num_nodes=spec.num_nodes,
        num_edges=spec.num_edges,
        num_classes=spec.num_classes,
        blocks_per_class=max(1, spec.num_nodes // (2000 * spec.num_classes)),
        num_features=8 if is_sparse else spec.num_features,
        train_share=spec.train_share,
        val_share=0.1,
    )
    graph = generate(model, name)
    return graph.replace(x=_sparse_features(spec)) if is_sparse else graph


def _sparse_features(spec: Spec) -> SparseFeatures:
    """Ones at random columns, equally many in each row: a bag of words without words' frequencies."""
    per_row = max(1, round(spec.density * spec.num_features))
    draw = torch.Generator().manual_seed(7)
    columns = torch.randint(
        0, spec.num_features, (spec.num_nodes, per_row), generator=draw, dtype=torch.int32
    )
    return SparseFeatures(
        indptr=torch.arange(0, spec.num_nodes * per_row + 1, per_row),
        indices=columns.sort(1).values.flatten(),
        values=torch.ones(spec.num_nodes * per_row),
        num_cols=spec.num_features,
    )
