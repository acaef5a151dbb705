"""Conversion of a Graph from and to a ``dgl.DGLGraph``, with types or without."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from graphbraid.errors import DataError, needing
from graphbraid.graph.csc import Csc, narrowed
from graphbraid.graph.interop.convert import (
    as_features,
    as_labels,
    as_splits,
    as_tensor,
    masks_of,
    original_positions,
)
from graphbraid.graph.interop.relations import edge_lists_of, edge_weights_of, graph_from_relations
from graphbraid.graph.types import ONLY_EDGE_TYPE, ONLY_NODE_TYPE, SPLITS
from graphbraid.signatures import typed

if TYPE_CHECKING:
    from graphbraid.graph import Graph


@typed
def graph_from_dgl(
    made: type[Graph],
    graph: Any,
    *,
    feature: str | None = "feat",
    label: str | None = "label",
    weight: str | None = None,
    name: str = "",
) -> Graph:
    """Make a graph from a ``DGLGraph``; shares its features, labels and, if int32, topology.

    A heterograph becomes a graph with types; a type without the named data has none.

    Args:
        made: Class of the graph.
        graph: Graph of DGL 1.1 or newer; edge ids are kept.
        feature: Key of the node data to use as features, or None for none; the default may be missing.
        label: Key of the node data to use as labels, or None for none; the default may be missing.
        weight: Key of the edge data to use as weights, or None for no weights.
        name: Name of the graph in reports.

    Raises:
        DataError: data (which is named) is missing or does not fit.
    """
    if graph.is_homogeneous:
        frames, edge_frames = {ONLY_NODE_TYPE: graph.ndata}, {ONLY_EDGE_TYPE: graph.edata}
    else:
        frames = {node_type: graph.nodes[node_type].data for node_type in graph.ntypes}
        edge_frames = {edge_type: graph.edges[edge_type].data for edge_type in graph.canonical_etypes}
    for argument, key, default, known in (
        ("feature", feature, "feat", frames),
        ("label", label, "label", frames),
        ("weight", weight, None, edge_frames),
    ):
        if key not in (None, default) and not any(key in frame for frame in known.values()):
            there = sorted({given for frame in known.values() for given in frame})
            raise DataError(f"{argument}={key!r} is not in the graph's data; it has {there}")
    x = {node_type: frame[feature] for node_type, frame in frames.items() if feature in frame}
    y = {node_type: frame[label] for node_type, frame in frames.items() if label in frame}
    splits = {
        node_type: {s: frame[f"{s}_mask"].bool() for s in SPLITS if f"{s}_mask" in frame}
        for node_type, frame in frames.items()
    }
    weights = {edge_type: frame[weight] for edge_type, frame in edge_frames.items() if weight in frame}
    if not graph.is_homogeneous:
        counts = {node_type: int(graph.num_nodes(node_type)) for node_type in graph.ntypes}
        ends = {}
        for edge_type in edge_frames:
            src, dst = graph.edges(etype=edge_type, order="eid")
            ends[edge_type] = torch.stack([src.long(), dst.long()])
        return graph_from_relations(
            made, ends, counts, x=x, y=y, splits=splits, edge_weight=weights, name=name
        )
    num_nodes = int(graph.num_nodes())
    # A graph restricted to other formats has no CSC; a copy in that format shares the arrays there are.
    indptr, indices, edge_id = graph.formats("csc").adj_tensors("csc")
    ids = edge_id.long() if edge_id.numel() else None  # empty if edges are numbered in this order
    values = None
    if weights:
        values = as_tensor(weights[ONLY_EDGE_TYPE], f"edata[{weight!r}]").float().reshape(-1)
        values = values if ids is None else values[ids]
    csc, perm = narrowed(Csc(indptr.long(), indices, num_nodes, values)).sort_rows()
    if perm is not None:
        ids = perm if ids is None else ids[perm]
    return made(
        csc=csc,
        edge_id=ids,
        x=as_features(x.get(ONLY_NODE_TYPE)),
        y=as_labels(y.get(ONLY_NODE_TYPE)),
        splits=as_splits(splits[ONLY_NODE_TYPE], num_nodes),
        name=name,
    )


def graph_to_dgl(graph: Graph) -> Any:
    """Implement :meth:`graphbraid.Graph.to_dgl`."""
    with needing("to_dgl needs DGL; see https://www.dgl.ai/pages/start.html"):
        import dgl
    if graph.types is None:
        ids = original_positions(graph)
        no_ids = torch.empty(0, dtype=torch.int64)
        lists = (graph.csc.indptr, graph.csc.indices.long(), no_ids if ids is None else ids)
        converted = dgl.graph(("csc", lists), num_nodes=graph.num_nodes)
    else:
        ends = {edge_type: (pairs[0], pairs[1]) for edge_type, pairs in edge_lists_of(graph).items()}
        counts = {node_type: graph.nodes_of(node_type).num_nodes for node_type in graph.node_types}
        converted = dgl.heterograph(ends, num_nodes_dict=counts)
    filled: list[tuple[Any, dict[str, Tensor | None]]] = []
    for node_type in graph.node_types:
        nodes = graph.nodes_of(node_type)
        x = nodes.x if isinstance(nodes.x, Tensor | None) else nodes.x.to_dense()
        frame = converted.nodes[node_type].data if graph.is_typed else converted.ndata
        filled.append((frame, {"feat": x, "label": nodes.y, **masks_of(nodes)}))
    weights = edge_weights_of(graph)
    for edge_type in graph.edge_types:
        frame = converted.edges[edge_type].data if graph.is_typed else converted.edata
        attr = graph.edges_of(edge_type).edge_attr
        filled.append((frame, {"weight": weights.get(edge_type), "feat": attr}))
    for frame, values in filled:
        for key, value in values.items():
            if value is not None:
                frame[key] = value
    return converted
