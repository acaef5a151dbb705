"""Checks of a Graph: shapes and dtypes on construction and, on request, every value.

The scans read everything once, in parallel, and use temporaries of at most a million elements, or of two
bytes per node for the splits, so they also suit memory-mapped graphs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from graphbraid.arguments import as_count, check_tensor, check_type
from graphbraid.errors import DataError
from graphbraid.graph.csc import Csc
from graphbraid.graph.scaled_features import Features, ScaledFeatures, check_scale
from graphbraid.graph.scans import (
    check_columns,
    check_csc,
    check_finite,
    check_ids,
    check_weight,
    first_below,
    first_unsound_weight,
    first_where,
    not_finite,
    row_of,
)
from graphbraid.graph.sparse_features import FEATURE_DTYPES, SparseFeatures
from graphbraid.graph.typed_checks import check_ends, check_types, validate_types
from graphbraid.signatures import typed

if TYPE_CHECKING:
    from graphbraid.graph import Graph

_SCAN = 1 << 20
_AS_INT8 = ". Rows of int8 need a scale each: ScaledFeatures(values=x, scale=scale)"
UNLABELLED = (-1, -100)
"""Class numbers that mean "no label": graphbraid's, and torch's (``ignore_index`` of its losses)."""


def check_shapes(graph: Graph) -> None:
    """Check in constant time that a graph's arrays fit together: shapes, dtypes, both ends of ``indptr``.

    Raises:
        DataError: names the array, what it is and what it should be.
    """
    _check_types(graph)
    csc, num_nodes, x = graph.csc, graph.num_nodes, graph.x
    check_csc(csc.indptr, csc.indices, num_src=csc.num_src)
    if csc.num_src != num_nodes:
        raise DataError(
            f"a graph has as many sources as destinations; the topology has {csc.num_src} and {num_nodes}"
        )
    _check_array(csc.weight, "edge weights", torch.float32, graph.num_edges)
    _check_array(graph.edge_id, "edge_id", torch.int64, graph.num_edges)
    if graph.edge_attr is not None:
        check_edge_attr(graph.edge_attr, graph.num_edges)
    if isinstance(x, Tensor) and (x.ndim != 2 or x.dtype not in FEATURE_DTYPES):
        raise DataError(
            "x must be a 2-d float32, float16 or bfloat16 tensor or SparseFeatures; "
            f"got {x.dtype} of shape {tuple(x.shape)}" + _AS_INT8 * (x.dtype == torch.int8)
        )
    if x is not None and x.shape[0] != num_nodes:
        raise DataError(f"x has {x.shape[0]} rows, but the graph has {num_nodes} nodes")
    if graph.y is not None:
        _check_label_shape(graph.y, num_nodes)
    for name, ids in graph.splits.items():
        if ids.dtype != torch.int64 or ids.ndim != 1:
            raise DataError(
                f"split {name!r} must be 1-d int64 node ids; got {ids.dtype} of shape {tuple(ids.shape)}. "
                "Graph.from_edge_index also takes masks"
            )
    if graph.types is not None:
        check_types(graph)


def _check_types(graph: Graph) -> None:
    check_type(graph.csc, "csc", Csc, "a graphbraid.Csc")
    if not isinstance(graph.x, SparseFeatures | ScaledFeatures | None):
        check_tensor(graph.x, "x")
    for name in ("y", "edge_id", "edge_attr"):
        if getattr(graph, name) is not None:
            check_tensor(getattr(graph, name), name)
    check_type(graph.splits, "splits", Mapping, "a mapping from names such as 'train' to node ids")
    for name, ids in graph.splits.items():
        check_type(name, "a split's name", str, "a string")
        check_tensor(ids, f"split {name!r}")
    check_type(graph.name, "name", str, "a string")


def check_contents(graph: Graph, fields: Iterable[str]) -> None:
    """Scan those of the named fields that are read by index: splits, edge ids, sources by relation.

    Raises:
        DataError: names the first value that is wrong.
    """
    if "splits" in fields:
        for name, ids in graph.splits.items():
            check_ids(ids, graph.num_nodes, f"split {name!r}")
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
    if graph.y is not None:
        _validate_labels(graph, graph.y, num_classes)
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


def validate_features(x: Features, name: str = "x") -> None:
    """Check that all features are finite and, if sparse, that ``indptr`` never decreases and columns exist.

    Of rows of int8 the scales are checked.

    Raises:
        DataError: names the first value that is wrong, its row and column.
    """
    if isinstance(x, ScaledFeatures):
        check_scale(x.scale)
        return
    if isinstance(x, SparseFeatures):
        check_columns(x.indptr, x.indices, x.num_cols, "the sparse features")
        position = first_where(x.values, lambda part: ~part.isfinite())
        if position >= 0:
            row, column = row_of(x.indptr, position), int(x.indices[position])
            raise not_finite(name, row, column, float(x.values[position]))
        return
    rows = max(1, _SCAN // max(1, x.shape[1]))
    for begin in range(0, x.shape[0], rows):
        check_finite(x[begin : begin + rows], begin, name)


def validate_splits(graph: Graph) -> None:
    """Check that no split is empty, that all ids exist, and that none occurs twice, in one split or in two.

    Raises:
        DataError: names the split and the first id that is wrong.
    """
    owner = torch.zeros(graph.num_nodes, dtype=torch.uint8, device=graph.csc.indptr.device)
    names = list(graph.splits)
    for number, (name, ids) in enumerate(graph.splits.items(), start=1):
        if not ids.numel():
            raise DataError(f"split {name!r} is empty; leave it out or give it at least one node id")
        check_ids(ids, graph.num_nodes, f"split {name!r}")
        taken = owner[ids]
        if bool(taken.any()):
            position = int(taken.ne(0).nonzero()[0])
            other = names[int(taken[position]) - 1]
            raise DataError(
                f"splits must not overlap: node {int(ids[position])} is {name}[{position}] and in {other!r}"
            )
        owner[ids] = number
        if int((owner == number).sum()) != ids.numel():
            raise DataError(_name_duplicate(name, ids))


def _validate_labels(graph: Graph, y: Tensor, num_classes: int | None) -> None:
    """Check that classes are -1, -100 or in range and that every node of a split has a (finite) label."""
    classes = not y.dtype.is_floating_point
    if classes:
        bound = num_classes if num_classes is not None else torch.iinfo(torch.int64).max
        node = first_where(y, lambda part: ((part < 0) & has_class(part)) | (part >= bound))
        if node >= 0:
            allowed = "classes from 0" if num_classes is None else f"classes in [0, {num_classes})"
            raise DataError(f"labels must be {allowed}, or -1 or -100 for none; y[{node}] is {int(y[node])}")
    for name, ids in graph.splits.items():
        rows = y[ids]
        bad = rows < 0 if classes else ~rows.isfinite()
        bad = bad if bad.ndim == 1 else bad.any(1)
        if not bool(bad.any()):
            continue
        position = int(bad.nonzero()[0])
        value = rows[position].tolist() if rows[position].numel() <= 8 else "not finite"
        raise DataError(
            f"every node of a split needs a label; {name}[{position}] is node {int(ids[position])}, "
            f"whose label is {value}. Leave unlabelled nodes out of the split"
        )


def has_class(labels: Tensor) -> Tensor:
    """Return a bool tensor that is True where integer ``labels`` are classes and not :data:`UNLABELLED`."""
    known = labels != UNLABELLED[0]
    for none in UNLABELLED[1:]:
        known &= labels != none
    return known


def _check_label_shape(y: Tensor, num_nodes: int) -> None:
    classes = y.dtype == torch.int64 and y.ndim == 1
    if not (classes or (y.dtype == torch.float32 and y.ndim in (1, 2))):
        raise DataError(
            "y must be 1-d int64 classes, or 1-d or 2-d float32 labels or targets; "
            f"got {y.dtype} of shape {tuple(y.shape)}"
        )
    if y.shape[0] != num_nodes:
        raise DataError(f"y has {y.shape[0]} rows, but the graph has {num_nodes} nodes")


def _check_array(values: Tensor | None, what: str, dtype: torch.dtype, num_edges: int) -> None:
    if values is not None and (values.dtype != dtype or values.shape != (num_edges,)):
        raise DataError(
            f"{what} must be {dtype} of shape ({num_edges},); got {values.dtype} of {tuple(values.shape)}"
        )


def check_edge_attr(edge_attr: Tensor, num_edges: int) -> None:
    """Check that edge features are a matrix of floats with a row for each edge.

    Raises:
        DataError: says what they are and what is needed.
    """
    shape = tuple(edge_attr.shape)
    if edge_attr.ndim != 2 or edge_attr.dtype not in FEATURE_DTYPES or edge_attr.layout != torch.strided:
        raise DataError(
            "edge_attr must be a dense 2-d float32, float16 or bfloat16 tensor; "
            f"got {edge_attr.dtype} of shape {shape}"
        )
    if shape[0] != num_edges:
        raise DataError(f"edge_attr has {shape[0]} rows, but the graph has {num_edges} edges")


def _name_duplicate(name: str, ids: Tensor) -> str:
    order = ids.argsort(stable=True)
    repeated = (ids[order][1:] == ids[order][:-1]).nonzero().flatten() + 1
    position = int(order[repeated].min())
    return f"split {name!r} must not hold a node twice; {name}[{position}] is node {int(ids[position])} again"
