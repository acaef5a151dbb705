"""Shows that a message works row by row: a row of its result depends on the same row of its arguments alone.

A softmax over in-neighbours also reads the rows of the edges with the same destination.

The message is traced. Each call in the trace must be of a function or module that is known here, along
dimensions that leave the rows apart. Shapes come from running the calls on a few rows, of two numbers.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from graphbraid.fullgraph.program import NotLoweredError
from graphbraid.fullgraph.reading.edge_functions import softmax_of_edges
from graphbraid.fullgraph.reading.exact import is_from

# ---- tracing a message

_ASSUMED = "assumed"
"""Key of a node's ``meta`` that says that the trace goes on as if its value were true."""
_MOST_ASSUMED = 16
"""Number of comparisons in one message; a loop over one would not end."""


class _MessageTracer(fx.Tracer):
    """Traces a message. Tensors beside its arguments are kept apart, so that the layer stays as it is."""

    def __init__(self, name: str, make_proxy: Callable[[fx.Node, fx.Tracer], fx.Proxy]) -> None:
        super().__init__()
        self._name, self._make_proxy = name, make_proxy
        self.tensors: dict[str, Tensor] = {}
        self._num_assumed = 0

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
        """Assume that a comparison holds, such as one of sizes in an assertion; the trial checks it."""
        self._num_assumed += 1
        if self._num_assumed > _MOST_ASSUMED:
            return bool(super().to_bool(obj))
        obj.node.meta[_ASSUMED] = True
        return True

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        return attr_val  # parameters as they are, whose sizes a message may ask for

    def create_arg(self, a: Any) -> Any:
        if not issubclass(type(a), fx.Proxy) and isinstance(a, Tensor):  # a proxy says that it is a tensor
            name = next(
                (key for key, held in self.tensors.items() if held is a), f"tensor_{len(self.tensors)}"
            )
            self.tensors[name] = a
            return self.create_node("get_attr", name, (), {})
        return super().create_arg(a)


class _MessageRoot(nn.Module):
    """The module that is traced: it calls a layer's message with a placeholder for each argument."""

    def __init__(
        self, layer: Any, tracer: _MessageTracer, given: Mapping[str, Any], special: frozenset[str]
    ) -> None:
        super().__init__()
        self.layer = layer
        self._tracer, self._given, self._special = tracer, given, special

    def forward(self) -> Any:
        """Call the message."""
        made = {
            key: self._tracer.create_proxy("placeholder", key, (), {})
            if isinstance(value, fx.Proxy) or key in self._special
            else value
            for key, value in self._given.items()
        }
        return self.layer.message(**made)


def traced_message(
    name: str,
    layer: nn.Module,
    given: Mapping[str, Any],
    special: frozenset[str],
    make_proxy: Callable[[fx.Node, fx.Tracer], fx.Proxy],
) -> tuple[fx.Graph, dict[str, Tensor]]:
    """Trace a layer's message.

    Args:
        name: name of the layer.
        layer: the layer.
        given: the message's arguments; proxies stand for those with a row per edge.
        special: those that come of the edges as a whole.
        make_proxy: makes the proxies that the message gets.

    Returns:
        The calls that the message makes, and the tensors that they read beside the arguments, by the targets
        of nodes. Modules are named from ``layer.`` on.

    Raises:
        NotLoweredError: the message cannot be traced.
    """
    tracer = _MessageTracer(name, make_proxy)
    try:
        with torch.enable_grad():
            return tracer.trace(_MessageRoot(layer, tracer, given, special)), tracer.tensors
    except NotLoweredError:
        raise
    except Exception as error:  # whatever a user's message may raise under tracing
        why = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        what = f"its message cannot be traced ({why})"
        raise NotLoweredError(
            name, what, "a message without branches on tensors' values or shapes"
        ) from error


# ---- values: what is known of each while a trace is run on a few rows


