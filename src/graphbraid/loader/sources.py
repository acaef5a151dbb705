"""Sources and seeds of mini-batches, made from a loader's data and ``input_nodes``."""

from __future__ import annotations

import dataclasses
import warnings
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from graphbraid.arguments import shown
from graphbraid.errors import ConfigError, DataError, did_you_mean
from graphbraid.features.rows.caches import MemoryRows
from graphbraid.features.tiers.tiered_features import TieredFeatures
from graphbraid.graph import EdgeType, Graph, ScaledFeatures
from graphbraid.graph.csc import degrees_and_loops
from graphbraid.graph.interop.convert import as_table, features_from_torch_sparse, refuse_mask_of_integers
from graphbraid.graph.interop.pyg import edges_of, entries_of_any, exact_graph_from_pyg, is_held, is_hetero
from graphbraid.graph.scans import first_out_of_range, is_plain
from graphbraid.graph.types import ONLY_EDGE_TYPE, ONLY_NODE_TYPE
from graphbraid.sampling.source import ADJ_VALUES, BatchSource

if TYPE_CHECKING:
    from torch_geometric.data import Data, HeteroData


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class SeedNodes:
    """The nodes that a loader's batches start from, after they were checked."""

    node_type: str = ONLY_NODE_TYPE
    ids: Tensor
    """``(num_seeds,)`` int64 ids within the type."""
    is_mask: bool = False
    """Whether they were given as a mask: ``input_id`` of a batch is then node ids."""


_Key = str | EdgeType


def is_typed(data: Any) -> bool:
    """Return whether a loader's data have types."""
    return data.is_typed if isinstance(data, Graph) else is_hetero(data)


def source_of(data: Any, weight_attr: str | None, known: Graph | None = None) -> BatchSource:
    """Return the source of a loader over ``data``, which keeps dtypes and shapes.

    ``weight_attr`` names the weights to draw by. A graph ``known`` from the same edges and weights is reused.
    ConfigError: ``data`` is none, or has no such weights. DataError: ids are out of range, or an attribute
    of nodes or edges cannot be split into batches.
    """
    if isinstance(data, Graph):
        if weight_attr is not None and (weight_attr != "edge_weight" or data.csc.weight is None):
            raise ConfigError(
                f"weight_attr={weight_attr!r}: a Graph's weights are called 'edge_weight', and "
                + ("this one has none" if data.csc.weight is None else "no other name is known")
            )
        if isinstance(data.x, Tensor) and not is_plain(data.x):
            return BatchSource(graph=data.replace(x=None), node_attrs={ONLY_NODE_TYPE: {"x": data.x}})
        return BatchSource(graph=data)
    if is_hetero(data):
        return _DataSorter(data, _graph_of_hetero(data, weight_attr)).source()
    if not hasattr(data, "edge_index") or hasattr(data, "node_types"):
        raise ConfigError(
            f"data must be a graphbraid.Graph or a PyG Data or HeteroData; got {type(data).__name__}"
        )
    weights = weight_attr or _weights_of(data)
    if weight_attr is not None:
        _tell_lost(data.get(weight_attr), weight_attr)
    graph = exact_graph_from_pyg(Graph, data, edge_weight=weights, known=known)
    return _DataSorter(data, graph).source()


def completed(source: BatchSource, *, src_degree: bool, takes_all: bool) -> BatchSource:
    """Return the source completed by the reader of int8 rows and the degrees that batches need.

    Rows of int8 come from a source that widens them ahead of their use. With ``src_degree``, blocks carry the
    graph's in-degrees, estimated unless a batch ``takes_all``; ConfigError if a weight is below 0 then.
    """
    weight = source.graph.csc.weight if src_degree and not source.graph.is_typed else None
    if weight is not None and not takes_all and bool((weight < 0).any()):
        raise ConfigError(
            "a layer that normalises by degree (GCNConv) scales the sum over drawn in-neighbours by the sum "
            "of their weights, which is wrong if a weight is below 0, as here. Take all in-neighbours "
            "(fanouts of -1), set mode='full', or use PyG's GCNConv, which counts degrees in the batch."
        )
    x = source.graph.x
    if isinstance(x, ScaledFeatures) and source.rows is None and source.pipeline is None:
        rows = TieredFeatures(None, MemoryRows(x), score=None, lookahead=0)
        source = dataclasses.replace(source, rows=rows)
    if not src_degree or source.graph.is_typed or source.src_degree is not None:
        return source
    degree, loop = degrees_and_loops(source.graph.csc)
    return dataclasses.replace(source, src_degree=degree, src_loop=loop)


