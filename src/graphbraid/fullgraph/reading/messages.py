"""Reading a message passing layer that has no reader: its forward is traced, and its ``propagate`` recorded.

The message runs as the steps of a kernel (:mod:`.fused_messages`), or as it is written on some edges at a
time. So each row of its result may depend only on the same row of its inputs, and through a softmax over
in-neighbours on rows of the same destination. :mod:`.message_trial` shows this. An aggregation other than
the sum, mean, maximum or minimum runs as it is written, on all edges of some destinations at a time.
"""

from __future__ import annotations

import functools
import inspect
import threading
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from operator import is_
from typing import Any, ClassVar

import torch
from torch import Tensor, fx, nn

from graphbraid.fullgraph import program as ir
from graphbraid.fullgraph.reading.aggregations import (
    AGGREGATIONS,
    HOME,
    TIES_OF_MESSAGES,
    base_of,
    is_hgt,
    reduction_of,
    ties_of,
    why_not_reduced,
)
from graphbraid.fullgraph.reading.exact import Known, check, flag
from graphbraid.fullgraph.reading.matrices import NO_LIST, MatrixKind, entries_in
from graphbraid.fullgraph.reading.message_trial import MessageCalls, traced_message
from graphbraid.fullgraph.reading.reader import reader_of
from graphbraid.fullgraph.reading.trace_context import MATRICES, recorded_functions, writes
from graphbraid.ops.messages import MessageReduction
from graphbraid.ops.spmm import Ties

_UNCHANGED = ("_collect", "_lift", "_index_select", "_set_size", "_check_input", "__call__")
"""Methods that ``propagate`` and ``edge_updater`` call. A layer must not replace them."""
_IDS, _COUNTS = ("index", "edge_index_i"), ("size_i", "dim_size")
"""Parameters that receive the destination of each edge, and the number of destinations."""
OTHERS = "others"
"""Key of a recorded call's ``meta``: by parameter that reads one of a pair of rows, the other one."""
_SPECIAL = ("edge_index", "adj_t", "edge_index_j", "size", "size_j")
"""Parameters of a message that PyG fills from the edges as a whole."""


def is_message_passing(module: nn.Module) -> bool:
    """Return whether a module is a layer of PyG's ``MessagePassing``, or of a class made from it."""
    return any(base.__module__ == HOME for base in type(module).__mro__)


def is_traced_layer(module: nn.Module) -> bool:
    """Return whether a module is a message passing layer whose forward is traced, as no reader handles it."""
    if not is_message_passing(module) or is_hgt(module):  # HGT is read by the dicts that it takes and gives
        return False
    reader = reader_of(type(module))
    return reader is None or not reader.known.attributes["aggr"](getattr(module, "aggr", None))


@contextmanager
def recorded_propagations(model: nn.Module, functions: Sequence[types.FunctionType]) -> Iterator[None]:
    """Make each ``propagate`` of a traced layer one node of a trace, whose target is a Propagation.

    The functions of PyG that pass messages become one node each, also in ``functions`` of the forward.
    """
    layers = [(name, module) for name, module in model.named_modules() if is_traced_layer(module)]
    dtype, thread = next((one.dtype for one in model.parameters()), None), threading.get_ident()
    for name, layer in layers:
        of = name or type(layer).__name__, dtype, thread
        vars(layer)["propagate"] = functools.partial(_record, of, layer)
        vars(layer)["edge_updater"] = functools.partial(_record_update, of, layer)
    try:
        with recorded_functions([layer for _, layer in layers], functions):
            yield
    finally:
        for _, layer in layers:
            vars(layer).pop("propagate", None)
            vars(layer).pop("edge_updater", None)