@dataclass(frozen=True, eq=False, slots=True)
class _Value:
    """A value of a trace.

    Attributes:
        now: the value itself, of so many rows.
        by_edge: whether it is a tensor with a row per edge, and each row depends on its own edge alone.
        is_count: whether it is, or holds, the number of rows.
        special: ``ids`` if it is the destination of each edge, ``counts`` if it is their number.
    """

    now: Any
    by_edge: bool = False
    is_count: bool = False
    special: str = ""


class _CoupledError(Exception):
    """A call is not known to leave rows apart."""


_Rule = Callable[[Any, "list[Any]", "dict[str, Any]", int], _Value]
_OPERATORS = "add sub mul truediv neg pow pos abs gt lt ge le eq ne"
_OF_BOTH = """
add sub subtract mul multiply div divide true_divide neg negative abs exp exp2 expm1 log log2 log10 log1p sqrt
rsqrt square sin cos tan tanh sigmoid relu erf pow reciprocal sign clamp clamp_min clamp_max maximum minimum
where lerp gt lt ge le eq ne nan_to_num
"""
_OF_TORCH = """
asin acos atan sinh cosh erfc logical_and logical_or logical_not selu celu atan2 rsub addcmul addcdiv
logaddexp sgn floor ceil round
"""
_OF_TENSORS = "float double half contiguous type_as masked_fill"
_ACTIVATIONS = """
relu leaky_relu elu selu celu gelu silu mish softplus hardtanh relu6 logsigmoid hardsigmoid hardswish softsign
tanhshrink softshrink hardshrink threshold sigmoid tanh
"""
_ALONG = "sum mean prod amax amin std var softmax log_softmax logsumexp cumsum norm"
_MOVING = "cat concat stack unsqueeze transpose matmul mm bmm chunk split reshape flatten squeeze"


def _named(home: Any, *names: str) -> set[Any]:
    return {getattr(home, name) for text in names for name in text.split()}


_ELEMENTWISE = _named(operator, _OPERATORS) | _named(torch, _OF_BOTH, _OF_TORCH) | _named(F, _ACTIVATIONS)
_ELEMENTWISE_METHODS = frozenset((_OF_BOTH + _OF_TENSORS).split())
_REDUCING = _named(torch, _ALONG) | {F.softmax, F.log_softmax, torch.linalg.vector_norm}
_REDUCING_METHODS = frozenset(_ALONG.split())
_MODULES = """
ReLU LeakyReLU ELU SELU CELU GELU SiLU Mish Softplus Hardtanh ReLU6 LogSigmoid Hardsigmoid Hardswish Softsign
Tanhshrink Softshrink Hardshrink Threshold Sigmoid Tanh Identity Linear LayerNorm Dropout
"""
"""Classes of ``torch.nn`` that map each row by itself; layer normalisation if it leaves the rows apart."""


@dataclass(frozen=True, slots=True)
class ShownMessage:
    """What was found of a message that works row by row.

    Attributes:
        shape: the shape of one edge's message.
        used: the parameters that it reads.
        by_destination: whether a row may depend on those of other edges of its destination.
        draws: whether it draws random numbers by dropout.
    """

    shape: tuple[int, ...]
    used: tuple[nn.Parameter, ...]
    by_destination: bool
    draws: bool


_COUNTS = (5, 3)
"""The numbers of rows that a message is tried on."""


