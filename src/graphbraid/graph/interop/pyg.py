"""Conversion of a Graph from and to PyG's ``Data`` and, where there are types, ``HeteroData``."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from graphbraid.arguments import check_tensor, shown
from graphbraid.errors import DataError, needing
from graphbraid.graph.checks import named
from graphbraid.graph.interop.convert import (
    as_features,
    as_labels,
    as_tensor,
    graph_from_edge_index,
    masks_of,
    plain,
)
from graphbraid.graph.interop.relations import edge_lists_of, edge_weights_of, graph_from_relations
from graphbraid.graph.scans import is_plain
from graphbraid.graph.sparse_features import FEATURE_DTYPES, SparseFeatures
from graphbraid.graph.types import SPLITS, EdgeType
from graphbraid.signatures import typed

if TYPE_CHECKING:
    from graphbraid.graph import Graph

_HELD = ("x", "y", "edge_index", "adj_t", "num_nodes")
"""Attributes that every graph holds."""


def graph_from_networkx(
    made: type[Graph],
    graph: Any,
    *,
    features: Sequence[str] | None = None,
    label: str = "y",
    weight: str = "weight",
    name: str = "",
) -> Graph:
    """Make a graph from a networkx graph, whose nodes are numbered in the order of ``graph.nodes``.

    PyG's ``from_networkx`` reads it. Edges of an undirected graph run both ways.

    Args:
        made: Class of the graph.
        graph: ``networkx.Graph``, ``DiGraph`` or a multigraph.
        features: Attributes of numbers of each node, which become the features in this order. If None, the
            attribute ``x``, if there is one.
        label: Attribute with the label of each node, if there is one.
        weight: Attribute with the weight of each edge, if there is one.
        name: Name of the graph in reports.

    Raises:
        MissingPackageError: PyG is not installed.
        DataError: Only some nodes, or edges, have an attribute, or it does not hold numbers.
    """
    with needing("Graph.from_networkx needs PyTorch Geometric: pip install 'graphbraid[pyg]'"):
        from torch_geometric.utils import from_networkx
    try:
        data = from_networkx(graph, group_node_attrs=None if features is None else list(features))
    except (ValueError, KeyError, AttributeError) as error:
        raise DataError(f"the networkx graph cannot be read: {error}") from error
    if features is not None:
        data.x = data.x.float()
    if label in data and label != "y":
        data.y = data[label]
    return graph_from_pyg(made, data, edge_weight=weight if weight in data else None, name=name)


@typed
def graph_from_pyg(
    made: type[Graph],
    data: Any,
    *,
    edge_weight: str | None = "auto",
    split: int = 0,
    name: str = "",
    edge_features: bool = True,
) -> Graph:
    """Make a graph from a PyG ``Data`` or ``HeteroData``; copies the topology, shares the rest if possible.

    Edges come from ``edge_index`` or ``adj_t``, splits from the masks, and edge features from
    ``edge_attr`` if that is a matrix of floats beside ``edge_index``. Other attributes are dropped;
    ``left_out`` has their names. :class:`graphbraid.loader.NeighborLoader` takes the ``Data`` itself and
    slices those too.

    Args:
        made: Class of the graph.
        data: ``torch_geometric.data.Data``, or ``HeteroData``, which becomes a graph with types.
        edge_weight: Name of the attribute that holds edge weights, or None for no weights. "auto" takes
            ``edge_weight``, else an ``edge_attr`` with one float per edge, whose name for models remains
            (``weight_name``).
        split: Column to use of masks of shape ``(num_nodes, num_splits)``.
        name: Name of the graph in reports.
        edge_features: Whether to keep edge features, which costs a copy in the graph's order.

    Raises:
        DataError: ``data`` has no edges, or names the attribute that does not fit.
    """
    if is_hetero(data):
        return _from_hetero_data(made, data, edge_weight=edge_weight, split=split, name=name)
    edge_index, weight = edges_of(data)
    if edge_index is None:
        raise DataError("data holds no edges: neither edge_index nor adj_t is set")
    num_nodes = int(data.num_nodes)
    weight = weight_of(data, edge_weight) if weight is None else weight
    attr = None if edge_weight == "edge_attr" else edge_features_of(data)
    graph = graph_from_edge_index(
        made,
        edge_index,
        num_nodes,
        x=as_features(features_of(data)),
        y=as_labels(data.get("y")),
        splits=splits_of(data, num_nodes, split),
        edge_weight=weight,
        edge_attr=attr if edge_features else None,
        name=name,
    )
    called = weight_name(data, edge_weight, weight)
    return graph.replace(weight_name=called, left_out=_left_out_of(data, edge_weight, called, attr))


def _from_hetero_data(
    made: type[Graph], data: Any, *, edge_weight: str | None, split: int, name: str
) -> Graph:
    nodes: dict[str, Any] = {"x": {}, "y": {}, "splits": {}, "node_time": {}}
    counts, left_out = {}, frozenset[str]()
    for node_type in data.node_types:
        store = data[node_type]
        with named(f"nodes of type {node_type!r}"):
            if store.num_nodes is None:
                raise DataError(f"their number is not known; set data[{node_type!r}].num_nodes")
            counts[node_type] = int(store.num_nodes)
            nodes["splits"][node_type] = splits_of(store, counts[node_type], split)
        nodes["x"][node_type] = features_of(store)
        nodes["y"][node_type], nodes["node_time"][node_type] = store.get("y"), store.get("time")
        left_out |= _left_out_of(store, None, "", None)
    edges: dict[str, Any] = {"edge_weight": {}, "edge_attr": {}, "edge_time": {}, "weight_name": {}}
    ends = {}
    for edge_type in data.edge_types:
        store = data[edge_type]
        with named(edge_type):
            edge_index, weight = edges_of(store)
            ends[edge_type] = torch.zeros((2, 0), dtype=torch.int64) if edge_index is None else edge_index
            if weight is None and (edge_weight in (None, "auto") or edge_weight in store):
                weight = weight_of(store, edge_weight)
        if weight is not None:
            edges["edge_weight"][edge_type] = weight
        attr = None if edge_weight == "edge_attr" else edge_features_of(store)
        called = weight_name(store, edge_weight, weight)
        edges["edge_attr"][edge_type], edges["weight_name"][edge_type] = attr, called
        edges["edge_time"][edge_type] = store.get("time")
        left_out |= _left_out_of(store, edge_weight, called, attr)
    graph = graph_from_relations(made, ends, counts, name=name, **nodes, **edges)
    return graph.replace(left_out=left_out - {"time"})


def exact_graph_from_pyg(
    made: type[Graph], data: Any, *, edge_weight: str | None, known: Graph | None = None
) -> Graph:
    """Make a graph from the parts of ``data`` that a Graph can hold unchanged; converts only the topology.

    Features and labels of other dtypes or shapes are left out, and so are those that require gradients, are
    of a tensor subclass or in COO, and masks without one row per node. Data without edges becomes a graph
    without edges. ``known`` is a graph with the same edges and weights, whose topology is reused.
    """
    if hasattr(data, "edge_types"):
        raise DataError(
            f"a graph with one type of nodes and edges is needed; got {type(data).__name__} with edge types "
            f"{data.edge_types}. Convert it with data.to_homogeneous() first"
        )
    x, y, num_nodes = features_of(data), data.get("y"), int(data.num_nodes)
    held: dict[str, Any] = {
        "x": as_features(x) if is_held(x, num_nodes) else None,
        "y": as_labels(y) if is_held(y, num_nodes, labels=True) else None,
        "splits": splits_of(data, num_nodes, 0, exact=True),
    }
    if known is not None:
        return known.replace(**held)
    edge_index, weight = edges_of(data)
    return graph_from_edge_index(
        made,
        torch.zeros((2, 0), dtype=torch.int64) if edge_index is None else edge_index,
        num_nodes,
        edge_weight=weight_of(data, edge_weight) if weight is None else weight,
        **held,
    )


def graph_to_pyg(graph: Graph) -> Any:
    """Implement :meth:`graphbraid.Graph.to_pyg`."""
    data = data_class("HeteroData" if graph.is_typed else "Data")()
    of_edges = _edges_to_pyg(graph)
    for node_type in graph.node_types:
        nodes, store = graph.nodes_of(node_type), data[node_type] if graph.is_typed else data
        if not graph.is_typed:
            store.edge_index = of_edges[graph.edge_types[0]].pop("edge_index")
        store.num_nodes = nodes.num_nodes
        if nodes.x is not None:
            if isinstance(nodes.x, SparseFeatures):
                store.x = to_torch_csr(nodes.x)
            else:
                store.x = nodes.x if isinstance(nodes.x, Tensor) else nodes.x.to_dense()
        for key, value in (("y", nodes.y), ("time", nodes.time), *masks_of(nodes).items()):
            if value is not None:
                store[key] = value
    for edge_type, held in of_edges.items():
        store = data[edge_type] if graph.is_typed else data
        for key, value in held.items():
            store[key] = value
    return data


def _edges_to_pyg(graph: Graph) -> dict[EdgeType, dict[str, Tensor]]:
    """Return PyG's attributes of the edges of each relation, in the order of its list."""
    weights, found = edge_weights_of(graph), {}
    for edge_type, edge_index in edge_lists_of(graph).items():
        edges = graph.edges_of(edge_type)
        held = (
            ("edge_index", edge_index),
            (edges.weight_name, weights.get(edge_type)),
            ("edge_attr", edges.edge_attr),
            ("time", edges.time),
        )
        found[edge_type] = {key: value for key, value in held if value is not None}
    return found


