"""Replacements of functions while a forward is traced, and their undoing after the trace.

A proxy records all operations on the tensor that it stands for, and the forward takes it for that tensor.
Some functions are recorded as one call. After the trace, changes of the model, of objects that it reads and
of random generators are undone. A forward with such changes is refused, since a trace does not show them.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import operator
import random
import sys
import threading
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode

from graphbraid.fullgraph.program import NotLoweredError
from graphbraid.fullgraph.reading.exact import COUNTED
from graphbraid.fullgraph.reading.watch import Reached, names_of, package_of

_LIBRARIES = ("torch", "torch_geometric")
MATRICES = "matrices"
"""Key of a node's ``meta``: the tensors that the trace took for matrices of node rows."""


class TensorProxy(fx.Proxy):
    """A proxy that looks to a forward like the tensor in whose place it is.

    It has that tensor's attributes and, in :func:`as_tensors`, its class; and it records in-place operators,
    which ``fx`` would otherwise record as new values.
    """

    kind: type = Tensor
    example: Any = None
    """Its value on a small graph, if it is computed from a sparse matrix of edges alone."""
    __array_priority__ = Tensor.__array_priority__  # NumPy's scalars leave an operator to it

    @property
    def is_matrix(self) -> bool:
        """Whether it stands for a sparse matrix of edges."""
        return self.example is not None and (
            not isinstance(self.example, Tensor) or self.example.layout != torch.strided
        )

    def __getattr__(self, k: str) -> Any:
        if not hasattr(self.kind if self.example is None else self.example, k):
            raise AttributeError(f"{self.kind.__name__!r} object has no attribute {k!r}")
        if k in ("layout", "ndim") and isinstance(self.example, Tensor):
            return getattr(self.example, k)
        return super().__getattr__(k)

    def __len__(self) -> int:
        tracer: Any = self.tracer
        return int(tracer.num_parts(self.node)) if hasattr(tracer, "num_parts") else super().__len__()

    def __setitem__(self, index: Any, value: Any) -> None:
        self.tracer.create_proxy("call_function", operator.setitem, (self, index, value), {})


def _in_place(name: str) -> Any:
    target = getattr(operator, name)

    def record(self: fx.Proxy, other: Any) -> Any:
        return self.tracer.create_proxy("call_function", target, (self, other), {})

    return record


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor"):
    setattr(TensorProxy, f"__i{_name}__", _in_place(f"i{_name}"))


@contextmanager
def _replaced(changes: Iterable[tuple[dict[str, Any], str, Any]]) -> Iterator[None]:
    """Give names of modules other values, and afterwards their own; a name that had none has none again."""
    before = []
    try:
        for names, key, value in changes:
            before.append((names, key, names.get(key, _Type)))
            names[key] = value
        yield
    finally:
        for names, key, value in reversed(before):
            names[key] = value
            if value is _Type:
                del names[key]


def as_tensors(functions: Iterable[types.FunctionType]) -> AbstractContextManager[None]:
    """Answer a forward's ``isinstance`` and ``type`` of a proxy as for the object that it stands for.

    Functions that make tensors are recorded if they take a size that is computed.
    A property ``__class__`` would not do: torch's C++ goes by it, too, and would read a tensor.
    For all other objects, and in libraries, both stay unchanged, so other threads do not notice.
    ``type``, which may be compared with itself, is replaced only for ``functions``, those of the forward.
    """
    by_id = {id(function.__globals__): function.__globals__ for function in functions}
    changes: list[tuple[dict[str, Any], str, Any]] = [
        (vars(builtins), "isinstance", _answering(builtins.isinstance)),
        *((vars(torch), name, recording(getattr(torch, name))) for name in _FACTORIES),
        *((names, "type", _Type) for names in by_id.values() if "type" not in names),
    ]
    return _replaced(changes)


_FACTORIES = (
    *("arange", "empty", "eye", "full", "linspace", "ones", "rand", "randn", "zeros"),
    *("sparse_coo_tensor", "sparse_csr_tensor", "sparse_csc_tensor"),
)


