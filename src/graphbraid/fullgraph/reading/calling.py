"""How a model is called: the value of the graph for each parameter of ``forward``, on every route.

A mini-batch, a pass over the whole graph, a compiled model and a trace of it all bind the parameters here, by
name, and differ only in where the values come from. So a model gets the same arguments everywhere.

In a trace, a placeholder stands for a value of the graph that the model receives. A layer with a reader is
read only if its edges are such a placeholder: the graph's own, unchanged.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import fx, nn

from graphbraid.errors import ConfigError
from graphbraid.fullgraph.program import INPUT, NodeType, NotLoweredError
from graphbraid.fullgraph.reading.matrices import NO_LIST, MatrixKind
from graphbraid.fullgraph.reading.reader import Edges, LayerCall, MappedEdges, Reader
from graphbraid.graph import Graph
from graphbraid.graph.csc import Csc
from graphbraid.graph.scaled_features import Features
from graphbraid.graph.types import ONLY_EDGE_TYPE, ONLY_NODE_TYPE, EdgeType, Relation
from graphbraid.nn import module_traits

X, EDGES, ADJACENCY, WEIGHTS, DATA, CSC = "x", "edge_index", "adj_t", "edge_weight", "data", "csc"
EDGE_ATTR, EDGE_TYPE, N_ID, NUM_NODES = "edge_attr", "edge_type", "n_id", "num_nodes"
"""Roles: values that a parameter can receive, besides attributes of the user's data. These are the features,
the edges as a list or as a sparse matrix, the edge weights, the data object, graphbraid's own topology (or a
block per layer), the edge features, the relation of each edge, the ids of the rows and their number."""
_NAMES = {
    X: ("x", "X", "feat", "feats", "feature", "features", "h", "z", "input", "inputs", "node_features"),
    EDGES: ("edge_index", "edges", "edge_idx", "ei"),
    ADJACENCY: ("adj_t", "adj", "adjacency"),
    WEIGHTS: ("edge_weight", "edge_weights", "weight"),
    EDGE_ATTR: ("edge_attr", "edge_attrs", "edge_features"),
    DATA: ("data", "batch", "graph", "g"),
}
_KNOWN = {name: what for what, names in _NAMES.items() for name in names}
_BY_PLACE = (X, EDGES)
_MEANT = {*_KNOWN, EDGE_TYPE, N_ID, NUM_NODES}
_MEANT |= {"e_id", "pos", "y", "time", "norm", "face", "ptr", "batch_size"}
"""Names with a meaning in PyG: a parameter of such a name gets nothing else by its place."""

_LEFT_OUT = (
    "it was left out of the graph: Graph.from_pyg keeps edge_attr of floats, not further attributes, and "
    "task='link' no features by relation. Delete it from PyG's data if the model is to do without, or use "
    "compile(model, data), which gives all that they hold"
)


@dataclass(frozen=True, kw_only=True)
class Given:
    """The arguments that are available to call a model with.

    Attributes:
        names: roles and attributes that can be given.
        held: the attributes of the data object.
        refused: names of values that the data have but that cannot be given, each with the reason.
        weights: the name that the graph's weights have. If None, they have none.
        edge_channels: number of edge features. If None, there are none.
        with_weights: the relations that have weights, where there are types.
        channels: number of edge features of the relations that have some, where there are types.
        graph: the graph that the edges belong to.
        typed: whether the values are dicts by node type or relation, under names that may end in ``_dict``.
        data_class: the class of the user's data.
        classes: the classes of tensors in the user's data, by role.
        node_types: the node types as values of a program.
        relations: the relations where there are types; in a graph of one, those that have edges, if the data
            say of each edge which it belongs to.
        others: names of further tensors of the data, which graph breaks can read.
        constants: values of parameters that are flags: True, False, None or a text.
        missing: names for which the data give None, as PyG's do for ``batch``.
        matrix: the kind of sparse matrix that the model takes in the place of an edge list, one for all
            relations; None for lists.
        simple: whether the matrices of a batch have neither self-loops nor repeated edges.
    """

    names: frozenset[str] = frozenset({X, EDGES, ADJACENCY, DATA})
    held: frozenset[str] = frozenset({X, EDGES})
    refused: Mapping[str, str] = field(default_factory=dict)
    weights: str | None = None
    edge_channels: int | None = None
    with_weights: frozenset[EdgeType] = frozenset()
    channels: Mapping[EdgeType, int] = field(default_factory=dict)
    graph: Graph | None = field(default=None, compare=False)
    typed: bool = False
    data_class: type | None = None
    classes: Mapping[str, type] = field(default_factory=dict)
    node_types: tuple[NodeType, ...] = ()
    relations: tuple[Relation, ...] = ()
    others: frozenset[str] = frozenset()
    constants: Mapping[str, Any] = field(default_factory=dict)
    missing: frozenset[str] = frozenset()
    matrix: MatrixKind | None = None
    simple: bool = False

    @classmethod
    def of(cls, graph: Graph) -> Given:
        """Return the arguments that a graph alone can give."""
        nodes = [graph.nodes_of(one) for one in graph.node_types]
        typed, attr = graph.is_typed, graph.edge_attr
        by_relation = {one: graph.edges_of(one) for one in graph.edge_types} if typed else {}
        edges = [*by_relation.values()]
        weights = {one.weight_name for one in edges if one.weighted}
        if not typed and graph.csc.weight is not None:
            weights = {graph.weight_name}
        there = {
            X: any(one.x is not None for one in nodes),
            "y": any(one.y is not None for one in nodes),
            EDGE_ATTR: attr is not None or any(one.edge_attr is not None for one in edges),
            "time": any(t is not None for t in [one.time for one in nodes] + [one.time for one in edges]),
            ADJACENCY: not typed,
            NUM_NODES: not typed,
        }
        has_both = typed and there[EDGE_ATTR] and EDGE_ATTR in weights
        own = weights | {name for name, is_there in there.items() if is_there}
        masks = {f"{split}_mask" for one in nodes for split in one.splits}
        return cls(
            names=frozenset(own | masks | {EDGES, N_ID, DATA}),
            held=frozenset((own & {X, WEIGHTS, EDGE_ATTR}) | {EDGES}),
            refused=dict.fromkeys(graph.left_out, _LEFT_OUT),
            weights=None if len(weights) != 1 or has_both else next(iter(weights)),
            with_weights=frozenset(one for one, held in by_relation.items() if held.weighted),
            edge_channels=None if attr is None else int(attr.shape[1]),
            graph=graph,
            typed=typed,
            node_types=tuple(
                node_type_of(one, _width_of(held.x)) if typed else only_node_type(_width_of(held.x))
                for one, held in zip(graph.node_types, nodes, strict=True)
            ),
            relations=() if graph.types is None else tuple(graph.types.relations()),
        )

    @property
    def weighted(self) -> bool:
        """Whether a graph or matrix has weights, by any name; of several matrices, any of them."""
        if self.matrix is not None:
            return self.matrix.weighted
        return self.graph is not None and self.graph.csc.weight is not None

    def channels_of(self, relation: Relation | None) -> int | None:
        """Return the number of features of all edges or, where there are types, of a relation's."""
        return self.edge_channels if relation is None else self.channels.get(relation.edge_type)

    def is_simple(self) -> bool:
        """Return whether there are no repeated edges and no self-loops."""
        if self.graph is None:
            return self.simple
        parts = [one.edge_type for one in self.relations] if self.typed else [ONLY_EDGE_TYPE]
        return all(is_simple(self.graph.relation(one), within=one[0] == one[-1]) for one in parts)

    def takes_matrix(self, calling: Calling) -> bool:
        """Return whether a call gets sparse matrices in the place of edge lists."""
        of_data = calling.takes(DATA) and ADJACENCY in self.held and EDGES not in self.held
        return calling.takes(ADJACENCY) or (of_data and not self.typed)