@dataclass(frozen=True, eq=False, kw_only=True)
class Propagation(MessageCalls):
    """The target of a recorded call of ``propagate``. The call's arguments are the edges and the user's."""

    name: str
    """Name of the layer."""
    takes: tuple[tuple[str, ...], tuple[str, ...]]
    """Names of the parameters of ``message``, and of ``aggregate`` without its first."""
    special: dict[str, str]
    """By parameter that is filled from the edges as a whole, ``ids`` or ``counts``."""
    aggr: str | None
    """Name of the sum, mean, maximum or minimum; None if the layer's ``aggregate`` runs as it is written."""
    dtype: torch.dtype | None
    """Dtype of the model's parameters; None for a model without parameters."""
    is_vector: bool = False
    """Whether the result is one number for each node, where the messages are a column."""
    is_plain: bool = False
    """Whether the trace always runs in the place of a ``message``: the layer has none of its own, or an
    ``edge_update`` comes before it."""
    ties: Ties = "shared"
    """How equal messages share the gradient of a maximum or minimum, if the layer has no ``message``."""
    __name__: ClassVar[str] = "propagate"

    def __call__(self, *_: Any, **__: Any) -> Any:
        """Raise an error: a trace is read and never called."""
        raise NotImplementedError(f"{self!r} is part of a trace, which nobody calls")

    def __repr__(self) -> str:
        return f"propagate of {self.name}: {self.graph}"

    def reduced(self) -> tuple[MessageReduction, Ties]:
        """Return how messages are reduced, and how equal ones share the gradient of a maximum.

        Raises:
            NotLoweredError: the aggregation has no lowered form.
        """
        if self.aggr is None:
            return "own", "shared"
        reduction, layer = AGGREGATIONS[self.aggr][1], self.layer
        if isinstance(layer, PlainMessage):
            return reduction, self.ties
        scatters = type(layer).aggregate is not base_of(layer).aggregate
        if not scatters:
            check(f"{self.name}.aggr_module", layer.aggr_module, Known({"_deterministic": flag}))
        if reduction not in ("max", "min"):
            return reduction, "shared"
        scatter = self.aggr if scatters else None
        return reduction, ties_of(layer, self.refuse, known=TIES_OF_MESSAGES, scatter=scatter)

    def refuse(self, reason: str, needed: str = "") -> ir.NotLoweredError:
        """Return the error to raise if this call has no lowered form."""
        return ir.NotLoweredError(self.name, reason, needed)


class PlainMessage(nn.Module):
    """Holds the modules that messages call which are of no layer."""

    node_dim = 0


def own_messages(
    name: str,
    message: Callable[..., Any],
    *,
    layer: nn.Module | None = None,
    aggr: str = "sum",
    dtype: torch.dtype | None = None,
) -> Propagation:
    """Return messages that a function computes in the place of a layer's or a call's own.

    The function's parameters have names as those of a layer's ``message``. ``aggr`` says how messages are
    reduced. ``dtype`` is that of the model's parameters, where the layer has none.
    """
    names = tuple(inspect.signature(message).parameters)
    special = {key: "ids" if key in _IDS else "counts" for key in names if key in (*_IDS, *_COUNTS)}
    held = PlainMessage() if layer is None else layer
    calls = traced_message(name, held, dict.fromkeys(names), frozenset(names), fx.Proxy, method=message)
    of: dict[str, Any] = {"name": name, "aggr": aggr, "dtype": dtype, "is_plain": True}
    return Propagation(takes=(names, ()), special=special, **of, **vars(calls))


