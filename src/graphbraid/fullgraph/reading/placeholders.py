"""The placeholders of a trace, and the edges that a layer with a reader is called with.

A placeholder stands for a value of the graph that the model receives. A layer with a reader is read only if
its edges are such a placeholder: the graph's own, unchanged.
"""

from __future__ import annotations

from typing import Any

from torch import fx

from graphbraid.fullgraph.program import NodeType, NotLoweredError
from graphbraid.fullgraph.reading.calling import ADJACENCY, EDGE_ATTR, EDGE_TYPE, EDGES, N_ID, Given, X
from graphbraid.fullgraph.reading.reader import Edges, LayerCall, MappedEdges, Reader
from graphbraid.graph.types import Relation

EDGES_TARGET = "edges"
"""Target of the placeholder of all edges together, as a list or as a sparse matrix."""
WEIGHTS_TARGET = "weights"
"""Target of the placeholder of the edge weights."""


def target_of(value: Any) -> str:
    """Return the target of an argument that is a placeholder as it is; empty for any other."""
    return str(value.target) if isinstance(value, fx.Node) and value.op == "placeholder" else ""


def edges_target(relation: Relation) -> str:
    """Return the target of the placeholder of a relation's edges."""
    return f"edges {relation.number}"


def ids_target(one: NodeType) -> str:
    """Return the target of the placeholder of the ids of a type's nodes."""
    return f"ids of {one.name}"


def targets_of(given: Given) -> dict[str, str | dict[Any, str]]:
    """Return the targets of placeholders by role, as dicts where there are types."""
    targets: dict[str, str | dict[Any, str]]
    if given.typed:
        targets = {
            X: {one.name: one.input for one in given.node_types if one.channels},
            EDGES: {one.edge_type: edges_target(one) for one in given.relations},
        }
        if given.graph is not None:
            targets[N_ID] = {one.name: ids_target(one) for one in given.node_types}
        return targets
    targets = {X: X, EDGES: EDGES_TARGET, ADJACENCY: EDGES_TARGET}
    targets |= {EDGE_ATTR: EDGE_ATTR} if given.edge_channels is not None else {}
    targets |= {given.weights: WEIGHTS_TARGET} if given.weights is not None else {}
    targets |= {EDGE_TYPE: EDGE_TYPE} if given.relations else {}
    return targets | ({} if given.graph is None else {N_ID: ids_target(given.node_types[0])})


def edges_of(
    name: str, reader: Reader, bound: dict[str, Any], given: Given, mapped: Any, *, sparse: bool
) -> Edges:
    """Return the edges of a call.

    Args:
        name: name of the layer.
        reader: its reader.
        bound: the call's arguments by parameter; those that are of edges are taken out.
        given: the arguments that the model has.
        mapped: a reader's result for the edge features, if a call gives them.
        sparse: whether the model's edges are a sparse matrix.

    Raises:
        NotLoweredError: they are not the graph's edges, or its edges of one relation, as they are.
    """
    assert reader.edges is not None
    edges = bound.pop(reader.edges, None)
    if given.typed:
        return _edges_of_relation(name, reader, edges, given)
    if target_of(edges) != EDGES_TARGET:
        raise NotLoweredError(name, "it takes other edges than the model's own edge_index")
    if EDGE_TYPE in reader.takes:
        if target_of(bound.pop(EDGE_TYPE, None)) != EDGE_TYPE or sparse:
            what = "its relations are not the graph's own edge_type as it is"
            raise NotLoweredError(name, what, "edge_type, a vector of integers, beside edge_index")
        return Edges(graph=given.graph, relations=given.relations)
    weights, attr = bound.pop("edge_weight", None), bound.pop(EDGE_ATTR, None)
    if weights is not None and target_of(weights) != WEIGHTS_TARGET:
        raise NotLoweredError(name, "it takes other weights than the graph's")
    encoder = mapped.linear if isinstance(mapped, MappedEdges) and reader.encodes else None
    if attr is not None and encoder is None and (target_of(attr) != EDGE_ATTR or sparse):
        what = "its edge features are not the graph's own as they are"
        raise NotLoweredError(name, what, "edge_attr, a matrix of floats, beside edge_index")
    if not sparse:
        channels = None if attr is None else given.edge_channels
        return Edges(weighted=weights is not None, channels=channels, encoder=encoder, graph=given.graph)
    if not given.is_simple():
        what = "PyG treats self-loops and repeated edges of a sparse matrix differently from a list's"
        raise NotLoweredError(name, what, "edge_index instead of adj_t")
    return Edges(weighted=given.weighted, sparse=True, graph=given.graph)


def relation_of(edges: Any, given: Given) -> Relation | None:
    """Return the relation whose edges an argument is, as they are; None if it is anything else."""
    return next((one for one in given.relations if edges_target(one) == target_of(edges)), None)


def _edges_of_relation(name: str, reader: Reader, edges: Any, given: Given) -> Edges:
    relation = relation_of(edges, given)
    if relation is None:
        what = "it takes other edges than those of one relation as they are"
        raise NotLoweredError(name, what, "a list of edge_index_dict")
    if not reader.relates:
        what = "layers of its class have no lowered form over one relation"
        raise NotLoweredError(name, what, "SAGEConv, GraphConv or GATConv")
    return Edges(relation=relation)


def check_ends(call: LayerCall, reader: Reader, given: Given) -> None:
    """Refuse a layer's rows if they are not those that its edges lead from and to."""
    if call.several and not (reader.relates and len(call.several) == 2):
        raise call.refuse("of a pair of matrices has no lowered form", "one matrix of node rows")
    relation = call.edges.relation
    ends = () if relation is None else ((call.x, relation.source), (call.own, relation.destination))
    for value, number in ends:
        needed, found = (given.node_types[one].name for one in (number, call.writer.node_type(value)))
        if found != needed:
            what = f"takes rows of {found!r} for those of {needed!r}"
            raise call.refuse(what, "the rows of the relation's two types")