def is_simple(csc: Csc, *, within: bool = True) -> bool:
    """Return whether there are no repeated edges and, ``within`` a node type, no self-loops."""
    src, dst = csc.indices.long(), csc.destinations().long()
    if within and bool((src == dst).any()):
        return False
    keys = dst * csc.num_src + src
    if not bool((keys.diff() > 0).all()):  # sources may stand in any order
        keys = keys.sort().values
    return not bool((keys.diff() == 0).any())


def node_type_of(name: str, channels: int) -> NodeType:
    """Return one of several node types as a value of a program, with its number of feature columns."""
    return NodeType(name=name, input=f"{INPUT}[{name}]", channels=channels)


def only_node_type(channels: int) -> NodeType:
    """Return the node type of a graph of one, with its number of feature columns."""
    return NodeType(name=ONLY_NODE_TYPE, input=INPUT, channels=channels)


def _width_of(x: Features | None) -> int:
    return 0 if x is None else int(x.shape[1])


def of_data(given: Given, data: Any) -> Given:
    """Return the arguments that the user's data can give: their attributes, and values of their edges."""
    stores = data.stores if given.typed else (data,)
    held = frozenset(str(key) for store in stores for key in store.keys())  # noqa: SIM118 - of PyG
    made = given.names & {X, EDGES, ADJACENCY, N_ID, NUM_NODES, DATA}
    weights = given.weights if given.weights in held else None
    if weights is not None and given.typed:  # some may be of another form, which the graph has not kept
        found = {one for one in data.edge_types if weights in data[one]}
        weights = weights if found == given.with_weights else None
    return replace(
        given,
        names=held | made,
        held=held,
        refused={},
        weights=weights,
        data_class=type(data),
    )


