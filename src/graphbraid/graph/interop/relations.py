"""Graphs of several types from edge lists by relation, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from graphbraid.arguments import shown
from graphbraid.errors import DataError, did_you_mean
from graphbraid.graph.checks import named
from graphbraid.graph.csc import Csc, coo_to_csc
from graphbraid.graph.interop.convert import (
    as_edge_attr,
    as_edge_index,
    as_features,
    as_labels,
    as_node_ids,
    as_num_nodes,
    as_splits,
    as_tensor,
    as_weight,
)
from graphbraid.graph.scans import check_ids
from graphbraid.graph.types import EdgeSet, EdgeType, NodeSet, Relation, Types, edges_of, node_indptr, placed

if TYPE_CHECKING:
    from graphbraid.graph import Graph

Ends = tuple[Tensor, Tensor]


def graph_from_relations(
    made: type[Graph],
    edges: Mapping[EdgeType, Any],
    num_nodes: Mapping[str, int] | None = None,
    *,
    x: Mapping[str, Any] | None = None,
    y: Mapping[str, Any] | None = None,
    splits: Mapping[str, Mapping[str, Any]] | None = None,
    node_time: Mapping[str, Any] | None = None,
    edge_weight: Mapping[EdgeType, Any] | None = None,
    edge_attr: Mapping[EdgeType, Any] | None = None,
    edge_time: Mapping[EdgeType, Any] | None = None,
    edge_y: Mapping[EdgeType, Any] | None = None,
    weight_name: Mapping[EdgeType, str] | None = None,
    edge_splits: Mapping[EdgeType, Mapping[str, Any]] | None = None,
    name: str = "",
) -> Graph:
    """Make a graph of several node types or relations from an edge list for each relation.

    Args:
        made: Class of the graph.
        edges: By relation, ``(2, num_edges)`` integers: sources and destinations, numbered from 0 within
            their types.
        num_nodes: Number of nodes of each type, in the order that the types get. If None, the types are
            those that any argument names, with as many nodes as ``x`` or ``y`` has rows, else as the
            largest id says.
        x: Features by node type, as those of :meth:`from_edge_index`.
        y: Labels by node type, as those of :meth:`from_edge_index`.
        splits: Node ids or masks by node type and name.
        node_time: ``(num_nodes,)`` times by node type.
        edge_weight: ``(num_edges,)`` weights by relation; those of relations without are 1.
        edge_attr: ``(num_edges, num_edge_features)`` features by relation.
        edge_time: ``(num_edges,)`` times by relation.
        edge_y: Labels by relation, one row per edge, in the forms of ``y``.
        weight_name: By relation, the name that its weights have for a model; ``edge_weight`` if not given.
        edge_splits: Positions in the relation's list, or masks of it, by relation and name.
        name: Name of the graph in reports.

    Raises:
        DataError: a type or a relation is unknown, or an array does not fit; names it and the first
            position that is wrong.
    """
    ends = _ends_of(_by_name(edges, "edges"))
    by_node = {"x": x, "y": y, "splits": splits, "node_time": node_time}
    by_edge = {
        "edge_weight": edge_weight,
        "edge_attr": edge_attr,
        "edge_time": edge_time,
        "edge_y": edge_y,
        "edge_splits": edge_splits,
        "weight_name": weight_name,
    }
    of_nodes = {argument: _by_name(values, argument) for argument, values in by_node.items()}
    of_edges = {argument: _by_name(values, argument) for argument, values in by_edge.items()}
    counts = _counts(ends, num_nodes, of_nodes)
    for argument, values in of_nodes.items():
        _check_known(values, list(counts), f"{argument} names a node type that the graph does not have")
    for argument, values in of_edges.items():
        _check_known(values, list(ends), f"{argument} names a relation that the graph does not have")
    node_sets = {
        node_type: _node_set(node_type, count, {key: v.get(node_type) for key, v in of_nodes.items()})
        for node_type, count in counts.items()
    }
    edge_sets = {
        edge_type: _edge_set(edge_type, src.numel(), {key: v.get(edge_type) for key, v in of_edges.items()})
        for edge_type, (src, _) in ends.items()
    }
    weights = {edge_type: value for edge_type, value in of_edges["edge_weight"].items() if value is not None}
    return joined(made, ends, node_sets, edge_sets, weights, name=name)


def joined(
    made: type[Graph],
    ends: Mapping[EdgeType, Ends],
    nodes: Mapping[str, NodeSet],
    edges: Mapping[EdgeType, EdgeSet],
    weights: Mapping[EdgeType, Any],
    *,
    name: str,
) -> Graph:
    """Make the graph of the relations ``ends``; ``weights`` are in the order of their lists."""
    counts = [one.num_nodes for one in nodes.values()]
    relations = placed(counts, list(nodes), list(edges))
    num_nodes, num_rows = sum(counts), sum(counts[relation.destination] for relation in relations)
    sources, rows = [torch.empty(0, dtype=torch.int64)], [torch.empty(0, dtype=torch.int64)]
    for relation in relations:
        src, dst = ends[relation.edge_type]
        with named(relation.edge_type):
            check_ids(src, counts[relation.source], f"sources, of type {relation.edge_type[0]!r},")
            check_ids(dst, counts[relation.destination], f"destinations, of type {relation.edge_type[2]!r},")
        sources.append(src.long() + relation.first_source)
        rows.append(dst.long() * relation.stride + relation.first_row)
    by_row, perm = coo_to_csc(torch.cat(sources), torch.cat(rows), num_nodes, num_rows)
    place = torch.cat([torch.arange(0), *(torch.arange(one.num_edges) for one in edges.values())])
    if weights:
        weight = torch.cat([_weight_of(edge_type, one, weights) for edge_type, one in edges.items()])
        by_row.weight = weight if perm is None else weight[perm]
    types = Types(nodes=dict(nodes), edges=dict(edges), rows=by_row)
    csc = Csc(node_indptr(types), by_row.indices, num_nodes, by_row.weight, trusted=True)
    ids = place if perm is None else place[perm]
    return made(csc=csc, edge_id=ids, types=types, name=name, trusted=True)


def edge_lists_of(graph: Graph) -> dict[EdgeType, Tensor]:
    """Implement :meth:`graphbraid.Graph.to_edge_indices`."""
    if graph.types is None:
        return {graph.edge_types[0]: graph.to_edge_index(original_order=True)}
    return {relation.edge_type: _edge_list(graph, relation) for relation in graph.types.relations()}


def _edge_list(graph: Graph, relation: Relation) -> Tensor:
    assert graph.types is not None
    positions, indptr = edges_of(graph.types, relation)
    edge_index = torch.empty(2, positions.numel(), dtype=torch.int64)
    place = torch.arange(positions.numel()) if graph.edge_id is None else graph.edge_id[positions]
    edge_index[0, place] = graph.csc.indices[positions].long() - relation.first_source
    edge_index[1, place] = torch.repeat_interleave(torch.arange(indptr.numel() - 1), indptr.diff())
    return edge_index


def edge_weights_of(graph: Graph) -> dict[EdgeType, Tensor]:
    """Return the weights of the relations that have some, each in the order of its list."""
    types, weight = graph.types, graph.csc.weight
    if weight is None:
        return {}
    if types is None:
        return {graph.edge_types[0]: graph.in_original_order(weight)}
    found = {}
    for relation in types.relations():
        if types.edges[relation.edge_type].weighted:
            positions, _ = edges_of(types, relation)
            values = weight[positions]
            if graph.edge_id is not None:
                values = torch.empty_like(values).index_copy_(0, graph.edge_id[positions], values)
            found[relation.edge_type] = values
    return found


def with_reverse_relations(graph: Graph) -> Graph:
    """Implement :meth:`graphbraid.Graph.with_reverse_relations`."""
    lists, weights = edge_lists_of(graph), dict(edge_weights_of(graph))
    ends: dict[EdgeType, Ends] = {edge_type: (pairs[0], pairs[1]) for edge_type, pairs in lists.items()}
    nodes = {node_type: graph.nodes_of(node_type) for node_type in graph.node_types}
    edges = {edge_type: graph.edges_of(edge_type) for edge_type in graph.edge_types}
    columns = dict(graph.schema.columns)
    for edge_type in graph.edge_types:
        source, relation, destination = edge_type
        back = (destination, f"rev_{relation}", source)
        if back in edges or (relation.startswith("rev_") and (destination, relation[4:], source) in edges):
            continue
        src, dst = ends[edge_type]
        one = edges[edge_type]
        ends[back] = dst, src
        edges[back] = replace(one, splits={}, y=None)
        if edge_type in weights:
            weights[back] = weights[edge_type]
        if edge_type in columns:
            columns[back] = columns[edge_type]
    made = joined(type(graph), ends, nodes, edges, weights, name=graph.name)
    return made.replace(schema=replace(graph.schema, columns=columns), left_out=graph.left_out)


def with_types_in_order(graph: Graph, node_types: Sequence[str], edge_types: Sequence[EdgeType]) -> Graph:
    """Return a graph with its node types and relations in another order."""
    lists = edge_lists_of(graph)
    made = joined(
        type(graph),
        {one: (lists[one][0], lists[one][1]) for one in edge_types},
        {one: graph.nodes_of(one) for one in node_types},
        {one: graph.edges_of(one) for one in edge_types},
        edge_weights_of(graph),
        name=graph.name,
    )
    return made.replace(schema=graph.schema, left_out=graph.left_out)


def _by_name(values: Any, argument: str) -> dict[Any, Any]:
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        raise DataError(f"{argument} must be a mapping by type; got {shown(values)}")
    return dict(values)


def _ends_of(edges: dict[Any, Any]) -> dict[EdgeType, Ends]:
    ends = {}
    for edge_type, pairs in edges.items():
        if not (
            isinstance(edge_type, tuple)
            and len(edge_type) == 3
            and all(isinstance(part, str) and part for part in edge_type)
        ):
            raise DataError(
                "a relation is named by three strings: type of the sources, name, type of the destinations; "
                f"got {shown(edge_type)}"
            )
        with named(edge_type):
            ends[edge_type] = as_edge_index(pairs)
    return ends


def _counts(
    ends: Mapping[EdgeType, Ends], num_nodes: Mapping[str, int] | None, of_nodes: dict[str, dict[Any, Any]]
) -> dict[str, int]:
    """Return the number of nodes of each type, in the types' order."""
    if num_nodes is not None:
        given = _by_name(num_nodes, "num_nodes")
        counts = {node_type: as_num_nodes(count) for node_type, count in given.items()}
        for edge_type in ends:
            _check_known(
                dict.fromkeys((edge_type[0], edge_type[2])),
                list(counts),
                f"the relation {edge_type} has an end that num_nodes does not name",
            )
        return counts
    names = [*of_nodes["x"], *of_nodes["y"], *(end for one in ends for end in (one[0], one[2]))]
    return {name: _count(name, ends, of_nodes) for name in dict.fromkeys(names)}


