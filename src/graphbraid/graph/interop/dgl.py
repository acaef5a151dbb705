"""Conversion of a Graph from and to a ``dgl.DGLGraph`` of one node type and one edge type."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from graphbraid.errors import DataError, MissingPackageError
from graphbraid.graph.csc import Csc, narrowed
from graphbraid.graph.interop.convert import as_features, as_labels, as_splits, as_tensor
from graphbraid.graph.interop.edge_list import original_positions
from graphbraid.graph.interop.hetero import graph_from_heterograph, graph_to_heterograph
from graphbraid.graph.labelled import SPLITS

if TYPE_CHECKING:
    from graphbraid.graph import Graph


def graph_from_dgl(
    made: type[Graph],
    graph: Any,
    *,
    feature: str | None = "feat",
    label: str | None = "label",
    weight: str | None = None,
    name: str = "",
) -> Graph:
    """Implement :meth:`graphbraid.Graph.from_dgl`, which describes all but ``made``, its class."""
    if not graph.is_homogeneous:
        return graph_from_heterograph(made, graph, feature=feature, label=label, weight=weight, name=name)
    num_nodes = int(graph.num_nodes())
    # A graph restricted to other formats has no CSC; a copy in that format shares the arrays there are.
    indptr, indices, edge_id = graph.formats("csc").adj_tensors("csc")
    ids = edge_id.long() if edge_id.numel() else None  # empty if edges are numbered in this order
    weight_by_id = _field(graph.edata, weight, "weight", "edata")
    values = None
    if weight_by_id is not None:
        values = as_tensor(weight_by_id, f"edata[{weight!r}]").float().reshape(-1)
        values = values if ids is None else values[ids]
    csc, perm = narrowed(Csc(indptr.long(), indices, num_nodes, values)).sort_rows()
    if perm is not None:
        ids = perm if ids is None else ids[perm]
    masks = {split: graph.ndata[f"{split}_mask"] for split in SPLITS if f"{split}_mask" in graph.ndata}
    return made(
        csc=csc,
        edge_id=ids,
        x=as_features(_field(graph.ndata, feature, "feature", "ndata", default="feat")),
        y=as_labels(_field(graph.ndata, label, "label", "ndata", default="label")),
        splits=as_splits({split: mask.bool() for split, mask in masks.items()}, num_nodes),
        name=name,
    )


def graph_to_dgl(graph: Graph) -> Any:
    """Implement :meth:`graphbraid.Graph.to_dgl`."""
    dgl = _dgl()
    if graph.types is not None:
        return graph_to_heterograph(graph, dgl)
    csc = graph.csc
    ids = original_positions(graph)
    no_ids = torch.empty(0, dtype=torch.int64)
    edges = (csc.indptr, csc.indices.long(), no_ids if ids is None else ids)
    converted = dgl.graph(("csc", edges), num_nodes=graph.num_nodes)
    if graph.x is not None:
        converted.ndata["feat"] = graph.dense_x()
    if graph.y is not None:
        converted.ndata["label"] = graph.y
    for name, nodes in graph.splits.items():
        mask = torch.zeros(graph.num_nodes, dtype=torch.bool)
        mask[nodes] = True
        converted.ndata[f"{name}_mask"] = mask
    if csc.weight is not None:
        converted.edata["weight"] = graph.in_original_order(csc.weight)
    if graph.edge_attr is not None:
        converted.edata["feat"] = graph.in_original_order(graph.edge_attr)
    return converted


def _field(
    frame: Any, key: str | None, argument: str, frame_name: str, default: str | None = None
) -> Tensor | None:
    """Return ``frame[key]``, or None if ``key`` is None or is the default and missing."""
    if key is None or (key == default and key not in frame):
        return None
    if key not in frame:
        raise DataError(f"{argument}={key!r} is not in the graph's {frame_name}; it has {sorted(frame)}")
    value: Tensor = frame[key]
    return value


def _dgl() -> Any:
    try:
        import dgl
    except ImportError as error:
        raise MissingPackageError("to_dgl needs DGL; see https://www.dgl.ai/pages/start.html") from error
    return dgl