def withholding(data: Any, graph: Graph) -> Any:
    """Return PyG's ``Data`` of a graph, which refuses reads of attributes that the graph left out.

    PyG's own would give None for ``pos``, ``edge_attr`` and some others, as if the data had none.
    """
    kind, names = type(data), graph.left_out

    def get(self: Any, name: str) -> Any:
        if name in names:
            raise ConfigError(f"the model's forward reads {name!r} of the data, and {_LEFT_OUT}")
        return object.__getattribute__(self, name)

    if names:
        own = type(kind.__name__, (kind,), {"__getattribute__": get})
        object.__setattr__(data, "__class__", own)  # PyG's would make an attribute of it
    return data


class CallValues(dict[str, Any]):
    """The values of a call by role, each made when it is first read."""

    def __init__(self, make: Callable[[str], Any]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, what: str) -> Any:
        made = self[what] = self._make(what)
        return made


@dataclass(frozen=True)
class Calling:
    """The arguments of a call, each by its role."""

    positional: tuple[str, ...]
    named: Mapping[str, str]

    def run(self, model: nn.Module, values: Mapping[str, Any]) -> Any:
        """Call the model with ``values``, which are given by role."""
        return model(
            *(values[what] for what in self.positional), **{k: values[v] for k, v in self.named.items()}
        )

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles of all arguments."""
        return *self.positional, *self.named.values()

    def takes(self, what: str) -> bool:
        """Return whether any argument of the call has the role ``what``."""
        return what in self.positional or what in self.named.values()


def calling_of(model: nn.Module, given: Given) -> Calling:
    """Determine how to call a model.

    A parameter receives the value of its name in PyG: ``x``, ``edge_index``, ``adj_t``, ``edge_weight``,
    ``edge_attr``, ``edge_type``, ``n_id``, ``num_nodes``, ``data``, or another attribute of the data; where
    there are types, also with ``_dict`` behind it. Without a default value, the first two may have names of
    their own. Parameters with a default keep it if nothing has their name. A model that takes blocks gets the
    features, the blocks, and by name ``n_id`` and ``edge_type``.

    Raises:
        ConfigError: a parameter without a default matches nothing, or one names a value that cannot be given.
    """
    blocks: tuple[str, ...] = ()
    if module_traits.takes_blocks(model) or (
        EDGE_TYPE in given.names and module_traits.takes_typed_blocks(model)
    ):
        blocks, lost = (X, CSC), {EDGE_ATTR} & given.names - {given.weights}  # blocks have the weights
        refused = dict.fromkeys(lost, "a model that takes blocks gets no features of edges")
        given = replace(given, names=given.names & {N_ID, EDGE_TYPE}, refused={**given.refused, **refused})
    positional, named, in_place = [], {}, True
    parameters = parameters_of(model)
    taken: set[str | None] = {*blocks, *(_key_of(parameter.name, given) for parameter in parameters)}
    for place, parameter in enumerate(parameters):
        what = blocks[place] if place < len(blocks) else _given_to(parameter, place, given, taken)
        taken.add(what)
        if what is None:
            in_place = False
        elif parameter.kind is parameter.KEYWORD_ONLY or not in_place:
            named[parameter.name] = what
        else:
            positional.append(what)
    return Calling(tuple(positional), named)


def argument_named(name: str, place: int) -> str | None:
    """Return a parameter's role by its name or, if that says nothing, its place; None if neither tells."""
    what = _KNOWN.get(name)
    if what is None and name not in _MEANT and place < len(_BY_PLACE):
        return _BY_PLACE[place]
    return what


