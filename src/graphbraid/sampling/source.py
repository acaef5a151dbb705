"""BatchSource and TypedBatchSource: the graph and attributes that mini-batches are read from."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from torch import Tensor

from graphbraid.errors import DataError
from graphbraid.graph import EdgeType, Graph, ScaledFeatures, SparseFeatures
from graphbraid.graph.identity import check_made_for
from graphbraid.graph.interop.convert import is_plain
from graphbraid.graph.scaled_features import stored_rows
from graphbraid.ops.gather import TierTable, gather_features, gather_rows, gather_tiered
from graphbraid.sampling.lists import NeighborLists
from graphbraid.sampling.rows.by_id import FeatureSource, is_read_over_link, take_features, take_rows
from graphbraid.sampling.rows.transfer_counter import TransferCounter, link_of, travelled

ADJ_VALUES = "values of adj_t"
"""Name of the values of ``adj_t`` among ``edge_attrs``; no attribute of a user can have it."""


@dataclass(frozen=True, kw_only=True, eq=False, slots=True, weakref_slot=True)
class BatchSource:
    """The graph and attributes that every batch of a loader is read from.

    Its arrays are on the device of the batches' ids, or in page-locked host memory that this device reads.
    """

    graph: Graph
    node_attrs: Mapping[str, Tensor] = field(default_factory=dict)
    """Further tensors with one row per node, such as ``train_mask``; also ``x`` and ``y`` if their dtype or
    shape is one that the graph cannot hold."""
    edge_attrs: Mapping[str, Tensor] = field(default_factory=dict)
    """Further tensors with one row per edge, such as ``edge_attr``, in the original edge list's order."""
    constants: Mapping[str, Any] = field(default_factory=dict)
    """Attributes of the whole graph, which every batch carries unchanged."""
    by_column: frozenset[str] = frozenset()
    """Names of ``node_attrs`` and ``edge_attrs`` whose last dimension in a batch is the nodes or edges."""
    names: tuple[str, ...] | None = None
    """Order of the attributes in a batch. If None, edges, ``x``, ``y``, then the others."""
    adj_t: Any = None
    """Sparse matrix of the whole graph, whose kind the batches' ``adj_t`` have. If None, they have none."""
    template: Any = None
    """PyG ``Data``: batches get its class and settings. If None, they are plain ``Data``."""
    src_degree: Tensor | None = None
    """In-degrees that blocks carry for layers that normalise by them, ``(num_nodes,)`` float32."""
    src_loop: Tensor | None = None
    """Weights of self-loops for the same layers, ``(num_nodes,)`` float32; see :class:`graphbraid.Csc`."""
    rows: FeatureSource | None = None
    """Where ``x`` of a batch comes from; None: ``graph.x``, which has the same rows."""
    lists: NeighborLists | None = None
    """Where the graph's adjacency lists are; None: in ``graph.csc``, which has the same."""
    table: TierTable | None = None
    """Where a device that samples finds ``x``, if that is in several memories."""
    link: TransferCounter | None = None
    """Counts what travels to devices: that of ``rows``, or the one given where there are none. If None,
    nothing is counted."""

    def __post_init__(self) -> None:
        if self.rows is not None:
            object.__setattr__(self, "link", link_of(self.rows))
        x, rows, lists = self.graph.x, self.rows, self.lists
        if lists is not None:
            csc, whole = lists.csc, self.graph.csc
            if (csc.num_dst, csc.num_edges) != (whole.num_dst, whole.num_edges):
                raise DataError(
                    f"lists are of {csc.num_dst} nodes and {csc.num_edges} edges, but the graph has "
                    f"{whole.num_dst} and {whole.num_edges}; make the topology's tiers of this very graph"
                )
        if rows is None:
            self.check_tiers()
            return
        dense = x if isinstance(x, Tensor | ScaledFeatures) else None
        if dense is None or (dense.shape, dense.dtype) != (rows.shape, rows.dtype):
            own = "none that are dense" if dense is None else f"{dense.dtype} of {tuple(dense.shape)}"
            raise DataError(
                f"rows are {rows.dtype} of {tuple(rows.shape)}, but the graph's features are {own}; make the "
                "tiers of this very graph"
            )
        self.check_tiers()

    def check_tiers(self) -> None:
        """Check that rows and lists are of the graph as it is now; reads nothing while it is unchanged.

        Raises:
            DataError: they were made for another graph, or it was changed in place since.
        """
        if self.lists is not None:
            check_made_for(self.lists, self.graph.csc, "the topology's tiers were")
        if self.rows is not None:
            check_made_for(self.rows, self.graph.x, "the features' tiers were")

    def keys(self, layout: str, *, by_edge: bool) -> list[str]:
        """Return the names of a batch's attributes in order; ``by_edge`` says whether it keeps edge ids."""
        names: Iterable[str] = self._default_names() if self.names is None else self.names
        if layout == "blocks":
            names = ["blocks", *(name for name in names if name not in ("edge_index", "adj_t"))]
        if by_edge:
            return list(dict.fromkeys((*names, "e_id")))
        return [name for name in names if not self._is_by_edge(name)]

    def without(self, names: Iterable[str]) -> BatchSource:
        """Return a source without the attributes of these names that are not the graph's own."""
        dropped = set(names)
        return dataclasses.replace(
            self,
            node_attrs={name: rows for name, rows in self.node_attrs.items() if name not in dropped},
            edge_attrs={name: rows for name, rows in self.edge_attrs.items() if name not in dropped},
            constants={name: value for name, value in self.constants.items() if name not in dropped},
            names=None if self.names is None else tuple(name for name in self.names if name not in dropped),
        )

    def has(self, name: str) -> bool:
        """Return whether the source has an attribute of this name in addition to those of the graph."""
        return name in self.node_attrs or name in self.edge_attrs or name in self.constants

    def x_rows(self, ids: Tensor) -> Tensor | None:
        """Return the dense features of the nodes ``ids``, ``(num_ids, ...)``; None without features."""
        if "x" in self.node_attrs:
            return self.node_rows("x", ids)
        if self.table is not None and self.table.device == ids.device:
            return gather_tiered(self.table, ids, trusted=True)
        if self.rows is not None:
            return rows_on_device(self.rows, ids)
        features = self.graph.x
        if isinstance(features, SparseFeatures):
            return features.rows(ids.cpu()).to_dense()
        if features is None or ids.device.type == "cpu":
            return None if features is None else gather_features(features, ids, trusted=True)
        stored = stored_rows(features)
        if self.link is not None and stored is not None and is_read_over_link(stored, ids):
            self.link.add_direct(features, ids)
        return take_features(features, ids)

    def y_rows(self, ids: Tensor) -> Tensor | None:
        """Return the labels of the nodes ``ids``, one row each; None without labels.

        If ``y`` is one of the ``constants``, a label of the whole graph, it is returned as it is.
        """
        if "y" in self.constants:
            return cast("Tensor", self.constants["y"])
        if "y" in self.node_attrs:
            return self.node_rows("y", ids)
        return None if self.graph.y is None else self._taken("y", self.graph.y, ids)

    def node_rows(self, name: str, ids: Tensor) -> Tensor:
        """Return the rows of a node attribute for the nodes ``ids``."""
        rows = self._taken(name, self.node_attrs[name], ids)
        return rows.movedim(0, -1) if name in self.by_column else rows

    def edge_rows(self, name: str, positions: Tensor) -> Tensor:
        """Return the rows of an edge attribute for the edges at ``positions`` in the graph."""
        rows = self._taken(name, self.edge_attrs[name], self.edge_ids(positions))
        return rows.movedim(0, -1) if name in self.by_column else rows

    def edge_ids(self, positions: Tensor) -> Tensor:
        """Return the indices of the edges at ``positions`` in the edge list that the graph was built from."""
        ids = self.graph.edge_id
        return positions if ids is None else self._taken("e_id", ids, positions)

    def edge_weights(self, positions: Tensor) -> Tensor:
        """Return the weights of the edges at ``positions``, ``(num_edges,)`` float32.

        The graph must have weights.
        """
        assert self.graph.csc.weight is not None
        return self._taken("edge_weight", self.graph.csc.weight, positions)

    def edge_features(self, positions: Tensor) -> Tensor:
        """Return the features of the edges at ``positions``, ``(num_edges, num_edge_features)``.

        The graph must have ``edge_attr``.
        """
        assert self.graph.edge_attr is not None
        return self._taken("edge_attr", self.graph.edge_attr, positions)

    def _taken(self, name: str, table: Tensor, ids: Tensor) -> Tensor:
        """Return rows of a table; what a device reads of the host is counted."""
        taken = take_rows(table, ids)
        if self.link is not None and is_read_over_link(table, ids):
            self.link.add_attribute(name, taken)
        return taken

    def _is_by_edge(self, name: str) -> bool:
        return name in self.edge_attrs or (name == "edge_attr" and not self.has(name))  # else the graph's

    def _default_names(self) -> list[str]:
        graph = self.graph
        held = (
            ("x", graph.x),
            ("y", graph.y),
            (graph.weight_name, graph.csc.weight),
            ("edge_attr", graph.edge_attr),
        )
        held_names = [name for name, value in held if value is not None]
        return list(
            dict.fromkeys(("edge_index", *held_names, *self.node_attrs, *self.edge_attrs, *self.constants))
        )


