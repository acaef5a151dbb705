"""Checks of a Graph: shapes and dtypes on construction and, on request, every value."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from graphbraid.arguments import as_count, check_tensor, check_type
from graphbraid.errors import DataError
from graphbraid.graph.array_checks import (
    check_edge_attr,
    check_node_arrays,
    check_split_ids,
    check_weight_name,
    validate_features,
    validate_labels,
    validate_splits,
)
from graphbraid.graph.csc import Csc
from graphbraid.graph.scans import check_columns, check_csc, check_weight, first_below, first_unsound_weight
from graphbraid.graph.schema import check_schema
from graphbraid.graph.typed_checks import check_ends, check_types, validate_types
from graphbraid.signatures import typed

if TYPE_CHECKING:
    from graphbraid.graph import Graph


def check_shapes(graph: Graph) -> None:
    """Check in constant time that a graph's arrays fit together: shapes, dtypes, both ends of ``indptr``.

    Raises:
        DataError: names the array, what it is and what it should be.
    """
    check_type(graph.csc, "csc", Csc, "a graphbraid.Csc")
    for name in ("edge_id", "edge_attr"):
        if getattr(graph, name) is not None:
            check_tensor(getattr(graph, name), name)
    check_type(graph.name, "name", str, "a string")
    csc = graph.csc
    check_csc(csc.indptr, csc.indices, num_src=csc.num_src)
    if csc.num_src != csc.num_dst:
        raise DataError(
            f"a graph has as many sources as destinations; the topology has {csc.num_src} and {csc.num_dst}"
        )
    _check_array(csc.weight, "edge weights", torch.float32, graph.num_edges)
    _check_array(graph.edge_id, "edge_id", torch.int64, graph.num_edges)
    if graph.edge_attr is not None:
        check_edge_attr(graph.edge_attr, graph.num_edges)
    check_weight_name(graph.weight_name, graph.edge_attr)
    check_node_arrays(graph)
    if graph.types is not None:
        check_types(graph)
    check_schema(graph)


def check_contents(graph: Graph, fields: Iterable[str]) -> None:
    """Scan those of the named fields that are read by index: splits, edge ids, sources by relation.

    Raises:
        DataError: names the first value that is wrong.
    """
    if "splits" in fields:
        check_split_ids(graph)
    if "edge_id" in fields and graph.edge_id is not None:
        position = first_below(graph.edge_id, -1)
        if position >= 0:
            raise DataError(
                "edge_id must hold positions of edges, or -1 for an edge that was added; "
                f"edge_id[{position}] is {int(graph.edge_id[position])}"
            )
    if "types" in fields and graph.types is not None:
        check_ends(graph)


@typed
def validate_graph(
    graph: Graph, *, num_classes: int | None = None, allow_negative_weights: bool = False
) -> None:
    """Implement :meth:`graphbraid.Graph.validate`, which describes the arguments and errors."""
    if num_classes is not None:
        num_classes = as_count(num_classes, "num_classes")
    check_shapes(graph)
    validate_topology(graph.csc, allow_negative_weights=allow_negative_weights)
    check_contents(graph, ("edge_id",))
    if graph.x is not None:
        validate_features(graph.x)
    if graph.edge_attr is not None:
        validate_features(graph.edge_attr, "edge_attr")
    validate_splits(graph)
    validate_labels(graph, num_classes)
    if graph.types is not None:
        validate_types(graph)


def validate_topology(csc: Csc, *, allow_negative_weights: bool = False) -> None:
    """Check every value of an adjacency: ``indptr`` never decreases, sources exist, weights are finite, >= 0.

    Raises:
        DataError: names the first value that is wrong and its position.
    """
    check_csc(csc.indptr, csc.indices, num_src=csc.num_src)
    check_columns(csc.indptr, csc.indices, csc.num_src, "")
    if csc.weight is None:
        return
    check_weight(csc.weight, csc.num_edges)
    position = -1 if allow_negative_weights else first_unsound_weight(csc.weight, may_be_negative=False)
    if position >= 0:
        raise DataError(
            "edge weights must not be negative, for sampling and for normalising by degree; "
            f"weight[{position}] is {float(csc.weight[position]):g}"
        )


def _check_array(values: Tensor | None, what: str, dtype: torch.dtype, num_edges: int) -> None:
    if values is not None and (values.dtype != dtype or values.shape != (num_edges,)):
        raise DataError(
            f"{what} must be {dtype} of shape ({num_edges},); got {values.dtype} of {tuple(values.shape)}"
        )
