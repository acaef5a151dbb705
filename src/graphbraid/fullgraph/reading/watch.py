"""Objects that a model's forward may read besides its modules, and whether any has changed."""

from __future__ import annotations

import dis
import functools
import numbers
import os
import sys
import threading
import types
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from functools import partial
from itertools import chain
from operator import attrgetter, is_
from typing import Any

import numpy as np
import torch
import xxhash
from torch import Tensor, nn, sparse_coo, strided
from torch.nn.modules import module as torch_module
from torch.nn.parameter import is_lazy

from graphbraid import native
from graphbraid.fullgraph.reading.exact import (
    COUNTED,
    GLOBAL_HOOKS,
    TORCH_OWN,
    computed_weights,
    is_from,
    runs_something,
)
from graphbraid.graph import Graph
from graphbraid.graph.identity import mark
from graphbraid.graph.scaled_features import ScaledFeatures
from graphbraid.graph.sparse_features import SparseFeatures

_PACKAGES = """
graphbraid torch torch_geometric torch_scatter torch_sparse torch_cluster torch_spline_conv pyg_lib
numpy scipy pandas sklearn networkx ogb einops tqdm rich wandb mlflow tensorboard
lightning pytorch_lightning torchmetrics
"""
NOT_USERS = {*_PACKAGES.split(), *sys.stdlib_module_names}
"""Outermost packages whose code is assumed not to change."""
_ENTERED = ("forward", "message", "message_and_aggregate", "aggregate", "update", "edge_update", "propagate")
"""Methods that a call of a module enters, besides those that Python calls by operators."""
_BY_TEXT = frozenset({"getattr", "vars", "attrgetter", "__dict__"})
"""Names whose use reads attributes by names that are made as the program runs."""
_LISTS = (list, tuple, set, frozenset, deque)
_VALUES = (int, float, complex, str, bytes, range, slice, types.NoneType, np.generic)
_CONSTANT = (*_VALUES, types.BuiltinFunctionType, torch.dtype, torch.device)
_WRAPPED = (functools.partial, functools.cached_property, functools.partialmethod)
_HOLDERS = (types.MethodType, staticmethod, classmethod, property, *_WRAPPED)
_HELD = ("__func__", "__self__", "fget", "func", "args", "keywords")
_OPAQUE = (Iterator, bytearray, memoryview, array, ContextVar, threading.local)
"""Classes of objects whose values change and cannot be compared."""
_ASKED = """
get_default_dtype get_default_device get_num_threads get_num_interop_threads get_float32_matmul_precision
are_deterministic_algorithms_enabled is_deterministic_algorithms_warn_only_enabled
get_deterministic_debug_mode is_anomaly_enabled is_anomaly_check_nan_enabled is_autocast_enabled
is_autocast_cpu_enabled is_autocast_cache_enabled get_autocast_dtype get_autocast_cpu_dtype initial_seed
backends grad
"""
_TORCH_STATE = frozenset(_ASKED.split())
"""Names by which a forward reads what is of torch and not of the model: its settings, with all of
``torch.backends``, and the gradients of earlier steps in ``.grad``. Any use of such a name counts."""
_UNREAD = ("logging", "threading", "weakref", "_thread")
"""Modules whose objects affect no result and hold much of the program."""
_MOST = 2048
"""Number of objects looked into: a model may hold a data set or its trainer."""
_MOST_BYTES = 1024
"""Bytes of a NumPy array that is compared in every call."""


