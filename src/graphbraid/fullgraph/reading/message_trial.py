"""Shows that a message works row by row: a row of its result depends on the same row of its arguments alone.

A softmax over in-neighbours also reads the rows of the edges with the same destination. The message is
traced, and each call of the trace is made on a few rows, of two numbers, where :mod:`.row_dependence` says
whether it leaves the rows apart.
"""

from __future__ import annotations

import copy
import math
import operator
import threading
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, fx, nn

from graphbraid.fullgraph.program import NotLoweredError, run_call
from graphbraid.fullgraph.reading.modes import TRACING
from graphbraid.fullgraph.reading.row_dependence import Dependence, RowWatch, is_of_torch, tensors_in
from graphbraid.fullgraph.reading.trace_context import softmax_of_edges

if TYPE_CHECKING:
    from graphbraid.fullgraph.reading.messages import Propagation

# ---- tracing a message


@dataclass(frozen=True, eq=False, kw_only=True)
class MessageCalls:
    """The calls that a message makes."""

    layer: Any
    """The layer, which holds the modules. These are named from ``layer.`` on."""
    graph: fx.Graph
    tensors: Mapping[str, Tensor]
    """The tensors that the calls read beside the message's arguments, by the targets of nodes."""

    def module(self, node: fx.Node) -> nn.Module:
        """Return the module that a node calls."""
        held: nn.Module = self.layer.get_submodule(str(node.target).removeprefix("layer").removeprefix("."))
        return held

    def as_module(self) -> fx.GraphModule:
        """Return the calls as a module, which holds the layer's own modules and parameters."""
        nodes = self.graph.find_nodes
        held: dict[Any, Any] = {one.target: self.module(one) for one in nodes(op="call_module")}
        held |= {one.target: self.tensors[str(one.target)] for one in nodes(op="get_attr")}
        return fx.GraphModule(held, self.graph)

    def parameters(self) -> list[nn.Parameter]:
        """Return the parameters that the message depends on, also those that tensors were made of."""
        found, needed = dict[int, nn.Parameter](), set[fx.Node]()
        for node in reversed(self.graph.nodes):
            if node.op != "output" and needed.isdisjoint(node.users):
                continue
            needed.add(node)
            if node.op == "call_module":
                found |= {id(p): p for p in self.module(node).parameters()}
            elif node.op == "get_attr":
                found |= {id(p): p for p in _leaves(self.tensors[str(node.target)])}
        return [*found.values()]


_ASSUMED = "assumed"
"""Key of a node's ``meta``: the value with which the trace goes on."""
_MOST_ASSUMED = 16
"""Number of comparisons in one message; a loop over one would not end."""


def name_of_call(target: Any) -> str:
    """Return the name of a method, or of PyTorch's function or module or an operator; else ``""``."""
    if isinstance(target, str):
        return target
    home = str(getattr(target, "__module__", None) or "")
    is_known = isinstance(target, types.BuiltinFunctionType) or home.startswith("torch.")
    return str(target.__name__).lower() if is_known else ""