def show_row_by_row(
    name: str,
    graph: fx.Graph,
    tensors: Mapping[str, Tensor],
    layer: nn.Module,
    *,
    shapes: Mapping[str, tuple[int, ...]],
    special: Mapping[str, str],
    dtype: torch.dtype | None,
) -> ShownMessage:
    """Show that a traced message works row by row, or by destination.

    Args:
        name: name of the layer.
        graph: the trace; its placeholders are the arguments with a row per edge.
        tensors: the tensors that it reads beside them.
        layer: the layer, whose modules are named from ``layer.`` on.
        shapes: by placeholder, the shape of an edge's row; empty for a vector of a number per edge.
        special: the placeholders that are ``ids``, the destination of each edge, or ``counts``, their number.
        dtype: dtype of the model's parameters; None for a model without parameters.

    Raises:
        NotLoweredError: it is not known to; the message names the call.
    """
    modules = {f"layer.{key}".rstrip("."): module for key, module in layer.named_modules()}
    runs = [
        _FewRows(name, tensors, modules, shapes=shapes, special=special, count=count, dtype=dtype)
        for count in _COUNTS
    ]
    more, fewer = (run.run(graph) for run in runs)
    if not torch.allclose(more[:3].to(fewer.dtype), fewer, equal_nan=True, rtol=1e-3, atol=1e-5):
        raise NotLoweredError(name, "its message gives an edge another row among other edges")
    used = _parameters_of(graph, tensors, modules)
    return ShownMessage(tuple(fewer.shape[1:]), used, runs[0].by_destination, runs[0].draws)


