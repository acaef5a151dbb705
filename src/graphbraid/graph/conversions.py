"""Conversions: what a graph can be made from, and what it can be made into."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from graphbraid.arguments import check_tensor
from graphbraid.errors import DataError
from graphbraid.signatures import typed

if TYPE_CHECKING:
    from graphbraid.graph.graph import Graph

_UNSIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


class Conversions:
    """The part of :class:`graphbraid.Graph` about edge lists and the graphs of other libraries."""

    __slots__ = ()

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
            cast("type[Graph]", cls),
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

        return edge_index_of(cast("Graph", self), original_order=original_order)

    @typed
    def in_original_order(self, values: Tensor) -> Tensor:
        """Reorder values per edge from the stored order to that of the list the graph was made from (a copy).

        They are returned unchanged if ``edge_id`` does not name each edge of that list exactly once.
        """
        from graphbraid.graph.interop.edge_list import original_positions

        graph = cast("Graph", self)
        if check_tensor(values, "values").shape[:1] != (graph.num_edges,):
            raise DataError(
                f"values must have one row per edge ({graph.num_edges}); got shape {tuple(values.shape)}"
            )
        place = original_positions(graph)
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
    @typed
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

        made = cast("type[Graph]", cls)
        return graph_from_scipy(made, matrix, x=x, y=y, splits=splits, weighted=weighted, name=name)

    def to_scipy(self) -> Any:
        """Return a ``scipy.sparse.csc_matrix`` whose entry (u, v) is the weight of edge u -> v, or 1.

        It shares indices and weights with the graph; SciPy copies ``indptr`` to int32 if it can.
        """
        from graphbraid.graph.interop.scipy import graph_to_scipy

        return graph_to_scipy(cast("Graph", self))

    @classmethod
    @typed
    def from_pyg(
        cls, data: Any, *, edge_weight: str | None = "auto", split: int = 0, name: str = ""
    ) -> Graph:
        """Make a graph from a PyG ``Data`` or ``HeteroData``; copies the topology, shares what fits.

        Edges come from ``edge_index`` or ``adj_t``, splits from the masks, and edge features from
        ``edge_attr`` if that is a matrix of floats beside ``edge_index``. Other attributes are dropped;
        ``left_out`` has their names. :class:`graphbraid.loader.NeighborLoader` takes the ``Data`` itself and
        slices those too.

        Args:
            data: ``torch_geometric.data.Data``, or ``HeteroData``, which becomes a graph with types.
            edge_weight: Name of the attribute that holds edge weights, or None for no weights. "auto" takes
                ``edge_weight``, else an ``edge_attr`` with one float per edge, whose name for models remains
                (``weight_name``).
            split: Column to use of masks of shape ``(num_nodes, num_splits)``.
            name: Name of the graph in reports.

        Raises:
            DataError: ``data`` has no edges, or names the attribute that does not fit.
        """
        from graphbraid.graph.interop.pyg import graph_from_pyg

        made = cast("type[Graph]", cls)
        return graph_from_pyg(made, data, edge_weight=edge_weight, split=split, name=name)

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

        return graph_to_pyg(cast("Graph", self))

    @classmethod
    @typed
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

        made = cast("type[Graph]", cls)
        return graph_from_dgl(made, graph, feature=feature, label=label, weight=weight, name=name)

    def to_dgl(self) -> Any:
        """Return a ``DGLGraph``: node data ``feat``, ``label`` and masks, edge data ``weight`` and ``feat``.

        A graph with types becomes a heterograph.

        Edge ids are the original ones if ``edge_id`` still names each edge exactly once. Node ids are copied
        to int64, which DGL prefers; sparse features are copied to a dense tensor.

        Raises:
            MissingPackageError: DGL is not installed.
        """
        from graphbraid.graph.interop.dgl import graph_to_dgl

        return graph_to_dgl(cast("Graph", self))
