"""Checks of a graph: that arrays fit together when it is made and, on request, every value.

Scans read everything once, in parallel, and use temporaries of at most a million elements, or of one byte per
node for the splits, so they also suit memory-mapped graphs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from graphbraid.arguments import MOST_WIDTH, as_count, check_tensor, check_type
from graphbraid.errors import DataError
from graphbraid.files.progress import stage
from graphbraid.graph.csc import MOST_NODES, Csc
from graphbraid.graph.scaled_features import Features, ScaledFeatures, check_scale
from graphbraid.graph.scans import (
    check_columns,
    check_csc,
    check_finite,
    check_ids,
    check_weight,
    first_below,
    first_out_of_range,
    first_unsound_weight,
    first_where,
    not_finite,
    row_of,
)
from graphbraid.graph.schema import Schema
from graphbraid.graph.sparse_features import FEATURE_DTYPES, SparseFeatures
from graphbraid.graph.types import (
    EdgeSet,
    NodeSet,
    Types,
    edges_of,
    features_by_type,
    has_class,
    has_labels,
    is_multi_hot,
    node_indptr,
    num_rows_of,
)
from graphbraid.signatures import typed

if TYPE_CHECKING:
    from graphbraid.graph import Graph

_SCAN = 1 << 20
_AS_INT8 = ". Rows of int8 need a scale each: ScaledFeatures(values=x, scale=scale)"
OF_TYPES = ("x", "y", "edge_attr")
"""Fields of a graph that one with types has by type."""


def check_shapes(graph: Graph) -> None:
    """Compare shapes, dtypes and ends of ``indptr`` in constant time; DataError names the array."""
    check_type(graph.csc, "csc", Csc, "a graphbraid.Csc")
    for name in ("edge_id", "edge_attr"):
        if getattr(graph, name) is not None:
            check_tensor(getattr(graph, name), name)
    check_type(graph.name, "name", str, "a string")
    csc = graph.csc
    check_csc(csc.indptr, csc.indices, num_src=csc.num_src)
    if csc.num_src != csc.num_dst:
        raise DataError(
            f"a graph has as many sources as destinations; the topology has {csc.num_src} and {csc.num_dst}"
        )
    _check_array(csc.weight, "edge weights", torch.float32, graph.num_edges)
    _check_array(graph.edge_id, "edge_id", torch.int64, graph.num_edges)
    if graph.edge_attr is not None:
        check_edge_attr(graph.edge_attr, graph.num_edges)
    check_weight_name(graph.weight_name, graph.edge_attr)
    check_node_arrays(graph)
    if graph.types is not None:
        check_types(graph)
    check_schema(graph)


def check_contents(graph: Graph, fields: Iterable[str]) -> None:
    """Scan the named fields that are read by index; DataError names the first value that is wrong."""
    if "splits" in fields:
        check_split_ids(graph)
    if "edge_id" in fields and graph.edge_id is not None:
        position = first_below(graph.edge_id, -1)
        if position >= 0:
            raise DataError(
                "edge_id must hold positions of edges, or -1 for an edge that was added; "
                f"edge_id[{position}] is {int(graph.edge_id[position])}"
            )
    if "types" in fields and graph.types is not None:
        check_ends(graph)


@typed
def validate_graph(
    graph: Graph, *, num_classes: int | None = None, allow_negative_weights: bool = False
) -> None:
    """Implement :meth:`graphbraid.Graph.validate`, which describes the arguments and errors."""
    if num_classes is not None:
        num_classes = as_count(num_classes, "num_classes")
    check_shapes(graph)
    x_bytes = 0 if graph.x is None else graph.x.nbytes
    with stage("checking every value", graph.csc.nbytes + x_bytes) as advance:
        validate_topology(graph.csc, allow_negative_weights=allow_negative_weights)
        check_contents(graph, ("edge_id",))
        advance(graph.csc.nbytes)
        if graph.x is not None:
            validate_features(graph.x)
            advance(x_bytes)
        if graph.edge_attr is not None:
            validate_features(graph.edge_attr, "edge_attr")
        validate_splits(graph)
        validate_labels(graph, num_classes)
        if graph.types is not None:
            validate_types(graph)


def validate_topology(csc: Csc, *, allow_negative_weights: bool = False) -> None:
    """Check ``indptr``, sources and weights (finite, >= 0); DataError names the first wrong value."""
    check_csc(csc.indptr, csc.indices, num_src=csc.num_src)
    check_columns(csc.indptr, csc.indices, csc.num_src, "")
    if csc.weight is None:
        return
    check_weight(csc.weight, csc.num_edges)
    position = -1 if allow_negative_weights else first_unsound_weight(csc.weight, may_be_negative=False)
    if position >= 0:
        raise DataError(
            "edge weights must not be negative, for sampling and for normalising by degree; "
            f"weight[{position}] is {float(csc.weight[position]):g}"
        )


def _check_array(values: Tensor | None, what: str, dtype: torch.dtype, num_edges: int) -> None:
    if values is not None and (values.dtype != dtype or values.shape != (num_edges,)):
        raise DataError(
            f"{what} must be {dtype} of shape ({num_edges},); got {values.dtype} of {tuple(values.shape)}"
        )


def check_node_arrays(nodes: Graph | NodeSet) -> None:
    """Compare classes, shapes and dtypes of arrays of nodes; DataError says which is what."""
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
        _check_label_shape(nodes.y, num_nodes, f"the graph has {num_nodes} nodes")
    for name, ids in nodes.splits.items():
        if ids.dtype != torch.int64 or ids.ndim != 1:
            raise DataError(
                f"split {name!r} must be 1-d int64 node ids; got {ids.dtype} of shape {tuple(ids.shape)}. "
                "Graph.from_edge_index also takes masks"
            )


def check_split_ids(nodes: Graph | NodeSet) -> None:
    """Raise DataError that names the split and the first id of no node."""
    for name, ids in nodes.splits.items():
        check_ids(ids, nodes.num_nodes, f"split {name!r}")


def check_edge_attr(edge_attr: Tensor, num_edges: int) -> None:
    """Raise DataError unless edge features are a matrix of floats with a row for each edge."""
    shape = tuple(edge_attr.shape)
    if edge_attr.ndim != 2 or edge_attr.dtype not in FEATURE_DTYPES or edge_attr.layout != torch.strided:
        raise DataError(
            "edge_attr must be a dense 2-d float32, float16 or bfloat16 tensor; "
            f"got {edge_attr.dtype} of shape {shape}"
        )
    if shape[0] != num_edges:
        raise DataError(f"edge_attr has {shape[0]} rows, but the graph has {num_edges} edges")


def check_weight_name(name: str, edge_attr: Tensor | None) -> None:
    """Raise DataError unless weights are ``edge_weight``, or ``edge_attr`` where no features are."""
    if name != "edge_weight" and (name != "edge_attr" or edge_attr is not None):
        raise DataError(
            "weight_name must be 'edge_weight', or 'edge_attr' for a graph without edge_attr; got "
            f"{name!r}{'' if edge_attr is None else ' beside edge_attr'}"
        )


def validate_features(x: Features, name: str = "x") -> None:
    """Raise DataError for the first value that is not finite, of int8 rows the first scale.

    Of sparse features ``indptr`` must never decrease, and columns exist, no more than a layer can take.
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