class _FewRows:
    """Runs a trace on some rows, and follows which values have a row per edge."""

    def __init__(
        self,
        name: str,
        tensors: Mapping[str, Tensor],
        modules: Mapping[str, nn.Module],
        *,
        shapes: Mapping[str, tuple[int, ...]],
        special: Mapping[str, str],
        count: int,
        dtype: torch.dtype | None,
    ) -> None:
        self._name, self._tensors, self._modules = name, tensors, modules
        self._shapes, self._special, self._count = shapes, special, count
        self.by_destination = self.draws = False
        held = [p.dtype for module in modules.values() for p in module.parameters()]
        if len(set(held)) > 1:
            raise NotLoweredError(name, "its parameters are of several dtypes", "one dtype")
        # Rows of a model without parameters may have any dtype, so that each run tries another one. A tensor
        # that the message reads must then not change the dtype of float32.
        tried = torch.float64 if count != _COUNTS[0] and not tensors else torch.float32
        self._dtype = next(iter(held), dtype or tried)

    def run(self, graph: fx.Graph) -> Tensor:
        """Return the result for the first ``count`` of a few rows."""
        values: dict[fx.Node, _Value] = {}
        with torch.no_grad():
            for number, node in enumerate(graph.nodes):
                if node.op == "output":
                    return self._returned(node, values)
                try:
                    values[node] = self._value(node, number, values)
                    if _ASSUMED in node.meta and values[node].now is not True:
                        raise _CoupledError("does not hold, and the message goes another way then")
                except _CoupledError as error:
                    what = getattr(node.target, "__name__", str(node.target).removeprefix("layer."))
                    why = str(error) or "is not known to leave edges apart"
                    raise NotLoweredError(
                        self._name,
                        f"its message calls {what}, which {why}",
                        "a message of functions of each edge's own rows",
                    ) from error
        raise AssertionError("a trace ends in an output")

    def _returned(self, node: fx.Node, values: Mapping[fx.Node, _Value]) -> Tensor:
        given = node.args[0]
        out = values.get(given) if isinstance(given, fx.Node) else None
        if out is None or not out.by_edge or not out.now.is_floating_point():
            raise NotLoweredError(
                self._name, "its message returns something else than a row per edge", "a tensor of rows"
            )
        if out.now.dtype != self._dtype:
            what = f"its message turns rows of {self._dtype} into {out.now.dtype}"
            raise NotLoweredError(self._name, what, "a message of the dtype of what it reads")
        found: Tensor = out.now
        return found

    def _value(self, node: fx.Node, number: int, values: Mapping[fx.Node, _Value]) -> _Value:
        if node.op == "placeholder":
            key = str(node.target)
            if (special := self._special.get(key)) is not None:
                ids = torch.tensor([0, 0, 1, 2, 2])[: self._count]
                return _Value(ids if special == "ids" else int(ids[-1]) + 1, special=special)
            shape = (5, *self._shapes[key])
            some = torch.linspace(0.1, 1.3 + 0.1 * number, math.prod(shape)).to(self._dtype)
            return _Value(some.view(shape)[: self._count], by_edge=True)
        if node.op == "get_attr":
            return _Value(self._tensors[str(node.target)].detach())

        def seen(argument: Any) -> Any:
            return values[argument] if isinstance(argument, fx.Node) else argument

        args: Any = fx.node.map_aggregate(node.args, seen)
        named: Any = fx.node.map_aggregate(dict(node.kwargs), seen)
        if node.op == "call_module":
            return self._module(self._modules[str(node.target)], node, args, named)
        return self._call(node, list(args), dict(named))

    def _module(self, module: nn.Module, node: fx.Node, args: Any, named: Any) -> _Value:
        kind = type(module)
        is_pyg_linear = is_from(kind, "torch_geometric.nn.dense.linear") and kind.__name__ == "Linear"
        is_known = kind.__module__.startswith("torch.nn.modules.") and kind.__name__ in _MODULES.split()
        if not (is_pyg_linear or (is_known and is_from(kind, kind.__module__))):
            raise _CoupledError("has no rule here")
        if len(args) != 1 or named or not isinstance(args[0], _Value) or args[0].is_count or args[0].special:
            raise _CoupledError
        x = args[0]
        if isinstance(module, nn.Dropout) and module.training and module.p > 0:
            self.draws = True
            return x
        if getattr(module, "inplace", False):
            self._allow_in_place(node)
        taken = len(module.normalized_shape) if isinstance(module, nn.LayerNorm) else 1
        along = isinstance(module, nn.LayerNorm | nn.Linear) or is_pyg_linear
        if x.by_edge and along and x.now.ndim <= taken:
            raise _CoupledError("couples edges")
        out = module(x.now.clone())
        return _Value(out, by_edge=x.by_edge)

    def _allow_in_place(self, node: fx.Node) -> None:
        """Refuse to write over anything but what a linear map or normalisation has just made."""
        before = node.args[0]
        maker = None
        if isinstance(before, fx.Node) and before.op == "call_module" and len(before.users) == 1:
            maker = self._modules[str(before.target)]
        if not isinstance(maker, nn.Linear | nn.LayerNorm):
            raise _CoupledError("writes over what the message is given")

    def _call(self, node: fx.Node, args: list[Any], named: dict[str, Any]) -> _Value:
        target, is_method = node.target, node.op == "call_method"
        if named.get("inplace") or "out" in named:
            raise _CoupledError("writes in place")
        if target in (_SIZES_METHODS if is_method else _SIZES):
            return self._size(target, args, named)
        if target is operator.getitem and not isinstance(_plain(args[0]), Tensor):
            return _check_item(target, args, named, self._count)
        if target is softmax_of_edges() and target is not None:
            return self._softmax(args, named)
        if any(a.special for a in _flat((args, named))):
            raise _CoupledError("reads where edges lead to")
        if target is F.dropout:
            return self._dropout(args, named)
        counts = any(a.is_count for a in _flat((args, named)))
        if target in _ARITHMETIC and not counts and not _tensors((args, named)):
            return _Value(_run(target, args, named))
        if counts and not (is_method and target in _RESHAPING):
            raise _CoupledError("reads the number of edges")
        function = getattr(Tensor, str(target), None) if is_method else target
        check: _Rule | None
        if target in (_ELEMENTWISE_METHODS if is_method else _ELEMENTWISE):
            check = _check_elementwise
        elif is_method and target in _RESHAPING:
            check = _check_reshaped
        else:
            name = str(target) if is_method else getattr(target, "__name__", "")
            check = _check_of(function if not is_method else None, name)
        if check is None or function is None:
            raise _CoupledError
        return check(function, args, named, self._count)

    def _softmax(self, args: list[Any], named: dict[str, Any]) -> _Value:
        """Run PyG's softmax over the edges of each destination."""
        keys = ("src", "index", "ptr", "num_nodes", "dim")
        given = dict(zip(keys, args, strict=False)) | named
        x, index, number = (given.get(key) for key in ("src", "index", "num_nodes"))
        known = isinstance(x, _Value) and x.by_edge and isinstance(index, _Value) and index.special == "ids"
        known = known and given.get("dim", 0) == 0 and given.get("ptr") is None
        if not known or not (number is None or (isinstance(number, _Value) and number.special == "counts")):
            raise _CoupledError
        self.by_destination = True
        return _Value(_run(softmax_of_edges(), args, named), by_edge=True)

    def _dropout(self, args: list[Any], named: dict[str, Any]) -> _Value:
        x, p = args[0], named.get("p", args[1] if len(args) > 1 else 0.5)
        training = named.get("training", args[2] if len(args) > 2 else True)
        if not isinstance(x, _Value) or len(args) > 3:
            raise _CoupledError
        self.draws |= bool(training and p != 0)
        return x

    def _size(self, target: Any, args: list[Any], named: dict[str, Any]) -> _Value:
        x = args[0]
        if target is getattr and args[1] != "shape":
            raise _CoupledError
        if not isinstance(x, _Value) or named or not isinstance(x.now, Tensor):
            raise _CoupledError
        if target in {"dim", "ndimension"}:
            return _Value(x.now.ndim)
        if target == "size" and len(args) == 2 and isinstance(args[1], int):
            at = args[1] % x.now.ndim
            return _Value(x.now.shape[at], is_count=x.by_edge and at == 0)
        return _Value(x.now.shape, is_count=x.by_edge)