class Reached:
    """Objects that a model's forward may read, found by walking from it.

    Attributes:
        functions: the user's functions that a call may enter.
        dicts: dicts that are read whole.
        lists: other containers, as iterables of their contents.
        classes: attributes of the user's classes, besides those of the model's modules.
        tensors: tensors whose numbers may be read, except the model's parameters.
        arrays: small NumPy arrays.
        why: why not all can be followed; empty if it can.
    """

    def __init__(self, model: nn.Module) -> None:
        self.why, self._names, self._any_name = "", set[str](), False
        self._own = {id(one) for one in (*model.modules(), *model.parameters())}
        known = -1
        while known != (known := len(self._names) + self._any_name):  # until no further name is read
            self._walk(model)

    def _walk(self, model: nn.Module) -> None:
        self.functions: list[types.FunctionType] = []
        self.dicts: list[dict[Any, Any]] = []
        self.lists: list[Iterable[Any]] = []
        self.classes: list[Mapping[str, Any]] = []
        self.tensors: list[Tensor] = []
        self.arrays: list[np.ndarray[Any, Any]] = []
        self._named: dict[int, tuple[Mapping[str, Any], dict[str, None]]] = {}
        self._seen: dict[int, Any] = {}
        self._waiting: deque[Any] = deque()
        for module in model.modules():
            for kind in users_classes(type(module)):
                self._members(kind, _ENTERED)
            is_users, computed = not is_of_library(type(module)), computed_weights(module)
            for key, value in vars(module).items():
                if (
                    key not in TORCH_OWN
                    and key not in computed
                    and (self._reads(key) if is_users else _may_change(key, value))
                ):
                    self._waiting.append(value)
        while self._waiting and not self.why:
            self._visit(self._waiting.popleft())
        self._seen.clear()
        self._waiting.clear()

    @property
    def named(self) -> list[tuple[Mapping[str, Any], tuple[str, ...]]]:
        """Mappings, such as a module's globals, each with the names that are read from it."""
        return [(mapping, tuple(names)) for mapping, names in self._named.values()]

    def _reads(self, name: str) -> bool:
        return self._any_name or name in self._names

    def _visit(self, value: Any) -> None:
        if isinstance(value, _CONSTANT) or id(value) in self._seen or id(value) in self._own:
            return
        self._seen[id(value)] = value
        if len(self._seen) > _MOST:
            self.why = f"it may read more than {_MOST:,} objects"
        if isinstance(value, types.FunctionType):
            self._function(value)
        elif isinstance(value, types.ModuleType):
            held = vars(value)
            self._look_up(held, [name for name in self._names if name in held])
        elif isinstance(value, type):
            for kind in users_classes(value):
                self.classes.append(vars(kind))
                self._members(kind, ("__init__", "__new__", "__post_init__"))
        elif isinstance(value, dict):
            self.dicts.append(value)
            if isinstance(value, OrderedDict):  # its order may change alone
                self.lists.append(_Now(partial(list, value)))
            self._waiting.extend(dict.values(value))
        elif isinstance(value, _LISTS):
            self.lists.append(value)
            self._waiting.extend(value)
        else:
            self._other(value)

    def _other(self, value: Any) -> None:
        if isinstance(value, Tensor):
            self.tensors.append(value)
            if value.is_inference():
                self.why = "it reads a tensor made in inference mode, whose changes cannot be seen"
        elif isinstance(value, np.ndarray):
            self.arrays.append(value)
            if value.nbytes > _MOST_BYTES or value.dtype.hasobject:
                self.why = "it reads a NumPy array, whose changes cannot be seen"
        elif isinstance(value, _OPAQUE):
            self.why = f"it may read a {type(value).__name__}, whose changes cannot be seen"
        else:
            self._object(value)

    def _object(self, value: Any) -> None:
        """Look into an object of any other class."""
        kind = type(value)
        if isinstance(value, _HOLDERS):
            self._waiting.extend(getattr(value, name, None) for name in _HELD)
        if kind.__module__.split(".")[0] in _UNREAD:
            return
        held, slots = getattr(value, "__dict__", None), _slots_of(kind)
        self._waiting.append(kind)
        if isinstance(held, dict):
            self.dicts.append(held)
            self._waiting.extend(held.values())
        if slots:
            self._attributes(value, slots)

    def _attributes(self, value: Any, names: tuple[str, ...]) -> None:
        held = _Now(lambda: [getattr(value, name, None) for name in names])
        self.lists.append(held)
        self._waiting.extend(held)

    def _members(self, kind: type, entered: tuple[str, ...]) -> None:
        """Look at the members of a class that a call may enter or read by name."""
        for key, member in vars(kind).items():
            by_python = key.startswith("__") and key not in _NOT_ENTERED
            if key in entered or by_python or self._reads(key):
                self._waiting.append(member)

    def _function(self, function: types.FunctionType) -> None:
        if package_of(function.__globals__) in NOT_USERS:
            return
        self.functions.append(function)
        names = names_of(function.__code__)
        if names.stored:
            self.why = f"it changes the variable {names.stored!r} outside of it"
        if unseen := names.looked_up & {"globals", "eval", "exec"}:
            self.why = f"it calls {min(unseen)}, whose reads cannot be seen"
        if asked := names.all & _TORCH_STATE:
            self.why = f"it reads {min(asked)!r}, which torch may have changed by the next call"
        if "getenv" in names.all:
            self._waiting.append(os.environ)
        self._names |= names.all
        self._any_name |= not names.all.isdisjoint(_BY_TEXT)
        self._look_up(function.__globals__, sorted(names.looked_up))
        package = function.__globals__.get("__package__")
        imported = [*names.imported, *(f"{package}.{name}" for name in names.imported if package)]
        self._look_up(sys.modules, imported)
        held = [_Now(partial(_OF_FUNCTION, function))]
        if cells := function.__closure__:
            held.append(_Now(lambda: [cell.cell_contents for cell in cells if cell != _EMPTY]))
        self.lists += held
        self._waiting.extend(chain.from_iterable(held))

    def _look_up(self, mapping: Mapping[str, Any], names: Iterable[str]) -> None:
        _, before = self._named.setdefault(id(mapping), (mapping, {}))
        before.update(dict.fromkeys(names))
        self._waiting.extend(mapping.get(name) for name in names)


