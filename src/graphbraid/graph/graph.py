"""Graph: the data structure that everything takes: topology, features, labels and splits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import InitVar, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from graphbraid.arguments import as_flag, check_tensor
from graphbraid.errors import DataError
from graphbraid.graph import edges
from graphbraid.graph.csc import Csc
from graphbraid.graph.labelled import LabelledNodes, Task
from graphbraid.graph.scaled_features import Features, ScaledFeatures
from graphbraid.graph.sparse_features import SparseFeatures
from graphbraid.graph.typed import TypedViews
from graphbraid.graph.types import Types
from graphbraid.graph.validate import check_contents, check_shapes, validate_graph
from graphbraid.signatures import typed

__all__ = ["SPLITS", "Graph", "ScaledFeatures", "SparseFeatures", "Task"]

SPLITS = ("train", "val", "test")

_UNSIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Graph(LabelledNodes, TypedViews):
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
    """Node types and relations, of which :meth:`nodes_of` and :meth:`relation` give one; None if there is one
    of each. ``edge_id`` then counts within each relation's list."""
    trusted: InitVar[bool] = False
    """Skip the checks of splits and edge ids. Only for arrays known to be valid."""

    def __post_init__(self, trusted: bool) -> None:
        check_shapes(self)
        if not as_flag(trusted, "trusted"):
            check_contents(self, ("splits", "edge_id", "types"))

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
        kind = f"{_kind_of(self.x)} features"
        features = f", {self.num_features} {kind}" if self.x is not None else ""
        if self.edge_attr is not None:
            features += f", {self.num_edge_features} edge features"
        splits = "".join(f", {ids.numel():,} {key}" for key, ids in self.splits.items())
        if self.types is not None:
            splits = f" in {len(self.types.nodes)} types and {len(self.types.edges)} relations"
        return f"Graph({name}{self.num_nodes:,} nodes, {self.num_edges:,} edges{features}{splits})"

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

        Raises:
            DataError: the new fields do not fit the graph.
        """
        trusted = as_flag(fields.pop("trusted", False), "trusted")
        changed = replace(self, **fields, trusted=True)
        if not trusted:
            check_contents(changed, (*fields, "splits") if "csc" in fields else fields)
        return changed

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
        edge_attr: Any = None,
        name: str = "",
        keep_edge_id: bool = True,
    ) -> Graph:
        """Make a graph from an edge list; copies the topology, shares features and labels if they fit.

        Args:
            edge_index: ``(2, num_edges)`` integers (tensor, array or pair of arrays): sources, destinations.
            num_nodes: Number of nodes. If None, the rows of ``x`` or ``y``, else the largest id plus one.
            x: ``(num_nodes, num_features)`` tensor, array, SciPy matrix, :class:`SparseFeatures` or
                :class:`ScaledFeatures`; dtypes other than float32, float16 and bfloat16 become float32.
            y: Classes, multi-hot labels or targets, one row per node; -1 and -100 mark nodes without a class.
            splits: Node ids or bool masks by name.
            edge_weight: ``(num_edges,)`` numbers, kept as float32.
            edge_attr: ``(num_edges, num_edge_features)`` features of the edges, with the dtypes of ``x``;
                shared if the list is in the graph's order, else copied.
            name: Name of the graph in reports.
            keep_edge_id: Keep each edge's position in ``edge_index`` (8 bytes per edge).

        Raises:
            DataError: names the array and the first position that does not fit.
        """
        from graphbraid.graph.interop.edge_list import graph_from_edge_index

        return graph_from_edge_index(
            edge_index,
            num_nodes,
            x=x,
            y=y,
            splits=splits,
            edge_weight=edge_weight,
            edge_attr=edge_attr,
            name=name,
            keep_edge_id=keep_edge_id,
        )

    @typed
    def to_edge_index(self, *, original_order: bool = False) -> Tensor:
        """Return the ``(2, num_edges)`` int64 sources and destinations (a copy).

        Args:
            original_order: Use the order of the list the graph was made from, if ``edge_id`` still names all
                of its edges. Otherwise, and by default, edges are in the stored order, by destination and
                source.
        """
        from graphbraid.graph.interop.edge_list import edge_index_of

        return edge_index_of(self, original_order=original_order)

    @typed
    def in_original_order(self, values: Tensor) -> Tensor:
        """Reorder values per edge from the stored order to that of the list the graph was made from (a copy).

        They are returned unchanged if ``edge_id`` does not name each edge of that list exactly once.
        """
        from graphbraid.graph.interop.edge_list import original_positions

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

    @classmethod
    def from_scipy(
        cls,
        matrix: Any,
        *,
        x: Any = None,
        y: Any = None,
        splits: Mapping[str, Any] | None = None,
        weighted: bool | None = None,
        name: str = "",
    ) -> Graph:
        """Make a graph from a square ``scipy.sparse`` matrix, whose stored entry (u, v) is the edge u -> v.

        A CSC matrix with sorted columns shares its indices and float32 values; others are converted, and
        ``edge_id`` then holds positions in ``matrix.tocoo()`` (in ``matrix.data`` for a CSC matrix).

        Args:
            matrix: Sparse real matrix; duplicates and explicit zeros are edges too.
            x: As in :meth:`from_edge_index`.
            y: As in :meth:`from_edge_index`.
            splits: As in :meth:`from_edge_index`.
            weighted: Whether the values are edge weights. If None, they are unless bool or all 1.
            name: Name of the graph in reports.

        Raises:
            DataError: the matrix is not square or not real, or names the array that does not fit.
        """
        from graphbraid.graph.interop.scipy import graph_from_scipy

        return graph_from_scipy(matrix, x=x, y=y, splits=splits, weighted=weighted, name=name)

    def to_scipy(self) -> Any:
        """Return a ``scipy.sparse.csc_matrix`` whose entry (u, v) is the weight of edge u -> v, or 1.

        It shares indices and weights with the graph; SciPy copies ``indptr`` to int32 if it can.
        """
        from graphbraid.graph.interop.scipy import graph_to_scipy

        return graph_to_scipy(self)

    @classmethod
    def from_pyg(
        cls, data: Any, *, edge_weight: str | None = "auto", split: int = 0, name: str = ""
    ) -> Graph:
        """Make a graph from a PyG ``Data`` or ``HeteroData``; copies the topology, shares what fits.

        Edges come from ``edge_index`` or ``adj_t``, splits from the masks, and edge features from
        ``edge_attr`` if that is a matrix of floats beside ``edge_index``. Other attributes are dropped;
        :class:`graphbraid.loader.NeighborLoader` takes the ``Data`` itself and slices those too.

        Args:
            data: ``torch_geometric.data.Data``, or ``HeteroData``, which becomes a graph with types.
            edge_weight: Name of the attribute that holds edge weights, or None for no weights. "auto" takes
                ``edge_weight``, else an ``edge_attr`` with one float per edge.
            split: Column to use of masks of shape ``(num_nodes, num_splits)``.
            name: Name of the graph in reports.

        Raises:
            DataError: ``data`` has no edges, or names the attribute that does not fit.
        """
        from graphbraid.graph.interop.pyg import graph_from_pyg

        return graph_from_pyg(data, edge_weight=edge_weight, split=split, name=name)

    def to_pyg(self) -> Any:
        """Return a PyG ``Data`` with ``x``, ``edge_index``, ``y``, ``edge_weight``, ``edge_attr`` and masks.

        A graph with types becomes a ``HeteroData``, with ``time`` where there are times.

        Edges are in their original order if ``edge_id`` still names each exactly once. ``x`` and ``y`` are
        shared, as is ``edge_attr`` if it is stored in that order. Sparse features become a
        ``torch.sparse_csr`` tensor.

        Raises:
            MissingPackageError: PyTorch Geometric is not installed.
        """
        from graphbraid.graph.interop.pyg import graph_to_pyg

        return graph_to_pyg(self)

    @classmethod
    def from_dgl(
        cls,
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
            graph: Graph of DGL 1.1 or newer; edge ids are kept.
            feature: Key of the node data to use as features, or None for none; the default may be missing.
            label: Key of the node data to use as labels, likewise.
            weight: Key of the edge data to use as weights, or None for no weights.
            name: Name of the graph in reports.

        Raises:
            DataError: data (which is named) is missing or does not fit.
        """
        from graphbraid.graph.interop.dgl import graph_from_dgl

        return graph_from_dgl(graph, feature=feature, label=label, weight=weight, name=name)

    def to_dgl(self) -> Any:
        """Return a ``DGLGraph``: node data ``feat``, ``label`` and masks, edge data ``weight`` and ``feat``.

        A graph with types becomes a heterograph.

        Edge ids are the original ones if ``edge_id`` still names each edge exactly once. Node ids are copied
        to int64, which DGL prefers; sparse features are copied to a dense tensor.

        Raises:
            MissingPackageError: DGL is not installed.
        """
        from graphbraid.graph.interop.dgl import graph_to_dgl

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

    def validate(self, *, num_classes: int | None = None, allow_negative_weights: bool = False) -> Graph:
        """Check every value of the graph and return the graph if all are valid.

        ``indptr`` must never decrease; sources must exist; weights must be finite and not negative; features
        of nodes and edges must be finite; splits must not be empty or overlap and must name existing nodes,
        each once; classes must be -1, -100 or in range, and every node of a split must have a label.

        Args:
            num_classes: Also check that classes are below this number.
            allow_negative_weights: Accept negative edge weights.

        Raises:
            DataError: names the first invalid value and its position.
        """
        validate_graph(self, num_classes=num_classes, allow_negative_weights=allow_negative_weights)
        return self

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
        )


def _kind_of(x: Features | None) -> str:
    if isinstance(x, SparseFeatures):
        return "sparse"
    return "int8" if isinstance(x, ScaledFeatures) else "dense"