_ARITHMETIC = _named(operator, "add sub mul floordiv truediv neg eq ne lt le gt ge")
"""Operators by which a message computes and compares sizes."""
_SIZES, _SIZES_METHODS = (getattr,), ("size", "dim", "ndimension")


def _flat(values: Any) -> Iterable[_Value]:
    if isinstance(values, _Value):
        yield values
    elif isinstance(values, dict):
        for one in values.values():
            yield from _flat(one)
    elif isinstance(values, list | tuple):
        for one in values:
            yield from _flat(one)
    elif isinstance(values, slice):
        yield from _flat((values.start, values.stop, values.step))


def _plain(values: Any) -> Any:
    """Return arguments with values as they are now."""
    if isinstance(values, _Value):
        return values.now
    if isinstance(values, dict):
        return {key: _plain(one) for key, one in values.items()}
    if isinstance(values, tuple) and hasattr(values, "_fields"):
        return values
    if isinstance(values, list | tuple):
        return type(values)(_plain(one) for one in values)
    if isinstance(values, slice):
        return slice(_plain(values.start), _plain(values.stop), _plain(values.step))
    return values


def _run(function: Any, args: list[Any], named: dict[str, Any]) -> Any:
    return function(*_plain(args), **_plain(named))


def _tensors(values: Any) -> list[_Value]:
    return [one for one in _flat(values) if isinstance(one.now, Tensor)]


def _check_elementwise(function: Any, args: list[Any], named: dict[str, Any], _: int) -> _Value:
    operands, out = _tensors((args, named)), _run(function, args, named)
    by_edge = any(one.by_edge for one in operands)
    if by_edge:
        for one in operands:
            aligned = one.now.ndim == out.ndim if one.by_edge else _is_same_for_all(one.now, out.ndim)
            if not aligned:
                raise _CoupledError("broadcasts rows of edges along another dimension")
    return _Value(out, by_edge=by_edge)


def _is_same_for_all(constant: Tensor, ndim: int) -> bool:
    """Return whether a tensor that broadcasts to ``ndim`` dimensions is the same for all rows."""
    return constant.ndim < ndim or constant.shape[0] == 1


