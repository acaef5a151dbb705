"""Detection of changes of the model or the graph since a program was read from them.

Every call checks, so the check compares by identity in one sweep, which takes tens of microseconds for a
model of a few layers. A value replaced by an equal one counts as a change; the model is then read again.
"""

from __future__ import annotations

import numbers
import types
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from operator import attrgetter, is_
from typing import Any

import torch
import xxhash
from torch import Tensor, nn, strided
from torch.nn.modules import module as torch_module
from torch.nn.parameter import is_lazy

from graphbraid.fullgraph.program.readers.exact import GLOBAL_HOOKS, TORCH_OWN, runs_something
from graphbraid.graph import Graph
from graphbraid.graph.identity import mark
from graphbraid.graph.scaled_features import ScaledFeatures
from graphbraid.graph.sparse_features import SparseFeatures

_LIBRARIES = ("torch.", "torch_geometric.", "graphbraid.")
_ABOUT_PARAMETERS = attrgetter("dtype", "requires_grad", "shape")
_END = (object(),)
_COUNTED = ("running_mean", "running_var", "num_batches_tracked")
"""Buffers that every step updates and that no program depends on."""
_MOST_CONTAINERS = 256
"""Number of containers looked into, the outermost first: a model may hold a data set, or what trains it."""
_LISTS = (list, tuple, set, frozenset, deque)
_DEEPEST, _LONGEST = 4, 80
"""Containers inside each other in which options are looked for, and characters of one that are shown."""
_WHOLE = (Tensor, nn.Module, type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType)
"""What is compared as a whole: modules are watched by themselves, and of functions only which one it is."""


class Snapshot:
    """The state of a model at one moment; keeps the objects it compares alive."""

    __slots__ = ("held", "numbers", "values")

    def __init__(self, values: tuple[Any, ...], numbers: tuple[Any, ...], held: list[int]) -> None:
        self.values, self.numbers, self.held = values, numbers, held


class ModelWatch:
    """Watches all of a model that decides what calling it computes, except its parameters' values.

    This covers every module's class, attributes, submodules, parameters, mode and hooks. Of the user's own
    modules it also covers what their classes define, and the lists, dicts and plain objects that they hold,
    at any depth. If a module or container is replaced, the sweep notices, and a new watch must be made to
    look into the new one.
    """

    def __init__(self, model: nn.Module) -> None:
        self._modules = list(model.modules())
        self._dicts: list[dict[str, Any]] = []
        self._lists: list[Iterable[Any]] = []
        self._classes: list[Mapping[str, Any]] = []
        self._hooks: list[Any] = [getattr(torch_module, name, {}) for name in GLOBAL_HOOKS]
        mine: list[Any] = []
        for module in self._modules:
            held = vars(module)
            self._dicts += [held, held["_parameters"], held["_modules"], held["_buffers"]]
            self._hooks += [value for key, value in held.items() if runs_something(key)]
            if not _is_of_library(type(module)):
                mine += [value for key, value in held.items() if key not in TORCH_OWN]
        self._held = [t for t in self._look_into(mine) if not t.is_inference()]
        kinds = dict.fromkeys(kind for module in self._modules for kind in type(module).__mro__)
        self._classes = [vars(kind) for kind in kinds if not _is_of_library(kind)]
        self._parameters = [p for p in model.parameters() if not is_lazy(p)]
        buffers = [b for name, b in model.named_buffers() if not name.endswith(_COUNTED)]
        self._buffers = [b for b in buffers if not b.is_inference()]
        # Single numbers, such as GIN's epsilon, by value: a write through `data` has no version.
        on_host = (b for b in self._buffers if b.layout is strided and b.device.type == "cpu")
        self._single = [b for b in on_host if b.numel() == 1]

    def _look_into(self, values: list[Any]) -> list[Tensor]:
        """Watch the containers among ``values``, and those that these hold, breadth first.

        Returns:
            The tensors found, whose values a forward may read, but for those that are trained.
        """
        found, seen, tensors = deque(values), set[int](), list[Tensor]()
        while found and len(seen) < _MOST_CONTAINERS:
            value = found.popleft()
            if isinstance(value, Tensor) and not value.requires_grad:
                tensors.append(value)
            if id(value) in seen or (inside := _contents(value)) is None:
                continue
            seen.add(id(value))
            if isinstance(inside, dict):
                self._dicts.append(inside)
                found.extend(inside.values())
            else:
                self._lists.append(inside)
                found.extend(inside)
        return tensors

    def now(self) -> Snapshot:
        """Return a snapshot of the model's current state."""
        return Snapshot(tuple(self._values()), self._numbers(), self._held_versions())

    def is_still(self, seen: Snapshot) -> bool:
        """Return whether the model is unchanged since ``seen``; makes no snapshot, since every step asks."""
        if self._numbers() != seen.numbers or self._held_versions() != seen.held:
            return False
        return all(map(is_, seen.values, self._values()))

    def _values(self) -> Iterator[Any]:
        """Yield all watched values and an end mark, so that no sequence of values is a prefix of another."""
        return chain(
            map(type, self._modules),
            chain.from_iterable(map(dict.values, self._dicts)),
            chain.from_iterable(held.values() for held in self._classes),
            chain.from_iterable(self._lists),
            _END,
        )

    def _held_versions(self) -> list[int]:
        """Versions of tensors that a forward may read numbers of, but that no program holds."""
        return [t._version for t in self._held]

    def _numbers(self) -> tuple[Any, ...]:
        parameters = [(_ABOUT_PARAMETERS(p), p.is_contiguous()) for p in self._parameters]
        versions, values = [b._version for b in self._buffers], [b.item() for b in self._single]
        return any(self._hooks), parameters, versions, values


