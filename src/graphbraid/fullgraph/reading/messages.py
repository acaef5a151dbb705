"""Reading a user's own message passing layer: its forward is traced, and its ``propagate`` recorded.

The message runs as the steps of a kernel (:mod:`.fused_messages`), or as it is written on some edges at a
time. So each row of its result may depend only on the same row of what it reads, which :mod:`.row_by_row`
shows.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn

from graphbraid.fullgraph.program import Messages, NotLoweredError, ReadRows
from graphbraid.fullgraph.reading.exact import Known, check, flag
from graphbraid.fullgraph.reading.fused_messages import steps_of
from graphbraid.fullgraph.reading.reader import Writer, reader_of
from graphbraid.fullgraph.reading.row_by_row import show_row_by_row, traced_message
from graphbraid.ops.messages import MessageReduction
from graphbraid.ops.spmm import Ties

_LAYERS = "torch_geometric.nn"
_HOME = f"{_LAYERS}.conv.message_passing"
_AGGREGATIONS: dict[str, tuple[str, MessageReduction]] = {
    "add": ("SumAggregation", "sum"),
    "sum": ("SumAggregation", "sum"),
    "mean": ("MeanAggregation", "mean"),
    "max": ("MaxAggregation", "max"),
    "min": ("MinAggregation", "min"),
}
"""PyG's aggregation modules and the reductions, by the names in ``aggr``."""
_UNCHANGED = ("aggregate", "_collect", "_lift", "_index_select", "_set_size", "_check_input", "__call__")
"""Methods that ``propagate`` calls. A layer must not replace them."""
_SIZES = ("size", "size_i", "size_j", "dim_size")
_SPECIAL = ("edge_index", "adj_t", "edge_index_i", "edge_index_j", "index", "ptr", *_SIZES)
"""Parameters of a message that PyG fills from the edges as a whole."""


def is_message_passing(module: nn.Module) -> bool:
    """Return whether a module is a layer of PyG's ``MessagePassing``, or of a class made from it."""
    return any(base.__module__ == _HOME for base in type(module).__mro__)


def is_users_layer(module: nn.Module) -> bool:
    """Return whether a module is a message passing layer of the user's own, whose forward is traced.

    One made from another layer of PyG's is not: PyG's forward would ask what class a proxy is of.
    """
    if not is_message_passing(module) or reader_of(type(module)) is not None:
        return False
    forward = getattr(type(module).forward, "__module__", "")
    of_pyg = [one for one in type(module).__mro__ if one.__module__.startswith(f"{_LAYERS}.")]
    return not forward.startswith("torch_geometric.") and of_pyg == [_base(module)]


@contextmanager
def recorded_propagations(model: nn.Module) -> Iterator[None]:
    """Make each ``propagate`` of a user's layer one node of a trace, whose target is a Propagation."""
    layers = [(name, module) for name, module in model.named_modules() if is_users_layer(module)]
    for name, layer in layers:
        vars(layer)["propagate"] = functools.partial(_record, name or type(layer).__name__, layer)
    try:
        yield
    finally:
        for _, layer in layers:
            vars(layer).pop("propagate", None)


class Propagation:
    """The target of a recorded call of ``propagate``, whose arguments are the edges and what it is given.

    Args:
        name: name of the layer.
        layer: the layer.
        graph: the trace of its message.
        tensors: the tensors that the trace reads, by the targets of its nodes.
    """

    __name__ = "propagate"

    def __init__(self, name: str, layer: Any, graph: fx.Graph, tensors: dict[str, Tensor]) -> None:
        self.name, self.layer, self.graph, self.tensors = name, layer, graph, tensors

    def __call__(self, *_: Any, **__: Any) -> Any:
        """Raise an error: a trace is read and never called."""
        raise NotImplementedError(f"{self!r} is part of a trace, which nobody calls")

    def __repr__(self) -> str:
        return f"propagate of {self.name}: {self.graph}"

    def refuse(self, reason: str, needed: str = "") -> NotLoweredError:
        """Return the error to raise if this call has no lowered form."""
        return NotLoweredError(self.name, reason, needed)