def _own_dimension(dim: Any, ndim: int) -> bool:
    """Return whether a dimension, or each of several, is not that of the rows."""
    dims = dim if isinstance(dim, list | tuple) else (dim,)
    return bool(dims) and all(type(one) is int and -ndim <= one < ndim and one % ndim != 0 for one in dims)


def _check_dimension(function: Any, args: list[Any], named: dict[str, Any], _: int) -> _Value:
    """Check a function of a tensor, then a dimension, which it reduces, normalises or moves."""
    x = args[0]
    if not isinstance(x, _Value) or len(_tensors((args, named))) != 1:
        raise _CoupledError
    place = 2 if function in (torch.norm, Tensor.norm, torch.linalg.vector_norm) else 1
    dim = named.get("dim", args[place] if len(args) > place else 1 if function is F.normalize else None)
    if x.by_edge and not _own_dimension(dim, x.now.ndim):
        raise _CoupledError("joins edges")
    return _Value(_run(function, args, named), by_edge=x.by_edge)


def _check_normalize(function: Any, args: list[Any], named: dict[str, Any], _: int) -> _Value:
    x = args[0]
    dim = named.get("dim", args[2] if len(args) > 2 else 1)
    if not isinstance(x, _Value) or (x.by_edge and not _own_dimension(dim, x.now.ndim)):
        raise _CoupledError("joins edges")
    return _Value(_run(function, args, named), by_edge=x.by_edge)


def _check_joined(function: Any, args: list[Any], named: dict[str, Any], _: int) -> _Value:
    parts, out = _tensors(args[0]), _run(function, args, named)
    dim = named.get("dim", named.get("axis", args[1] if len(args) > 1 else 0))
    by_edge = any(one.by_edge for one in parts)
    if by_edge and not (all(one.by_edge for one in parts) and _own_dimension(dim, out.ndim)):
        raise _CoupledError("joins edges")
    return _Value(out, by_edge=by_edge)


def _check_reshaped(function: Any, args: list[Any], named: dict[str, Any], count: int) -> _Value:
    """Check a reshape: rows stay rows if their number does, since elements keep their order."""
    x, out = args[0], _run(function, args, named)
    if not isinstance(x, _Value) or any(one.by_edge for one in _tensors((args[1:], named))):
        raise _CoupledError
    if x.by_edge and (out.ndim == 0 or out.shape[0] != count or x.now.shape[0] != count):
        raise _CoupledError("moves numbers from one edge to another")
    return _Value(out, by_edge=x.by_edge)


def _check_unsqueezed(function: Any, args: list[Any], named: dict[str, Any], _: int) -> _Value:
    x, dim = args[0], named.get("dim", args[1] if len(args) > 1 else None)
    if not isinstance(x, _Value) or type(dim) is not int or (x.by_edge and dim % (x.now.ndim + 1) == 0):
        raise _CoupledError("moves rows")
    return _Value(_run(function, args, named), by_edge=x.by_edge)


def _check_repeated(function: Any, args: list[Any], named: dict[str, Any], _: int) -> _Value:
    """Check a repeat: rows stay rows if they are not repeated themselves."""
    x, times = args[0], args[1:]
    times = list(times[0]) if len(times) == 1 and isinstance(times[0], list | tuple) else times
    rows_once = isinstance(x, _Value) and len(times) == x.now.ndim and times[0] == 1
    if not isinstance(x, _Value) or named or (x.by_edge and not rows_once) or _tensors(times):
        raise _CoupledError("repeats edges")
    return _Value(_run(function, args, named), by_edge=x.by_edge)


def _check_transposed(function: Any, args: list[Any], named: dict[str, Any], _: int) -> _Value:
    x = args[0]
    if not isinstance(x, _Value) or named or (x.by_edge and not _own_dimension(args[1:3], x.now.ndim)):
        raise _CoupledError("moves rows")
    return _Value(_run(function, args, named), by_edge=x.by_edge)


