"""Arrays of nodes and relations in a store, and the entries of ``graph.json`` about types and relations.

Types and relations may have any name, so their files have numbers: ``node0_x.npy`` has the features of the
first node type, ``edge2_time.npy`` the times of the third relation. ``indptr.npy`` and ``indices.npy`` are
the topology of the whole graph, as in a store of one type. ``rows_indptr.npy`` says where the edges of each
node and relation begin in ``indices.npy``.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from graphbraid.errors import DataError, needing
from graphbraid.files.schema import Count, FileModel
from graphbraid.graph import Columns, Graph, ScaledFeatures, Schema, SparseFeatures
from graphbraid.graph.csc import Csc
from graphbraid.graph.scaled_features import Features
from graphbraid.graph.schema import NodesOrEdges
from graphbraid.graph.types import EdgeSet, EdgeType, NodeSet, Types


def rows_to_store(
    x: Features | None, y: Tensor | None, splits: Mapping[str, Tensor], prefix: str = ""
) -> Iterator[tuple[str, Tensor]]:
    """Yield name and content of each array; names begin with ``prefix``."""
    if y is not None:
        yield f"{prefix}y", y
    if isinstance(x, SparseFeatures):
        yield f"{prefix}x_indptr", x.indptr
        yield f"{prefix}x_indices", x.indices
        yield f"{prefix}x_values", x.values
    elif isinstance(x, ScaledFeatures):
        yield f"{prefix}x", x.values
        yield f"{prefix}x_scale", x.scale
    elif x is not None:
        yield f"{prefix}x", x
    yield from splits_to_store(splits, prefix)


def splits_to_store(splits: Mapping[str, Tensor], prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield name and content of the array of each split."""
    for split, ids in splits.items():
        yield f"{prefix}split_{split}", ids


def stored_features(tensors: Mapping[str, Tensor], num_features: int, prefix: str = "") -> Features | None:
    """Return the features among a store's arrays; DataError if they do not fit, KeyError if one is none."""
    x = tensors.get(f"{prefix}x")
    if f"{prefix}x_scale" in tensors or (x is not None and x.dtype == torch.int8):
        return ScaledFeatures(values=tensors[f"{prefix}x"], scale=tensors[f"{prefix}x_scale"])
    if f"{prefix}x_indptr" not in tensors:
        return x
    return SparseFeatures(
        indptr=tensors[f"{prefix}x_indptr"],
        indices=tensors[f"{prefix}x_indices"],
        values=tensors[f"{prefix}x_values"],
        num_cols=num_features,
    )


def stored_splits(tensors: Mapping[str, Tensor], prefix: str = "") -> dict[str, Tensor]:
    """Return the splits among a store's arrays by name."""
    start = f"{prefix}split_"
    return {name.removeprefix(start): ids for name, ids in tensors.items() if name.startswith(start)}


_ROWS = re.compile(r"node\d+_x")


class NodesEntry(FileModel):
    """The entry of a node type in ``graph.json``."""

    name: str
    num_nodes: Count
    num_features: Count
    class_names: list[str] | None = None


class EdgesEntry(FileModel):
    """The entry of a relation in ``graph.json``."""

    source: str
    name: str
    destination: str
    num_edges: Count
    weighted: bool
    weight_name: str = "edge_weight"
    class_names: list[str] | None = None

    @property
    def key(self) -> EdgeType:
        """The relation as graphs name it."""
        return self.source, self.name, self.destination


class TypesEntry(FileModel):
    """The node types and relations in ``graph.json``, in the order of their numbers."""

    nodes: list[NodesEntry]
    edges: list[EdgesEntry]


def described_types(types: Types, class_names: Mapping[NodesOrEdges, list[str] | None]) -> TypesEntry:
    """Return the entry of a graph's types; ``class_names`` are by node type and relation."""
    return TypesEntry(
        nodes=[
            NodesEntry(
                name=name,
                num_nodes=nodes.num_nodes,
                num_features=0 if nodes.x is None else int(nodes.x.shape[1]),
                class_names=class_names.get(name),
            )
            for name, nodes in types.nodes.items()
        ],
        edges=[
            EdgesEntry(
                source=source,
                name=name,
                destination=destination,
                num_edges=edges.num_edges,
                weighted=edges.weighted,
                weight_name=edges.weight_name,
                class_names=class_names.get((source, name, destination)),
            )
            for (source, name, destination), edges in types.edges.items()
        ],
    )


def types_to_store(types: Types) -> Iterator[tuple[str, Tensor]]:
    """Yield name and content of each array of the types."""
    yield "rows_indptr", types.rows.indptr
    for number, nodes in enumerate(types.nodes.values()):
        prefix = f"node{number}_"
        yield from rows_to_store(nodes.x, nodes.y, nodes.splits, prefix)
        if nodes.time is not None:
            yield f"{prefix}time", nodes.time
    for number, edges in enumerate(types.edges.values()):
        prefix = f"edge{number}_"
        if edges.edge_attr is not None:
            yield f"{prefix}attr", edges.edge_attr
        if edges.time is not None:
            yield f"{prefix}time", edges.time
        if edges.y is not None:
            yield f"{prefix}y", edges.y
        yield from splits_to_store(edges.splits, prefix)