def _record(name: str, layer: Any, edge_index: Any, size: Any = None, **given: Any) -> Any:
    """Stand in for ``propagate`` in a trace."""
    if (why := _why_not(layer)) is not None:
        raise NotLoweredError(name, *why)
    if size is not None or not isinstance(edge_index, fx.Proxy):
        raise NotLoweredError(
            name, "its propagate takes a size or edges of its own", "propagate(edge_index, x=x)"
        )
    read: dict[str, Any] = {}
    for key, parameter in inspect.signature(layer.message).parameters.items():
        if key in _SPECIAL:
            what = f"its message reads {key!r}, which is of all edges together"
            raise NotLoweredError(name, what, "a message of each edge's own rows")
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise NotLoweredError(
                name, "its message takes any arguments", "a message that names its arguments"
            )
        read[key] = _argument(name, key, parameter, given)
    make_proxy: Any = type(edge_index)  # a message takes it for the tensor that it stands for
    graph, tensors = traced_message(name, layer, read, make_proxy)
    target = Propagation(name, layer, graph, tensors)
    out = edge_index.tracer.create_proxy("call_function", target, (edge_index,), read)
    return _updated(name, layer, out, given)


def _argument(name: str, key: str, parameter: inspect.Parameter, given: dict[str, Any]) -> Any:
    """Return what of ``propagate``'s arguments a message's parameter reads rows of, or receives."""
    if key[-2:] not in ("_i", "_j"):
        value = given.get(key, parameter.default)
        if value is parameter.empty:
            raise NotLoweredError(name, f"its message takes {key!r}, which propagate is not given")
        return value
    value = given.get(key[:-2], parameter.default)
    if value is parameter.empty:
        raise NotLoweredError(name, f"its message takes {key!r}, and propagate is not given {key[:-2]!r}")
    if isinstance(value, tuple | list):
        value = value[1 if key.endswith("_i") else 0]
    if value is not None and not isinstance(value, fx.Proxy):
        raise NotLoweredError(
            name, f"its message reads rows of {key[:-2]!r}, which is no matrix of node rows"
        )
    return value


def _updated(name: str, layer: Any, out: Any, given: dict[str, Any]) -> Any:
    """Call a layer's own ``update`` with what it takes."""
    if type(layer).update is _base(layer).update:
        return out
    _, *parameters = inspect.signature(layer.update).parameters.items()
    found = {}
    for key, parameter in parameters:
        if key in _SPECIAL or key[-2:] in ("_i", "_j"):
            raise NotLoweredError(
                name, f"its update reads {key!r}, which is of edges", "an update of node rows"
            )
        found[key] = given.get(key, parameter.default)
        if found[key] is parameter.empty:
            raise NotLoweredError(name, f"its update takes {key!r}, which propagate is not given")
    return layer.update(out, **found)


def _base(layer: nn.Module) -> Any:
    return next(kind for kind in type(layer).__mro__ if kind.__module__ == _HOME)


def _why_not(layer: Any) -> tuple[str, str] | None:
    """Return why a layer's ``propagate`` is not that of PyG with a message of its own, and what is needed."""
    base = _base(layer)
    for key in _UNCHANGED:
        if getattr(type(layer), key) is not getattr(base, key):
            return f"it has a {key} of its own", "a message of its own alone"
    for kind in type(layer).__mro__[: type(layer).__mro__.index(base)]:
        own = vars(kind).get("propagate")
        if own is not None and own is not base.propagate and own.__module__ != _made_by_pyg(kind):
            return "it has a propagate of its own", "a message of its own alone"
    wanted: dict[str, tuple[Any, ...]] = {
        "flow": ("source_to_target",),
        "node_dim": (-2, 0),
        "_decomposed_layers": (1,),
    }
    wanted |= {"_explain": (None, False), "_edge_mask": (None,), "aggr": tuple(_AGGREGATIONS)}
    for key, values in wanted.items():
        found = getattr(layer, key)
        if found not in values:
            return (
                f"{key.lstrip('_')}={found!r} has no lowered form",
                f"one of {', '.join(map(repr, values))}",
            )
    expected = getattr(sys.modules["torch_geometric.nn.aggr.basic"], _AGGREGATIONS[layer.aggr][0])
    if type(layer.aggr_module) is not expected:
        return f"it has an aggregation of its own, {type(layer.aggr_module).__name__}", f"aggr={layer.aggr!r}"
    return None


