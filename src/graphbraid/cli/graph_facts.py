"""Facts about a graph, as a line of text and as values for ``--json``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from graphbraid.files.writing import format_bytes

if TYPE_CHECKING:
    from torch import Tensor

    from graphbraid.graph import Graph

_COLUMNS = {"single-label": "classes", "multi-label": "labels", "regression": "targets"}


def graph_facts(graph: Graph) -> str:
    """Describe a graph in one line."""
    parts = [f"{graph.num_nodes:,} nodes", f"{graph.num_edges:,} edges"]
    if graph.is_typed:
        parts += [f"{len(graph.node_types)} node types", f"{len(graph.edge_types)} relations"]
        return ", ".join([*parts, format_bytes(graph.nbytes)])
    parts += [*_row_facts(graph), format_bytes(graph.nbytes)]
    return ", ".join(parts + _split_facts(graph.splits))


def type_facts(graph: Graph) -> list[tuple[str, str]]:
    """Describe each node type and each relation of a graph with types; none of one without."""
    if not graph.is_typed:
        return []
    found = []
    for node_type in graph.node_types:
        nodes = graph.nodes_of(node_type)
        parts = [f"{nodes.num_nodes:,} nodes", *_row_facts(_alone(graph, node_type))]
        parts += ["times"] * (nodes.time is not None) + _split_facts(nodes.splits)
        found.append((node_type, ", ".join(parts)))
    for edge_type in graph.edge_types:
        edges = graph.edges_of(edge_type)
        parts = [f"{edges.num_edges:,} edges"]
        if edges.edge_attr is not None:
            parts.append(f"{edges.edge_attr.shape[1]} edge features")
        parts += ["weights"] * edges.weighted + ["times"] * (edges.time is not None)
        parts += _split_facts(edges.splits)
        found.append((" ".join(edge_type), ", ".join(parts)))
    return found


def graph_values(graph: Graph) -> dict[str, Any]:
    """Return the facts about a graph as plain values; of one with types, also those of each type."""
    values: dict[str, Any] = {"num_nodes": graph.num_nodes, "num_edges": graph.num_edges}
    if not graph.is_typed:
        return values | _of_nodes(graph)
    values["node_types"] = {
        name: {"num_nodes": graph.nodes_of(name).num_nodes} | _of_nodes(_alone(graph, name))
        for name in graph.node_types
    }
    values["relations"] = [
        {"type": list(edge_type), "num_edges": graph.edges_of(edge_type).num_edges}
        for edge_type in graph.edge_types
    ]
    return values


def _of_nodes(graph: Graph) -> dict[str, Any]:
    return {
        "num_features": graph.num_features,
        "num_classes": graph.num_classes if graph.y is not None else None,
        "task": graph.task if graph.y is not None else None,
        "splits": {name: int(nodes.numel()) for name, nodes in graph.splits.items()},
    }


def _alone(graph: Graph, node_type: str) -> Graph:
    """Return the nodes of a type as a graph without edges, to say of them what is said of graphs."""
    import torch

    from graphbraid.graph import Graph
    from graphbraid.graph.csc import Csc

    nodes = graph.nodes_of(node_type)
    ends = torch.zeros(1, dtype=torch.int64).expand(nodes.num_nodes + 1)
    csc = Csc(ends.contiguous(), torch.empty(0, dtype=torch.int32), nodes.num_nodes, trusted=True)
    return Graph(csc=csc, x=nodes.x, y=nodes.y, splits=nodes.splits, trusted=True)


def _row_facts(graph: Graph) -> list[str]:
    features = "no features" if graph.x is None else f"{graph.num_features} features{_kept_as(graph)}"
    if graph.y is None:
        return [features, "no labels"]
    return [features, f"{graph.num_classes} {_COLUMNS[graph.task]} ({graph.task})"]


def _kept_as(graph: Graph) -> str:
    """Say the dtype in which features are kept where it is not float32."""
    from graphbraid.graph import ScaledFeatures

    x = graph.x
    kept = x.values if isinstance(x, ScaledFeatures) else x
    dtype = "float32" if kept is None else str(kept.dtype).removeprefix("torch.")
    return "" if dtype == "float32" else f" in {dtype}"


def _split_facts(splits: Mapping[str, Tensor]) -> list[str]:
    return [" / ".join(f"{ids.numel():,} {name}" for name, ids in splits.items())] if splits else []