class DataTracker:
    """Reads a loader's data again once attributes were set or deleted.

    PyG's loaders read their data for each batch. Attributes are therefore compared by identity.
    """

    def __init__(self, weight_attr: str | None) -> None:
        self._weight_attr = weight_attr
        self._contents: dict[tuple[Any, str], Any] = {}

    def read(self, data: Any, known: Graph | None = None) -> BatchSource:
        """Return the source as :func:`source_of` does, and remember what was read."""
        source = source_of(data, self._weight_attr, known)
        self._contents = _contents_of(data)
        return source

    def changed(self, data: Any, graph: Graph) -> BatchSource | None:
        """Return the new source of changed data, else None; ConfigError if types or nodes differ."""
        now, before = _contents_of(data), self._contents
        if now.keys() == before.keys() and all(_is_same(now[key], before[key]) for key in now):
            return None
        if data.num_nodes != graph.num_nodes:
            raise ConfigError(
                f"loader.data has {data.num_nodes} nodes now, and had {graph.num_nodes} when the "
                "loader was made; make another one"
            )
        edges = [(None, name) for name in ("edge_index", "adj_t", "edge_weight", self._weight_attr or "")]
        has_same_edges = all(_is_same(now.get(key), before.get(key)) for key in edges)
        source = self.read(data, graph if has_same_edges else None)
        if _shape_of(source.graph) != _shape_of(graph):
            raise ConfigError(
                "loader.data has other types or another number of nodes than when the loader was made; make "
                "another one"
            )
        return source


def _contents_of(data: Any) -> dict[tuple[Any, str], Any]:
    """Return the attributes of data by type (None if there is only one) and name."""
    if isinstance(data, Graph):
        return {(None, ""): data}
    return {(store._key, name): value for store in data.stores for name, value in store.items()}


def _is_same(one: Any, other: Any) -> bool:
    return one is other or (isinstance(one, int) and isinstance(other, int) and one == other)


def _shape_of(graph: Graph) -> tuple[Any, ...]:
    return {name: graph.nodes_of(name).num_nodes for name in graph.node_types}, graph.edge_types


def _weights_of(data: Data) -> str | None:
    """Return the name of the weights that blocks carry, also if draws do not use them."""
    weight = data.get("edge_weight")
    if not isinstance(weight, Tensor) or weight.numel() != weight.shape[0]:
        return None
    return "edge_weight"


def _tell_lost(weight: Any, name: str) -> None:
    """Warn of weights above 0 that are 0 in float32: their edges are never drawn."""
    if not isinstance(weight, Tensor) or weight.dtype != torch.float64:
        return
    if lost := int(((weight > 0) & (weight.float() == 0)).sum()):
        what = f"{lost} weights {name!r} are 0 in float32, so their edges are never drawn; scale them"
        warnings.warn(what, stacklevel=2)


def _graph_of_hetero(data: Any, weight_attr: str | None) -> Graph:
    """Return the graph of a HeteroData's relations, whose attributes stay in the data."""
    ends, weights = {}, {}
    for edge_type in data.edge_types:
        store = data[edge_type]
        if (store.get("edge_index") is None) == (store.get("adj_t") is None):
            found = "both" if "adj_t" in store else "neither"
            raise DataError(f"data[{edge_type!r}] has {found} of edge_index and adj_t; give it one of them")
        ends[edge_type], _ = edges_of(store)
        if weight_attr is not None and weight_attr in store:
            weights[edge_type] = store[weight_attr]
            _tell_lost(store[weight_attr], weight_attr)
    if weight_attr is not None and not weights:
        raise ConfigError(f"weight_attr={weight_attr!r}: no relation of the data has it")
    counts = {node_type: data[node_type].num_nodes for node_type in data.node_types}
    for node_type, count in counts.items():
        if count is None:
            raise DataError(f"the number of nodes of type {node_type!r} is not known; set its num_nodes")
    return Graph.from_relations(ends, counts, edge_weight=weights)