def _made_by_pyg(kind: type) -> str:
    """Return the name of the module that PyG makes for a class's ``propagate`` from its template."""
    return f"{kind.__module__}_{kind.__name__}_propagate"


def read_messages(
    writer: Writer,
    of: Propagation,
    rows: dict[str, str | ReadRows],
    constants: dict[str, Any],
    widths: dict[str, int],
) -> str:
    """Append the messages of a recorded call of ``propagate``, and return the name of their value.

    Args:
        writer: collects the operations.
        of: the call.
        rows: by parameter of the message, the name of the node rows from which it gets a row per edge, or the
            edge features or weights that it gets.
        constants: the message's other arguments, by parameter.
        widths: by parameter, how many numbers an edge's row has; 0 for a number per edge.

    Raises:
        NotLoweredError: the message couples edges, or is not known to give rows of edges.
    """
    module = of.layer.aggr_module
    check(f"{of.name}.aggr_module", module, Known({"_deterministic": flag}))
    shape, parameters = show_row_by_row(of.name, of.graph, of.tensors, of.layer, widths)
    if len(shape) != 1:
        raise of.refuse(f"its message has {len(shape) + 1} dimensions", "a matrix with a row per edge")
    values = list(dict.fromkeys(value for value in rows.values() if isinstance(value, str)))
    if not values:
        raise of.refuse("its message reads no node rows", "a message of x_j or x_i")
    at_level = dict(zip(values, writer.on_one_level(*values), strict=True))
    reads: list[tuple[str, ReadRows, int]] = []
    for key, value in rows.items():
        if isinstance(value, ReadRows):
            reads.append((key, value, 0))
        else:
            role = ReadRows.DESTINATION if key.endswith("_i") else ReadRows.SOURCE
            reads.append((key, role, values.index(value)))
    reduction = _AGGREGATIONS[of.layer.aggr][1]
    ties: Ties = "shared"
    if reduction in ("max", "min"):
        ties = _ties_of(of, reduction)
    return writer.add(
        Messages,
        *at_level.values(),
        layer=of.layer,
        reads=tuple(reads),
        constants=tuple(constants.items()),
        used=parameters,
        reduction=reduction,
        ties=ties,
        width_out=shape[0],
        steps=steps_of(
            of.graph, of.layer, reads, tensors=of.tensors, widths=widths, used=parameters, width=shape[0]
        ),
    )


def _ties_of(of: Propagation, reduction: str) -> Ties:
    """Return how PyG divides the gradient of a maximum or minimum among equal messages.

    Raises:
        NotLoweredError: no operation divides it so.
    """
    module = of.layer.aggr_module
    found = _shares(str(of.layer.aggr), module._deterministic)
    known: dict[tuple[tuple[float, ...], ...], Ties] = {
        ((0.5, 0.5), (0.5, 0.5)): "shared",
        ((0.5, 0.5), (round(1 / 3, 3), round(1 / 3, 3))): "shared with zero",
    }
    if found not in known:
        raise of.refuse(
            f"its aggr={reduction!r} shares the gradient of two equal ones and two zeros as {found}"
        )
    return known[found]


@functools.cache
def _shares(aggr: str, deterministic: bool) -> tuple[tuple[float, ...], ...]:
    """Return the gradients of two equal messages: of ones, and of zeros."""
    home: Any = sys.modules["torch_geometric.nn.aggr.basic"]
    shares = []
    with torch.inference_mode(False), torch.enable_grad():
        for value in (1.0, 0.0):
            module = getattr(home, _AGGREGATIONS[aggr][0])()
            messages = torch.full((2, 1), value, requires_grad=True)
            module._deterministic = deterministic
            out = module(messages, torch.zeros(2, dtype=torch.int64), dim_size=1, dim=-2)
            (grad,) = torch.autograd.grad(out.sum(), messages)
            shares.append(tuple(round(float(one), 3) for one in grad.flatten()))
    return tuple(shares)


__all__ = ["Propagation", "is_message_passing", "is_users_layer", "read_messages", "recorded_propagations"]