_EMPTY = types.CellType()
_OF_FUNCTION = attrgetter("__code__", "__defaults__", "__kwdefaults__", "__dict__")
_NOT_ENTERED = {"__init__", "__new__", "__post_init__", "__del__", "__repr__", "__reduce__", "__reduce_ex__"}
_NOT_ENTERED |= {"__getstate__", "__setstate__", "__dict__", "__weakref__", "__doc__", "__annotations__"}


class _Now:
    """Values as they are whenever they are iterated over."""

    def __init__(self, now: Callable[[], Iterable[Any]]) -> None:
        self._now = now

    def __iter__(self) -> Iterator[Any]:
        return iter(self._now())


class _CodeNames:
    """The names that code and the functions in it use."""

    def __init__(self, code: types.CodeType) -> None:
        self.looked_up, self.imported, self.stored = set[str](), set[str](), ""
        self.all = {*code.co_names, *(c for c in code.co_consts if isinstance(c, str))}
        for step in dis.get_instructions(code):
            if step.opname in {"LOAD_GLOBAL", "LOAD_NAME"}:
                self.looked_up.add(step.argval)
            elif step.opname == "IMPORT_NAME":
                self.imported.add(step.argval)
            elif step.opname in {"STORE_GLOBAL", "DELETE_GLOBAL"} or (
                step.opname == "STORE_DEREF" and step.argval in code.co_freevars
            ):
                self.stored = step.argval
        for inner in code.co_consts:
            if isinstance(inner, types.CodeType):
                names = _CodeNames(inner)
                self.looked_up |= names.looked_up
                self.imported |= names.imported
                self.all |= names.all
                self.stored = self.stored or names.stored


names_of = functools.lru_cache(maxsize=1024)(_CodeNames)


def package_of(names: Mapping[str, Any]) -> str:
    """Return the outermost package of the module that has these globals."""
    return str(names.get("__name__", "")).split(".")[0]


def users_classes(kind: type) -> list[type]:
    """Return the class and its bases without those of libraries."""
    return [base for base in kind.__mro__ if not is_of_library(base)]


def is_of_library(kind: type) -> bool:
    """Return whether a class is of Python or of a package whose code stays as it is."""
    return kind.__module__.split(".")[0] in NOT_USERS


def _may_change(key: str, value: Any) -> bool:
    """Return whether an attribute of a library's module is called, or a user may write over it in place.

    For example, PyG's ``MLP`` has its dropout by layer in a list.
    """
    return callable(value) or (not key.startswith("_") and isinstance(value, list | dict | Tensor))


def _slots_of(kind: type) -> tuple[str, ...]:
    slots = (vars(base).get("__slots__", ()) for base in kind.__mro__)
    return tuple(name for of in slots for name in ((of,) if isinstance(of, str) else of))


_ABOUT_PARAMETERS = attrgetter("dtype", "requires_grad", "shape")
_END = (object(),)
_DEEPEST, _LONGEST = 4, 80
"""Depth of containers that are searched for settings, and characters that are shown of one setting."""