def is_held(values: Any, num_nodes: int, *, labels: bool = False) -> bool:
    """Return whether a Graph can hold these features or labels without changing their dtype or shape."""
    if isinstance(values, SparseFeatures):
        return not labels
    if isinstance(values, Tensor) and values.layout in (torch.sparse_csr, torch.sparse_csc):
        is_held = values.ndim == 2 and values.dtype in FEATURE_DTYPES and not values.requires_grad
        return is_held and not labels
    if not isinstance(values, Tensor) or not is_plain(values) or values.shape[:1] != (num_nodes,):
        return False
    if labels:
        return (values.ndim == 1 and values.dtype == torch.int64) or (
            values.ndim in (1, 2) and values.dtype == torch.float32
        )
    return values.ndim == 2 and values.dtype in FEATURE_DTYPES


def edge_features_of(data: Any) -> Tensor | None:
    """Return the ``edge_attr`` of PyG's data, in ``edge_index`` order, if it is a matrix of floats."""
    attr = data.get("edge_attr")
    is_matrix = isinstance(attr, Tensor) and attr.ndim == 2 and attr.layout == torch.strided
    if not is_matrix or not attr.dtype.is_floating_point or data.get("edge_index") is None:
        return None
    return plain(attr)


def is_hetero(data: Any) -> bool:
    """Return whether these are data of PyG with types."""
    return hasattr(data, "edge_types") and hasattr(data, "node_types")