def options_of(model: nn.Module) -> dict[str, str]:
    """Return what a model was built with, by name and as text, such as ``convs.0.negative_slope``: ``0.2``.

    These are each module's class, its attributes that are plain values, functions, classes, tensors or
    containers of them, and whether a parameter is trained. What a library's classes keep for themselves is
    left out. Ranks compare it before they train one model: parameters of equal shapes do not show it.
    """
    found = {f"{name} requires_grad": repr(p.requires_grad) for name, p in model.named_parameters()}
    for prefix, module in model.named_modules():
        found[f"{prefix} class" if prefix else "class"] = _named(type(module))
        hidden = "_" if _is_of_library(type(module)) else "\0"
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


class _Slots:
    """The values in the slots of an object, as they are whenever they are iterated over."""

    def __init__(self, held: Any) -> None:
        self._held = held
        kinds = type(held).__mro__
        slots = (vars(kind).get("__slots__", ()) for kind in kinds)
        self._names = [name for of in slots for name in ((of,) if isinstance(of, str) else of)]

    def __iter__(self) -> Iterator[Any]:
        return (getattr(self._held, name, None) for name in self._names)

    def __bool__(self) -> bool:
        return bool(self._names)


def _contents(value: Any) -> dict[Any, Any] | Iterable[Any] | None:
    """Return what a value holds, as something that shows later changes too; None if that is nothing."""
    if isinstance(value, (dict, *_LISTS)):
        return value
    if isinstance(value, _WHOLE):
        return None
    if isinstance(value, partial):
        return (value.func, value.args, value.keywords)
    held = getattr(value, "__dict__", None)
    return held if isinstance(held, dict) else _Slots(value) or None


def _is_of_library(kind: type) -> bool:
    return kind is object or f"{kind.__module__}.".startswith(_LIBRARIES)


class GraphWatch:
    """Watches the tensors from which a program's constants were made, by address and version."""

    def __init__(self, graph: Graph, others: Iterable[object] = ()) -> None:
        x = graph.x
        parts: tuple[object, ...] = (x,)
        if isinstance(x, SparseFeatures):
            parts = (x.values, x.indices, x.indptr)
        elif isinstance(x, ScaledFeatures):
            parts = (x.values, x.scale)
        held = (*parts, graph.csc.weight, graph.edge_attr, graph.csc.indptr, graph.csc.indices, *others)
        self._tensors = [t for t in held if isinstance(t, Tensor) and not t.is_inference()]
        self._before = self._now()

    def _now(self) -> list[tuple[int, int, bool]]:
        return [
            (t._version, t.data_ptr() if t.layout is strided else 0, t.requires_grad) for t in self._tensors
        ]

    def has_changed(self) -> bool:
        """Return whether any tensor was written to or given other memory since this watch was made."""
        return self._now() != self._before

    def wants_gradients(self) -> bool:
        """Return whether any tensor requires gradients."""
        return any(t.requires_grad for t in self._tensors)


__all__ = ["GraphWatch", "ModelWatch", "Snapshot", "options_of"]