@dataclass(frozen=True, kw_only=True, eq=False, slots=True, weakref_slot=True)
class TypedBatchSource:
    """The graph with types and the attributes that every batch of a loader is read from."""

    graph: Graph
    """A graph with types, which says what edges there are."""
    node_attrs: Mapping[str, Mapping[str, Tensor | SparseFeatures | ScaledFeatures]]
    """What has one row per node, such as ``x``, by node type and name."""
    edge_attrs: Mapping[EdgeType, Mapping[str, Tensor]]
    """What has one row per edge, in the order of the relation's list, by relation and name."""
    by_column: frozenset[tuple[str | EdgeType, str]] = field(default_factory=frozenset)
    """Attributes whose last dimension in a batch is the nodes or edges."""
    template: Any = None
    """PyG ``HeteroData`` that batches are copies of, but for these attributes; None to make one."""

    def gathered(self, node_type: str) -> Tensor | None:
        """Return the features of a type if threads can gather their rows: a contiguous matrix on the CPU."""
        x = self.node_attrs[node_type].get("x")
        if not isinstance(x, Tensor) or not is_plain(x) or (node_type, "x") in self.by_column:
            return None
        return x if x.ndim == 2 and x.is_contiguous() and x.device.type == "cpu" else None

    def node_rows(self, node_type: str, name: str, ids: Tensor) -> Tensor:
        """Return the rows of an attribute for nodes: of sparse features dense, of int8 as float32."""
        table = self.node_attrs[node_type][name]
        if isinstance(table, SparseFeatures):
            return table.rows(ids).to_dense()
        if isinstance(table, ScaledFeatures):
            return gather_features(table, ids, trusted=True)
        if name == "x" and table.ndim == 2 and self.gathered(node_type) is not None:
            return gather_rows(table, ids, trusted=True)
        return self._turned(take_rows(table, ids), node_type, name)

    def edge_rows(self, edge_type: EdgeType, name: str, positions: Tensor) -> Tensor:
        """Return the rows of an edge attribute for edges of a relation at ``positions`` in the graph."""
        attrs = self.edge_attrs[edge_type]
        if name not in attrs and name == self.graph.edges_of(edge_type).weight_name:
            assert self.graph.csc.weight is not None
            return take_rows(self.graph.csc.weight, positions)
        return self._turned(take_rows(attrs[name], self.edge_ids(positions)), edge_type, name)

    def edge_names(self, edge_type: EdgeType) -> list[str]:
        """Return the names of a relation's attributes."""
        names = list(self.edge_attrs[edge_type])
        edges = self.graph.edges_of(edge_type)
        if self.template is None and edges.weighted and edges.weight_name not in names:
            names.append(edges.weight_name)
        return names

    def edge_ids(self, positions: Tensor) -> Tensor:
        """Return where edges at ``positions`` in the graph stand in the lists of their relations."""
        return positions if self.graph.edge_id is None else take_rows(self.graph.edge_id, positions)

    def _turned(self, rows: Tensor, key: str | EdgeType, name: str) -> Tensor:
        return rows.movedim(0, -1) if (key, name) in self.by_column else rows


def source_of_graph(graph: Graph) -> TypedBatchSource:
    """Return the source of a graph's own features, labels, times and weights."""
    nodes, edges = {}, {}
    for node_type in graph.node_types:
        one = graph.nodes_of(node_type)
        held = {"x": one.x, "y": one.y, "time": one.time}
        nodes[node_type] = {name: value for name, value in held.items() if value is not None}
    for edge_type in graph.edge_types:
        of_edges = graph.edges_of(edge_type)
        named = {"edge_attr": of_edges.edge_attr, "time": of_edges.time}
        edges[edge_type] = {name: value for name, value in named.items() if value is not None}
    return TypedBatchSource(graph=graph, node_attrs=nodes, edge_attrs=edges)


def rows_on_device(rows: FeatureSource, ids: Tensor) -> Tensor:
    """Return the rows of ``ids`` on their device; of rows that are hot there, none travels."""
    return rows.gather(ids) if ids.device.type == "cpu" else travelled(rows, ids)
