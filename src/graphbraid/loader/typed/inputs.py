"""Conversion of a loader's arguments where nodes and edges have types: fanouts and seeds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from graphbraid.arguments import shown
from graphbraid.errors import ConfigError, did_you_mean
from graphbraid.graph import Graph
from graphbraid.loader.inputs import as_fanouts, ids_or_mask
from graphbraid.sampling.typed import TypedConfig

ONE_TYPE_ONLY: dict[str, tuple[Any, str]] = {
    "plan": (None, "plans are made for graphs of one node type"),
    "tiers": (None, "tiers hold the features of one node type"),
    "epochs": (None, "they say how far ahead tiers look"),
    "topology": (None, "lists outside memory are those of one relation"),
    "hot_bytes": (None, "batches are prepared on the CPU"),
    "src_degree": (False, "degrees are those of one relation"),
    "subgraph_type": ("directional", "other edges than those drawn are found for one relation"),
}
"""Arguments that a loader of a graph with types refuses: their harmless value, and why."""


def refuse_one_type_only(given: Mapping[str, Any]) -> None:
    """Refuse the arguments that need a graph of one node type and one relation.

    Raises:
        ConfigError: one was given; names it and why.
    """
    for name, (harmless, reason) in ONE_TYPE_ONLY.items():
        value = given.get(name, harmless)
        value = getattr(value, "value", value)  # PyG's enumerations
        if value is not harmless and value not in (harmless, None):
            raise ConfigError(f"a loader of a graph with types takes no {name}={shown(value)}: {reason}")


def as_typed_config(num_neighbors: Any, graph: Graph, **options: Any) -> TypedConfig:
    """Return the sampler's options from a list for all relations, a dict by relation, or ``NumNeighbors``.

    Raises:
        ConfigError: a relation is unknown or has no fanouts, or an option is invalid.
    """
    values, default = num_neighbors, None
    if hasattr(values, "get_values") and hasattr(values, "values"):  # NumNeighbors
        values, default = values.values, getattr(values, "default", None)
    if isinstance(values, Mapping):
        values = {key: as_fanouts(one) for key, one in values.items()}
    else:
        values = as_fanouts(values)
    return TypedConfig.of(
        graph.edge_types, values, default=None if default is None else as_fanouts(default), **options
    )


def as_typed_seeds(input_nodes: Any, graph: Graph) -> tuple[str, Any, Tensor]:
    """Return the node type of the seeds, what was given of it, and their ids, ``(num_seeds,)`` int64.

    Args:
        input_nodes: a node type, for all its nodes, or a pair of a type and ids, a bool mask, the name of one
            of the type's splits, or None for all.
        graph: the graph.

    Raises:
        ConfigError: the type does not exist, or an id is outside it; the message names the first.
    """
    node_type, given = (input_nodes, None) if isinstance(input_nodes, str) else _pair(input_nodes, graph)
    if node_type not in graph.node_types:
        raise ConfigError(
            f"input_nodes names the node type {shown(node_type)}, and there are "
            f"{', '.join(graph.node_types)}.{did_you_mean(node_type, graph.node_types)}"
        )
    nodes = graph.nodes_of(node_type)
    if given is None:
        return node_type, None, torch.arange(nodes.num_nodes)
    if isinstance(given, str):
        if given not in nodes.splits:
            known = ", ".join(nodes.splits) or "none"
            raise ConfigError(f"nodes of type {node_type!r} have no split {given!r}; they have {known}")
        return node_type, given, nodes.splits[given]
    return node_type, given, ids_or_mask(given, nodes.num_nodes, f"input_nodes of type {node_type!r}")


def _pair(input_nodes: Any, graph: Graph) -> tuple[Any, Any]:
    is_pair = isinstance(input_nodes, tuple | list) and len(input_nodes) == 2
    if is_pair and isinstance(input_nodes[0], str):
        return input_nodes[0], input_nodes[1]
    raise ConfigError(
        "input_nodes must name a node type, or be a pair of a type and ids, such as ("
        f"{(*graph.node_types, 'paper')[0]!r}, ids); got {shown(input_nodes)}"
    )