def recording(factory: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that a trace records as one call if it gets proxies, alone or in a list."""

    @functools.wraps(factory)
    def make(*args: Any, **kwargs: Any) -> Any:
        given = (*args, *kwargs.values())
        parts = [part for one in given for part in (one if type(one) in (tuple, list) else (one,))]
        proxy = next((part for part in parts if isinstance(part, fx.Proxy)), None)
        if proxy is None:
            return factory(*args, **kwargs)
        made: Any = proxy.tracer.create_proxy("call_function", factory, args, kwargs)
        # A forward may ask whether there are features, which self-loops leave as None.
        is_none = all(one is None for one in (*args[1:2], kwargs.get("edge_attr")))
        changes_loops = getattr(factory, "__name__", "") in _SELF_LOOPS and not getattr(
            proxy, "is_matrix", False
        )
        return (made[0], None) if is_none and changes_loops else made

    return make


def _answering(plain: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    """Return ``isinstance`` as a forward is to find it."""

    def answer(value: Any, of: Any) -> bool:
        # Every isinstance of the process comes here meanwhile: all but proxies leave at once.
        found = plain(value, of)
        if found or type(value) is not TensorProxy:
            return found
        asks = sys._getframe(1)
        homes = "torch_geometric." if value.is_matrix else "torch_geometric.nn."
        in_layer = str(asks.f_globals.get("__name__", "")).startswith(homes)
        in_library = package_of(asks.f_globals) in _LIBRARIES and not in_layer
        if in_library and asks.f_code is not torch.is_tensor.__code__:
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


_UTILS = "torch_geometric.utils"


_RECORDED = (
    *("degree", "scatter", "segment", "softmax", "coalesce", "sort_edge_index"),
    *("to_undirected", "is_undirected", "add_self_loops", "remove_self_loops"),
    *("add_remaining_self_loops", "contains_self_loops"),
)
"""Functions of ``torch_geometric.utils``."""
_SELF_LOOPS = ("add_self_loops", "remove_self_loops", "add_remaining_self_loops")
"""Those of them that return edges and their features."""
_EVERYWHERE = ("degree", "scatter", "segment", "softmax")
"""Those of them that a forward without layers passes messages by."""
TORCH_SCATTER = "torch_scatter"
SCATTERS = {
    "scatter": ("sum", "add", "mean"),
    "scatter_sum": ("sum",),
    "scatter_add": ("sum",),
    "scatter_mean": ("mean",),
}
"""Functions of torch-scatter, from which PyG's ``scatter`` came, with their reductions that have a lowered
form. Its maximum has none: which of several equal messages gets the gradient is another than in PyG."""
_OTHER_SCATTERS = ("scatter_max", "scatter_min", "segment_csr")
"""Functions of torch-scatter that are recorded in a forward without layers, too."""


def names_in(module: str) -> dict[str, Any]:
    """Return the names of a module; none where it is not imported."""
    found = sys.modules.get(module)  # None, too, where an import is blocked
    return {} if found is None else vars(found)


def softmax_of_edges() -> Any:
    """Return PyG's softmax over the edges of each destination; None where PyG is not imported."""
    return names_in(f"{_UTILS}._softmax").get("softmax")


def recorded_of(*, everywhere: bool) -> dict[int, Any]:
    """Return the functions of PyG and torch-scatter that are recorded, by identity.

    ``everywhere`` asks only for those that any function of a forward may call so; a layer's may call all.
    """
    utils, scatters = names_in(_UTILS), names_in(TORCH_SCATTER)
    found = [*map(utils.get, _EVERYWHERE if everywhere else _RECORDED)]
    found += map(scatters.get, (*SCATTERS, *_OTHER_SCATTERS))
    found.append(names_in("torch_geometric.nn.conv.gcn_conv").get("gcn_norm"))
    found.append(names_in(f"{_UTILS}._spmm").get("spmm"))
    found += [one for one in names_in("torch_sparse").values() if isinstance(one, types.FunctionType)]
    return {id(one): one for one in found if one is not None}


def recorded_functions(
    layers: Iterable[nn.Module], functions: Iterable[types.FunctionType] = ()
) -> AbstractContextManager[None]:
    """Record functions of PyG and torch-scatter over edges, where a layer's methods name them.

    A call is recorded if the trace follows one of its arguments. Any other call is left as it is. Where
    ``functions`` name them, those are recorded that pass messages.
    """
    stand_ins = {key: recording(one) for key, one in recorded_of(everywhere=False).items()}
    in_functions = recorded_of(everywhere=True)
    methods = (f for layer in layers for base in type(layer).__mro__ for f in vars(base).values())
    spaces = {id(f.__globals__): f.__globals__ for f in methods if hasattr(f, "__globals__")}
    spaces |= {id(names): names for names in map(names_in, (_UTILS, TORCH_SCATTER, "torch_sparse"))}
    others = {id(f.__globals__): f.__globals__ for f in functions}
    return _replaced(
        (names, key, stand_ins[id(value)])
        for place, names in (others | spaces).items()
        for key, value in list(names.items())
        if id(value) in (stand_ins if place in spaces else in_functions)
    )


# ---- functions of PyG that are recorded whole


def kept_functions(functions: Iterable[types.FunctionType]) -> AbstractContextManager[None]:
    """Record each function of PyG that ``functions`` name as one call, where its code cannot be traced."""
    kept = [*_functions_of_pyg(functions)]
    return _replaced((home, name, _whole_if_untraceable(function)) for home, name, function in kept)


def _functions_of_pyg(
    functions: Iterable[types.FunctionType],
) -> Iterator[tuple[dict[str, Any], str, types.FunctionType]]:
    """Yield the functions of PyG that others call by a name or as a module's attribute, with their homes."""
    homes: dict[int, dict[str, Any]] = {}
    for function in functions:
        called = names_of(function.__code__).all
        modules = (function.__globals__.get(name) for name in called)
        for home in (
            function.__globals__,
            *(vars(one) for one in modules if isinstance(one, types.ModuleType)),
        ):
            found = homes.setdefault(id(home), {})
            for name in called & home.keys():
                held = home[name]
                if isinstance(held, types.FunctionType) and held.__module__.startswith("torch_geometric."):
                    if name not in found:
                        yield home, name, held
                    found[name] = held


def _whole_if_untraceable(function: types.FunctionType) -> Callable[..., Any]:
    """Return a function that is recorded as one call if it gets proxies and its code cannot be traced."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        given = (*args, *kwargs.values())
        tracer: Any = next((one.tracer for one in given if isinstance(one, fx.Proxy)), None)
        if getattr(tracer, "thread", None) != threading.get_ident():
            return function(*args, **kwargs)
        last = next(iter(reversed(tracer.graph.nodes)), None)
        try:
            return function(*args, **kwargs)
        except Exception:  # whatever its code may raise under tracing, it runs as written
            forget_after(tracer.graph, last)
            return tracer.create_proxy("call_function", function, args, kwargs)

    return call


def forget_after(graph: fx.Graph, last: fx.Node | None) -> None:
    """Erase the calls that were recorded after a node; tensors stay, as the tracer holds them by name."""
    for node in reversed(graph.nodes):
        if node is last:
            return
        if node.op != "get_attr":
            graph.erase_node(node)


# ---- changes of the model, of objects that it reads and of the random generators

_CHANGEABLE = (dict, list, set, deque)


@contextmanager
def restore_after_trace(model: nn.Module, reached: Reached) -> Iterator[None]:
    """Undo all changes to a model, objects it reads and random generators; refuse it if there were any.

    Raises:
        NotLoweredError: something changed, so that another call might take another path.
    """
    held = _containers(model, reached)
    looked_up = [(names, {n: names[n] for n in of if n in names}) for names, of in reached.named]
    tensors = [t for t in (*reached.tensors, *model.buffers()) if not t.is_inference()]
    numbers = [(t, t._version, t.detach().clone()) for t in tensors]
    drawn_before = generators()
    drew, changed = False, ""
    try:
        with torch.inference_mode(False), torch.enable_grad(), torch.autocast("cpu", enabled=False):
            yield
    finally:
        drew = put_back(drawn_before)
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
    name = type(model).__name__
    if drew:
        what = "its forward draws random numbers of its own"
        raise NotLoweredError(name, what, "dropout, which has a form", code="draws")
    if changed:
        what = f"its forward changes {changed!r}, which its next call may read"
        raise NotLoweredError(name, what, "a forward without effects", code="effects")


def generators() -> tuple[Any, Any, torch.Tensor]:
    """Return the states of Python's, NumPy's and torch's generators of random numbers."""
    return random.getstate(), np.random.get_state(legacy=True), torch.get_rng_state()  # noqa: NPY002


def put_back(before: tuple[Any, Any, torch.Tensor]) -> bool:
    """Restore the generators and return whether anything was drawn."""
    python, numpy, torch_state = generators()
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
    """Give a container its contents back; return the name, else the class, of the changed object."""
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


def writes(node: fx.Node) -> bool:
    """Return whether a call may write over its arguments."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    in_place = (name.endswith("_") and not name.endswith("__") and name not in _PLAIN) or name in _WRITING
    given = node.kwargs
    if isinstance(node.target, types.FunctionType):
        with suppress(TypeError, ValueError):  # as of a call that would fail
            given = inspect.signature(node.target).bind(*node.args, **node.kwargs).arguments
    return in_place or bool(given.get("inplace")) or given.get("out") is not None


_WRITING = {"setitem", "iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "iand", "ior", "ixor"}
_WRITING |= {"ilshift", "irshift", "imatmul"}
_PLAIN = {"and_", "or_", "not_"}
"""Functions of ``operator`` that are named after words of Python, and write over nothing."""


# ---- numbers that steps change


class ValueReads(TorchFunctionMode):
    """Notices constants that a trace made of numbers that steps change: of parameters and statistics."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        changing: list[Tensor] = [*model.parameters()]
        changing += [b for name, b in model.named_buffers() if name.endswith(COUNTED)]
        self._changing, self._made = {id(one) for one in changing}, False
        self._name = type(model).__name__

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        is_number = isinstance(out, float | int) and getattr(func, "__name__", "") in _TO_NUMBERS
        if (is_number or isinstance(out, Tensor)) and any(id(one) in self._changing for one in args):
            if is_number:
                raise self._refused()
            self._made = True
        return out

    def check(self, graph: fx.Graph) -> None:
        """Refuse a trace that holds constants, if any may come from such numbers.

        Raises:
            NotLoweredError: it does.
        """
        made = (node for node in graph.nodes if node.op == "get_attr")
        if self._made and any(str(node.target).startswith("_tensor_constant") for node in made):
            raise self._refused()

    def _refused(self) -> NotLoweredError:
        what = "its forward computes with a parameter's or a statistic's numbers apart from its inputs"
        needed = "parameters that are attributes of a module"
        return NotLoweredError(self._name, what, needed, code="reads-values")


_TO_NUMBERS = {"item", "__bool__", "__float__", "__int__", "__index__"}
