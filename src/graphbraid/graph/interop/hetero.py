"""Conversion of a Graph of several types from and to PyG's ``HeteroData`` and DGL's heterographs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from graphbraid.errors import DataError
from graphbraid.graph.interop import pyg_parts as pyg
from graphbraid.graph.interop.relations import edge_lists_of, edge_weights_of, graph_from_relations
from graphbraid.graph.labelled import SPLITS
from graphbraid.graph.scaled_features import ScaledFeatures
from graphbraid.graph.sparse_features import SparseFeatures
from graphbraid.graph.typed_checks import named
from graphbraid.graph.types import NodeSet

if TYPE_CHECKING:
    from graphbraid.graph import Graph


def graph_from_hetero_data(
    made: type[Graph], data: Any, *, edge_weight: str | None, split: int, name: str
) -> Graph:
    """Implement :meth:`graphbraid.Graph.from_pyg` for a ``HeteroData``."""
    nodes: dict[str, Any] = {"x": {}, "y": {}, "splits": {}, "node_time": {}}
    counts, left_out = {}, frozenset[str]()
    for node_type in data.node_types:
        store = data[node_type]
        with named(f"nodes of type {node_type!r}"):
            counts[node_type] = _num_nodes(store, node_type)
            nodes["splits"][node_type] = pyg.splits_of(store, counts[node_type], split)
        nodes["x"][node_type] = pyg.features_of(store)
        nodes["y"][node_type], nodes["node_time"][node_type] = store.get("y"), store.get("time")
        left_out |= pyg.left_out(store, None, "", None)
    edges: dict[str, Any] = {"edge_weight": {}, "edge_attr": {}, "edge_time": {}, "weight_name": {}}
    ends = {}
    for edge_type in data.edge_types:
        store = data[edge_type]
        with named(edge_type):
            edge_index, weight = pyg.edges_of(store)
            ends[edge_type] = torch.zeros((2, 0), dtype=torch.int64) if edge_index is None else edge_index
            if weight is None and (edge_weight in (None, "auto") or edge_weight in store):
                weight = pyg.weight_of(store, edge_weight)
        if weight is not None:
            edges["edge_weight"][edge_type] = weight
        attr = None if edge_weight == "edge_attr" else pyg.edge_features_of(store)
        called = pyg.weight_name(store, edge_weight, weight)
        edges["edge_attr"][edge_type], edges["weight_name"][edge_type] = attr, called
        edges["edge_time"][edge_type] = store.get("time")
        left_out |= pyg.left_out(store, edge_weight, called, attr)
    graph = graph_from_relations(made, ends, counts, name=name, **nodes, **edges)
    return graph.replace(left_out=left_out - {"time"})


def graph_to_hetero_data(graph: Graph) -> Any:
    """Implement :meth:`graphbraid.Graph.to_pyg` for a graph with types."""
    data = pyg.data_class("HeteroData")()
    for node_type in graph.node_types:
        nodes, store = graph.nodes_of(node_type), data[node_type]
        store.num_nodes = nodes.num_nodes
        if nodes.x is not None:
            x = nodes.x.to_dense() if isinstance(nodes.x, ScaledFeatures) else nodes.x
            store.x = pyg.to_torch_csr(x) if isinstance(x, SparseFeatures) else x
        for key, value in (("y", nodes.y), ("time", nodes.time), *_masks(nodes).items()):
            if value is not None:
                store[key] = value
    weights = edge_weights_of(graph)
    for edge_type, edge_index in edge_lists_of(graph).items():
        edges, store = graph.edges_of(edge_type), data[edge_type]
        store.edge_index = edge_index
        held = {"edge_attr": edges.edge_attr, "time": edges.time}
        held |= {edges.weight_name: weights[edge_type]} if edge_type in weights else {}
        for key, value in held.items():
            if value is not None:
                store[key] = value
    return data


def graph_from_heterograph(
    made: type[Graph],
    graph: Any,
    *,
    feature: str | None,
    label: str | None,
    weight: str | None,
    name: str,
) -> Graph:
    """Implement :meth:`graphbraid.Graph.from_dgl` for a graph of several types.

    A type without the named data has none; a name that no type has is an error unless it is a default.
    """
    frames = {node_type: graph.nodes[node_type].data for node_type in graph.ntypes}
    edge_frames = {edge_type: graph.edges[edge_type].data for edge_type in graph.canonical_etypes}
    for argument, key, default, known in (
        ("feature", feature, "feat", frames),
        ("label", label, "label", frames),
        ("weight", weight, None, edge_frames),
    ):
        if key not in (None, default) and not any(key in frame for frame in known.values()):
            raise DataError(f"{argument}={key!r} is in the data of no type; there is {sorted(_keys(known))}")
    ends = {}
    for edge_type in graph.canonical_etypes:
        src, dst = graph.edges(etype=edge_type, order="eid")
        ends[edge_type] = torch.stack([src.long(), dst.long()])
    return graph_from_relations(
        made,
        ends,
        {node_type: int(graph.num_nodes(node_type)) for node_type in graph.ntypes},
        x={node_type: frame[feature] for node_type, frame in frames.items() if feature in frame},
        y={node_type: frame[label] for node_type, frame in frames.items() if label in frame},
        splits={
            node_type: {s: frame[f"{s}_mask"].bool() for s in SPLITS if f"{s}_mask" in frame}
            for node_type, frame in frames.items()
        },
        edge_weight={one: frame[weight] for one, frame in edge_frames.items() if weight in frame},
        name=name,
    )


def graph_to_heterograph(graph: Graph, dgl: Any) -> Any:
    """Implement :meth:`graphbraid.Graph.to_dgl` for a graph with types; ``dgl`` is the package."""
    ends = {edge_type: (pairs[0], pairs[1]) for edge_type, pairs in edge_lists_of(graph).items()}
    counts = {node_type: graph.nodes_of(node_type).num_nodes for node_type in graph.node_types}
    converted = dgl.heterograph(ends, num_nodes_dict=counts)
    for node_type in graph.node_types:
        nodes, frame = graph.nodes_of(node_type), converted.nodes[node_type].data
        x = nodes.x if isinstance(nodes.x, Tensor | None) else nodes.x.to_dense()
        for key, value in (("feat", x), ("label", nodes.y), *_masks(nodes).items()):
            if value is not None:
                frame[key] = value
    weights = edge_weights_of(graph)
    for edge_type in graph.edge_types:
        frame = converted.edges[edge_type].data
        for key, value in (("weight", weights.get(edge_type)), ("feat", graph.edges_of(edge_type).edge_attr)):
            if value is not None:
                frame[key] = value
    return converted


def _keys(frames: Any) -> set[str]:
    return {key for frame in frames.values() for key in frame}


def _masks(nodes: NodeSet) -> dict[str, Tensor]:
    masks = {}
    for name, ids in nodes.splits.items():
        masks[f"{name}_mask"] = torch.zeros(nodes.num_nodes, dtype=torch.bool)
        masks[f"{name}_mask"][ids] = True
    return masks


def _num_nodes(store: Any, node_type: str) -> int:
    count = store.num_nodes
    if count is None:
        raise DataError(f"their number is not known; set data[{node_type!r}].num_nodes")
    return int(count)