def _record(
    of: tuple[str, torch.dtype | None, int], layer: Any, edge_index: Any, size: Any = None, **given: Any
) -> Any:
    """Stand in for ``propagate`` in a trace, which one thread makes. Others run the layer meanwhile."""
    name, dtype, thread = of
    if threading.get_ident() != thread:
        return type(layer).propagate(layer, edge_index, size=size, **given)
    is_matrix = getattr(edge_index, "is_matrix", False)
    fuses = is_matrix and layer.fuse
    if (why := _why_not_propagated(layer) or (None if fuses else why_not_reduced(layer))) is not None:
        raise ir.NotLoweredError(name, *why)
    if size is not None or not isinstance(edge_index, fx.Proxy):
        raise ir.NotLoweredError(
            name, "its propagate takes a size or edges of its own", "propagate(edge_index, x=x)"
        )
    along = edge_index
    if is_matrix and not fuses and MatrixKind.of(edge_index.example, weighted=False).has_no_list:
        raise ir.NotLoweredError(name, *NO_LIST)
    if is_matrix:
        along = entries_in(edge_index)[0]
        given |= _values_given(layer, edge_index, given, fuses=fuses)
    if fuses:  # as propagate does with a sparse matrix
        taken = _arguments_of(name, layer, "message_and_aggregate", given, "a product of adj_t and node rows")
        return _updated(name, layer, layer.message_and_aggregate(edge_index, **taken), given)
    aggr = reduction_of(layer)
    method, of_message, sources = _message_of(name, layer, edge_index, given)
    aggregate = {} if aggr else dict(list(inspect.signature(layer.aggregate).parameters.items())[1:])
    read, special = _values_read(name, of_message | aggregate, given, sources)
    others = ((key, _other_rows(key, sources.get(key, given), read)) for key in read)
    rows = {key: one.node for key, one in others if one is not None}
    taken = {key: value for key, value in (read | special).items() if key in of_message}
    make_proxy: Any = type(edge_index)  # a message takes it for the tensor that it stands for
    traced = traced_message(name, layer, taken, frozenset(special), make_proxy, method=method)
    for one in traced.graph.find_nodes(op="placeholder") if sources else ():
        if not one.users and one.target not in {*special, *aggregate}:  # as features that may be None
            traced.graph.erase_node(one)
            del read[one.target], of_message[one.target]
    takes = tuple(of_message), tuple(aggregate)
    target = Propagation(
        name=name,
        takes=takes,
        special=special,
        aggr=aggr,
        dtype=dtype,
        is_plain=bool(sources),
        **vars(traced),
    )
    out = edge_index.tracer.create_proxy("call_function", target, (along,), read)
    out.node.meta[MATRICES], out.node.meta[OTHERS] = [*rows.values()], rows
    # The dimensions of a row are known when the message is read: give_shape writes them into this view.
    out = out.view(-1, 0)
    return _updated(name, layer, out, given)