def validate_splits(nodes: Graph | NodeSet) -> None:
    """Raise DataError for an empty split, the first id of no node, or the first in two splits or twice."""
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


def validate_labels(nodes: Graph | NodeSet, num_classes: int | None = None) -> None:
    """Raise DataError for the first class out of range, or the first node of a split without a label."""
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
        # Of several targets, NaN leaves out one cell.
        bad = bad if bad.ndim == 1 else rows.isinf().any(1) | rows.isnan().all(1)
        bad = ~has_labels(rows) if multi_hot else bad
        if not bool(bad.any()):
            continue
        position = int(bad.nonzero()[0])
        value = rows[position].tolist() if rows[position].numel() <= 8 else "not finite"
        raise DataError(
            f"every node of a split needs a label; {name}[{position}] is node {int(ids[position])}, "
            f"whose label is {value}. Leave unlabelled nodes out of the split"
        )


def _check_classes(nodes: Graph | NodeSet) -> None:
    if not isinstance(nodes.x, SparseFeatures | ScaledFeatures | None):
        check_tensor(nodes.x, "x")
    if nodes.y is not None:
        check_tensor(nodes.y, "y")
    check_type(nodes.splits, "splits", Mapping, "a mapping from names such as 'train' to node ids")
    for name, ids in nodes.splits.items():
        check_type(name, "a split's name", str, "a string")
        check_tensor(ids, f"split {name!r}")


def _check_label_shape(y: Tensor, num_rows: int, held: str) -> None:
    classes = y.dtype == torch.int64 and y.ndim == 1
    if not (classes or (y.dtype == torch.float32 and y.ndim in (1, 2))):
        raise DataError(
            "y must be 1-d int64 classes, or 1-d or 2-d float32 labels or targets; "
            f"got {y.dtype} of shape {tuple(y.shape)}"
        )
    if y.shape[0] != num_rows:
        raise DataError(f"y has {y.shape[0]} rows, but {held}")


def _name_duplicate(name: str, ids: Tensor) -> str:
    order = ids.argsort(stable=True)
    repeated = (ids[order][1:] == ids[order][:-1]).nonzero().flatten() + 1
    position = int(order[repeated].min())
    return f"split {name!r} must not hold a node twice; {name}[{position}] is node {int(ids[position])} again"


def check_types(graph: Graph) -> None:
    """Raise DataError that names the type or relation that does not fit the topology or its arrays."""
    types = graph.types
    assert types is not None
    check_type(types, "types", Types, "graphbraid.graph.Types")
    for name in (*OF_TYPES, "splits"):
        if getattr(graph, name) is not None and not (name == "splits" and not graph.splits):
            raise DataError(f"a graph with types has {name} by type: in types, not beside them")
    for node_type, nodes in types.nodes.items():
        with named(f"nodes of type {node_type!r}"):
            _check_nodes(nodes)
            check_split_ids(nodes)
            _check_time(nodes.time, nodes.num_nodes)
    for edge_type, edges in types.edges.items():
        with named(edge_type):
            _check_edges(edges)
    _check_rows(types, graph.csc)


