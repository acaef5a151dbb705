"""Graph: the one data structure everything takes: topology, features, labels, splits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from graphbraid.errors import DataError
from graphbraid.sparse_features import FEATURE_DTYPES, SparseFeatures
from graphbraid.topology import Csc, check_csc

__all__ = ["SPLITS", "Graph", "SparseFeatures", "Task"]

SPLITS = ("train", "val", "test")

_SCAN = 1 << 20

Task = Literal["single-label", "multi-label", "regression"]


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Graph:
    """A homogeneous graph in CSC form with what training needs beside it.

    Shapes and dtypes are checked on construction; :meth:`validate` checks the contents.
    """

    csc: Csc
    """Topology: the in-edges of each node, with optional edge weights."""
    edge_id: Tensor | None = None
    """``(num_edges,)`` int64: position of each edge in the list the graph was made from; None: as stored.

    -1 marks an edge that was in no list, as an added self-loop.
    """
    x: Tensor | SparseFeatures | None = None
    """``(num_nodes, num_features)`` float32, float16 or bfloat16 features, dense or CSR."""
    y: Tensor | None = None
    """Labels or targets of the nodes, one row each.

    ``(num_nodes,)`` int64 classes (-1: unlabelled), ``(num_nodes, num_labels)`` float32 multi-hot, or
    ``(num_nodes,)`` or ``(num_nodes, k)`` float32 targets.
    """
    splits: Mapping[str, Tensor] = field(default_factory=dict)
    """``train``, ``val``, ``test``: int64 node ids, each without duplicates."""
    name: str = ""
    """How reports call the graph."""

    def __post_init__(self) -> None:
        _check_shapes(self)

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return self.csc.num_dst

    @property
    def num_edges(self) -> int:
        """Number of stored (directed) edges."""
        return self.csc.num_edges

    @property
    def num_features(self) -> int:
        """Width of the features; 0 without features."""
        return 0 if self.x is None else int(self.x.shape[1])

    @property
    def task(self) -> Task:
        """What ``y`` asks for: int64 is single-label, a matrix of only 0 and 1 multi-label, else regression.

        Raises:
            DataError: the graph has no labels.
        """
        y = self._labels()
        if not y.dtype.is_floating_point:
            return "single-label"
        return "multi-label" if y.ndim == 2 and _is_multi_hot(y) else "regression"

    @property
    def num_classes(self) -> int:
        """Classes (one more than the largest), labels (multi-label) or width of the target (regression).

        Raises:
            DataError: the graph has no labels.
        """
        y = self._labels()
        if y.dtype.is_floating_point:
            return 1 if y.ndim == 1 else int(y.shape[1])
        return int(y.max()) + 1 if y.numel() else 0

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays: topology, ids, features, labels and splits, without cached transposes."""
        tensors = [self.edge_id, self.y, *self.splits.values()]
        x = self.x
        x_bytes = 0 if x is None else x.nbytes
        return self.csc.nbytes + x_bytes + sum(t.nbytes for t in tensors if t is not None)

    def __repr__(self) -> str:
        name = f"{self.name}: " if self.name else ""
        kind = f"{'sparse' if isinstance(self.x, SparseFeatures) else 'dense'} features"
        features = f", {self.num_features} {kind}" if self.x is not None else ""
        splits = "".join(f", {ids.numel():,} {key}" for key, ids in self.splits.items())
        return f"Graph({name}{self.num_nodes:,} nodes, {self.num_edges:,} edges{features}{splits})"

    def split(self, name: str) -> Tensor:
        """The node ids of a split.

        Raises:
            DataError: there is no such split, or it is empty.
        """
        ids = self.splits.get(name)
        if ids is None:
            present = ", ".join(self.splits) or "none"
            raise DataError(
                f"the graph has no split {name!r} (present: {present}); pass splits={{{name!r}: ids}}"
            )
        if not ids.numel():
            raise DataError(f"split {name!r} is empty; it needs at least one node id")
        return ids

    def dense_x(self) -> Tensor:
        """The features as a dense tensor: as stored if they are dense, else a copy.

        Raises:
            DataError: the graph has no features.
        """
        if self.x is None:
            raise DataError("the graph has no features; set them with graph.replace(x=...)")
        return self.x.to_dense() if isinstance(self.x, SparseFeatures) else self.x

    def replace(self, **fields: Any) -> Graph:
        """A graph with some fields replaced; the others are shared.

        Raises:
            DataError: the new fields do not fit the graph.
        """
        return replace(self, **fields)

    @classmethod
    def from_edge_index(
        cls,
        edge_index: Any,
        num_nodes: int | None = None,
        *,
        x: Any = None,
        y: Any = None,
        splits: Mapping[str, Any] | None = None,
        edge_weight: Any = None,
        name: str = "",
        keep_edge_id: bool = True,
    ) -> Graph:
        """Make a graph of an edge list; the topology is a copy, features and labels are shared if they fit.

        Args:
            edge_index: ``(2, num_edges)`` integers (tensor, array or pair of arrays): sources, destinations.
            num_nodes: Number of nodes; None takes the rows of ``x`` or ``y``, else the largest id plus one.
            x: ``(num_nodes, num_features)`` tensor, array, SciPy matrix or :class:`SparseFeatures`; dtypes
                other than float32, float16 and bfloat16 become float32.
            y: Classes, multi-hot labels or targets, one row per node; -1 marks a node without a class.
            splits: Node ids or bool masks by name.
            edge_weight: ``(num_edges,)`` numbers, kept as float32.
            name: How reports call the graph.
            keep_edge_id: Keep each edge's position in ``edge_index`` (8 bytes an edge) for ``edge_attr``.

        Raises:
            DataError: names the array and the first position that does not fit.
        """
        from graphbraid.interop.edge_list import graph_from_edge_index

        return graph_from_edge_index(
            edge_index,
            num_nodes,
            x=x,
            y=y,
            splits=splits,
            edge_weight=edge_weight,
            name=name,
            keep_edge_id=keep_edge_id,
        )

    def to_edge_index(self, *, original_order: bool = False) -> Tensor:
        """``(2, num_edges)`` int64 sources and destinations (a copy).

        Args:
            original_order: In the order of the list the graph was made from, if ``edge_id`` still names all
                of it; else, and by default, as stored: by destination and source.
        """
        from graphbraid.interop.edge_list import edge_index_of

        return edge_index_of(self, original_order=original_order)

    def _labels(self) -> Tensor:
        if self.y is None:
            raise DataError("the graph has no labels; set them with graph.replace(y=...)")
        return self.y


