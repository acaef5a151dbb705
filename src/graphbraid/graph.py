"""Graph: the one data structure everything takes: topology, features, labels, splits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from graphbraid.topology import Csc, check_csc

SPLITS = ("train", "val", "test")


@dataclass(frozen=True, kw_only=True, eq=False, slots=True, weakref_slot=True)
class SparseFeatures:
    """Feature rows in CSR: the non-zeros of row ``v`` are ``values[indptr[v]:indptr[v + 1]]``."""

    indptr: Tensor
    """``(num_rows + 1,)`` int64."""
    indices: Tensor
    """``(nnz,)`` int32, column of each value."""
    values: Tensor
    """``(nnz,)`` float32, float16 or bfloat16."""
    num_cols: int

    @property
    def shape(self) -> tuple[int, int]:
        """``(num_rows, num_cols)``."""
        return self.indptr.numel() - 1, self.num_cols


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Graph:
    """A homogeneous graph in CSC form with what training needs beside it."""

    csc: Csc
    """Topology: the in-edges of each node, with optional edge weights."""
    edge_id: Tensor | None = None
    """``(num_edges,)`` int64: position of each stored edge in the list the graph was made from; None: as stored."""
    x: Tensor | SparseFeatures | None = None
    """``(num_nodes, num_features)`` float32, float16 or bfloat16 features, dense or CSR."""
    y: Tensor | None = None
    """``(num_nodes,)`` int64 classes (-1: unlabelled), ``(num_nodes, num_labels)`` float32 multi-hot, or ``(num_nodes,)`` or ``(num_nodes, k)`` float targets."""
    splits: Mapping[str, Tensor] = field(default_factory=dict)
    """``train``, ``val``, ``test``: int64 node ids, each without duplicates."""
    name: str = ""

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return self.csc.num_dst

    @property
    def num_edges(self) -> int:
        """Number of stored (directed) edges."""
        return self.csc.num_edges