class _DataSorter:
    """A sorter of the attributes of PyG data into those of nodes, of edges and of the whole graph."""

    def __init__(self, data: Data | HeteroData, graph: Graph) -> None:
        self._data, self._graph = data, graph
        self._attrs: dict[_Key, dict[str, Any]] = defaultdict(dict)
        self._constants: dict[str, Any] = {}
        self._by_column: set[tuple[_Key, str]] = set()
        self._names: list[str] = []
        self._adj_t: Any = None

    def source(self) -> BatchSource:
        graph = self._graph
        if graph.is_typed:
            for store in self._data.stores:
                if store._key is not None:  # batches have the data's own attributes of the whole graph
                    self._read_store(store)
        else:
            self._read_data()
        edges = [] if "edge_index" in self._names or self._adj_t is not None else ["edge_index"]
        return BatchSource(
            graph=graph,
            node_attrs={one: self._attrs[one] for one in graph.node_types},
            edge_attrs={one: self._attrs[one] for one in graph.edge_types},
            constants=self._constants,
            by_column=frozenset(self._by_column),
            names=None if graph.is_typed else (*edges, *self._names),
            adj_t=self._adj_t,
            template=self._data,
        )

    def _read_data(self) -> None:
        data, graph = self._data, self._graph
        held = {"edge_index", "num_nodes"}
        held |= {name for name, rows in (("x", graph.x), ("y", graph.y)) if rows is not None}
        for name, value in data.to_dict().items():
            if name.startswith("_"):
                continue
            if name == "adj_t":
                self._adj_t = value
                self._read_values(value, ONLY_EDGE_TYPE)
            elif name not in held:
                of_edges = data.is_edge_attr(name)
                if of_edges or data.is_node_attr(name):
                    cat_dim = data.__cat_dim__(name, value)
                    key = ONLY_EDGE_TYPE if of_edges else ONLY_NODE_TYPE
                    self._read(key, name, value, cat_dim, f"data.{name}")
                else:
                    self._constants[name] = value
            self._names.append(name)

    def _read_store(self, store: Any) -> None:
        key = store._key
        if isinstance(key, tuple) and "adj_t" in store:
            self._adj_t = (self._adj_t or {}) | {key: store["adj_t"]}
            self._read_values(store["adj_t"], key)
        is_own = store.is_node_attr if isinstance(key, str) else store.is_edge_attr
        for name, value in store.items():
            if name not in ("num_nodes", "edge_index", "adj_t") and is_own(name):
                cat_dim = store._parent().__cat_dim__(name, value, store)
                self._read(key, name, value, cat_dim, f"data[{key!r}].{name}")

    def _read(self, key: _Key, name: str, value: Any, cat_dim: Any, where: str) -> None:
        """Keep the attributes that have a row for each node or edge."""
        if not isinstance(value, Tensor | np.ndarray):
            raise DataError(
                f"{where} is a {type(value).__name__} by {'node' if isinstance(key, str) else 'edge'}, and "
                "batches take rows of tensors only; make it a tensor or an array"
            )
        table: Any = None
        if self._graph.is_typed and name == "x" and isinstance(value, Tensor):
            is_sparse = value.layout != torch.strided and is_held(value, value.shape[0])
            table = features_from_torch_sparse(value) if is_sparse else None
        table = as_table(value, where) if table is None else table
        if cat_dim != 0 and isinstance(table, Tensor):
            self._by_column.add((key, name))
            table = table.movedim(-1, 0)
        self._attrs[key][name] = table

    def _read_values(self, adj_t: Any, key: EdgeType) -> None:
        values = entries_of_any(adj_t)[2]
        if values is not None:
            self._attrs[key][ADJ_VALUES] = values


