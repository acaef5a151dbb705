"""The relations of PyG's data of one node type whose ``edge_type`` divides the edges among them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from graphbraid.fullgraph.program.calling import EDGE_TYPE
from graphbraid.fullgraph.program.readers.layers import LAYERS
from graphbraid.fullgraph.program.readers.reading import reader_of
from graphbraid.graph import Graph
from graphbraid.graph.types import MOST_RELATIONS, ONLY_NODE_TYPE, Relation


def has_relational_layer(model: nn.Module) -> bool:
    """Return whether a layer of the model takes the relation of each edge."""
    readers = (reader_of(LAYERS, type(module)) for module in model.modules())
    return any(reader is not None and EDGE_TYPE in reader.takes for reader in readers)


def graph_by_relation(data: Any, graph: Graph) -> Graph | None:
    """Return the graph with a relation for each number of ``edge_type``; None if that is no such vector.

    Args:
        data: the user's data.
        graph: its graph of one relation, whose features, labels and splits are shared.
    """
    edge_index, edge_type = data.get("edge_index"), data.get(EDGE_TYPE)
    if not isinstance(edge_index, Tensor) or not isinstance(edge_type, Tensor):
        return None
    is_vector = edge_type.shape == (graph.num_edges,) and edge_type.dtype != torch.bool
    if not is_vector or edge_type.is_floating_point() or not edge_type.numel():
        return None
    first, last = (int(end) for end in edge_type.aminmax())
    if first < 0 or last >= MOST_RELATIONS:
        return None
    order = edge_type.detach().long().argsort(stable=True)
    counts = torch.bincount(edge_type.detach().long(), minlength=last + 1).tolist()
    lists = torch.split(edge_index.detach()[:, order], counts, dim=1)
    return Graph.from_relations(
        {(ONLY_NODE_TYPE, f"relation {number}", ONLY_NODE_TYPE): pairs for number, pairs in enumerate(lists)},
        {ONLY_NODE_TYPE: graph.num_nodes},
        x=None if graph.x is None else {ONLY_NODE_TYPE: graph.x},
    )


def relations_with_edges(graph: Graph) -> tuple[Relation, ...]:
    """Return the relations of a graph with types that have edges."""
    types = graph.types
    assert types is not None
    return tuple(one for one in types.relations() if types.edges[one.edge_type].num_edges)


__all__ = ["graph_by_relation", "has_relational_layer", "relations_with_edges"]