def validate_types(graph: Graph) -> None:
    """Check values of types and that edges join theirs; DataError names the first that is wrong."""
    types = graph.types
    assert types is not None
    for node_type, nodes in types.nodes.items():
        with named(f"nodes of type {node_type!r}"):
            _check_nodes(nodes)
            if nodes.x is not None:
                validate_features(nodes.x)
            validate_splits(nodes)
            validate_labels(nodes)
            _validate_time(nodes.time)
    check_ends(graph)
    for edge_type, edges in types.edges.items():
        with named(edge_type):
            if edges.edge_attr is not None:
                validate_features(edges.edge_attr, "edge_attr")
            _validate_time(edges.time)


def check_ends(graph: Graph) -> None:
    """Check each relation's number of edges, sources and ids; DataError names the first that is wrong."""
    types = graph.types
    assert types is not None
    counts = [nodes.num_nodes for nodes in types.nodes.values()]
    for relation in types.relations():
        edges = types.edges[relation.edge_type]
        positions, _ = edges_of(types, relation)
        with named(relation.edge_type):
            if positions.numel() != edges.num_edges:
                raise DataError(f"the rows hold {positions.numel()} edges; num_edges is {edges.num_edges}")
            sources = graph.csc.indices[positions].long() - relation.first_source
            at = first_out_of_range(sources, counts[relation.source])
            if at >= 0:
                source = int(sources[at]) + relation.first_source
                raise DataError(f"sources must be of type {relation.edge_type[0]!r}; node {source} is not")
            if graph.edge_id is not None:
                check_ids(graph.edge_id[positions], edges.num_edges, "edge_id")


@contextmanager
def named(what: object) -> Iterator[None]:
    """Put the type or relation before the message of a DataError raised within."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{what}: {error}") from error


def _check_nodes(nodes: NodeSet) -> None:
    check_type(nodes, "the nodes of a type", NodeSet, "a graphbraid.graph.NodeSet")
    as_count(nodes.num_nodes, "num_nodes", most=MOST_NODES, error=DataError)
    check_node_arrays(nodes)


def _check_edges(edges: EdgeSet) -> None:
    check_type(edges, "the edges of a relation", EdgeSet, "a graphbraid.graph.EdgeSet")
    if edges.edge_attr is not None:
        check_edge_attr(check_tensor(edges.edge_attr, "edge_attr"), edges.num_edges)
    check_weight_name(edges.weight_name, edges.edge_attr)
    _check_time(edges.time, edges.num_edges)
    if edges.y is not None:
        _check_label_shape(check_tensor(edges.y, "y"), edges.num_edges, f"there are {edges.num_edges} edges")
    for name, positions in edges.splits.items():
        check_ids(positions, edges.num_edges, f"split {name!r}")


def _check_time(time: Tensor | None, count: int) -> None:
    if time is None:
        return
    check_tensor(time, "time")
    if time.shape != (count,) or not (time.dtype == torch.int64 or time.dtype.is_floating_point):
        raise DataError(
            f"time must be int64 or floating, of shape ({count},); got {time.dtype} of {tuple(time.shape)}"
        )


def _validate_time(time: Tensor | None) -> None:
    if time is None or not time.dtype.is_floating_point:
        return
    at = first_where(time, lambda part: ~part.isfinite())
    if at >= 0:
        raise DataError(f"times must be finite; time[{at}] is {float(time[at])}")


def _check_rows(types: Types, csc: Csc) -> None:
    rows = types.rows
    fits = (
        types.num_nodes == csc.num_dst
        and rows.num_src == csc.num_src
        and rows.num_dst == num_rows_of(types)
        and rows.num_edges == csc.num_edges == sum(edges.num_edges for edges in types.edges.values())
        and torch.equal(node_indptr(types), csc.indptr)
    )
    if not fits:
        raise DataError(
            f"the types have {types.num_nodes} nodes and {rows.num_edges} edges in {rows.num_dst} rows, "
            f"which are not those of the topology ({csc.num_dst} nodes and {csc.num_edges} edges); make the "
            "graph anew with Graph.from_relations"
        )


def check_schema(graph: Graph) -> None:
    """Raise DataError unless types and relations have the columns that the schema names, each once."""
    check_type(graph.schema, "schema", Schema, "a graphbraid.graph.Schema")
    if not graph.schema.columns:
        return
    features = features_by_type(graph)
    for of, columns in graph.schema.columns.items():
        if of not in features and not columns.names and columns.table is not None:
            continue  # the table is kept, but none of its columns became a feature
        if of not in features:
            raise DataError(f"the schema has columns of {of!r}, which has no features")
        names, width = columns.names, int(features[of].shape[1])
        if names is not None and (len(names) != width or len(set(names)) < width):
            raise DataError(
                f"the schema must have {width} different names for the columns of {of!r}; got "
                f"{', '.join(names)}"
            )
