"""Tracing of the very call of a model that would run, with modules that have a reader kept whole.

A trace records the one path that Python took. It is therefore made in the model's current mode, and refused
if the model changes itself or draws random numbers on the way, since another call might take another path.
"""

from __future__ import annotations

import builtins
import operator
import random
import sys
import threading
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn

from graphbraid.fullgraph.program import NotLoweredError
from graphbraid.fullgraph.reading.calling import (
    ADJACENCY,
    DATA,
    EDGES,
    Calling,
    Given,
)
from graphbraid.fullgraph.reading.exact import python_value
from graphbraid.fullgraph.reading.messages import (
    is_message_passing,
    is_users_layer,
    recorded_propagations,
)
from graphbraid.fullgraph.reading.reached import Reached, package_of
from graphbraid.fullgraph.reading.reader import no_reader
from graphbraid.fullgraph.reading.table import reader_of

EDGES_TARGET = "edges"
"""Target of the placeholder of all edges together, as a list or as a sparse matrix."""
EDGES_TARGET = "edges"
"""Target of the placeholder of all edges together, as a list or as a sparse matrix."""
_TRACING = threading.Lock()
"""Serializes traces, since a trace patches ``torch.nn.Module`` while it runs."""


def traced(
    model: nn.Module, calling: Calling, given: Given, targets: Mapping[str, str | Mapping[Any, str]]
) -> tuple[fx.Graph, dict[str, nn.Module], nn.Module]:
    """Trace a call of the model; return its calls in order, the modules by name, and their root.

    Args:
        model: the model.
        calling: how to call it.
        given: the arguments that are available.
        targets: by what parameters receive, the target of a placeholder; where there are types, a dict of
            targets by node type or relation.

    Raises:
        NotLoweredError: the call cannot be followed, or is another without gradients.
    """
    reached = Reached(model)
    if reached.why:
        raise NotLoweredError(type(model).__name__, f"its forward cannot be followed: {reached.why}")
    try:
        with (
            _TRACING,
            restore_after_trace(model, reached),
            as_tensors(reached.functions),
            recorded_propagations(model),
        ):
            root = _Root(model, calling, given, targets)
            graph = root.traced()
            with torch.inference_mode():
                without = _Root(model, calling, given, targets).traced()
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
    return graph, dict(root.named_modules()), root


def _calls(graph: fx.Graph) -> list[str]:
    return [str((node.op, node.target, node.args, node.kwargs)) for node in graph.nodes]


class _Root(nn.Module):
    """The module that is traced: it makes the placeholders and calls the model as a user would."""

    def __init__(
        self, model: nn.Module, calling: Calling, given: Given, targets: Mapping[str, str | Mapping[Any, str]]
    ) -> None:
        super().__init__()
        self.model = model
        self._calling, self._given, self._targets = calling, given, targets
        edges = given.classes.get(ADJACENCY if calling.takes(ADJACENCY) else EDGES, Tensor)
        self._tracer = _Tracer({**given.classes, EDGES_TARGET: edges})
        self._made: dict[str, fx.Proxy] = {}

    def traced(self) -> fx.Graph:
        """Return the calls that the model makes, in order."""
        return self._tracer.trace(self)

    def forward(self) -> Any:
        """Call the model and return what it returns."""
        values = _CallArguments(
            (
                what,
                self._proxy(of)
                if isinstance(of, str)
                else {key: self._proxy(one) for key, one in of.items()},
            )
            for what, of in self._targets.items()
        )
        if not self._given.typed:
            values[DATA] = _Data(self._given, values)
        return self._calling.run(self.model, values)

    def _proxy(self, target: str) -> fx.Proxy:
        if target not in self._made:
            self._made[target] = self._tracer.create_proxy("placeholder", target, (), {})
        return self._made[target]


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
        is_layer = (is_message_passing(m) and not is_users_layer(m)) or reader_of(type(m)) is not None
        return is_layer or super().is_leaf_module(m, module_qualified_name)

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        by_type = any(isinstance(value, dict) for value in (*args, *kwargs.values()))
        # Its result would be a dict, too, which a trace cannot look into.
        if by_type and is_message_passing(m):
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


# ---- TensorProxy: what a trace hands to a forward, which takes it for the tensor that it stands for

_LIBRARIES = ("torch", "torch_geometric")


class TensorProxy(fx.Proxy):
    """A proxy that a forward takes for the tensor it stands for, as far as it asks.

    It has that tensor's attributes and, in :func:`as_tensors`, its class; and it records in-place operators,
    which ``fx`` would otherwise record as new values.
    """

    kind: type = Tensor
    __array_priority__ = Tensor.__array_priority__  # NumPy's scalars leave an operator to it

    def __getattr__(self, k: str) -> Any:
        if not hasattr(self.kind, k):
            raise AttributeError(f"{self.kind.__name__!r} object has no attribute {k!r}")
        return super().__getattr__(k)


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
    setattr(TensorProxy, f"__{_name}__", _in_place(_name))