def _count(node_type: str, ends: Mapping[EdgeType, Ends], of_nodes: dict[str, dict[Any, Any]]) -> int:
    for argument in ("x", "y"):
        if of_nodes[argument].get(node_type) is not None:
            rows = of_nodes[argument][node_type]
            return int(rows.shape[0]) if hasattr(rows, "shape") else len(rows)
    largest = -1
    for (source, _, destination), (src, dst) in ends.items():
        for end, ids in ((source, src), (destination, dst)):
            if end == node_type and ids.numel():
                largest = max(largest, int(ids.max()))
    return largest + 1


def _check_known(given: Mapping[Any, Any], known: list[Any], message: str) -> None:
    for one in given:
        if one not in known:
            texts = {str(name): name for name in known}
            raise DataError(
                f"{message}: {one!r}; there {'is' if len(texts) == 1 else 'are'} "
                f"{', '.join(texts) or 'none'}.{did_you_mean(str(one), texts)}"
            )


def _node_set(node_type: str, count: int, given: dict[str, Any]) -> NodeSet:
    with named(f"nodes of type {node_type!r}"):
        return NodeSet(
            num_nodes=count,
            x=as_features(given["x"]),
            y=as_labels(given["y"]),
            splits=as_splits(given["splits"], count),
            time=None if given["node_time"] is None else as_tensor(given["node_time"], "node_time"),
        )


def _edge_set(edge_type: EdgeType, num_edges: int, given: dict[str, Any]) -> EdgeSet:
    with named(edge_type):
        splits = _by_name(given["edge_splits"], "edge_splits")
        return EdgeSet(
            num_edges=num_edges,
            edge_attr=as_edge_attr(given["edge_attr"], num_edges),
            time=None if given["edge_time"] is None else as_tensor(given["edge_time"], "edge_time"),
            y=as_labels(given["edge_y"]),
            splits={key: as_node_ids(ids, num_edges, f"edge_splits[{key!r}]") for key, ids in splits.items()},
            weighted=given["edge_weight"] is not None,
            weight_name=given["weight_name"] or "edge_weight",
        )


def _weight_of(edge_type: EdgeType, edges: EdgeSet, weights: Mapping[EdgeType, Any]) -> Tensor:
    if edge_type not in weights:
        return torch.ones(edges.num_edges)
    with named(edge_type):
        weight = as_weight(weights[edge_type], edges.num_edges)
        assert weight is not None
        return weight