def features_of(data: Any) -> Any:
    """Return ``x`` of PyG's data or storage; a ``SparseTensor`` as a sparse torch tensor."""
    x = data.get("x")
    if hasattr(x, "to_torch_sparse_csr_tensor"):  # torch_sparse.SparseTensor
        return x.to_torch_sparse_csr_tensor()
    return x


def edges_of(data: Any) -> tuple[Tensor | None, Tensor | None]:
    """Return the edge list and the weights of an ``adj_t`` with values; its rows are the destinations."""
    if not callable(getattr(data, "get", None)) or not callable(getattr(data, "keys", None)):
        raise DataError(f"data must be a PyG Data; got {shown(data)}")
    edge_index, adj_t = data.get("edge_index"), data.get("adj_t")
    if edge_index is not None:
        return as_tensor(edge_index, "edge_index"), None
    if adj_t is None:
        return None, None
    dst, src, values = entries_of_any(adj_t)
    if isinstance(adj_t, Tensor) and values is not None and bool(values.eq(1).all()):
        values = None
    return torch.stack([src, dst]), values


def entries_of_any(adj_t: Any) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return rows, columns and values of a sparse matrix of PyTorch, or a ``torch_sparse.SparseTensor``."""
    if isinstance(adj_t, Tensor):
        return entries_of(adj_t, "adj_t")
    dst, src, values = adj_t.coo()
    return dst, src, values


def stored_of(adj_t: Any) -> tuple[Any, ...]:
    """Return the tensors of a sparse matrix of PyTorch or torch-sparse, as they are stored.

    The last are the values, or None. The one before them has a number, or a column, for each entry.
    """
    if not isinstance(adj_t, Tensor):
        return tuple(adj_t.coo())
    if adj_t.layout == torch.sparse_coo:  # `indices()` requires a matrix whose repeated entries are summed
        return adj_t._indices(), adj_t._values()
    if adj_t.layout == torch.sparse_csr:
        return adj_t.crow_indices(), adj_t.col_indices(), adj_t.values()
    return adj_t.ccol_indices(), adj_t.row_indices(), adj_t.values()


def entries_of(matrix: Tensor, what: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return rows, columns and unsummed values of a sparse matrix; DataError if it is dense or in blocks."""
    if matrix.ndim == 2 and matrix.layout in (torch.sparse_csr, torch.sparse_csc):
        ends, inner, values = stored_of(matrix)
        outer = torch.arange(ends.numel() - 1, dtype=inner.dtype, device=inner.device)
        outer = outer.repeat_interleave(ends.diff())
        rows, columns = (outer, inner) if matrix.layout == torch.sparse_csr else (inner, outer)
        return rows, columns, values
    if matrix.ndim == 2 and matrix.layout == torch.sparse_coo:
        (rows, columns), values = stored_of(matrix)
        return rows, columns, values
    raise DataError(
        f"{what} must be a sparse matrix in layout CSR, CSC or COO; got {matrix.layout} of shape "
        f"{tuple(matrix.shape)}"
    )


