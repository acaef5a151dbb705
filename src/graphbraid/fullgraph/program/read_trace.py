"""Reading a model's own ``forward``: the calls that it makes, in their order, become operations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import fx, nn

from graphbraid.fullgraph.program.calling import (
    ADJACENCY,
    EDGE_ATTR,
    EDGE_TYPE,
    Calling,
    Given,
)
from graphbraid.fullgraph.program.operations import INPUT
from graphbraid.fullgraph.program.readers.activations import ACTIVATION_FUNCTIONS, ACTIVATION_METHODS
from graphbraid.fullgraph.program.readers.arithmetic import ARITHMETIC, ARITHMETIC_METHODS
from graphbraid.fullgraph.program.readers.functions import (
    FUNCTIONS,
    METHODS,
    NEEDED,
    FunctionCall,
    FunctionReader,
    NodeRows,
    Stacked,
)
from graphbraid.fullgraph.program.readers.layers import LAYERS
from graphbraid.fullgraph.program.readers.reading import (
    Edges,
    LayerCall,
    Reader,
    checked_reader,
    no_reader,
    reader_of,
)
from graphbraid.fullgraph.program.readers.rowwise import ROWWISE
from graphbraid.fullgraph.program.readers.stacks import STACK_METHODS, STACKS
from graphbraid.fullgraph.program.refusal import NotLoweredError
from graphbraid.fullgraph.program.tracing import traced
from graphbraid.fullgraph.program.writer import Writer

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


__all__ = ["TraceReader", "read_traced"]
