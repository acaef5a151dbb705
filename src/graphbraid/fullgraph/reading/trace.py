"""Reading a model's own ``forward``: the calls that it makes, in their order, become operations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import fx, nn

from graphbraid.fullgraph.program import INPUT, Learned, NotLoweredError, TypePart
from graphbraid.fullgraph.reading.calling import (
    ADJACENCY,
    EDGE_ATTR,
    EDGE_TYPE,
    EDGES,
    N_ID,
    Calling,
    Given,
    X,
)
from graphbraid.fullgraph.reading.exact import Known, anything, check, count, one_of
from graphbraid.fullgraph.reading.functions import (
    ACTIVATION_FUNCTIONS,
    ACTIVATION_METHODS,
    ARITHMETIC,
    ARITHMETIC_METHODS,
    FUNCTIONS,
    METHODS,
    STACK_METHODS,
    STACKS,
)
from graphbraid.fullgraph.reading.layers import LAYERS
from graphbraid.fullgraph.reading.reader import (
    NEEDED,
    Edges,
    FunctionCall,
    FunctionReader,
    LayerCall,
    NodeRows,
    Reader,
    Stacked,
    Writer,
    checked_reader,
    no_reader,
    reader_of,
)
from graphbraid.fullgraph.reading.rowwise import ROWWISE
from graphbraid.fullgraph.reading.tracing import traced, traced_by_type
from graphbraid.graph.types import Relation, Types

# ---- reading a model's own ``forward``: the calls that it makes, in their order, become operations

_FUNCTIONS = FUNCTIONS | ARITHMETIC | ACTIVATION_FUNCTIONS | STACKS
_METHODS = METHODS | ARITHMETIC_METHODS | ACTIVATION_METHODS | STACK_METHODS


def read_traced(writer: Writer, model: nn.Module, calling: Calling, given: Given) -> str:
    """Append the operations of a model's call to a writer and return the name of the result.

    Raises:
        NotLoweredError: part of the model cannot be read; the message names it.
    """
    graph, modules = traced(model, calling, given)
    return TraceReader(writer, modules, calling, given).read_all(graph)


class TraceReader:
    """Turns the nodes of a trace into operations."""

    def __init__(self, writer: Writer, modules: dict[str, nn.Module], calling: Calling, given: Given) -> None:
        self._writer, self._modules, self._given = writer, modules, given
        self._sparse = calling.takes(ADJACENCY)
        self._values: dict[fx.Node, str] = {}
        self._edges: fx.Node | None = None
        self._weights: fx.Node | None = None
        self._attr: fx.Node | None = None
        self._types: fx.Node | None = None
        self._stacks: dict[fx.Node, Stacked] = {}

    def read_all(self, graph: fx.Graph) -> str:
        """Read all nodes in order and return the name of the result."""
        out = None
        for node in graph.nodes:
            if node.op == "output":
                out = self._output(node.args[0])
            else:
                self._read(node)
        assert out is not None
        return out

    def _read(self, node: fx.Node) -> None:
        if node.op == "placeholder":
            self._placeholder(node)
        elif node.op == "call_module":
            self._values[node] = self._module(node)
        elif node.op in ("call_function", "call_method"):
            made = self._call(node)
            if isinstance(made, Stacked):
                self._stacks[node] = made
            else:
                self._values[node] = made
        elif node.users:
            name = str(node.target).removeprefix("model.")
            raise NotLoweredError(
                name, "a tensor of the model's own takes part in its forward", "a layer that holds it"
            )

    def _placeholder(self, node: fx.Node) -> None:
        if node.target == "x":
            self._values[node] = INPUT
        elif node.target == "edges":
            self._edges = node
        elif node.target == EDGE_ATTR:
            self._attr = node
        elif node.target == EDGE_TYPE:
            self._types = node
        else:
            self._weights = node

    def _output(self, returned: Any) -> str:
        if isinstance(returned, fx.Node) and returned in self._values:
            return self._values[returned]
        what = f"a {type(returned).__name__}" if not isinstance(returned, fx.Node) else str(returned)
        raise NotLoweredError("forward", f"it returns {what}, not one matrix of node rows", "one result")

    # ---- modules

    def _module(self, node: fx.Node) -> str:
        module = self._modules[str(node.target)]
        name = str(node.target).removeprefix("model.") if node.target != "model" else type(module).__name__
        is_layer = reader_of(LAYERS, type(module)) is not None
        if not is_layer and reader_of(ROWWISE, type(module)) is None:
            raise no_reader(name, module)
        reader = checked_reader(LAYERS if is_layer else ROWWISE, name, module)
        bound = dict(_bound(name, reader.takes, node.args, node.kwargs))
        rows = bound.pop(reader.takes[0], None)
        several = tuple(self._value(name, row) for row in rows) if isinstance(rows, list | tuple) else ()
        x = several[0] if several else self._value(name, rows)
        edges = self._edges_of(name, reader, bound) if is_layer else Edges()
        given = {key: self._seen(value) for key, value in bound.items() if value is not None}
        if unread := [key for key in given if key not in reader.gives]:
            raise NotLoweredError(name, f"it takes {unread[0]!r} too", f"a call without {unread[0]}")
        call = LayerCall(self._writer, name, module, x, edges, given, several)
        if is_layer:
            self._check_ends(call, reader)
        out = reader.read(call)
        if getattr(module, "inplace", False):
            self._overwrite(name, rows, out)
        return out

    def _check_ends(self, call: LayerCall, reader: Reader) -> None:
        """Refuse a layer's rows if they are not those that its edges lead from and to."""
        if call.several and not (reader.relates and len(call.several) == 2):
            raise call.refuse("of a pair of matrices has no lowered form", "one matrix of node rows")

    def _edges_of(self, name: str, reader: Reader, bound: dict[str, Any]) -> Edges:
        key = next(key for key in reader.takes if key in ("edge_index", "csc"))
        if bound.pop(key, None) is not self._edges:
            raise NotLoweredError(name, "it takes other edges than the model's own edge_index")
        if EDGE_TYPE in reader.takes:
            return self._relations_of(name, bound.pop(EDGE_TYPE, None))
        weights = bound.pop("edge_weight", None)
        if weights is not None and weights is not self._weights:
            raise NotLoweredError(name, "it takes other weights than the graph's")
        attr = bound.pop(EDGE_ATTR, None)
        if attr is not None and (attr is not self._attr or self._sparse):
            raise NotLoweredError(
                name,
                "its edge features are not the graph's own as they are",
                "edge_attr, a matrix of floats, beside edge_index",
            )
        if not self._sparse:
            channels = None if attr is None else self._given.edge_channels
            return Edges(weighted=weights is not None, channels=channels, graph=self._given.graph)
        if not self._given.is_simple():
            raise NotLoweredError(
                name,
                "PyG treats self-loops and repeated edges of a sparse matrix differently from a list's",
                "edge_index instead of adj_t",
            )
        return Edges(weighted=self._given.weighted, sparse=True, graph=self._given.graph)

    def _relations_of(self, name: str, types: Any) -> Edges:
        if types is None or types is not self._types or self._sparse:
            raise NotLoweredError(
                name,
                "its relations are not the graph's own edge_type as it is",
                "edge_type, a vector of integers, beside edge_index",
            )
        return Edges(graph=self._given.graph, relations=self._given.relations)

    # ---- calls

    def _call(self, node: fx.Node) -> str | Stacked:
        target = node.target
        name = target if isinstance(target, str) else getattr(target, "__name__", str(target))
        function = _METHODS.get(name) if node.op == "call_method" else _FUNCTIONS.get(target)
        if function is None:
            raise NotLoweredError(
                name, "no operation stands for this call", "a call of docs/lowered_models.md"
            )
        arguments = self._arguments(name, function, node)
        out = function.read(FunctionCall(self._writer, name, arguments))
        if isinstance(out, str) and (function.in_place or arguments.get("inplace", False) is not False):
            first = node.args[0] if node.args else node.kwargs[next(iter(function.takes))]
            self._overwrite(name, first, out)
        return out

    def _arguments(self, name: str, function: FunctionReader, node: fx.Node) -> dict[str, Any]:
        positional = [key for key in function.takes if key not in function.by_name]
        given = dict(_bound(name, positional, node.args, {}))
        for key, value in node.kwargs.items():
            if key not in function.takes or key in given:
                raise NotLoweredError(name, f"it takes {key!r} too", f"a call without {key}")
            given[key] = value
        found = {key: given.get(key, default) for key, default in function.takes.items()}
        if missing := [key for key, value in found.items() if value is NEEDED]:
            raise NotLoweredError(name, f"its argument {missing[0]!r} is not given")
        return {key: fx.node.map_aggregate(value, self._seen) for key, value in found.items()}

    def _seen(self, argument: Any) -> Any:
        """Return an argument as the readers of functions see it, with node rows as :class:`NodeRows`."""
        if not isinstance(argument, fx.Node):
            return argument
        if argument in self._values:
            return NodeRows(self._values[argument])
        return self._stacks.get(argument, argument)

    def _value(self, name: str, argument: Any) -> str:
        if isinstance(argument, fx.Node) and argument in self._values:
            return self._values[argument]
        if argument is not None and argument is self._attr:
            raise NotLoweredError(
                name,
                "it maps edge features, which layers read as the graph has them",
                "a layer's edge_dim, which maps them linearly, or features that are encoded before",
            )
        raise NotLoweredError(name, f"its argument {argument} is not a matrix of node rows")

    def _overwrite(self, name: str, argument: Any, out: str) -> None:
        """Make all names of an argument refer to the value written over it from here on."""
        before = self._value(name, argument)
        if before == INPUT:
            raise NotLoweredError(name, "it writes over the features", "an operation that is not in place")
        for node, value in self._values.items():
            if value == before:
                self._values[node] = out


