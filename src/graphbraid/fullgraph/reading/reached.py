"""What a forward may read besides its modules, which a trace takes for constant.

A walk from the methods of the user's classes that a call enters: through the functions that they name, the
globals, closures, defaults and attributes of these; modules, by the names read of them; classes; and
containers and plain objects at any depth. Code of Python and of packages by name is taken to stay as it is.
"""

from __future__ import annotations

import dis
import functools
import sys
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from graphbraid.fullgraph.reading.exact import TORCH_OWN

_PACKAGES = """
graphbraid torch torch_geometric torch_scatter torch_sparse torch_cluster torch_spline_conv pyg_lib
numpy scipy pandas sklearn networkx ogb einops tqdm rich wandb mlflow tensorboard
lightning pytorch_lightning torchmetrics
"""
NOT_USERS = {*_PACKAGES.split(), *sys.stdlib_module_names}
"""Outermost packages whose code is taken to stay as it is."""
_ENTERED = ("forward", "message", "message_and_aggregate", "aggregate", "update", "edge_update", "propagate")
"""Methods that a call of a module enters, besides those that Python calls by operators."""
_BY_TEXT = frozenset({"getattr", "vars", "attrgetter", "__dict__"})
"""Names whose use reads attributes by names that are made as the program runs."""
_LISTS = (list, tuple, set, frozenset, deque)
_VALUES = (int, float, complex, str, bytes, range, slice, types.NoneType, np.generic)
_CONSTANT = (*_VALUES, types.BuiltinFunctionType, torch.dtype, torch.device)
_HOLDERS = (
    types.MethodType,
    staticmethod,
    classmethod,
    property,
    functools.partial,
    functools.cached_property,
    functools.partialmethod,
)
_HELD = ("__func__", "__self__", "fget", "func", "args", "keywords")
_UNREAD = ("logging", "threading", "weakref", "_thread")
"""Modules whose objects affect no result and hold much of the program."""
_MOST = 2048
"""Number of objects looked into: a model may hold a data set, or what trains it."""
_MOST_BYTES = 1024
"""Bytes of a NumPy array that is compared in every call."""


class Reached:
    """What a model's forward may read, found by walking from it.

    Attributes:
        functions: the user's functions that a call may enter.
        dicts: dicts that are read whole.
        lists: other containers, as iterables of what they hold.
        classes: what the user's classes define, besides those of the model's modules.
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
            is_users = not is_of_library(type(module))
            for key, value in vars(module).items():
                if key not in TORCH_OWN and (self._reads(key) if is_users else callable(value)):
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
        elif isinstance(value, Iterator):
            self.why = f"it may draw from a {type(value).__name__}"
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
        self._names |= names.all
        self._any_name |= not names.all.isdisjoint(_BY_TEXT)
        self._look_up(function.__globals__, sorted(names.looked_up))
        package = function.__globals__.get("__package__")
        imported = [*names.imported, *(f"{package}.{name}" for name in names.imported if package)]
        self._look_up(sys.modules, imported)
        cells = function.__closure__ or ()
        within = _Now(lambda: [cell.cell_contents for cell in cells if cell != _EMPTY])
        self.lists.append(within)
        self._waiting.extend(within)
        self._attributes(function, ("__code__", "__defaults__", "__kwdefaults__", "__dict__"))

    def _look_up(self, mapping: Mapping[str, Any], names: Iterable[str]) -> None:
        _, before = self._named.setdefault(id(mapping), (mapping, {}))
        before.update(dict.fromkeys(names))
        self._waiting.extend(mapping.get(name) for name in names)


_EMPTY = types.CellType()
_NOT_ENTERED = {"__init__", "__new__", "__post_init__", "__del__", "__repr__", "__reduce__", "__reduce_ex__"}
_NOT_ENTERED |= {"__getstate__", "__setstate__", "__dict__", "__weakref__", "__doc__", "__annotations__"}


class _Now:
    """Values as they are whenever they are iterated over."""

    def __init__(self, now: Callable[[], list[Any]]) -> None:
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
    """Return those of a class and its bases that are not of a library."""
    return [base for base in kind.__mro__ if not is_of_library(base)]


def is_of_library(kind: type) -> bool:
    """Return whether a class is of Python or of a package whose code stays as it is."""
    return kind.__module__.split(".")[0] in NOT_USERS


def _slots_of(kind: type) -> tuple[str, ...]:
    slots = (vars(base).get("__slots__", ()) for base in kind.__mro__)
    return tuple(name for of in slots for name in ((of,) if isinstance(of, str) else of))
