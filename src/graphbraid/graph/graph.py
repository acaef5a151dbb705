"""Graph: the data structure that everything takes: topology, features, labels, splits and types."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import InitVar, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from graphbraid.arguments import as_flag, check_tensor
from graphbraid.errors import DataError, did_you_mean
from graphbraid.figures import notebook, table
from graphbraid.files.writing import format_bytes
from graphbraid.graph import edges
from graphbraid.graph.checks import check_contents, check_shapes, validate_graph
from graphbraid.graph.csc import Csc
from graphbraid.graph.interop.convert import edge_index_of, graph_from_edge_index, original_positions
from graphbraid.graph.interop.dgl import graph_from_dgl, graph_to_dgl
from graphbraid.graph.interop.pyg import graph_from_networkx, graph_from_pyg, graph_to_pyg
from graphbraid.graph.interop.relations import edge_lists_of, graph_from_relations, with_reverse_relations
from graphbraid.graph.interop.scipy import graph_from_scipy, graph_to_scipy
from graphbraid.graph.scaled_features import Features, ScaledFeatures
from graphbraid.graph.schema import Schema
from graphbraid.graph.sparse_features import SparseFeatures
from graphbraid.graph.types import (
    ONLY_EDGE_TYPE,
    ONLY_NODE_TYPE,
    SPLITS,
    EdgeSet,
    EdgeType,
    LabelledNodes,
    NodeSet,
    TaskName,
    Types,
    csc_of,
    only_types,
)
from graphbraid.signatures import typed

__all__ = ["SPLITS", "Graph", "ScaledFeatures", "SparseFeatures", "TaskName"]
_UNSIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Graph(LabelledNodes):
    """A graph in CSC form, with the features, labels and splits that training needs.

    A graph of one node type and one relation has its features, labels and splits in ``x``, ``y`` and
    ``splits``. A graph of several (:meth:`from_relations`) has them by type in ``types``, and in ``csc`` the
    in-edges of all nodes, one type's after the other's.

    Shapes, dtypes and the arrays that are read by index (edges, splits, edge ids) are checked on
    construction; :meth:`validate` also checks weights, features and labels.

    Raises:
        DataError: names the array that does not fit, or the first value that is wrong and where it stands.
    """

    csc: Csc
    """Topology: the in-edges of each node, with optional edge weights."""
    edge_id: Tensor | None = None
    """``(num_edges,)`` int64 position of each edge in the list the graph was made from.

    -1 marks an edge that was not in the list, such as an added self-loop. If None, the stored order counts as
    the original one.
    """
    edge_attr: Tensor | None = None
    """``(num_edges, num_edge_features)`` float32, float16 or bfloat16 edge features, in the stored order."""
    x: Features | None = None
    """``(num_nodes, num_features)`` float32, float16 or bfloat16 features, dense or CSR; or scaled int8."""
    y: Tensor | None = None
    """Labels or targets of the nodes, one row per node.

    ``(num_nodes,)`` int64 classes (-1 or -100 for a node without one), ``(num_nodes, num_labels)`` float32
    multi-hot labels, or ``(num_nodes,)`` or ``(num_nodes, k)`` float32 targets.
    """
    splits: Mapping[str, Tensor] = field(default_factory=dict)
    """int64 node ids of ``train``, ``val`` and ``test``, without duplicates."""
    name: str = ""
    """Name of the graph in reports."""
    types: Types | None = None
    """Node types and relations; None if the graph was made without. See :meth:`nodes_of`.
    With types, ``edge_id`` counts within each relation's list."""
    weight_name: str = "edge_weight"
    """Name of the argument by which a model gets the weights of ``csc``: ``edge_weight``, or ``edge_attr`` if
    they came as one feature per edge."""
    left_out: frozenset[str] = frozenset()
    """Names of attributes of the PyG data that the graph was made of, which the graph does not hold."""
    schema: Schema = field(default_factory=Schema)
    """Names of feature columns and of classes, and how features were made, where that is known."""
    trusted: InitVar[bool] = False
    """Skip the checks of splits and edge ids. Only for arrays known to be valid."""

    def __post_init__(self, trusted: bool) -> None:
        check_shapes(self)
        if not as_flag(trusted, "trusted"):
            check_contents(self, ("splits", "edge_id", "types"))

    from_edge_index = classmethod(graph_from_edge_index)
    from_relations = classmethod(graph_from_relations)
    from_scipy = classmethod(graph_from_scipy)
    from_pyg = classmethod(graph_from_pyg)
    from_dgl = classmethod(graph_from_dgl)
    from_networkx = classmethod(graph_from_networkx)

    @staticmethod
    def from_tables(
        nodes: Mapping[str, Any],
        edges: Mapping[EdgeType, Any] | None = None,
        *,
        roles: Mapping[str | EdgeType, Mapping[str, Any]] | None = None,
        reverse: bool = False,
        now: float | None = None,
        name: str = "",
    ) -> Graph:
        """Make a graph with types from tables of pandas, polars or pyarrow.

        Columns become features by themselves, as docs/tables.md describes.
        :func:`graphbraid.datasets.from_frames` takes the same, and also returns the original ids and what
        each column was taken for.

        Args:
            nodes: By node type a table with a row per node, with ids in the column ``id``; None for a type
                without a table: its nodes are the ids in edges.
            edges: By relation a table with a row per edge, with ids in ``source`` and ``destination``.
            roles: Roles of columns by node type and relation: ``{"user": {"id": "user_id", "time": "joined",
                "label": "churn", "columns": {"zip": "category"}, "keys": {"city": "city"}}}``.
            reverse: Add a relation ``rev_NAME`` beside each.
            now: Seconds since 1970 that the ages of times count to. If None, the latest time in the tables.
            name: Name of the graph in reports.

        Raises:
            MissingPackageError: pyarrow is not installed.
            ConfigError: A role is unknown or contradicts another.
            DataError: A column is missing or a value is invalid; names the table, row and column.
        """
        # By name, since datasets make graphs and stand above this room.
        tables = importlib.import_module("graphbraid.datasets.tables.typed_tables")
        made: Graph = tables.from_frames(nodes, edges, roles=roles, reverse=reverse, now=now, name=name).graph
        return made

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
        """Number of features per node; 0 without features."""
        return 0 if self.x is None else int(self.x.shape[1])

    @property
    def num_edge_features(self) -> int:
        """Number of features per edge; 0 without edge features."""
        return 0 if self.edge_attr is None else int(self.edge_attr.shape[1])

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays: topology, ids, features, labels and splits, without cached transposes."""
        tensors = [self.edge_id, self.edge_attr, self.y, *self.splits.values()]
        x = self.x
        x_bytes = 0 if x is None else x.nbytes
        type_bytes = 0 if self.types is None else self.types.nbytes
        return self.csc.nbytes + x_bytes + type_bytes + sum(t.nbytes for t in tensors if t is not None)

    def __repr__(self) -> str:
        name = f"{self.name}: " if self.name else ""
        kind = {SparseFeatures: "sparse", ScaledFeatures: "int8"}.get(type(self.x), "dense")
        features = f", {self.num_features} {kind} features" if self.x is not None else ""
        if self.edge_attr is not None:
            features += f", {self.num_edge_features} edge features"
        splits = "".join(f", {ids.numel():,} {key}" for key, ids in self.splits.items())
        if self.types is not None:
            splits = f" in {len(self.types.nodes)} types and {len(self.types.edges)} relations"
        return f"Graph({name}{self.num_nodes:,} nodes, {self.num_edges:,} edges{features}{splits})"

    def _repr_html_(self) -> str:
        return graph_html(self)

    def dense_x(self) -> Tensor:
        """Return the features as a dense tensor; a copy if they are sparse or int8, which become float32.

        Raises:
            DataError: the graph has no features.
        """
        if self.x is None:
            raise DataError("the graph has no features; set them with graph.replace(x=...)")
        return self.x if isinstance(self.x, Tensor) else self.x.to_dense()

    def replace(self, **fields: Any) -> Graph:
        """Return a graph with some fields replaced; the others are shared.

        New features or labels lose the names of columns or classes, unless ``schema`` gives them.

        Raises:
            DataError: the new fields do not fit the graph.
        """
        trusted = as_flag(fields.pop("trusted", False), "trusted")
        if "schema" not in fields:
            fields["schema"] = self.schema.without(*fields)
        changed = replace(self, **fields, trusted=True)
        if not trusted:
            check_contents(changed, (*fields, "splits") if "csc" in fields else fields)
        return changed

    @typed
    def validate(self, *, num_classes: int | None = None, allow_negative_weights: bool = False) -> Graph:
        """Check every value of the graph and return the graph if all are valid.

        ``indptr`` must never decrease, and sources must exist. Weights must be finite and not negative.
        Features of nodes and edges must be finite. Splits must not be empty or overlap, and each names
        existing nodes once. Classes must be -1, -100 or in range. Every node of a split needs a label.

        Args:
            num_classes: Also check that classes are below this number.
            allow_negative_weights: Accept negative edge weights.

        Raises:
            DataError: names the first invalid value and its position.
        """
        validate_graph(self, num_classes=num_classes, allow_negative_weights=allow_negative_weights)
        return self

    @property
    def node_types(self) -> tuple[str, ...]:
        """Names of the node types; a graph of one type has ``("node",)``."""
        return (ONLY_NODE_TYPE,) if self.types is None else tuple(self.types.nodes)

    @property
    def edge_types(self) -> tuple[EdgeType, ...]:
        """The relations: type of the sources, name, type of the destinations."""
        return (ONLY_EDGE_TYPE,) if self.types is None else tuple(self.types.edges)

    @property
    def is_typed(self) -> bool:
        """Whether the graph was made with types."""
        return self.types is not None

    @property
    def all_types(self) -> Types:
        """The types and relations. Without any, those of the topology: one type and one relation over it."""
        return only_types(self.csc) if self.types is None else self.types

    def first_id_of(self, node_type: str) -> int:
        """Return the id in the whole graph of the first node of a type."""
        return self.all_types.first_ids[self.node_types.index(node_type)]

    def nodes_of(self, node_type: str) -> NodeSet:
        """Return the nodes of a type: their number, features, labels, splits and times.

        Raises:
            DataError: there is no such type.
        """
        if node_type not in self.node_types:
            raise DataError(
                f"the graph has no node type {node_type!r}; it has {', '.join(self.node_types)}."
                + did_you_mean(node_type, self.node_types)
            )
        if self.types is not None:
            return self.types.nodes[node_type]
        return NodeSet(num_nodes=self.num_nodes, x=self.x, y=self.y, splits=self.splits)

    def edges_of(self, edge_type: EdgeType) -> EdgeSet:
        """Return the edges of a relation without their ends: number, features, times, splits.

        Raises:
            DataError: there is no such relation.
        """
        if self.types is not None:
            return self.types.edges_of(edge_type)
        self._check_only(edge_type)
        attr = None if self.edge_attr is None else self.in_original_order(self.edge_attr)
        return EdgeSet(
            num_edges=self.num_edges,
            edge_attr=attr,
            weighted=self.csc.weight is not None,
            weight_name=self.weight_name,
        )

    def relation(self, edge_type: EdgeType) -> Csc:
        """Return the adjacency of a relation between the ids of its two types.

        It is a copy where there are types, and :attr:`csc` itself where there are none.

        Raises:
            DataError: there is no such relation.
        """
        if self.types is not None:
            return csc_of(self.types, self.types.relation(edge_type))
        self._check_only(edge_type)
        return self.csc

    def to_edge_indices(self) -> dict[EdgeType, Tensor]:
        """Return ``(2, num_edges)`` int64 sources and destinations by relation, in the order of its list."""
        return edge_lists_of(self)

    def with_reverse_relations(self) -> Graph:
        """Return the graph with a relation ``rev_NAME`` beside each, whose edges run the other way.

        Edges of a relation between nodes of one type are reversed too. Weights, features and times are those
        of the edges they reverse; splits stay with the edges that have them. A graph that has the reverse of
        a relation already, by this name, keeps it.
        """
        return with_reverse_relations(self)

    @property
    def is_whole(self) -> bool:
        """Whether all lists and feature rows are here. Those of a graph divided among ranks are not."""
        return True

    def check_whole(self, what: str) -> None:
        """Refuse a graph that is divided among ranks where ``what`` reads all lists or feature rows.

        Raises:
            DataError: the lists and rows of other ranks are not here.
        """
        if not self.is_whole:
            raise DataError(
                f"{what} reads all lists and features, and this rank holds those of its own parts alone. "
                "Train on the parts by mini-batches (Trainer, mode='sampled'), or load the whole graph"
            )

    def check_one_type(self, what: str) -> None:
        """Refuse a graph of several types where ``what`` takes graphs of one.

        Raises:
            DataError: the graph has types.
        """
        if self.is_typed:
            raise DataError(
                f"{what} takes graphs of one node type and one relation so far; this one has the node types "
                f"{', '.join(self.node_types)} and {len(self.edge_types)} relations. An .npz file is read "
                "without them, and without the times and splits of edges, by with_types=False (convert "
                "--without-types)"
            )

    def _check_only(self, edge_type: EdgeType) -> None:
        if edge_type != ONLY_EDGE_TYPE:
            raise DataError(f"the graph has no relation {edge_type}; its only one is {ONLY_EDGE_TYPE}")

    @typed
    def to_edge_index(self, *, original_order: bool = False) -> Tensor:
        """Return the ``(2, num_edges)`` int64 sources and destinations (a copy).

        Args:
            original_order: Use the order of the list the graph was made from, if ``edge_id`` still names all
                of its edges. Otherwise, and by default, edges are in the stored order, by destination and
                source.
        """
        return edge_index_of(self, original_order=original_order)

    @typed
    def in_original_order(self, values: Tensor) -> Tensor:
        """Reorder values per edge from the stored order to that of the list the graph was made from (a copy).

        They are returned unchanged if ``edge_id`` does not name each edge of that list exactly once.
        """
        if check_tensor(values, "values").shape[:1] != (self.num_edges,):
            raise DataError(
                f"values must have one row per edge ({self.num_edges}); got shape {tuple(values.shape)}"
            )
        place = original_positions(self)
        if place is None:
            return values
        ordered = torch.empty_like(values)
        if values.dtype in _UNSIGNED:  # torch indexes these dtypes only as signed integers
            signed = _UNSIGNED[values.dtype]
            ordered.view(signed)[place] = values.view(signed)
        else:
            ordered[place] = values
        return ordered

    def to_scipy(self) -> Any:
        """Return a ``scipy.sparse.csc_matrix`` whose entry (u, v) is the weight of edge u -> v, or 1.

        It shares indices and weights with the graph, and they are read-only: ``copy()`` makes a matrix that
        can be changed. SciPy copies ``indptr`` to int32 if it can.
        """
        return graph_to_scipy(self)

    def to_pyg(self) -> Any:
        """Return a PyG ``Data`` with ``x``, ``edge_index``, ``y``, ``edge_weight``, ``edge_attr`` and masks.

        A graph with types becomes a ``HeteroData``, with ``time`` where there are times.

        Edges are in their original order if ``edge_id`` still names each exactly once. ``x`` and ``y`` are
        shared, as is ``edge_attr`` if it is stored in that order. Sparse features become a
        ``torch.sparse_csr`` tensor.

        Raises:
            MissingPackageError: PyTorch Geometric is not installed.
        """
        return graph_to_pyg(self)

    def to_dgl(self) -> Any:
        """Return a ``DGLGraph``: node data ``feat``, ``label`` and masks, edge data ``weight`` and ``feat``.

        A graph with types becomes a heterograph.

        Edge ids are the original ones if ``edge_id`` still names each edge exactly once. Node ids are copied
        to int64, which DGL prefers; sparse features are copied to a dense tensor.

        Raises:
            MissingPackageError: DGL is not installed.
        """
        return graph_to_dgl(self)

    def symmetrized(self, *, weights: str = "max", keep_edge_id: bool = True) -> Graph:
        """Return the graph with each edge in both directions, once; see :func:`.graph.edges.symmetrize`.

        Each edge gets the features of the edge whose id it gets.
        """
        return self._edited(edges.symmetrize, keep_edge_id, weights=weights)

    def without_duplicates(self, *, weights: str = "sum", keep_edge_id: bool = True) -> Graph:
        """Return the graph with each edge u -> v once, which keeps the features of the first one.

        :func:`graphbraid.graph.edges.remove_duplicates` describes the arguments.
        """
        return self._edited(edges.remove_duplicates, keep_edge_id, weights=weights)

    def with_self_loops(self, *, weight: float = 1.0, keep_edge_id: bool = True) -> Graph:
        """Return the graph with a self-loop added to each node without one: id -1, zeros for features."""
        return self._edited(edges.add_self_loops, keep_edge_id, weight=weight)

    def without_self_loops(self, *, keep_edge_id: bool = True) -> Graph:
        """Return the graph without the edges from a node to itself."""
        return self._edited(edges.remove_self_loops, keep_edge_id)

    def _edited(self, edit: Callable[..., edges.Edited], keep_edge_id: bool, **options: Any) -> Graph:
        self.check_one_type("editing edges")
        if self.edge_attr is None:
            edited = edit(self.csc, self.edge_id, keep_edge_id=keep_edge_id, **options)
            return self.replace(csc=edited.csc, edge_id=edited.edge_id)
        edited = edit(self.csc, **options)  # without ids of its own, the edit returns positions
        origin = edited.edge_id
        assert origin is not None
        return self.replace(
            csc=edited.csc,
            edge_id=edges.ids_of(origin, self.edge_id) if as_flag(keep_edge_id, "keep_edge_id") else None,
            edge_attr=edges.rows_of(origin, self.edge_attr),
            schema=self.schema,
        )


def graph_html(graph: Graph) -> str:
    """Return the HTML of a graph for a notebook; only the labels of nodes are read."""
    name = f"{graph.name}: " if graph.name else ""
    head = f"Graph {name}{graph.num_nodes:,} nodes, {graph.num_edges:,} edges, {format_bytes(graph.nbytes)}"
    if graph.types is not None:
        nodes, edges = graph.types.nodes, graph.types.edges
    else:  # edges_of would copy features of edges into their original order
        weighted = graph.csc.weight is not None
        edge_set = EdgeSet(num_edges=graph.num_edges, edge_attr=graph.edge_attr, weighted=weighted)
        nodes, edges = {ONLY_NODE_TYPE: graph.nodes_of(ONLY_NODE_TYPE)}, {ONLY_EDGE_TYPE: edge_set}
    rows = [
        (
            kind,
            of.num_nodes,
            _features(of.x),
            _labels(of),
            *_others(of.splits, of.time),
            format_bytes(of.nbytes),
        )
        for kind, of in nodes.items()
    ]
    relations = [
        (
            " ".join(kind),
            of.num_edges,
            _features(of.edge_attr) + (", weights" if of.weighted else ""),
            "" if of.y is None else _columns(of.y),
            *_others(of.splits, of.time),
            format_bytes(of.nbytes),
        )
        for kind, of in edges.items()
    ]
    rest = ("features", "labels", "splits", "times", "bytes without topology")
    return notebook(head, table(rows, ("nodes", "", *rest)), table(relations, ("edges", "", *rest)))


def _features(x: Features | None) -> str:
    if x is None:
        return ""
    kind = "int8" if isinstance(x, ScaledFeatures) else str(x.dtype).removeprefix("torch.")
    return f"{x.shape[1]:,} {'sparse ' if isinstance(x, SparseFeatures) else ''}{kind}"


def _labels(nodes: NodeSet) -> str:
    y = nodes.y
    if y is None:
        return ""
    return _columns(y) if y.dtype.is_floating_point else f"{nodes.num_classes:,} classes"


def _columns(values: Tensor) -> str:
    width = values.shape[1] if values.ndim > 1 else 1
    return f"{width:,} {str(values.dtype).removeprefix('torch.')}"


def _others(splits: Mapping[str, Tensor], time: Tensor | None) -> tuple[str, str]:
    counts = ", ".join(f"{ids.numel():,} {name}" for name, ids in splits.items())
    return counts, "" if time is None else str(time.dtype).removeprefix("torch.")
