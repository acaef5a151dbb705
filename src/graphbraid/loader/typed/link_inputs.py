"""Conversion of the links of a loader of graphs with types: their relation, and the ids of their ends."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from graphbraid.arguments import shown
from graphbraid.errors import ConfigError, did_you_mean
from graphbraid.graph import EdgeType, Graph
from graphbraid.loader.link_inputs import checked_links

_NEEDED = (
    "edge_label_index must name a relation, or be a pair of a relation and (2, num_links) ids within its two "
    "types, such as (('user', 'rates', 'movie'), links)"
)


def as_typed_links(edge_label_index: Any, graph: Graph) -> tuple[EdgeType, Tensor]:
    """Return the relation of the links, and ``(2, num_links)`` int64 ids of their ends within its types.

    Args:
        edge_label_index: a relation of the graph, for all its edges in the order of its list, or a pair of a
            relation and links or None for all. A relation is three names, or two if one joins these types;
            with links, it may be one that the graph does not have, between two of its types.
        graph: the graph.

    Raises:
        ConfigError: there is no such relation or type, or an end is not a node; the message names the first.
    """
    if not isinstance(edge_label_index, tuple | list) or not edge_label_index:
        raise ConfigError(f"{_NEEDED}; got {shown(edge_label_index)}")
    named, links = edge_label_index, None
    if not isinstance(named[0], str):
        if len(named) != 2:
            raise ConfigError(f"{_NEEDED}; got {shown(edge_label_index)}")
        named, links = edge_label_index
    edge_type = _edge_type(named, graph, may_be_new=links is not None)
    if links is None:
        return edge_type, graph.to_edge_indices()[edge_type].contiguous()
    source, destination = graph.nodes_of(edge_type[0]), graph.nodes_of(edge_type[-1])
    return edge_type, checked_links(links, (source.num_nodes, destination.num_nodes))


def _edge_type(named: Any, graph: Graph, *, may_be_new: bool) -> EdgeType:
    """Return the relation of this name; as in PyG, two names are one that joins these types, or ``to``."""
    is_name = isinstance(named, tuple | list) and all(isinstance(part, str) for part in named)
    if not is_name or len(named) not in (2, 3):
        raise ConfigError(f"{_NEEDED}; got a relation {shown(named)}")
    for end in (named[0], named[-1]):
        if end not in graph.node_types:
            raise ConfigError(
                f"edge_label_index names the node type {shown(end)}, and there are "
                f"{', '.join(graph.node_types)}.{did_you_mean(end, graph.node_types)}"
            )
    if len(named) == 2:
        joining = [one for one in graph.edge_types if (one[0], one[-1]) == tuple(named)]
        edge_type = joining[0] if len(joining) == 1 else (named[0], "to", named[1])
    else:
        edge_type = (named[0], named[1], named[2])
    if edge_type not in graph.edge_types and not may_be_new:
        texts = ["__".join(one) for one in graph.edge_types]
        raise ConfigError(
            f"edge_label_index names the relation {'__'.join(named)}, which the graph does not have; it has "
            f"{', '.join(texts)}.{did_you_mean('__'.join(edge_type), texts)}"
        )
    return edge_type
