"""Checks of a graph's node types and relations: that arrays fit and, on request, every value."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from graphbraid.arguments import as_count, check_tensor, check_type
from graphbraid.errors import DataError
from graphbraid.graph.array_checks import (
    check_edge_attr,
    check_node_arrays,
    check_split_ids,
    check_weight_name,
    validate_features,
    validate_labels,
    validate_splits,
)
from graphbraid.graph.csc import MOST_NODES, Csc
from graphbraid.graph.scans import check_ids, first_out_of_range, first_where
from graphbraid.graph.types import EdgeSet, NodeSet, Types, edges_of, node_indptr, num_rows_of

if TYPE_CHECKING:
    from graphbraid.graph.graph import Graph

OF_TYPES = ("x", "y", "edge_attr")
"""Fields of a graph that one with types has by type."""


def check_types(graph: Graph) -> None:
    """Check that the types of a graph fit its topology, and their arrays the types.

    Raises:
        DataError: names the type or relation and what does not fit.
    """
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
    """Check every value of the types: features, labels, splits and times, and that edges join their types.

    Raises:
        DataError: names the type or relation and the first value that is wrong.
    """
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
    """Check that each relation has as many edges as it says, from sources of its type, with ids in its list.

    Raises:
        DataError: names the relation and the first value that is wrong.
    """
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