def weight_of(data: Any, weight_attr: str | None) -> Tensor | None:
    """Return edge weights by an attribute's name, None for none, or "auto" for a likely attribute."""
    if weight_attr is None:
        return None
    if weight_attr != "auto":
        if weight_attr not in data:
            raise DataError(
                f"data has no attribute {weight_attr!r} to take weights from; it has {data.keys()}"
            )
        return as_tensor(data[weight_attr], weight_attr)
    if data.get("edge_weight") is not None:
        return as_tensor(data.edge_weight, "edge_weight")
    attr = data.get("edge_attr")
    is_weight = isinstance(attr, Tensor) and attr.ndim == 1 and attr.dtype.is_floating_point
    return attr if is_weight else None


def weight_name(data: Any, weight_attr: str | None, weight: Tensor | None) -> str:
    """Return the name by which a model gets the weights: ``edge_attr`` only if "auto" took them from it."""
    is_feature = weight_attr == "auto" and weight is not None and weight is data.get("edge_attr")
    return "edge_attr" if is_feature else "edge_weight"


def _left_out_of(data: Any, weight_attr: str | None, called: str, attr: Tensor | None) -> frozenset[str]:
    """Return the names of attributes of PyG's data that a graph does not hold.

    ``called`` is the name of its weights, which ``weight_attr`` chose, and ``attr`` its edge features.
    """
    held = {*_HELD, *(f"{name}_mask" for name in SPLITS), called, "edge_weight", weight_attr}
    return frozenset(map(str, data.keys())) - held - ({"edge_attr"} if attr is not None else set())


def splits_of(data: Any, num_nodes: int, column: int, *, exact: bool = False) -> dict[str, Tensor]:
    """Return the masks as node ids; ``column`` selects one of masks of shape ``(num_nodes, num_splits)``."""
    splits = {}
    for name in SPLITS:
        key = f"{name}_mask"
        mask = data.get(key)
        if mask is None or (exact and (not isinstance(mask, Tensor) or mask.shape[:1] != (num_nodes,))):
            continue
        mask = check_tensor(mask, key)
        if mask.ndim == 2:
            if not 0 <= column < mask.shape[1]:
                raise DataError(f"{key} holds {mask.shape[1]} splits; split={column} is none of them")
            mask = mask[:, column]
        if mask.shape != (num_nodes,):
            raise DataError(f"{key} must mark {num_nodes} nodes; got shape {tuple(mask.shape)}")
        splits[name] = mask.bool().nonzero().flatten()
    return splits


def to_torch_csr(x: SparseFeatures) -> Tensor:
    """Return sparse features as a ``torch.sparse_csr`` tensor."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse (CSR tensor support is in beta|invariant checks)")
        # torch wants one dtype for both index arrays, so the columns are copied to int64
        return torch.sparse_csr_tensor(
            x.indptr, x.indices.long(), x.values, size=x.shape, check_invariants=False
        )


def data_class(name: str = "Data") -> Any:
    """Return a class of ``torch_geometric.data`` by name, or raise MissingPackageError."""
    with needing("to_pyg needs PyTorch Geometric; install it with: pip install torch-geometric"):
        import torch_geometric.data
    return getattr(torch_geometric.data, name)