class ModelWatch:
    """Watches all of a model that decides its results, except its parameters' values.

    This covers every module's class, attributes, submodules, parameters, mode and hooks; the attributes of
    the user's own classes of modules; and all that their forward may read (:class:`.Reached`): globals,
    variables of enclosing functions, settings and containers. If one of these is replaced, the sweep notices,
    and a new watch must be made to look into the new one.
    """

    def __init__(self, model: nn.Module) -> None:
        self._modules = list(model.modules())
        self._dicts: list[dict[str, Any]] = []
        self._parts: list[tuple[dict[str, Any], frozenset[str]]] = []
        """Attributes of modules, with the names of attributes that torch's own hooks compute in each call."""
        hooks: list[Any] = [getattr(torch_module, name, {}) for name in GLOBAL_HOOKS]
        for module in self._modules:
            held = vars(module)
            if computed := computed_weights(module):
                self._parts.append((held, computed))
                held = {}
            parts = held, *(vars(module).get(of) for of in ("_parameters", "_modules", "_buffers"))
            hooks += [value for key, value in vars(module).items() if runs_something(key)]
            self._dicts += [part for part in parts if isinstance(part, dict)]  # of TorchScript, some are not
        self._dicts += [part for part in hooks if isinstance(part, dict)]
        self._reached = reached = Reached(model)
        self._dicts += reached.dicts
        kinds = dict.fromkeys(kind for m in self._modules for kind in users_classes(type(m)))
        of_classes = (held.values for held in (*map(vars, kinds), *reached.classes))
        by_name = (partial(map, held.get, names) for held, names in reached.named if names)
        self._others: list[Callable[[], Any]] = [
            *of_classes,
            *(one.__iter__ for one in reached.lists),
            *by_name,
        ]
        """Functions that return what else is watched, as it is now."""
        self._parameters = [p for p in model.parameters() if not is_lazy(p)]
        moving = {id(b) for m in self._modules if moves_vectors(m) for b in m.buffers(recurse=False)}
        buffers = [b for name, b in model.named_buffers() if not name.endswith(COUNTED)]
        self._buffers = [b for b in buffers if not b.is_inference() and id(b) not in moving]
        # Single numbers, such as GIN's epsilon, by value: a write through `data` has no version.
        on_host = (b for b in self._buffers if b.layout is strided and b.device.type == "cpu")
        self._single = [b for b in on_host if b.numel() == 1]
        self.numbers = self._numbers()
        """Numbers that are compared by value: about parameters and buffers."""
        self._held = tuple(tuple(chain.from_iterable(dict.items(one))) for one in self._dicts)
        compiled = native.kernels()
        self._items = None if compiled is None else compiled.items_of(self._dicts)
        """The addresses of ``_held``, which a comparison takes a tenth of the time for."""
        self._before, self._before_numbers = tuple(self._values()), self._read_numbers()

    def modes(self) -> list[bool]:
        """Return whether each module is in training mode."""
        return [module.training for module in self._modules]

    def has_same_parameters(self, other: ModelWatch) -> bool:
        """Return whether another watch, of the same model, saw these very parameters, in the same form."""
        return self.numbers == other.numbers and all(map(is_, self._parameters, other._parameters))

    def has_changed(self) -> bool:
        """Return whether the model has changed since this watch was made."""
        if self._numbers() != self.numbers or self._read_numbers() != self._before_numbers:
            return True
        compiled = native.kernels()
        if compiled is None:
            is_same = _hold_same_items(self._dicts, self._held)
        else:
            is_same = compiled.items_of(self._dicts) == self._items
        return not (is_same and all(map(is_, self._before, self._values())))

    def _values(self) -> Iterator[Any]:
        """Yield what is watched beside ``_held``, then an end mark: no sequence is a prefix of another."""
        items = (item for held, computed in self._parts for item in held.items() if item[0] not in computed)
        others = chain.from_iterable(now() for now in self._others)
        return chain(map(type, self._modules), chain.from_iterable(items), others, _END)

    def _read_numbers(self) -> list[Any]:
        """Versions of tensors, and bytes of arrays, whose numbers a forward may read but no program holds."""
        return [*map(_version, self._reached.tensors), *(a.tobytes() for a in self._reached.arrays)]

    def _numbers(self) -> tuple[Any, ...]:
        compiled = native.kernels()
        parameters: Any = None if compiled is None else compiled.forms_of(self._parameters)
        if parameters is None:  # also if one is of a class of its own
            are_by_row = [*map(Tensor.is_contiguous, self._parameters)]
            parameters = [*map(_ABOUT_PARAMETERS, self._parameters), *are_by_row]
        versions = list(map(_version, self._buffers))
        return parameters, versions, [b.item() for b in self._single]


def _hold_same_items(dicts: list[dict[str, Any]], before: tuple[tuple[Any, ...], ...]) -> bool:
    """Return whether dicts hold the very keys and values ``before``, as ``items_of`` of compiled code."""
    pairs = zip(dicts, before, strict=True)
    return all(
        2 * len(one) == len(items) and all(map(is_, chain.from_iterable(dict.items(one)), items))
        for one, items in pairs
    )