def _check_product(function: Any, args: list[Any], named: dict[str, Any], _: int) -> _Value:
    """Check a matrix product: rows times one matrix, or a product for each edge."""
    operands = _tensors((args, named))
    if len(operands) < 2 or named:
        raise _CoupledError
    left, right, *others = operands
    apart = not any(one.by_edge for one in operands)
    shared = left.by_edge and left.now.ndim >= 2 and not right.by_edge and right.now.ndim <= 2
    each = left.by_edge and right.by_edge and left.now.ndim == right.now.ndim == 3
    if not (apart or shared or each) or (function is F.linear and each) or any(one.by_edge for one in others):
        raise _CoupledError("multiplies edges with each other")
    return _Value(_run(function, args, named), by_edge=left.by_edge)


def _check_item(function: Any, args: list[Any], named: dict[str, Any], _: int) -> _Value:
    x, index = args
    if not isinstance(x, _Value) or _tensors(index) or named:
        raise _CoupledError
    if not isinstance(x.now, Tensor):  # a tuple of parts, or a shape
        if type(index) is not int:
            raise _CoupledError
        return _Value(x.now[index], by_edge=x.by_edge, is_count=x.is_count and index % len(x.now) == 0)
    first, *rest = index if isinstance(index, tuple) else (index,)
    keeps = first == slice(None) or (
        first is Ellipsis and sum(one is not None for one in rest) < x.now.ndim and None not in rest
    )
    if x.by_edge and not keeps:
        raise _CoupledError("selects some edges")
    return _Value(_run(function, args, named), by_edge=x.by_edge)


def _check_parts(function: Any, args: list[Any], named: dict[str, Any], _: int) -> _Value:
    x, dim = args[0], named.get("dim", args[2] if len(args) > 2 else 0)
    if not isinstance(x, _Value) or (x.by_edge and not _own_dimension(dim, x.now.ndim)):
        raise _CoupledError("selects some edges")
    return _Value(_run(function, args, named), by_edge=x.by_edge)


_RESHAPING = frozenset({"view", "reshape", "flatten", "expand", "view_as", "expand_as", "squeeze"})
_BY_NAME: dict[str, _Rule] = {
    **dict.fromkeys(("cat", "concat", "stack"), _check_joined),
    **dict.fromkeys(("unsqueeze",), _check_unsqueezed),
    **dict.fromkeys(("transpose",), _check_transposed),
    "repeat": _check_repeated,
    **dict.fromkeys(("matmul", "mm", "bmm", "linear"), _check_product),
    **dict.fromkeys(("chunk", "split"), _check_parts),
    **dict.fromkeys(("reshape", "flatten", "squeeze"), _check_reshaped),
    "getitem": _check_item,
    "normalize": _check_normalize,
}


_FUNCTIONS = _named(torch, _MOVING) | {operator.getitem, operator.matmul, F.normalize, F.linear}


def _check_of(function: Any, name: str) -> _Rule | None:
    """Return the rule of a function, or of a method if ``function`` is None."""
    if function in _REDUCING or (function is None and name in _REDUCING_METHODS):
        return _check_dimension
    if function is not None and function not in _FUNCTIONS:
        return None
    return _BY_NAME.get(name)


def _parameters_of(
    graph: fx.Graph, tensors: Mapping[str, Tensor], modules: Mapping[str, nn.Module]
) -> tuple[nn.Parameter, ...]:
    """Return the parameters that a trace reads, each once, also those that its tensors were made of."""
    found: dict[int, nn.Parameter] = {}
    for node in graph.nodes:
        if node.op == "call_module":
            found |= {id(p): p for p in modules[str(node.target)].parameters()}
        elif node.op == "get_attr":
            found |= {id(p): p for p in _leaves(tensors[str(node.target)])}
    return tuple(found.values())


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


__all__ = ["show_row_by_row", "traced_message"]