def _values_read(
    name: str,
    parameters: Mapping[str, inspect.Parameter],
    given: Mapping[str, Any],
    sources: Mapping[str, Mapping[str, Any]],
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return what the parameters of a message get, and which of them are filled from all edges, and how."""
    read: dict[str, Any] = {}
    special: dict[str, str] = {}
    for key, parameter in parameters.items():
        if key in _SPECIAL:
            what = f"its message reads {key!r}, which is of all edges together"
            raise ir.NotLoweredError(name, what, "a message of each edge's own rows")
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise ir.NotLoweredError(
                name, "its message takes any arguments", "a message that names its arguments"
            )
        if key in (*_IDS, *_COUNTS):
            special[key] = "ids" if key in _IDS else "counts"
        else:
            read[key] = None if key == "ptr" else _argument(name, key, parameter, sources.get(key, given))
    return read, special


@dataclass(frozen=True, eq=False)
class _Update:
    """The result of a layer's ``edge_updater`` in a trace: an argument of its messages, which compute it."""

    edges: fx.Proxy
    given: Mapping[str, Any]
    last: fx.Node
    """The last call of the trace before it."""


def _record_update(
    of: tuple[str, torch.dtype | None, int], layer: Any, edge_index: Any, size: Any = None, **given: Any
) -> Any:
    """Stand in for ``edge_updater`` in a trace."""
    name, _, thread = of
    if threading.get_ident() != thread:
        return type(layer).edge_updater(layer, edge_index, size=size, **given)
    if (why := _why_not_propagated(layer)) is not None:
        raise ir.NotLoweredError(name, *why)
    if size is not None or not isinstance(edge_index, fx.Proxy) or getattr(edge_index, "is_matrix", False):
        what = "its edge_updater takes a size, a sparse matrix, or edges of its own"
        raise ir.NotLoweredError(name, what, "edge_updater(edge_index, x=x)")
    return _Update(edge_index, given, next(iter(reversed(edge_index.tracer.graph.nodes))))


def _message_of(
    name: str, layer: Any, edges: fx.Proxy, given: Mapping[str, Any]
) -> tuple[Any, dict[str, inspect.Parameter], dict[str, Mapping[str, Any]]]:
    """Return a layer's message, its parameters, and what ``edge_updater`` was given for those of its own.

    If the message reads what ``edge_updater`` returns, the message computes that itself.

    Raises:
        NotLoweredError: both have a parameter of one name that gets two things, or run along other edges.
    """
    message = dict(inspect.signature(layer.message).parameters)
    read = {key: one for key, one in given.items() if isinstance(one, _Update) and key in message}
    if not read:
        return "message", message, {}
    update, *others = read.values()
    since = takewhile(lambda node: node is not update.last, reversed(edges.tracer.graph.nodes))
    if others or update.edges.node is not edges.node or any(_writes(edges.tracer, one) for one in since):
        what = (
            "its edge_updater runs along other edges than its propagate, or what it reads may change before"
        )
        raise ir.NotLoweredError(name, what, "one edge_updater(edge_index, ...) before propagate")
    of_update = dict(inspect.signature(layer.edge_update).parameters)
    own = {key: one for key, one in message.items() if key not in read}
    for key in of_update.keys() & {*own, *inspect.signature(layer.aggregate).parameters}:
        at = key.removesuffix("_i").removesuffix("_j")
        pair: Any = given.get(at), update.given.get(at)
        ends = pair if all(isinstance(one, tuple) for one in pair) else ((pair[0],), (pair[1],))
        if not all(map(is_, *ends)):
            raise ir.NotLoweredError(name, f"its edge_update reads another {key!r} than its message")

    def composed(**rows: Any) -> Any:
        updated = layer.edge_update(**{key: rows[key] for key in of_update})
        return layer.message(**{key: rows[key] for key in own}, **dict.fromkeys(read, updated))

    return composed, own | of_update, dict.fromkeys(of_update, update.given)


def _writes(tracer: Any, node: fx.Node) -> bool:
    """Return whether a call of a trace may write over its arguments, itself or by a module."""
    called = dict(tracer.root.named_modules()).get(node.target) if node.op == "call_module" else None
    return writes(node) or (
        called is not None and any(getattr(m, "inplace", False) for m in called.modules())
    )


def _values_given(layer: Any, matrix: Any, given: dict[str, Any], *, fuses: bool) -> dict[str, Any]:
    """Return the arguments of ``propagate`` that are None and in whose place PyG gives a matrix's values.

    The method that PyG writes for a layer's class gives them in the place of one alone, and not if it fuses.
    """
    values = entries_in(matrix)[1]
    names = [key for key in ("edge_weight", "edge_attr", "edge_type") if given.get(key, values) is None]
    if type(layer).propagate is base_of(layer).propagate:
        of_torch = isinstance(matrix.example, Tensor)
        return dict.fromkeys([key for key in names if not (of_torch and key == "edge_attr")], values)
    methods = (layer.message, layer.aggregate, layer.update)
    taken = {key for method in methods for key in inspect.signature(method).parameters}
    first = next((key for key in ("edge_weight", "edge_attr", "edge_type") if key in taken), None)
    return {first: values} if first in names and first != "edge_attr" and not fuses else {}


def _arguments_of(name: str, layer: Any, method: str, given: dict[str, Any], needed: str) -> dict[str, Any]:
    """Return the arguments that ``propagate`` gives a layer's own method, beside its first.

    Raises:
        NotLoweredError: one is of edges; ``needed`` says what could be lowered. Or it is not given.
    """
    _, *parameters = inspect.signature(getattr(layer, method)).parameters.items()
    found = {}
    for key, parameter in parameters:
        if key in (*_SPECIAL, *_IDS, *_COUNTS, "ptr") or key[-2:] in ("_i", "_j"):
            raise ir.NotLoweredError(name, f"its {method} reads {key!r}, which is of edges", needed)
        found[key] = given.get(key, parameter.default)
        if found[key] is parameter.empty:
            raise ir.NotLoweredError(name, f"its {method} takes {key!r}, which propagate is not given")
    return found


def give_shape(node: fx.Node, shape: tuple[int, ...]) -> None:
    """Write the shape of a row of a propagation's result, when it is known, into the view of the result."""
    for view in list(node.users):
        view.args = (node, -1, *shape)


def _argument(name: str, key: str, parameter: inspect.Parameter, given: Mapping[str, Any]) -> Any:
    """Return the argument of ``propagate`` whose rows a message's parameter reads, or that it receives."""
    if key[-2:] not in ("_i", "_j"):
        value = given.get(key, parameter.default)
        if value is parameter.empty:
            raise ir.NotLoweredError(name, f"its message takes {key!r}, which propagate is not given")
        return value
    value = given.get(key[:-2], parameter.default)
    if value is parameter.empty:
        raise ir.NotLoweredError(name, f"its message takes {key!r}, and propagate is not given {key[:-2]!r}")
    if isinstance(value, tuple | list):
        value = value[1 if key.endswith("_i") else 0]
    if value is not None and not isinstance(value, fx.Proxy):
        raise ir.NotLoweredError(
            name, f"its message reads rows of {key[:-2]!r}, which is no matrix of node rows"
        )
    flatten: Any = torch.flatten
    return None if value is None else flatten(value, 1)  # a matrix: heads are joined side by side


def _other_rows(key: str, given: Mapping[str, Any], read: Mapping[str, Any]) -> Any:
    """Return the rows of the pair that a message's parameter reads, of the end that it does not; or None.

    PyG makes a row of the result for each of the destinations' rows, also where no message reads these.
    """
    pair, is_source = given.get(key[:-2]), key.endswith("_j")
    if key[-2:] not in ("_i", "_j") or not isinstance(pair, tuple | list):
        return None
    other = pair[is_source]
    is_read = f"{key[:-1]}{'i' if is_source else 'j'}" in read or not isinstance(other, fx.Proxy)
    flatten: Any = torch.flatten
    return None if is_read else flatten(other, 1)


def _updated(name: str, layer: Any, out: Any, given: dict[str, Any]) -> Any:
    """Call a layer's own ``update`` with its arguments."""
    if type(layer).update is base_of(layer).update:
        return out
    return layer.update(out, **_arguments_of(name, layer, "update", given, "an update of node rows"))


def _why_not_propagated(layer: Any) -> tuple[str, str] | None:
    """Return why a layer's ``propagate`` is not PyG's with a message of its own, and the remedy."""
    base = base_of(layer)
    for key in _UNCHANGED:
        if getattr(type(layer), key) is not getattr(base, key):
            return f"it has a {key} of its own", "a message of its own alone"
    for kind in type(layer).__mro__[: type(layer).__mro__.index(base)]:
        for key in ("propagate", "edge_updater"):
            own, made_by_pyg = vars(kind).get(key), f"{kind.__module__}_{kind.__name__}_{key}"
            if own is not None and own is not getattr(base, key) and own.__module__ != made_by_pyg:
                return f"it has a {key} of its own", "a message of its own alone"
    wanted: dict[str, tuple[Any, ...]] = {
        "flow": ("source_to_target",),
        "node_dim": (-2, 0),
        "_decomposed_layers": (1,),
    }
    wanted |= {"_explain": (None, False), "_edge_mask": (None,)}
    for key, values in wanted.items():
        found = getattr(layer, key)
        if found not in values:
            return (
                f"{key.lstrip('_')}={found!r} has no lowered form",
                f"one of {', '.join(map(repr, values))}",
            )
    return None