def moves_vectors(module: nn.Module) -> bool:
    """Return whether a module is torch's spectral norm, each of whose calls moves its two vectors.

    It runs inside graph breaks, where they are read as they are.
    """
    kind = type(module)
    return kind.__name__ == "_SpectralNorm" and is_from(kind, "torch.nn.utils.parametrizations")


def _version(tensor: Tensor) -> tuple[int, int, bool]:
    """Return a tensor's version, address and whether it learns: new ``data`` leave the version.

    Hooks of modules leave tensors behind: those of inference mode have no version, and those of a transform
    of ``torch.func`` no address.
    """
    version = 0 if tensor.is_inference() else tensor._version
    is_held = tensor.layout is strided and torch._C._has_storage(tensor)
    return version, tensor.data_ptr() if is_held else 0, tensor.requires_grad


def options_of(model: nn.Module) -> dict[str, str]:
    """Return a model's settings, by name and as text, such as ``convs.0.negative_slope``: ``0.2``.

    These are each module's class, its attributes that are plain values, functions, classes, tensors or
    containers of them, and whether a parameter is trained. Private attributes of a library's classes are
    left out. Ranks compare them before they train one model: parameters of equal shapes do not show it.
    """
    found = {f"{name} requires_grad": repr(p.requires_grad) for name, p in model.named_parameters()}
    for prefix, module in model.named_modules():
        found[f"{prefix} class" if prefix else "class"] = _named(type(module))
        hidden = "_" if is_of_library(type(module)) else "\0"
        for key, value in vars(module).items():
            if key not in TORCH_OWN and not key.startswith(hidden) and (text := _as_text(value, _DEEPEST)):
                long = len(text) > _LONGEST
                found[f"{prefix}.{key}" if prefix else key] = (
                    f"{text[:_LONGEST]}... {xxhash.xxh3_64(text.encode()).hexdigest()}" if long else text
                )
    return found


def _as_text(value: Any, depth: int) -> str:
    """Return a value as text that is the same in every process; "" where that is not known."""
    if isinstance(value, Tensor):
        return f"tensor {mark(value)}" if value.layout is strided and not is_lazy(value) else ""
    if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)):
        return _named(value)
    if isinstance(value, partial):
        value = [value.func, value.args, value.keywords]
    inside = list(value.items()) if isinstance(value, dict) else value
    if isinstance(inside, _LISTS) and depth:
        texts = [_as_text(one, depth - 1) for one in inside]
        return f"[{', '.join(sorted(texts) if isinstance(inside, (set, frozenset)) else texts)}]"
    return repr(value) if value is None or isinstance(value, (numbers.Number, str, torch.dtype)) else ""


def _named(value: Any) -> str:
    return f"{value.__module__}.{value.__qualname__}"


class GraphWatch:
    """Watches the tensors from which a program's constants were made, by address and version.

    A sparse matrix shares the memory of the values that it is made of, and counts no writes to these. So they
    are compared with a copy.
    """

    def __init__(self, graph: Graph, others: Iterable[object] = ()) -> None:
        held: list[object] = [graph.csc.weight, graph.edge_attr, graph.csc.indptr, graph.csc.indices, *others]
        for x in (graph.nodes_of(name).x for name in graph.node_types):
            if isinstance(x, SparseFeatures):
                held += (x.values, x.indices, x.indptr)
            else:
                held += (x.values, x.scale) if isinstance(x, ScaledFeatures) else (x,)
        self._tensors = [t for t in held if isinstance(t, Tensor) and not t.is_inference()]
        sparse = [t.detach() for t in self._tensors if t.layout is not strided]
        values = [t._values() if t.layout is sparse_coo else t.values() for t in sparse]
        self._copied = [(one, one.clone()) for one in values]
        self._before = self._now()

    def add(self, tensor: Tensor) -> None:
        """Watch one more tensor, as it is now."""
        self._tensors.append(tensor)
        self._before.append(_version(tensor))

    def _now(self) -> list[tuple[int, int, bool]]:
        return [*map(_version, self._tensors)]

    def has_changed(self) -> bool:
        """Return whether any tensor was written to or given other memory since this watch was made."""
        return self._now() != self._before or not all(torch.equal(*pair) for pair in self._copied)

    def wants_gradients(self) -> bool:
        """Return whether any tensor requires gradients."""
        return any(t.requires_grad for t in self._tensors)
