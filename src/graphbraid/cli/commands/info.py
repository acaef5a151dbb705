"""``graphbraid info``: shows what a graph holds; the facts about a graph, in words and as values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from graphbraid.cli.common import DebugOption, JsonOption, flag, guarded, out_console, print_json, say
from graphbraid.files.writing import format_bytes

if TYPE_CHECKING:
    from torch import Tensor

    from graphbraid.graph import EdgeSet, Graph, NodeSet
    from graphbraid.graph.graph_set import GraphSet
    from graphbraid.graph.scaled_features import Features


@guarded
def info(
    *,
    data: Annotated[
        str, typer.Argument(metavar="DATA", help="A store or OGB folder, an .npz file, or a name.")
    ],
    check: bool = flag(
        False, "--check", "Compare a store's files with their checksums and check every value of the graph."
    ),
    json_output: JsonOption = False,
    debug: DebugOption = False,  # noqa: ARG001
) -> None:
    """Show what a graph holds: nodes, edges, features, labels and splits, by type where there are types.

    Examples:

        graphbraid info stores/mag

        graphbraid info stores/mag --check

        graphbraid info cora.npz --json
    """  # noqa: D412  (typer shows the blank line between examples)
    from graphbraid import datasets

    options: dict[str, Any] = {"verify": True} if check and datasets.is_store(data) else {}
    graph = datasets.load(data, **options)
    if check:
        graph.validate()
        if datasets.is_store(data):
            datasets.open_names(data)
    if json_output:
        values = {"data": data, "name": graph.name, **graph_values(graph)}
        print_json(values | {"bytes": graph.nbytes, "checked": check})
        return
    say(out_console(), "{}", graph_facts(graph))
    for name, facts in type_facts(graph):
        say(out_console(), "  {}: {}", name, facts)
    if check:
        say(out_console(), "[green]no problems found[/]")


_COLUMNS = {"single-label": "classes", "multi-label": "labels", "regression": "targets"}


def graph_facts(graph: Graph | GraphSet, labels: Graph | NodeSet | EdgeSet | None = None) -> str:
    """Describe a graph, or many graphs, in one line.

    ``labels`` are those to learn. If None, they are those of the nodes of a graph without types.
    """
    from graphbraid.graph import Graph

    if not isinstance(graph, Graph):
        graphs, graph = graph, graph.graph
        num_nodes = graph.num_nodes - len(graphs)  # nodes of graphs; each has one edge to its graph
        parts = [f"{len(graphs):,} graphs", f"{num_nodes:,} nodes", f"{graph.num_edges - num_nodes:,} edges"]
        parts.append(f"{graphs.num_features} features")
    elif not graph.is_typed:
        parts = [f"{graph.num_nodes:,} nodes", f"{graph.num_edges:,} edges", _features(graph)]
        labels = graph if labels is None else labels
    else:
        kinds = (
            ("nodes", graph.num_nodes, "type", graph.node_types),
            ("edges", graph.num_edges, "relation", graph.edge_types),
        )
        parts = [f"{n:,} {what} of {len(of)} {kind}{'s' * (len(of) > 1)}" for what, n, kind, of in kinds]
    parts += [] if labels is None else [_labels(labels)]
    parts.append(format_bytes(graph.nbytes))
    return ", ".join(parts + ([] if labels is None else _splits(labels.splits)))


def type_facts(graph: Graph) -> list[tuple[str, str]]:
    """Describe each node type and each relation of a graph with types; none of one without."""
    if not graph.is_typed:
        return []
    found = []
    for node_type in graph.node_types:
        nodes = graph.nodes_of(node_type)
        parts = [f"{nodes.num_nodes:,} nodes", _features(nodes), _labels(nodes)]
        parts += ["times"] * (nodes.time is not None) + _splits(nodes.splits)
        found.append((node_type, ", ".join(parts)))
    for edge_type in graph.edge_types:
        edges = graph.edges_of(edge_type)
        parts = [f"{edges.num_edges:,} edges"]
        if edges.edge_attr is not None:
            parts.append(f"{edges.edge_attr.shape[1]} edge features")
        parts += ["weights"] * edges.weighted + ["times"] * (edges.time is not None)
        parts += [] if edges.y is None else [_labels(edges)]
        found.append((" ".join(edge_type), ", ".join(parts + _splits(edges.splits))))
    return found


def graph_values(graph: Graph) -> dict[str, Any]:
    """Return the facts about a graph as plain values; of one with types, also those of each type."""
    values: dict[str, Any] = {"num_nodes": graph.num_nodes, "num_edges": graph.num_edges}
    if not graph.is_typed:
        return values | _of_nodes(graph)
    values["node_types"] = {
        name: {"num_nodes": graph.nodes_of(name).num_nodes} | _of_nodes(graph.nodes_of(name))
        for name in graph.node_types
    }
    values["relations"] = [
        {"type": list(edge_type), "num_edges": graph.edges_of(edge_type).num_edges}
        for edge_type in graph.edge_types
    ]
    return values


def _of_nodes(nodes: Graph | NodeSet) -> dict[str, Any]:
    return {
        "num_features": 0 if nodes.x is None else int(nodes.x.shape[1]),
        "features_dtype": None if nodes.x is None else _dtype_of(nodes.x),
        "num_classes": nodes.num_classes if nodes.y is not None else None,
        "task": nodes.task if nodes.y is not None else None,
        "splits": {name: int(ids.numel()) for name, ids in nodes.splits.items()},
    }


def _features(nodes: Graph | NodeSet) -> str:
    """Say how many features there are, and their dtype where it is not float32."""
    x = nodes.x
    if x is None:
        return "no features"
    dtype = _dtype_of(x)
    return f"{x.shape[1]} features" + ("" if dtype == "float32" else f" in {dtype}")


def _dtype_of(x: Features) -> str:
    from graphbraid.graph.scaled_features import stored_rows

    rows = stored_rows(x)
    return str(x.dtype if rows is None else rows.dtype).removeprefix("torch.")


def _labels(nodes: Graph | NodeSet | EdgeSet) -> str:
    return "no labels" if nodes.y is None else f"{nodes.num_classes} {_COLUMNS[nodes.task]} ({nodes.task})"


def _splits(splits: Mapping[str, Tensor]) -> list[str]:
    return [" / ".join(f"{ids.numel():,} {name}" for name, ids in splits.items())] if splits else []
