"""A report's section on the graph: counts, degrees, and the share of edges that join equal labels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from graphbraid.figures.charts import bar_chart
from graphbraid.figures.page import figures, table

if TYPE_CHECKING:
    from torch import Tensor

    from graphbraid.graph import Graph

CHUNK = 1 << 22
"""Edges compared at a time, so that no array of a number per edge is held."""


def graph_section(graph: Graph) -> str:
    """Return the section; of a graph with types, counts alone."""
    rows: list[tuple[str, object]] = [("nodes", graph.num_nodes), ("edges", graph.num_edges)]
    if graph.is_typed:
        rows += [(f"nodes of {name}", graph.nodes_of(name).num_nodes) for name in graph.node_types]
        rows += [(f"edges {' '.join(kind)}", graph.edges_of(kind).num_edges) for kind in graph.edge_types]
        return table(rows)
    degrees = graph.csc.indptr.diff()
    if degrees.numel():
        rows += [
            ("in-degree, mean", float(degrees.double().mean())),
            ("in-degree, median", int(degrees.median())),
        ]
        rows.append(("in-degree, largest", int(degrees.max())))
        rows.append(("nodes without in-edges", int((degrees == 0).sum())))
    if graph.y is not None and graph.task == "single-label" and graph.num_edges:
        share = homophily(graph, graph.y)
        rows.append(("edges that join equal labels (homophily)", f"{share:.1%}"))
    bins = torch.bincount(degrees.clamp(min=1).double().log2().floor().long()) if degrees.numel() else degrees
    bars = {
        f"{2**b}" if b == 0 else f"{2**b} to {2 ** (b + 1) - 1}": float(n)
        for b, n in enumerate(bins.tolist())
    }
    return table(rows) + figures([bar_chart(bars, title="Nodes by in-degree; 0 counts as 1")])


def homophily(graph: Graph, labels: Tensor) -> float:
    """Return the share of edges between two labelled nodes whose labels are equal (edge homophily)."""
    indptr, indices = graph.csc.indptr, graph.csc.indices
    same = known = 0
    for begin in range(0, graph.num_edges, CHUNK):
        edges = torch.arange(begin, min(begin + CHUNK, graph.num_edges))
        destination = torch.searchsorted(indptr, edges, right=True) - 1
        ends = labels[indices[edges].long()], labels[destination]
        both = (ends[0] >= 0) & (ends[1] >= 0)
        known += int(both.sum())
        same += int((both & (ends[0] == ends[1])).sum())
    return same / known if known else float("nan")
