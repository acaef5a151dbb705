"""What a pass over the whole graph allocates, found on small graphs of the same shape where it is large.

A pass takes memory in proportion to nodes and edges. Two graphs, one twice the size of the other, of the same
mean degree and of the graph's own feature rows therefore say what a graph of any size takes; no pass that may
not fit is run. What torch decides by size alone is not seen.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from graphbraid.estimates.allocation import allocation_of
from graphbraid.estimates.trial import Trial
from graphbraid.graph import Graph, ScaledFeatures, SparseFeatures
from graphbraid.graph.csc import Csc
from graphbraid.graph.scaled_features import Features
from graphbraid.train.step.runner import WholeGraph

SMALL = 1 << 18
"""Nodes and edges up to which a pass is run on the graph itself."""
_NODES, _EDGES = 1 << 13, 1 << 18
"""Size of the smaller of the two graphs, at most."""


def forward_bytes(trial: Trial) -> int:
    """Return the bytes that a forward pass in evaluation mode allocates, outputs included."""

    def forward(graph: Graph) -> int:
        runner = trial.runner_on(graph)
        with trial.evaluating():
            return allocation_of(runner.on_graph, trial.device).peak

    return _scaled(trial.graph, forward)


def training_bytes(trial: Trial) -> int:
    """Return the bytes that a training step of a model that runs as it is written allocates."""

    def step(graph: Graph) -> int:
        other = Trial(trial.runner.model, graph, trial.config)
        assert graph.y is not None
        share = graph.num_nodes / trial.graph.num_nodes
        ids = torch.arange(max(1, int(share * trial.nodes.numel())))
        batch = WholeGraph(nodes=ids.to(trial.device), seed_y=graph.y[ids].to(trial.device))
        other.step(batch)  # makes what stays: the optimizer's state
        other.forget_gradients()
        return allocation_of(lambda: other.step(batch), trial.device).peak

    return _scaled(trial.graph, step)


def _scaled(graph: Graph, measure: Callable[[Graph], int]) -> int:
    if graph.num_nodes + graph.num_edges <= SMALL:
        return measure(graph)
    degree = graph.num_edges / max(graph.num_nodes, 1)
    count = max(64, min(_NODES, graph.num_nodes // 2, int(_EDGES / max(degree, 1))))
    first, second = measure(part_of(graph, count)), measure(part_of(graph, 2 * count))
    return int(second + (second - first) * (graph.num_nodes / count - 2))


def part_of(graph: Graph, num_nodes: int) -> Graph:
    """Return a graph of the first nodes' rows and labels, with edges of the graph's mean degree at random."""
    degree = graph.num_edges / max(graph.num_nodes, 1)
    indptr = (torch.arange(num_nodes + 1) * degree).long()
    draw = torch.Generator().manual_seed(0)
    count = int(indptr[-1])
    indices = torch.randint(num_nodes, (count,), generator=draw, dtype=graph.csc.indices.dtype)
    weight = None if graph.csc.weight is None else torch.ones(count)
    ids = torch.arange(num_nodes)
    return Graph(
        csc=Csc(indptr, indices, num_nodes, weight, trusted=True),
        edge_attr=None if graph.edge_attr is None else graph.edge_attr[:count].clone(),
        x=rows_of(graph.x, ids),
        y=graph.y if graph.y is None else graph.y[:num_nodes].clone(),
        splits={"train": ids},
        trusted=True,
    )


def rows_of(x: Features | None, ids: Tensor) -> Features | None:
    """Return the feature rows of nodes, in the form of ``x``."""
    if isinstance(x, SparseFeatures):
        return x.rows(ids)
    if isinstance(x, ScaledFeatures):
        return ScaledFeatures(values=x.values[ids], scale=x.scale[ids], trusted=True)
    return x if x is None else x.index_select(0, ids)