@contextmanager
def as_tensors(functions: Iterable[types.FunctionType]) -> Iterator[None]:
    """Answer ``isinstance`` and ``type`` of a proxy, where a forward asks, by what it stands for.

    A property ``__class__`` would not do: torch's C++ goes by it, too, and would read a tensor.
    For all other objects, and in libraries, both stay what they are, so other threads do not notice.
    ``type``, which may be compared with itself, is replaced only for ``functions``, those of the forward.
    """
    plain = builtins.isinstance
    by_id = {id(function.__globals__): function.__globals__ for function in functions}
    globals_of_forward = [names for names in by_id.values() if "type" not in names]
    builtins.isinstance = _answering(plain)
    for names in globals_of_forward:
        names["type"] = _Type
    try:
        yield
    finally:
        builtins.isinstance = plain
        for names in globals_of_forward:
            del names["type"]


def _answering(plain: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    """Return ``isinstance`` as a forward is to find it."""

    def answer(value: Any, of: Any) -> bool:
        found = plain(value, of)
        if found or type(value) is not TensorProxy:
            return found
        asks = sys._getframe(1)
        if package_of(asks.f_globals) in _LIBRARIES and asks.f_code is not torch.is_tensor.__code__:
            return False
        return plain(of, type | tuple | types.UnionType) and issubclass(value.kind, of)

    return answer


class _Asked(type):
    """The class of :class:`_Type`, which is called and asked as ``type`` is."""

    def __call__(cls, *args: Any, **options: Any) -> Any:
        if len(args) == 1 and type(args[0]) is TensorProxy:
            return args[0].kind
        return type(*args, **options)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, type)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, type)


class _Type(metaclass=_Asked):
    """``type`` as a forward finds it while it is traced."""


# ---- a guard around traces that restores what they change of a model or the random generators, and refuses

_CHANGEABLE = (dict, list, set, deque)


@contextmanager
def restore_after_trace(model: nn.Module, reached: Reached) -> Iterator[None]:
    """Undo all changes to a model, what it reads and the random generators, and refuse it if there were any.

    Raises:
        NotLoweredError: something changed, so that another call might take another path.
    """
    held = _containers(model, reached)
    looked_up = [(names, {n: names[n] for n in of if n in names}) for names, of in reached.named]
    tensors = [t for t in (*reached.tensors, *model.buffers()) if not t.is_inference()]
    numbers = [(t, t._version, t.detach().clone()) for t in tensors]
    generators = _generators()
    drew, changed = False, ""
    try:
        with torch.inference_mode(False), torch.enable_grad(), torch.autocast("cpu", enabled=False):
            yield
    finally:
        drew = _put_back(generators)
        for name, container, contents in held:
            changed = _restored(name, container, contents) or changed
        for names, values in looked_up:
            for name, value in values.items():
                if names.get(name) is not value and isinstance(names, dict):
                    names[name], changed = value, name
        for tensor, version, before in numbers:
            if tensor._version != version:
                tensor.copy_(before)
                changed = "a tensor"
    if drew:
        raise NotLoweredError(
            type(model).__name__, "its forward draws random numbers of its own", "dropout, which has a form"
        )
    if changed:
        raise NotLoweredError(
            type(model).__name__,
            f"its forward changes {changed!r}, which its next call may read",
            "a forward without effects",
        )


def _generators() -> tuple[Any, Any, torch.Tensor]:
    return random.getstate(), np.random.get_state(legacy=True), torch.get_rng_state()  # noqa: NPY002


def _put_back(before: tuple[Any, Any, torch.Tensor]) -> bool:
    """Restore the generators and return whether anything was drawn."""
    python, numpy, torch_state = _generators()
    drew = python != before[0] or not torch.equal(torch_state, before[2])
    drew = drew or numpy[2] != before[1][2] or not np.array_equal(numpy[1], before[1][1])
    if drew:
        random.setstate(before[0])
        np.random.set_state(before[1])  # noqa: NPY002
        torch.set_rng_state(before[2])
    return drew


def _containers(model: nn.Module, reached: Reached) -> list[tuple[str, Any, Any]]:
    """Return the name of each container that a forward may change, itself and a copy."""
    held = [vars(module) for module in model.modules()]
    found = [*(("", attributes) for attributes in held), *(pair for one in held for pair in one.items())]
    found += [("", one) for one in (*reached.dicts, *reached.lists)]
    return [(name, one, one.copy()) for name, one in found if isinstance(one, _CHANGEABLE)]


def _restored(name: str, held: Any, before: Any) -> str:
    """Give a container its contents back; return the name, else the class, of what had changed."""
    if isinstance(held, set):
        same = held == before
    else:
        pairs = zip(*(c.values() if isinstance(c, dict) else c for c in (held, before)), strict=False)
        same = len(held) == len(before) and all(a is b for a, b in pairs)
        same = same and (not isinstance(held, dict) or list(held) == list(before))
    if same:
        return ""
    changed = name or type(held).__name__
    if isinstance(held, dict):
        other = (key for key in {**before, **held} if held.get(key, held) is not before.get(key, held))
        changed = str(next(other, changed))
    held.clear()
    held.extend(before) if isinstance(held, list | deque) else held.update(before)
    return changed