def _bound(name: str, takes: Sequence[str], args: Sequence[Any], kwargs: Any) -> Iterator[tuple[str, Any]]:
    """Yield arguments by the names of their parameters."""
    if len(args) > len(takes):
        raise NotLoweredError(name, f"it takes {args[len(takes)]} too")
    yield from zip(takes, args, strict=False)
    for key, value in kwargs.items():
        if key not in takes[len(args) :]:
            raise NotLoweredError(name, f"it takes {key!r} too", f"a call without {key}")
        yield key, value


# ---- reading the ``forward`` of a model over node types: calls with a dict of features and one of edge lists


def read_traced_by_type(
    writer: Writer,
    model: nn.Module,
    calling: Calling,
    types: Types,
    parts: Sequence[TypePart],
    *,
    node_type: str,
) -> str | None:
    """Append the operations of a model's call over types to a writer.

    ``HeteroConv`` and what ``to_hetero`` makes are read as what they call: one layer for each relation, and
    the sum, mean or maximum of the results of those into one type.

    Returns:
        The name of the outputs of ``node_type``; None if there are none.

    Raises:
        NotLoweredError: part of the model cannot be read; the message names it.
    """
    targets: dict[str, dict[Any, str]] = {
        X: {part.name: part.input for part in parts if types.nodes[part.name].x is not None},
        EDGES: {one.edge_type: _edges_name(one) for one in types.relations()},
        N_ID: {part.name: _ids_name(part) for part in parts},
    }
    graph, modules = traced_by_type(model, calling, targets)
    return _TypedReader(writer, modules, types, parts, node_type).read_all(graph) or None