def parameters_of(model: nn.Module) -> list[inspect.Parameter]:
    """Return the parameters of ``forward``; for a wrapper, those of the wrapped module."""
    own = getattr(getattr(model, "signature", None), "param_dict", None)
    if isinstance(own, dict):  # PyG's Sequential, whose forward takes *args
        return [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in own]
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    try:
        parameters = list(inspect.signature(model.forward).parameters.values())
    except ValueError:  # a traced TorchScript module has a signature without names
        parameters = [inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL)]
    named = [parameter for parameter in parameters if parameter.kind not in variadic]
    children = list(model.children())
    if not named and parameters and len(children) == 1 and callable(children[0].forward):
        return parameters_of(children[0])
    by_place = [parameter for parameter in named if parameter.kind is not parameter.KEYWORD_ONLY]
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        more = _BY_PLACE[len(by_place) :]
        by_place += [inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in more]
    return by_place + [parameter for parameter in named if parameter.kind is parameter.KEYWORD_ONLY]


def _key_of(name: str, given: Given) -> str:
    return name.removesuffix("_dict") if given.typed else name


def _given_to(
    parameter: inspect.Parameter, place: int, given: Given, taken: Collection[str | None]
) -> str | None:
    """Return a parameter's role; None if it keeps its default.

    Roles that are ``taken`` go only to the parameters of their own names.
    """
    name, needed = parameter.name, parameter.default is parameter.empty
    key = _key_of(name, given)
    if key in given.refused:
        raise ConfigError(f"the model's forward takes {name!r}, and {given.refused[key]}")
    what = key if key in given.names else _KNOWN.get(key)
    if what != key and (what in taken or not (needed or parameter.default is None)):
        what = None  # as h of forward(x, edge_index, h=None) and weight of weight=1.0
    if what == DATA and key != DATA and not (place == 0 and needed):
        what = None
    elif what == EDGES and EDGES not in given.held and ADJACENCY in given.held:
        what = ADJACENCY  # a sparse matrix passed under an edge list's name
    elif what == ADJACENCY and needed and not given.names & {ADJACENCY, WEIGHTS} and EDGES not in taken:
        what = None if given.typed else EDGES  # PyG's layers take either, but a matrix has the weights, too
    elif what is None and needed and place < len(_BY_PLACE) and key == name.removesuffix("_dict"):
        what = None if key in _MEANT or _BY_PLACE[place] in taken else _BY_PLACE[place]
    if what in given.names or (what == X and needed):
        return what
    if needed:
        raise ConfigError(
            f"the model's forward takes {name!r}, and the graph has no such thing, but "
            f"{', '.join(sorted(given.names))}; give it a default value, or call compile(model, data) with "
            "data that holds it"
        )
    return None


EDGES_TARGET = "edges"
"""Target of the placeholder of all edges together, as a list or as a sparse matrix."""
WEIGHTS_TARGET = "weights"
"""Target of the placeholder of the edge weights."""


def target_of(value: Any) -> str:
    """Return the target of an argument that is a placeholder as it is; empty for any other."""
    return str(value.target) if isinstance(value, fx.Node) and value.op == "placeholder" else ""


def target_along(what: str, relation: Relation | None) -> str:
    """Return the target of the placeholder of a relation's edges, weights or features, or of all edges'."""
    return what if relation is None else f"{what} {relation.number}"


def is_edge_attr(value: Any) -> bool:
    """Return whether an argument is the placeholder of the features of all edges, or of a relation's."""
    return target_of(value).partition(" ")[0] == EDGE_ATTR


def ids_target(one: NodeType) -> str:
    """Return the target of the placeholder of the ids of a type's nodes."""
    return f"ids of {one.name}"