class _MessageTracer(fx.Tracer):
    """Traces a message. Tensors beside its arguments are kept apart, so that the layer stays as it is."""

    def __init__(self, name: str, make_proxy: Callable[[fx.Node, fx.Tracer], fx.Proxy]) -> None:
        super().__init__()
        self._name, self._make_proxy = name, make_proxy
        self.tensors: dict[str, Tensor] = {}
        self._num_assumed = 0
        self._thread = threading.get_ident()

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return self._make_proxy(node, self)

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        """Refuse calls whose gradients or dtypes the trace would not show."""
        if not torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"):
            raise NotLoweredError(
                self._name, "a part of its message runs without gradients or under autocast"
            )
        return super().create_node(*args, **kwargs)

    def to_bool(self, obj: fx.Proxy) -> bool:
        """Assume that a comparison holds, such as one of sizes in an assertion; the trial checks it.

        PyG's attention asks whether there are no edges, ``index.numel() == 0``: no edge has a message then.
        """
        compared, *to = obj.node.args
        if obj.node.target is operator.eq and getattr(compared, "target", "") == "numel" and to == [0]:
            for one in (obj.node, cast("fx.Node", compared)):
                self.graph.erase_node(one)
            return False
        self._num_assumed += 1
        if self._num_assumed > _MOST_ASSUMED:
            return bool(super().to_bool(obj))
        # Rows of an edge are a matrix, unless the trial shows another rank.
        by_rank = obj.node.target is operator.eq and getattr(obj.node.args[0], "target", "") == "dim"
        answer = obj.node.meta[_ASSUMED] = not by_rank or bool(obj.node.args[1] == 2)
        return answer

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        return attr_val  # parameters as they are, whose sizes a message may ask for

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if threading.get_ident() != self._thread:  # a model that runs meanwhile
            return forward(*args, **kwargs)
        return super().call_module(m, forward, args, kwargs)

    def create_arg(self, a: Any) -> Any:
        if not issubclass(type(a), fx.Proxy) and isinstance(a, Tensor):  # a proxy says that it is a tensor
            name = next(
                (key for key, held in self.tensors.items() if held is a), f"tensor_{len(self.tensors)}"
            )
            self.tensors[name] = a
            return self.create_node("get_attr", name, (), {})
        return super().create_arg(a)


class _MessageRoot(nn.Module):
    """The module that is traced. It holds the layer, so that its modules have names."""

    def __init__(self, layer: nn.Module, call: Callable[[], Any]) -> None:
        super().__init__()
        self.layer, self._call = layer, call

    def forward(self) -> Any:
        """Call the message."""
        return self._call()


def traced_message(
    name: str,
    layer: nn.Module,
    given: Mapping[str, Any],
    special: frozenset[str],
    make_proxy: Callable[[fx.Node, fx.Tracer], fx.Proxy],
    *,
    method: str | Callable[..., Any] = "message",
) -> MessageCalls:
    """Trace a layer's message.

    Proxies in ``given`` stand for arguments with a row per edge; ``make_proxy`` makes those that the message
    gets. ``special`` are arguments that are made of all edges, such as ids and counts. ``method`` is the name
    of the layer's method, or a function.

    Raises:
        NotLoweredError: the message cannot be traced.
    """
    tracer = _MessageTracer(name, make_proxy)

    def call() -> Any:
        def argument(key: str, value: Any) -> Any:
            is_traced = isinstance(value, fx.Proxy) or key in special
            return tracer.create_proxy("placeholder", key, (), {}) if is_traced else value

        function = getattr(layer, method) if isinstance(method, str) else method
        return function(**{key: argument(key, value) for key, value in given.items()})

    try:
        with TRACING, torch.enable_grad():
            graph = tracer.trace(_MessageRoot(layer, call))
    except NotLoweredError:
        raise
    except Exception as error:  # whatever a user's message may raise under tracing
        why = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        what = f"its message cannot be traced ({why})"
        raise NotLoweredError(
            name, what, "a message without branches on tensors' values or shapes"
        ) from error
    return MessageCalls(layer=layer, graph=graph, tensors=tracer.tensors)


# ---- the trial of a message


class _CoupledError(Exception):
    """A call is not known to leave rows apart."""


@dataclass(frozen=True, slots=True)
class ShownMessage:
    """Facts of a message that works row by row.

    Attributes:
        shape: the shape of one edge's message.
        by_destination: whether a row may depend on rows of other edges of its destination.
        draws: whether it draws random numbers by dropout.
    """

    shape: tuple[int, ...]
    by_destination: bool
    draws: bool


_COUNTS = (5, 3)
"""The numbers of rows that a message is tried on."""


