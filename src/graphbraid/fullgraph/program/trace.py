"""Follows a model's own ``forward``: traces the very call that would run, and reads what it does in order.

A trace holds the one way that Python took. So it is made in the mode the model is in, and refused where the
model changes itself or draws random numbers on the way: another call might take another one.
"""

from __future__ import annotations

import operator
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx, nn

from graphbraid.fullgraph.program.calling import (
    ADJACENCY,
    DATA,
    EDGE_ATTR,
    EDGES,
    WEIGHTS,
    Calling,
    Given,
    X,
)
from graphbraid.fullgraph.program.operations import INPUT
from graphbraid.fullgraph.program.readers.activations import ACTIVATION_FUNCTIONS, ACTIVATION_METHODS
from graphbraid.fullgraph.program.readers.arithmetic import ARITHMETIC, ARITHMETIC_METHODS
from graphbraid.fullgraph.program.readers.functions import (
    FUNCTIONS,
    METHODS,
    NEEDED,
    Function,
    FunctionCall,
    NodeRows,
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
from graphbraid.fullgraph.program.refusal import NotLoweredError
from graphbraid.fullgraph.program.untouched import untouched
from graphbraid.fullgraph.program.writer import Writer

_FUNCTIONS = FUNCTIONS | ARITHMETIC | ACTIVATION_FUNCTIONS
_METHODS = METHODS | ARITHMETIC_METHODS | ACTIVATION_METHODS
_TRACING = threading.Lock()
"""A trace patches torch.nn.Module while it runs."""


def read_traced(writer: Writer, model: nn.Module, calling: Calling, given: Given) -> str:
    """Append the operations of a model's call; returns the value of its result.

    Raises:
        NotLoweredError: names what cannot be read.
    """
    root = _Root(model, calling, given)
    try:
        with _TRACING, untouched(model):
            graph = _Tracer().trace(root)
    except NotLoweredError:
        raise
    except Exception as error:  # whatever a user's forward may raise under tracing
        why = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise NotLoweredError(
            type(model).__name__,
            f"its forward cannot be traced ({why})",
            "a forward without branches on tensors' values or shapes",
        ) from error
    reader = _TraceReader(writer, root, calling, given)
    for node in graph.nodes:
        reader.read(node)
    assert reader.out is not None
    return reader.out


class _Root(nn.Module):
    """The call that is traced: of the model as whoever uses it calls it."""

    def __init__(self, model: nn.Module, calling: Calling, given: Given) -> None:
        super().__init__()
        self.model = model
        self._calling, self._given = calling, given

    def forward(self, x: Any, edges: Any, weights: Any, edge_attr: Any) -> Any:
        """What the model returns."""
        values = _Values({X: x, EDGES: edges, ADJACENCY: edges, WEIGHTS: weights})
        if self._given.edge_channels is not None:
            values[EDGE_ATTR] = edge_attr
        values[DATA] = _Data(self._given, values)
        return self._calling.run(self.model, values)


class _Values(dict[str, Any]):
    """What the call is given; anything else cannot be read."""

    def __missing__(self, what: str) -> Any:
        raise NotLoweredError("forward", f"it takes {what!r}", "forward(x, edge_index)")


class _Data:
    """Stands for PyG's data in a trace: features, edges, weights; anything else cannot be read."""

    def __init__(self, given: Given, values: _Values) -> None:
        plain: type = getattr(sys.modules.get("torch_geometric.data"), "Data", object)
        self._class = plain if given.data_class is None else given.data_class
        names = given.attributes or ({X, EDGES} | ({WEIGHTS} if given.weighted else set()))
        self._given = {name: values[name] for name in (X, EDGES, WEIGHTS) if name in names}
        if given.edge_channels is not None:
            self._given[EDGE_ATTR] = values[EDGE_ATTR]
        elif given.weighted and given.weights_are_attr and EDGE_ATTR in names:
            self._given[EDGE_ATTR] = values[WEIGHTS]

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """What ``isinstance`` shall find: the class of what the call is given."""
        return self._class

    def __getattr__(self, name: str) -> Any:
        if name not in self._given:
            raise NotLoweredError("forward", f"it reads {name!r} of the data", "data.x and data.edge_index")
        return self._given[name]


class _Proxy(fx.Proxy):
    """Records assignments in place, which Python would otherwise turn into new values."""


def _in_place(name: str) -> Any:
    target = getattr(operator, name)

    def record(self: fx.Proxy, other: Any) -> Any:
        return self.tracer.create_proxy("call_function", target, (self, other), {})

    return record


for _name in (
    "iadd",
    "isub",
    "imul",
    "itruediv",
    "ifloordiv",
    "imod",
    "ipow",
    "imatmul",
    "iand",
    "ior",
    "ixor",
):
    setattr(_Proxy, f"__{_name}__", _in_place(_name))


class _Tracer(fx.Tracer):
    """Keeps whole what a reader reads; notes where gradients or precision are switched."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        is_layer = _is_pyg_layer(m) or _reader(m) is not None
        return is_layer or super().is_leaf_module(m, module_qualified_name)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        if not torch.is_grad_enabled() or torch.is_inference_mode_enabled():
            raise NotLoweredError(
                "forward", "a part of it runs without gradients", "a forward with gradients"
            )
        if torch.is_autocast_enabled("cpu"):
            raise NotLoweredError("forward", "a part of it runs under autocast", "a forward in float32")
        return super().create_node(*args, **kwargs)


def _is_pyg_layer(module: nn.Module) -> bool:
    return any(base.__module__ == "torch_geometric.nn.conv.message_passing" for base in type(module).__mro__)


def _reader(module: nn.Module) -> Reader | None:
    return reader_of(LAYERS, type(module)) or reader_of(ROWWISE, type(module))


class _TraceReader:
    """Turns the nodes of a trace into operations."""

    def __init__(self, writer: Writer, root: _Root, calling: Calling, given: Given) -> None:
        self._writer, self._modules, self._given = writer, dict(root.named_modules()), given
        self._sparse = calling.takes(ADJACENCY)
        self._values: dict[fx.Node, str] = {}
        self._edges: fx.Node | None = None
        self._weights: fx.Node | None = None
        self._attr: fx.Node | None = None
        self.out: str | None = None

    def read(self, node: fx.Node) -> None:
        """Read the next node."""
        if node.op == "placeholder":
            self._placeholder(node)
        elif node.op == "output":
            self.out = self._output(node.args[0])
        elif node.op == "call_module":
            self._values[node] = self._module(node)
        elif node.op in ("call_function", "call_method"):
            self._values[node] = self._call(node)
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
        out = reader.read(LayerCall(self._writer, name, module, x, edges, given, several))
        if getattr(module, "inplace", False):
            self._overwrite(name, rows, out)
        return out

    def _edges_of(self, name: str, reader: Reader, bound: dict[str, Any]) -> Edges:
        key = next(key for key in reader.takes if key in ("edge_index", "csc"))
        if bound.pop(key, None) is not self._edges:
            raise NotLoweredError(name, "it takes other edges than the model's own edge_index")
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
                "PyG treats loops and repeated edges of a sparse matrix otherwise than a list's",
                "edge_index instead of adj_t",
            )
        return Edges(weighted=self._given.weighted, sparse=True, graph=self._given.graph)

    # ---- calls

    def _call(self, node: fx.Node) -> str:
        target = node.target
        name = target if isinstance(target, str) else getattr(target, "__name__", str(target))
        function = _METHODS.get(name) if node.op == "call_method" else _FUNCTIONS.get(target)
        if function is None:
            raise NotLoweredError(
                name, "no operation stands for this call", "a call of docs/lowered_models.md"
            )
        arguments = self._arguments(name, function, node)
        out = function.read(FunctionCall(self._writer, name, arguments))
        if function.in_place or arguments.get("inplace", False) is not False:
            first = node.args[0] if node.args else node.kwargs[next(iter(function.takes))]
            self._overwrite(name, first, out)
        return out

    def _arguments(self, name: str, function: Function, node: fx.Node) -> dict[str, Any]:
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
        """Rows as the readers of functions see them."""
        known = isinstance(argument, fx.Node) and argument in self._values
        return NodeRows(self._values[argument]) if known else argument

    def _value(self, name: str, argument: Any) -> str:
        if isinstance(argument, fx.Node) and argument in self._values:
            return self._values[argument]
        raise NotLoweredError(name, f"its argument {argument} is not a matrix of node rows")

    def _overwrite(self, name: str, argument: Any, out: str) -> None:
        """From here on, whatever is the argument is what was written over it."""
        before = self._value(name, argument)
        if before == INPUT:
            raise NotLoweredError(name, "it writes over the features", "an operation that is not in place")
        for node, value in self._values.items():
            if value == before:
                self._values[node] = out


def _bound(name: str, takes: Sequence[str], args: Sequence[Any], kwargs: Any) -> Iterator[tuple[str, Any]]:
    """Arguments by the names of their parameters."""
    if len(args) > len(takes):
        raise NotLoweredError(name, f"it takes {args[len(takes)]} too")
    yield from zip(takes, args, strict=False)
    for key, value in kwargs.items():
        if key not in takes[len(args) :]:
            raise NotLoweredError(name, f"it takes {key!r} too", f"a call without {key}")
        yield key, value


__all__ = ["read_traced"]
