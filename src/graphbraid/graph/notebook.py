"""The display of a graph in a notebook: counts, features, labels and splits by type. It reads no edges."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from graphbraid.figures import notebook, table
from graphbraid.files.writing import format_bytes
from graphbraid.graph.scaled_features import Features, ScaledFeatures
from graphbraid.graph.sparse_features import SparseFeatures
from graphbraid.graph.types import ONLY_EDGE_TYPE, ONLY_NODE_TYPE, EdgeSet, NodeSet

if TYPE_CHECKING:
    from graphbraid.graph.graph import Graph


def graph_html(graph: Graph) -> str:
    """Return the HTML of a graph for a notebook; only the labels of nodes are read."""
    name = f"{graph.name}: " if graph.name else ""
    head = f"Graph {name}{graph.num_nodes:,} nodes, {graph.num_edges:,} edges, {format_bytes(graph.nbytes)}"
    if graph.types is not None:
        nodes, edges = graph.types.nodes, graph.types.edges
    else:  # edges_of would copy features of edges into their original order
        weighted = graph.csc.weight is not None
        edge_set = EdgeSet(num_edges=graph.num_edges, edge_attr=graph.edge_attr, weighted=weighted)
        nodes, edges = {ONLY_NODE_TYPE: graph.nodes_of(ONLY_NODE_TYPE)}, {ONLY_EDGE_TYPE: edge_set}
    rows = [
        (
            kind,
            of.num_nodes,
            _features(of.x),
            _labels(of),
            *_others(of.splits, of.time),
            format_bytes(of.nbytes),
        )
        for kind, of in nodes.items()
    ]
    relations = [
        (
            " ".join(kind),
            of.num_edges,
            _features(of.edge_attr) + (", weights" if of.weighted else ""),
            "" if of.y is None else _columns(of.y),
            *_others(of.splits, of.time),
            format_bytes(of.nbytes),
        )
        for kind, of in edges.items()
    ]
    rest = ("features", "labels", "splits", "times", "bytes without topology")
    return notebook(head, table(rows, ("nodes", "", *rest)), table(relations, ("edges", "", *rest)))


def _features(x: Features | None) -> str:
    if x is None:
        return ""
    kind = "int8" if isinstance(x, ScaledFeatures) else str(x.dtype).removeprefix("torch.")
    return f"{x.shape[1]:,} {'sparse ' if isinstance(x, SparseFeatures) else ''}{kind}"


def _labels(nodes: NodeSet) -> str:
    y = nodes.y
    if y is None:
        return ""
    return _columns(y) if y.dtype.is_floating_point else f"{nodes.num_classes:,} classes"


def _columns(values: Tensor) -> str:
    width = values.shape[1] if values.ndim > 1 else 1
    return f"{width:,} {str(values.dtype).removeprefix('torch.')}"


def _others(splits: Mapping[str, Tensor], time: Tensor | None) -> tuple[str, str]:
    counts = ", ".join(f"{ids.numel():,} {name}" for name, ids in splits.items())
    return counts, "" if time is None else str(time.dtype).removeprefix("torch.")
