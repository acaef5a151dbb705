"""BatchSource: what the mini-batches of a loader are cut from, and how."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from torch import Tensor

from graphbraid.graph import Graph, SparseFeatures
from graphbraid.ops.gather import gather_rows
from graphbraid.sampling.rows import take_rows

ADJ_VALUES = "values of adj_t"
"""Their name among ``edge_attrs``; none that a user's attribute can have."""


@dataclass(frozen=True, kw_only=True, eq=False, slots=True, weakref_slot=True)
class BatchSource:
    """What every batch of a loader is cut from.

    Its arrays lie where a batch's ids do, or in page-locked memory that the ids' device reads.
    """

    graph: Graph
    node_attrs: Mapping[str, Tensor] = field(default_factory=dict)
    """Further tensors with a row per node, such as ``train_mask``; also ``x`` and ``y`` of a dtype or shape
    that the graph does not hold."""
    edge_attrs: Mapping[str, Tensor] = field(default_factory=dict)
    """Further tensors with a row per edge, in the order the graph was made from, such as ``edge_attr``."""
    constants: Mapping[str, Any] = field(default_factory=dict)
    """What every batch has as it is: attributes of the whole graph."""
    by_column: frozenset[str] = frozenset()
    """Names of ``node_attrs`` and ``edge_attrs`` whose batches have nodes or edges last, not first."""
    names: tuple[str, ...] | None = None
    """The attributes' order in a batch; None: edges, ``x``, ``y``, and the others."""
    adj_t: Any = None
    """A sparse matrix in whose form batches have their edges too, as ``adj_t``; None: they do not."""
    src_degree: Tensor | None = None
    """``(num_nodes,)`` float32 degrees that blocks carry for layers that normalise by them."""
    src_loop: Tensor | None = None
    """``(num_nodes,)`` float32 weights of self-loops, for the same layers; see :class:`graphbraid.Csc`."""

    def keys(self, layout: str, *, by_edge: bool) -> list[str]:
        """Names of what batches have of it, in their order; ``by_edge``: they keep their edges' ids."""
        names: Iterable[str] = self._default_names() if self.names is None else self.names
        if layout == "blocks":
            names = ["blocks", *(name for name in names if name not in ("edge_index", "adj_t"))]
        if by_edge:
            return list(dict.fromkeys((*names, "e_id")))
        return [name for name in names if not self._is_by_edge(name)]

    def has(self, name: str) -> bool:
        """Whether it has the attribute beside what the graph holds."""
        return name in self.node_attrs or name in self.edge_attrs or name in self.constants

    def x_rows(self, ids: Tensor) -> Tensor | None:
        """``(num_ids, ...)`` features of nodes, dense; None without features."""
        if "x" in self.node_attrs:
            return self.node_rows("x", ids)
        features = self.graph.x
        if isinstance(features, SparseFeatures):
            return features.rows(ids.cpu()).to_dense()
        if features is None or ids.device.type == "cpu":
            return None if features is None else gather_rows(features, ids, trusted=True)
        return take_rows(features, ids)

    def y_rows(self, ids: Tensor) -> Tensor | None:
        """Labels of nodes, a row each; those of the whole graph where it has one ``y``; None without."""
        if "y" in self.constants:
            return cast("Tensor", self.constants["y"])
        if "y" in self.node_attrs:
            return self.node_rows("y", ids)
        return None if self.graph.y is None else take_rows(self.graph.y, ids)

    def node_rows(self, name: str, ids: Tensor) -> Tensor:
        """A node attribute of some nodes."""
        rows = take_rows(self.node_attrs[name], ids)
        return rows.movedim(0, -1) if name in self.by_column else rows

    def edge_rows(self, name: str, positions: Tensor) -> Tensor:
        """An edge attribute of edges at positions in the graph."""
        rows = take_rows(self.edge_attrs[name], self.edge_ids(positions))
        return rows.movedim(0, -1) if name in self.by_column else rows

    def edge_ids(self, positions: Tensor) -> Tensor:
        """Places in the list the graph was made from, of edges at positions in the graph."""
        return positions if self.graph.edge_id is None else take_rows(self.graph.edge_id, positions)

    def edge_weights(self, positions: Tensor) -> Tensor:
        """``(num_edges,)`` float32 weights of edges at positions in a graph that has weights."""
        assert self.graph.csc.weight is not None
        return take_rows(self.graph.csc.weight, positions)

    def edge_features(self, positions: Tensor) -> Tensor:
        """``(num_edges, num_edge_features)`` of edges at positions in a graph that has ``edge_attr``."""
        assert self.graph.edge_attr is not None
        return take_rows(self.graph.edge_attr, positions)

    def _is_by_edge(self, name: str) -> bool:
        return name in self.edge_attrs or (name == "edge_attr" and not self.has(name))  # else the graph's

    def _default_names(self) -> list[str]:
        graph = self.graph
        held = (
            ("x", graph.x),
            ("y", graph.y),
            ("edge_weight", graph.csc.weight),
            ("edge_attr", graph.edge_attr),
        )
        held_names = [name for name, value in held if value is not None]
        return list(
            dict.fromkeys(("edge_index", *held_names, *self.node_attrs, *self.edge_attrs, *self.constants))
        )