def show_row_by_row(of: Propagation, shapes: Mapping[str, tuple[int, ...]]) -> ShownMessage:
    """Show that the message of a call of ``propagate`` works row by row, or by destination.

    ``shapes`` has, by argument, the shape of an edge's row; empty for a vector of a number per edge.

    Raises:
        NotLoweredError: it is not known to; the message names the call.
    """
    runs = [_FewRows(of, shapes, count) for count in _COUNTS]
    with torch.random.fork_rng([]):  # dropout must draw no numbers of the user's
        more, fewer = (run.run() for run in runs)
    if not torch.allclose(more[:3].to(fewer.dtype), fewer, equal_nan=True, rtol=1e-3, atol=1e-5):
        raise of.refuse("its message gives an edge another row among other edges")
    return ShownMessage(tuple(fewer.shape[1:]), runs[0].by_destination, runs[0].rows.draws)


class _FewRows:
    """Runs a trace on some rows, and follows which results have a row per edge."""

    def __init__(self, of: Propagation, shapes: Mapping[str, tuple[int, ...]], count: int) -> None:
        self._of, self._shapes, self._count = of, shapes, count
        self.by_destination, self.rows = False, RowWatch(count)
        held = [p.dtype for p in of.layer.parameters()]
        if len(set(held)) > 1:
            raise of.refuse("its parameters are of several dtypes", "one dtype")
        # Rows of a model without parameters may have any dtype, so that each run tries another one. A tensor
        # that the message reads must then not change the dtype of float32.
        tried = torch.float64 if count != _COUNTS[0] and not of.tensors else torch.float32
        self._dtype = next(iter(held), of.dtype or tried)
        self._values: dict[fx.Node, Any] = {}
        self._sizes = set[fx.Node]()
        """Nodes that are, or hold, the number of rows."""

    def run(self) -> Tensor:
        """Return the result for the first ``count`` of a few rows."""
        with torch.no_grad():
            for number, node in enumerate(self._of.graph.nodes):
                if node.op == "output":
                    return self._returned(node)
                try:
                    self._values[node] = self._value(node, number)
                    if self._values[node] is not node.meta.get(_ASSUMED, self._values[node]):
                        raise _CoupledError("does not hold, and the message goes another way then")
                except _CoupledError as error:
                    what = getattr(node.target, "__name__", str(node.target).removeprefix("layer."))
                    why = str(error) or "is not known to leave edges apart"
                    needed = "a message of functions of each edge's own rows"
                    raise self._of.refuse(f"its message calls {what}, which {why}", needed) from error
        raise AssertionError("a trace ends in an output")

    def _returned(self, node: fx.Node) -> Tensor:
        given: Any = node.args[0]
        out = self._values.get(given) if isinstance(given, fx.Node) else None
        is_rows = isinstance(out, Tensor) and self.rows.kind_of(out) is Dependence.ALIGNED
        if (
            not isinstance(out, Tensor)
            or not is_rows
            or len(out) != self._count
            or not out.is_floating_point()
        ):
            what = "its message returns something else than a row per edge"
            raise self._of.refuse(what, "a tensor of rows")
        if out.dtype != self._dtype:
            what = f"its message turns rows of {self._dtype} into {out.dtype}"
            raise self._of.refuse(what, "a message of its inputs' dtype")
        return out

    def _value(self, node: fx.Node, number: int) -> Any:
        if node.op == "get_attr":
            return self._of.tensors[str(node.target)].detach().clone()
        if node.op != "placeholder":
            return self._call(node)
        key = str(node.target)
        if (special := self._of.special.get(key)) is not None:
            ids = torch.tensor([0, 0, 1, 2, 2])[: self._count]
            return ids if special == "ids" else int(ids[-1]) + 1
        shape = (5, *self._shapes[key])
        some = torch.linspace(0.1, 1.3 + 0.1 * number, math.prod(shape)).to(self._dtype)
        rows = some.view(shape)[: self._count]
        self.rows.note(rows, Dependence.ALIGNED)
        return rows

    def _call(self, node: fx.Node) -> Any:
        target: Any = node.target
        if target is softmax_of_edges() and target is not None:
            return self._softmax(node)
        if any(one.op == "placeholder" and one.target in self._of.special for one in node.all_input_nodes):
            raise _CoupledError("reads where edges lead to")
        takes_part = target is operator.getitem and node.args[0] in self._sizes
        sizes = self._sizes.intersection(node.all_input_nodes)
        if sizes and not (takes_part or target in _RESHAPING):
            raise _CoupledError("reads the number of edges")
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), self._values.__getitem__)
        if node.op == "call_module":
            module = self._of.module(node)
            if not is_of_torch(module):
                raise _CoupledError("has no rule here")
            target = copy.deepcopy(module)  # a trial must leave its buffers as they are
        read = {one: [*tensors_in(self._values[one])] for one in node.all_input_nodes}
        before = [tensor._version for of in read.values() for tensor in of]
        with self.rows:
            out = run_call(target, args, kwargs)
        if before != [tensor._version for of in read.values() for tensor in of] and not self._is_fresh(node):
            raise _CoupledError("writes in place")
        if self.rows.is_lost or any(self.rows.kind_of(one) is Dependence.COUPLED for one in tensors_in(out)):
            raise _CoupledError
        if not any(True for _ in tensors_in(out)) and (takes_part or any(read.values())):
            self._note_size(node, out)
        return out

    def _note_size(self, node: fx.Node, out: Any) -> None:
        """Note that a node is the number of rows, or holds it, unless it is known to be another number."""
        source: Any = node.args[0]
        if node.target is operator.getitem and isinstance(node.args[1], int):
            is_number_of_rows = node.args[1] % len(self._values[source]) == 0
        elif node.target == "size" and len(node.args) == 2 and isinstance(node.args[1], int):
            is_number_of_rows = node.args[1] % self._values[source].ndim == 0
        else:
            is_rank = node.target in ("dim", "ndimension") or node.args[1:] == ("ndim",)
            is_number_of_rows = isinstance(out, int | torch.Size) and not is_rank
        if is_number_of_rows:
            self._sizes.add(node)

    def _softmax(self, node: fx.Node) -> Tensor:
        """Run PyG's softmax over the edges of each destination."""
        given = dict(zip(("src", "index", "ptr", "num_nodes", "dim"), node.args, strict=False)) | node.kwargs
        of, number = given.get("src"), given.get("num_nodes")
        x = self._values.get(of) if isinstance(of, fx.Node) else None
        known = isinstance(x, Tensor) and self.rows.kind_of(x) is Dependence.ALIGNED and len(x) == self._count
        known = known and self._is_special(given.get("index"), "ids") and given.get("ptr") is None
        if (
            not known
            or given.get("dim", 0) != 0
            or not (number is None or self._is_special(number, "counts"))
        ):
            raise _CoupledError
        self.by_destination = True
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), self._values.__getitem__)
        out: Tensor = softmax_of_edges()(*args, **kwargs)
        self.rows.note(out, Dependence.ALIGNED)
        return out

    def _is_special(self, one: Any, what: str) -> bool:
        is_given = isinstance(one, fx.Node) and one.op == "placeholder"
        return is_given and self._of.special.get(str(one.target)) == what

    def _is_fresh(self, node: fx.Node) -> bool:
        """Return whether a module writes over the new result of a linear map or normalisation."""
        before = node.args[0]
        if node.op != "call_module" or not isinstance(before, fx.Node) or len(before.users) != 1:
            return False
        maker = self._of.module(before) if before.op == "call_module" else None
        return isinstance(maker, nn.Linear | nn.LayerNorm)


_RESHAPING = frozenset({"view", "reshape", "flatten", "expand", "view_as", "expand_as", "squeeze"})
"""Methods that may take the number of rows."""


def _leaves(tensor: Tensor) -> list[Any]:
    if isinstance(tensor, nn.Parameter):
        return [tensor]
    waiting, found, seen = [tensor.grad_fn], [], set()
    while waiting:
        function = waiting.pop()
        if function is None or function in seen:
            continue
        seen.add(function)
        if hasattr(function, "variable"):
            found.append(function.variable)
        waiting += [following for following, _ in function.next_functions]
    return found