def _edges_name(relation: Relation) -> str:
    return f"edges {relation.number}"


def _ids_name(part: TypePart) -> str:
    return f"ids of {part.name}"


class _TypedReader(TraceReader):
    """Turns the nodes of a trace over types into operations."""

    def __init__(
        self,
        writer: Writer,
        modules: dict[str, nn.Module],
        types: Types,
        parts: Sequence[TypePart],
        node_type: str,
    ) -> None:
        super().__init__(writer, modules, Calling((), {}), Given())
        self._of_graph, self._parts, self._wanted = types, parts, node_type
        self._inputs = {part.input for part in parts}
        self._part_of = {_ids_name(part): part for part in parts}
        self._relation_of = {_edges_name(one): one for one in types.relations()}

    def _placeholder(self, node: fx.Node) -> None:
        if node.target in self._inputs:
            self._values[node] = str(node.target)

    def _output(self, returned: Any) -> str:
        if isinstance(returned, dict):
            if self._wanted not in returned:
                return ""
            returned = returned[self._wanted]
        out = super()._output(returned)
        if self._name_of(out) != self._wanted:
            what = f"it returns rows of {self._name_of(out)!r}, and those of {self._wanted!r} are wanted"
            raise NotLoweredError("forward", what, f"node_type={self._name_of(out)!r}")
        return out

    def _module(self, node: fx.Node) -> str:
        module = self._modules[str(node.target)]
        ids = node.args[0] if len(node.args) == 1 and not node.kwargs else None
        if type(module) is nn.Embedding and isinstance(ids, fx.Node) and ids.target in self._part_of:
            name = str(node.target).removeprefix("model.")
            return learned_rows(self._writer, name, module, self._part_of[str(ids.target)], self._of_graph)
        return super()._module(node)

    def _edges_of(self, name: str, reader: Reader, bound: dict[str, Any]) -> Edges:
        key = next(key for key in reader.takes if key in ("edge_index", "csc"))
        ends = bound.pop(key, None)
        relation = self._relation_of.get(str(ends.target)) if isinstance(ends, fx.Node) else None
        if relation is None:
            raise NotLoweredError(
                name,
                "it takes other edges than those of one relation as they are",
                "a list of edge_index_dict",
            )
        if not reader.relates:
            raise NotLoweredError(
                name,
                "layers of its class have no lowered form over one relation",
                "SAGEConv, GraphConv or GATConv",
            )
        return Edges(relation=relation)

    def _check_ends(self, call: LayerCall, reader: Reader) -> None:
        super()._check_ends(call, reader)
        relation = call.edges.relation
        assert relation is not None
        for value, needed in ((call.x, relation.source), (call.own, relation.destination)):
            if self._writer.part(value) != needed:
                what = f"takes rows of {self._name_of(value)!r} for those of {self._parts[needed].name!r}"
                raise call.refuse(what, "the rows of the relation's two types")

    def _name_of(self, value: str) -> str:
        return self._parts[self._writer.part(value)].name


def learned_rows(writer: Writer, name: str, layer: Any, part: TypePart, types: Types) -> str:
    """Append the rows of an embedding of all nodes of a type.

    Raises:
        NotLoweredError: the embedding does more, or has other rows than the type has nodes.
    """
    check(name, layer, _ROWS)
    num_nodes = types.nodes[part.name].num_nodes
    if layer.num_embeddings != num_nodes:
        what = f"it has {layer.num_embeddings} rows, and the graph {num_nodes} nodes of {part.name!r}"
        raise NotLoweredError(name, what)
    return writer.add(Learned, part.input, table=layer.weight)


_ROWS = Known(
    {
        "num_embeddings": anything,
        "embedding_dim": count,
        "padding_idx": one_of(None),
        "max_norm": one_of(None),
        "norm_type": anything,
        "scale_grad_by_freq": one_of(False),
        "sparse": one_of(False),
    },
    ("weight",),
)