def targets_of(given: Given) -> dict[str, str | dict[Any, str]]:
    """Return the targets of placeholders by role, as dicts where there are types."""
    targets: dict[str, str | dict[Any, str]]
    edges = EDGES if given.matrix is None else ADJACENCY
    if given.typed:
        targets = {
            X: {one.name: one.input for one in given.node_types if one.channels},
            edges: {one.edge_type: target_along(EDGES_TARGET, one) for one in given.relations},
        }
        numbers: dict[str, dict[Any, str]] = {}
        for one in given.relations if given.matrix is None else ():
            if one.edge_type in given.with_weights and given.weights is not None:
                numbers.setdefault(given.weights, {})[one.edge_type] = target_along(WEIGHTS_TARGET, one)
            elif one.edge_type in given.channels:
                numbers.setdefault(EDGE_ATTR, {})[one.edge_type] = target_along(EDGE_ATTR, one)
        targets |= numbers
        if given.graph is not None:
            targets[N_ID] = {one.name: ids_target(one) for one in given.node_types}
        return targets
    targets = {X: X, edges: EDGES_TARGET}
    targets |= {EDGE_ATTR: EDGE_ATTR} if given.edge_channels is not None else {}
    targets |= {given.weights: WEIGHTS_TARGET} if given.weights is not None else {}
    targets |= {EDGE_TYPE: EDGE_TYPE} if given.relations else {}
    return targets | ({} if given.graph is None else {N_ID: ids_target(given.node_types[0])})


def edges_of(
    name: str, reader: Reader, bound: dict[str, Any], given: Given, mapped: Any, *, layer: Any
) -> Edges:
    """Return the edges of a call.

    Arguments that are of edges are taken out of ``bound``. ``mapped`` is a reader's result for the edge
    features, if a call gives them.

    Raises:
        NotLoweredError: they are not the graph's edges, or its edges of one relation, as they are.
    """
    assert reader.edges is not None
    edges, matrix = bound.pop(reader.edges, None), given.matrix
    sparse, relation = matrix is not None, relation_of(edges, given) if given.typed else None
    if given.typed and relation is None:
        what = "it takes other edges than those of one relation as they are"
        raise NotLoweredError(name, what, "a list of edge_index_dict")
    if relation is not None and not reader.relates:
        what = "layers of its class have no lowered form over one relation"
        raise NotLoweredError(name, what, "SAGEConv, GraphConv or GATConv")
    if relation is None and target_of(edges) != EDGES_TARGET:
        raise NotLoweredError(name, "it takes other edges than the model's own edge_index")
    if EDGE_TYPE in reader.takes:
        if target_of(bound.pop(EDGE_TYPE, None)) != EDGE_TYPE or sparse:
            what = "its relations are not the graph's own edge_type as it is"
            raise NotLoweredError(name, what, "edge_type, a vector of integers, beside edge_index")
        return Edges(graph=given.graph, relations=given.relations)
    weights, attr = bound.pop("edge_weight", None), bound.pop(EDGE_ATTR, None)
    if weights is not None and target_of(weights) != target_along(WEIGHTS_TARGET, relation):
        raise NotLoweredError(name, "it takes other weights than the graph's")
    of_edges = target_along(EDGE_ATTR, relation)
    is_mapped = isinstance(mapped, MappedEdges) and mapped.target == of_edges and reader.encodes
    encoder = mapped.linear if is_mapped else None
    if attr is not None and encoder is None and (target_of(attr) != of_edges or sparse):
        what = "its edge features are not the graph's own as they are"
        raise NotLoweredError(name, what, "edge_attr, a matrix of floats, beside edge_index")
    if matrix is None:
        channels = None if attr is None else given.channels_of(relation)
        found = Edges(weighted=weights is not None, channels=channels, encoder=encoder, relation=relation)
    else:
        _check_matrix(name, given, layer)
        found = Edges(weighted=given.weighted, sparse=True, relation=relation)
    return found if given.typed else replace(found, graph=given.graph)


def _check_matrix(name: str, given: Given, layer: Any) -> None:
    """Refuse sparse matrices that PyG refuses, or whose loops or repeated entries it may treat otherwise."""
    matrix = given.matrix
    if matrix is not None and matrix.fails_in(layer):
        raise NotLoweredError(name, *NO_LIST)
    if matrix is not None and (matrix.merges or matrix.differs_by_loops(layer)) and not given.is_simple():
        what = "PyG treats self-loops and repeated edges of a sparse matrix differently from a list's"
        raise NotLoweredError(name, what, "edge_index instead of adj_t")


def relation_of(edges: Any, given: Given) -> Relation | None:
    """Return the relation whose edges an argument is, as they are; None if it is anything else."""
    target = target_of(edges)
    return next((one for one in given.relations if target_along(EDGES_TARGET, one) == target), None)


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