def tables_to_store(graph: Graph) -> Iterator[tuple[str, Tensor]]:
    """Yield name and content of the array of each table that node types keep: an Arrow file as it is."""
    for number, name in enumerate(graph.node_types):
        table = graph.schema.columns.get(name, Columns()).table
        if table is not None:
            from pyarrow import BufferOutputStream, ipc

            stream = BufferOutputStream()
            with ipc.new_file(stream, table.schema) as writer:
                writer.write_table(table)
            yield f"node{number}_table", torch.frombuffer(stream.getvalue(), dtype=torch.uint8)


def with_stored_tables(schema: Schema, node_types: Sequence[str], tensors: Mapping[str, Tensor]) -> Schema:
    """Return a schema with the tables among a store's arrays, whose columns share the arrays' memory.

    Raises:
        MissingPackageError: there are some, and pyarrow is not installed.
        DataError: an array is no Arrow file.
    """
    columns = dict(schema.columns)
    for number, name in enumerate(node_types):
        if (array := tensors.get(f"node{number}_table")) is None:
            continue
        with needing("the store keeps tables, which need pyarrow: pip install 'graphbraid[tabular]'"):
            from pyarrow import ArrowInvalid, ipc, py_buffer
        try:
            table = ipc.open_file(py_buffer(array.numpy())).read_all()
        except ArrowInvalid as error:
            raise DataError(f"the table of {name!r} cannot be read: {error}") from error
        columns[name] = replace(columns.get(name, Columns()), table=table)
    return replace(schema, columns=columns)


def typed_graph_of(entry: TypesEntry, tensors: Mapping[str, Tensor], num_nodes: int, name: str) -> Graph:
    """Make a graph with types of a store's arrays; DataError if they do not fit, KeyError if one is none."""
    types = types_of(entry, tensors, num_nodes)
    rows = types.rows
    whole = Csc(tensors["indptr"], rows.indices, num_nodes, rows.weight, trusted=True)  # compared with rows
    return Graph(csc=whole, edge_id=tensors.get("edge_id"), types=types, name=name)


def types_of(entry: TypesEntry, tensors: Mapping[str, Tensor], num_nodes: int) -> Types:
    """Make the types of a graph of a store's arrays, without comparing them with its topology.

    Raises:
        DataError: types or relations repeat, or do not have ``num_nodes`` nodes together.
        KeyError: an array that every such graph has is missing.
    """
    nodes = {one.name: _node_set(one, tensors, f"node{i}_") for i, one in enumerate(entry.nodes)}
    edges = {one.key: _edge_set(one, tensors, f"edge{i}_") for i, one in enumerate(entry.edges)}
    if len(nodes) < len(entry.nodes) or len(edges) < len(entry.edges):
        raise DataError("a node type or a relation stands there twice")
    if (
        sum(one.num_nodes for one in nodes.values()) != num_nodes
        or tensors["indptr"].numel() != num_nodes + 1
    ):
        raise DataError(f"the node types do not have the {num_nodes} nodes of the topology together")
    rows = Csc(tensors["rows_indptr"], tensors["indices"], num_nodes, tensors.get("weight"))
    return Types(nodes=nodes, edges=edges, rows=rows)


def _node_set(entry: NodesEntry, tensors: Mapping[str, Tensor], prefix: str) -> NodeSet:
    return NodeSet(
        num_nodes=entry.num_nodes,
        x=stored_features(tensors, entry.num_features, prefix),
        y=tensors.get(f"{prefix}y"),
        splits=stored_splits(tensors, prefix),
        time=tensors.get(f"{prefix}time"),
    )


def _edge_set(entry: EdgesEntry, tensors: Mapping[str, Tensor], prefix: str) -> EdgeSet:
    return EdgeSet(
        num_edges=entry.num_edges,
        edge_attr=tensors.get(f"{prefix}attr"),
        time=tensors.get(f"{prefix}time"),
        y=tensors.get(f"{prefix}y"),
        splits=stored_splits(tensors, prefix),
        weighted=entry.weighted,
        weight_name=entry.weight_name,
    )


def rows_by_type(graph: Graph) -> dict[str, str]:
    """Return the names of the arrays of dense features, if there are any, with their node types."""
    return (
        {"x": ""} if graph.types is None else {f"node{i}_x": name for i, name in enumerate(graph.types.nodes)}
    )


def is_rows_of_type(name: str) -> bool:
    """Return whether an array holds the dense features of a node type."""
    return _ROWS.fullmatch(name) is not None