def as_seeds(input_nodes: Any, graph: Graph) -> SeedNodes:
    """Return the seeds from ids, a bool mask, a split's name, or None for all nodes.

    Args:
        input_nodes: the seeds; of a graph with types a node type, or a pair of it and one of these.
        graph: the graph.

    Raises:
        ConfigError: the argument is none of these, the type does not exist, or an id is outside it; the
            message names the first.
        DataError: the split does not exist or is empty.
    """
    node_type, given, what = ONLY_NODE_TYPE, input_nodes, "input_nodes"
    if graph.is_typed:
        node_type, given = (input_nodes, None) if isinstance(input_nodes, str) else _pair(input_nodes, graph)
        what = f"input_nodes of type {node_type!r}"
        if node_type not in graph.node_types:
            raise ConfigError(
                f"input_nodes names the node type {shown(node_type)}, and there are "
                f"{', '.join(graph.node_types)}.{did_you_mean(node_type, graph.node_types)}"
            )
    nodes = graph.nodes_of(node_type)
    if given is None:
        return SeedNodes(node_type=node_type, ids=torch.arange(nodes.num_nodes))
    if isinstance(given, str):
        if not graph.is_typed:
            return SeedNodes(node_type=node_type, ids=graph.split(given))
        if given not in nodes.splits:
            known = ", ".join(nodes.splits) or "none"
            raise ConfigError(f"nodes of type {node_type!r} have no split {given!r}; they have {known}")
        return SeedNodes(node_type=node_type, ids=nodes.splits[given])
    ids = as_ids(given, what)
    if ids.dtype == torch.bool:
        if ids.shape != (nodes.num_nodes,):
            raise ConfigError(
                f"a mask of {what} must have shape ({nodes.num_nodes},); got {tuple(ids.shape)}"
            )
        return SeedNodes(node_type=node_type, ids=ids.nonzero().flatten(), is_mask=True)
    ids = check_ids(ids, nodes.num_nodes, what)
    refuse_mask_of_integers(ids, nodes.num_nodes, what, ConfigError)
    return SeedNodes(node_type=node_type, ids=ids)


def _pair(input_nodes: Any, graph: Graph) -> tuple[Any, Any]:
    is_pair = isinstance(input_nodes, tuple | list) and len(input_nodes) == 2
    if is_pair and isinstance(input_nodes[0], str):
        return input_nodes[0], input_nodes[1]
    raise ConfigError(
        "input_nodes must name a node type, or be a pair of a type and ids, such as ("
        f"{(*graph.node_types, 'paper')[0]!r}, ids); got {shown(input_nodes)}"
    )


def as_ids(values: Any, what: str) -> Tensor:
    """Return ids or a mask as a tensor on the CPU, or raise ConfigError."""
    try:
        return torch.as_tensor(values).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"{what} must be node ids, a mask or a split's name; got {type(values).__name__} "
            f"({error}). Pairs of a node type and ids are for heterogeneous graphs"
        ) from error


def check_ids(ids: Tensor, bound: int, what: str) -> Tensor:
    """Return 1-d int64 ids in ``[0, bound)``, or raise ConfigError for the first; empty ones of any dtype."""
    if ids.ndim != 1 or (ids.numel() and not is_whole(ids)):
        raise ConfigError(
            f"{what} must be a 1-d tensor of ids or a mask of all nodes; "
            f"got {ids.dtype} of shape {tuple(ids.shape)}"
        )
    ids = ids.to(torch.int64).contiguous()
    outside = first_out_of_range(ids, bound)
    if outside >= 0:
        raise ConfigError(f"{what} must be ids in [0, {bound}); {what}[{outside}] is {int(ids[outside])}")
    return ids


def is_whole(values: Tensor) -> bool:
    """Return whether values are integers."""
    return not (values.is_floating_point() or values.is_complex() or values.dtype == torch.bool)


def as_input_id(values: Any, number: int, what: str) -> Tensor:
    """Return the batches' ``input_id``; ConfigError unless it has one for each of ``number`` ``what``."""
    try:
        ids = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"input_id must be a tensor with an entry per {what}; got {shown(values)}"
        ) from error
    if ids.shape != (number,):
        raise ConfigError(
            f"input_id must have an entry per {what}, shape ({number},); got {tuple(ids.shape)}"
        )
    return ids