def _is_multi_hot(y: Tensor) -> bool:
    """Whether all values are 0 or 1; looks at a million at a time, so that no large temporary is made."""
    values = y.reshape(-1)
    parts = (values[i : i + _SCAN] for i in range(0, values.numel(), _SCAN))
    return all(bool(((part == 0) | (part == 1)).all()) for part in parts)


def _check_shapes(graph: Graph) -> None:
    csc, num_nodes = graph.csc, graph.num_nodes
    check_csc(csc.indptr, csc.indices, num_src=csc.num_src)
    if csc.num_src != num_nodes:
        raise DataError(
            f"a graph's sources are its destinations; the topology has {csc.num_src} and {num_nodes}"
        )
    _check_edge_array(csc.weight, "edge weights", torch.float32, graph.num_edges)
    _check_edge_array(graph.edge_id, "edge_id", torch.int64, graph.num_edges)
    x, y = graph.x, graph.y
    if x is not None:
        if isinstance(x, Tensor) and (x.ndim != 2 or x.dtype not in FEATURE_DTYPES):
            raise DataError(
                "x must be a 2-d float32, float16 or bfloat16 tensor or SparseFeatures; "
                f"got {x.dtype} of shape {tuple(x.shape)}"
            )
        if x.shape[0] != num_nodes:
            raise DataError(f"x has {x.shape[0]} rows, but the graph has {num_nodes} nodes")
    if y is not None:
        _check_labels(y, num_nodes)
    for name, ids in graph.splits.items():
        if ids.dtype != torch.int64 or ids.ndim != 1:
            raise DataError(
                f"split {name!r} must be 1-d int64 ids; got {ids.dtype} of shape {tuple(ids.shape)}"
            )


def _check_labels(y: Tensor, num_nodes: int) -> None:
    classes = y.dtype == torch.int64 and y.ndim == 1
    if not (classes or (y.dtype == torch.float32 and y.ndim in (1, 2))):
        raise DataError(
            "y must be 1-d int64 classes, or 1-d or 2-d float32 labels or targets; "
            f"got {y.dtype} of shape {tuple(y.shape)}"
        )
    if y.shape[0] != num_nodes:
        raise DataError(f"y has {y.shape[0]} rows, but the graph has {num_nodes} nodes")


def _check_edge_array(values: Tensor | None, what: str, dtype: torch.dtype, num_edges: int) -> None:
    if values is not None and (values.dtype != dtype or values.shape != (num_edges,)):
        raise DataError(
            f"{what} must be {dtype} of shape ({num_edges},); got {values.dtype} of {tuple(values.shape)}"
        )
