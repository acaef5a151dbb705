"""Checks of the arrays that a graph, or one type or relation of it, holds: features, labels and splits.

The scans read everything once, in parallel, and use temporaries of at most a million elements, or of two
bytes per node for the splits, so they also suit memory-mapped graphs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

import torch
from torch import Tensor

from graphbraid.arguments import MOST_WIDTH, check_tensor, check_type
from graphbraid.errors import DataError
from graphbraid.graph.scaled_features import Features, ScaledFeatures, check_scale
from graphbraid.graph.scans import check_columns, check_finite, check_ids, first_where, not_finite, row_of
from graphbraid.graph.sparse_features import FEATURE_DTYPES, SparseFeatures

_SCAN = 1 << 20
_AS_INT8 = ". Rows of int8 need a scale each: ScaledFeatures(values=x, scale=scale)"
UNLABELLED = (-1, -100)
"""Class numbers that mean "no label": graphbraid's, and torch's (``ignore_index`` of its losses)."""


class NodeArrays(Protocol):
    """What has features, labels and splits of nodes: a graph, or the nodes of one type."""

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""

    @property
    def x(self) -> Features | None:
        """Features, one row per node."""

    @property
    def y(self) -> Tensor | None:
        """Labels or targets, one row per node."""

    @property
    def splits(self) -> Mapping[str, Tensor]:
        """Node ids by split."""


def check_node_arrays(nodes: NodeArrays) -> None:
    """Check in constant time that features, labels and splits are of the right classes, shapes and dtypes.

    Raises:
        DataError: names the array, what it is and what it should be.
    """
    _check_classes(nodes)
    x, num_nodes = nodes.x, nodes.num_nodes
    if isinstance(x, Tensor) and (x.ndim != 2 or x.dtype not in FEATURE_DTYPES):
        raise DataError(
            "x must be a 2-d float32, float16 or bfloat16 tensor or SparseFeatures; "
            f"got {x.dtype} of shape {tuple(x.shape)}" + _AS_INT8 * (x.dtype == torch.int8)
        )
    if x is not None and x.shape[0] != num_nodes:
        raise DataError(f"x has {x.shape[0]} rows, but the graph has {num_nodes} nodes")
    if nodes.y is not None:
        _check_label_shape(nodes.y, num_nodes)
    for name, ids in nodes.splits.items():
        if ids.dtype != torch.int64 or ids.ndim != 1:
            raise DataError(
                f"split {name!r} must be 1-d int64 node ids; got {ids.dtype} of shape {tuple(ids.shape)}. "
                "Graph.from_edge_index also takes masks"
            )


def check_split_ids(nodes: NodeArrays) -> None:
    """Check that all ids of the splits exist.

    Raises:
        DataError: names the split and the first id that is wrong.
    """
    for name, ids in nodes.splits.items():
        check_ids(ids, nodes.num_nodes, f"split {name!r}")


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


def check_weight_name(name: str, edge_attr: Tensor | None) -> None:
    """Check that weights are called as an argument of a model is, and not as the edge features are.

    Raises:
        DataError: they are called otherwise.
    """
    if name != "edge_weight" and (name != "edge_attr" or edge_attr is not None):
        raise DataError(
            "weight_name must be 'edge_weight', or 'edge_attr' for a graph without edge_attr; got "
            f"{name!r}{'' if edge_attr is None else ' beside edge_attr'}"
        )


def validate_features(x: Features, name: str = "x") -> None:
    """Check that all features are finite and, if sparse, that ``indptr`` never decreases and columns exist.

    Of rows of int8 the scales are checked.

    Raises:
        DataError: names the first value that is wrong, its row and column; or there are more columns than a
            layer can take.
    """
    if x.shape[1] > MOST_WIDTH:
        raise DataError(f"{name} must have at most {MOST_WIDTH:,} columns; got {x.shape[1]:,}")
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


def validate_splits(nodes: NodeArrays) -> None:
    """Check that no split is empty, that all ids exist, and that none occurs twice, in one split or in two.

    Raises:
        DataError: names the split and the first id that is wrong.
    """
    names = list(nodes.splits)
    device = next((ids.device for ids in nodes.splits.values()), None)
    owner = torch.zeros(nodes.num_nodes, dtype=torch.uint8, device=device)
    for number, (name, ids) in enumerate(nodes.splits.items(), start=1):
        if not ids.numel():
            raise DataError(f"split {name!r} is empty; leave it out or give it at least one node id")
        check_ids(ids, nodes.num_nodes, f"split {name!r}")
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


def validate_labels(nodes: NodeArrays, num_classes: int | None = None) -> None:
    """Check that classes are -1, -100 or in range and that every node of a split has a (finite) label.

    Raises:
        DataError: names the first label that is wrong, or the first node without one.
    """
    y = nodes.y
    if y is None:
        return
    classes = not y.dtype.is_floating_point
    multi_hot = y.ndim == 2 and is_multi_hot(y)
    if classes:
        bound = MOST_WIDTH if num_classes is None else num_classes  # no layer has more outputs
        node = first_where(y, lambda part: ((part < 0) & has_class(part)) | (part >= bound))
        if node >= 0:
            falls = num_classes is None and int(y[node]) < 0
            allowed = "classes from 0" if falls else f"classes in [0, {bound})"
            raise DataError(f"labels must be {allowed}, or -1 or -100 for none; y[{node}] is {int(y[node])}")
    for name, ids in nodes.splits.items():
        rows = y[ids]
        bad = rows < 0 if classes else ~rows.isfinite()
        bad = bad if bad.ndim == 1 else bad.any(1)
        bad = ~has_labels(rows) if multi_hot else bad
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


def has_labels(y: Tensor) -> Tensor:
    """Return a bool tensor that is False for the rows of a matrix of labels that are marks of no label.

    Such rows are NaN throughout or, in a matrix of several columns, one of :data:`UNLABELLED` throughout; a
    single number may be a target.
    """
    known = ~y.isnan().all(dim=1)
    for none in UNLABELLED if y.shape[1] > 1 else ():
        known &= (y != none).any(dim=1)
    return known


def is_multi_hot(y: Tensor) -> bool:
    """Return whether a float matrix holds 0 and 1 alone, but for rows without labels (:func:`has_labels`)."""
    return all(bool((_is_bit(part).all(dim=1) | ~has_labels(part)).all()) for part in _row_parts(y))


def first_partly_labelled(y: Tensor) -> int:
    """Return the first row that holds marks of no label beside 0 and 1, in a matrix of nothing else; else -1.

    A matrix without a 0 or without a 1 may hold targets, such as signs, and has no such row.
    """
    found, begin, seen = -1, 0, torch.zeros(2, dtype=torch.bool)
    for part in _row_parts(y):
        bits = _is_bit(part)
        marks = part.isnan() | (part == UNLABELLED[0]) | (part == UNLABELLED[1])
        if not bool((bits | marks).all()):
            return -1
        partly = bits.any(dim=1) & marks.any(dim=1)
        if found < 0 and bool(partly.any()):
            found = begin + int(partly.nonzero()[0])
        seen |= torch.tensor([bool((part == bit).any()) for bit in (0, 1)])
        begin += part.shape[0]
    return found if bool(seen.all()) else -1


def _is_bit(values: Tensor) -> Tensor:
    return (values == 0) | (values == 1)


def _row_parts(y: Tensor) -> Iterator[Tensor]:
    """Yield the rows of a matrix, about a million numbers at a time, to make no large temporary."""
    rows = max(1, _SCAN // max(1, y.shape[1]))
    return (y[begin : begin + rows] for begin in range(0, y.shape[0], rows))


def _check_classes(nodes: NodeArrays) -> None:
    if not isinstance(nodes.x, SparseFeatures | ScaledFeatures | None):
        check_tensor(nodes.x, "x")
    if nodes.y is not None:
        check_tensor(nodes.y, "y")
    check_type(nodes.splits, "splits", Mapping, "a mapping from names such as 'train' to node ids")
    for name, ids in nodes.splits.items():
        check_type(name, "a split's name", str, "a string")
        check_tensor(ids, f"split {name!r}")


def _check_label_shape(y: Tensor, num_nodes: int) -> None:
    classes = y.dtype == torch.int64 and y.ndim == 1
    if not (classes or (y.dtype == torch.float32 and y.ndim in (1, 2))):
        raise DataError(
            "y must be 1-d int64 classes, or 1-d or 2-d float32 labels or targets; "
            f"got {y.dtype} of shape {tuple(y.shape)}"
        )
    if y.shape[0] != num_nodes:
        raise DataError(f"y has {y.shape[0]} rows, but the graph has {num_nodes} nodes")


def _name_duplicate(name: str, ids: Tensor) -> str:
    order = ids.argsort(stable=True)
    repeated = (ids[order][1:] == ids[order][:-1]).nonzero().flatten() + 1
    position = int(order[repeated].min())
    return f"split {name!r} must not hold a node twice; {name}[{position}] is node {int(ids[position])} again"
