"""Tracing of the very call of a model that would run, with modules that have a reader kept whole.

A trace records the one path that Python took. It is therefore made in the model's current mode, and refused
if the model changes itself or draws random numbers on the way, since another call might take another path.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn

from graphbraid.fullgraph.program.calling import (
    ADJACENCY,
    DATA,
    EDGE_ATTR,
    EDGE_TYPE,
    EDGES,
    Calling,
    Given,
    X,
)
from graphbraid.fullgraph.program.proxy import TensorProxy, as_tensors
from graphbraid.fullgraph.program.reached import Reached
from graphbraid.fullgraph.program.readers.exact import python_value
from graphbraid.fullgraph.program.readers.layers import LAYERS
from graphbraid.fullgraph.program.readers.reading import Reader, no_reader, reader_of
from graphbraid.fullgraph.program.readers.rowwise import ROWWISE
from graphbraid.fullgraph.program.refusal import NotLoweredError
from graphbraid.fullgraph.program.untouched import untouched

_TRACING = threading.Lock()
"""Serializes traces, since a trace patches ``torch.nn.Module`` while it runs."""


def traced(model: nn.Module, calling: Calling, given: Given) -> tuple[fx.Graph, dict[str, nn.Module]]:
    """Trace a call of the model; return the calls that it makes, in order, and the modules by name.

    Raises:
        NotLoweredError: the call cannot be followed.
    """
    edges = ADJACENCY if calling.takes(ADJACENCY) else EDGES
    classes = {**given.classes, "edges": given.classes.get(edges, Tensor)}
    return _traced(model, lambda: (_Root(model, calling, given), _Tracer(classes)))


def traced_by_type(
    model: nn.Module, calling: Calling, targets: Mapping[str, Mapping[Any, str]]
) -> tuple[fx.Graph, dict[str, nn.Module]]:
    """Trace a call of a model over types; return the calls that it makes, in order, and the modules by name.

    Args:
        model: the model.
        calling: how to call it.
        targets: by what parameters receive, the targets of the placeholders by node type or relation.

    Raises:
        NotLoweredError: the call cannot be followed.
    """

    def root() -> tuple[nn.Module, fx.Tracer]:
        tracer = _Tracer({})
        return _TypedRoot(model, calling, targets, tracer), tracer

    return _traced(model, root)


def _traced(
    model: nn.Module, start: Callable[[], tuple[nn.Module, fx.Tracer]]
) -> tuple[fx.Graph, dict[str, nn.Module]]:
    """Trace what ``start`` gives anew at each call, and see that it is the same call without gradients."""
    reached = Reached(model)
    if reached.why:
        raise NotLoweredError(type(model).__name__, f"its forward cannot be followed: {reached.why}")
    try:
        with _TRACING, untouched(model, reached), as_tensors(reached.functions):
            root, tracer = start()
            graph = tracer.trace(root)
            with torch.inference_mode():
                other, tracer = start()
                without = tracer.trace(other)
    except NotLoweredError:
        raise
    except Exception as error:  # whatever a user's forward may raise under tracing
        why = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise NotLoweredError(
            type(model).__name__,
            f"its forward cannot be traced ({why})",
            "a forward without branches on tensors' values or shapes",
        ) from error
    if _calls(without) != _calls(graph):
        raise NotLoweredError(
            type(model).__name__, "its forward is another without gradients", "a forward that does not ask"
        )
    return graph, dict(root.named_modules())


def _calls(graph: fx.Graph) -> list[str]:
    return [str((node.op, node.target, node.args, node.kwargs)) for node in graph.nodes]


class _Root(nn.Module):
    """The module that is traced: it calls the model as a user would."""

    def __init__(self, model: nn.Module, calling: Calling, given: Given) -> None:
        super().__init__()
        self.model = model
        self._calling, self._given = calling, given

    def forward(self, x: Any, edges: Any, weights: Any, edge_attr: Any, edge_type: Any) -> Any:
        """Call the model and return what it returns."""
        values = _CallArguments({X: x, EDGES: edges, ADJACENCY: edges})
        if self._given.edge_channels is not None:
            values[EDGE_ATTR] = edge_attr
        if self._given.weights is not None:
            values[self._given.weights] = weights
        if self._given.relations:
            values[EDGE_TYPE] = edge_type
        values[DATA] = _Data(self._given, values)
        return self._calling.run(self.model, values)


class _TypedRoot(nn.Module):
    """The module that is traced where there are types: it makes the placeholders as it runs."""

    def __init__(
        self,
        model: nn.Module,
        calling: Calling,
        targets: Mapping[str, Mapping[Any, str]],
        tracer: fx.Tracer,
    ) -> None:
        super().__init__()
        self.model = model
        self._calling, self._targets, self._tracer = calling, targets, tracer

    def forward(self) -> Any:
        """Call the model and return what it returns."""
        made = {
            what: {key: self._tracer.create_proxy("placeholder", one, (), {}) for key, one in targets.items()}
            for what, targets in self._targets.items()
            if self._calling.takes(what)
        }
        return self._calling.run(self.model, _CallArguments(made))


class _CallArguments(dict[str, Any]):
    """The arguments of the call; any other cannot be read."""

    def __missing__(self, what: str) -> Any:
        raise NotLoweredError("forward", f"it takes {what!r}", "forward(x, edge_index)")


class _Data:
    """Stand-in for PyG's data in a trace: features, edges, weights; any other attribute cannot be read."""

    def __init__(self, given: Given, values: _CallArguments) -> None:
        plain: type = getattr(sys.modules.get("torch_geometric.data"), "Data", object)
        self._class = plain if given.data_class is None else given.data_class
        self._given = {name: value for name, value in values.items() if name in given.held - {ADJACENCY}}

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """The class that ``isinstance`` reports: that of the user's data."""
        return self._class

    def __getattr__(self, name: str) -> Any:
        if name not in self._given:
            raise NotLoweredError("forward", f"it reads {name!r} of the data", "data.x and data.edge_index")
        return self._given[name]


class _Tracer(fx.Tracer):
    """A tracer that keeps modules with a reader whole, and refuses switched gradients or precision."""

    def __init__(self, classes: Mapping[str, type]) -> None:
        """Make a tracer whose placeholders are of these classes, by their names; others are plain tensors."""
        super().__init__()
        self._gradients, self._classes = torch.is_grad_enabled(), classes

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        is_layer = _is_pyg_layer(m) or _reader(m) is not None
        return is_layer or super().is_leaf_module(m, module_qualified_name)

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        by_type = any(isinstance(value, dict) for value in (*args, *kwargs.values()))
        if by_type and _is_pyg_layer(m):  # its result would be a dict, too, which a trace cannot look into
            raise no_reader(self.path_of_module(m).removeprefix("model."), m)
        return super().call_module(m, forward, args, kwargs)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        made = TensorProxy(node, self)
        if node.op == "placeholder":
            made.kind = self._classes.get(str(node.target), Tensor)
        elif node.op == "get_attr":  # buffers are not recorded but read
            made.kind = nn.Parameter
        return made

    def create_arg(self, a: Any) -> Any:
        return super().create_arg(python_value(a))

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        if self._gradients and (not torch.is_grad_enabled() or torch.is_inference_mode_enabled()):
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


__all__ = ["traced", "traced_by_type"]
