"""Detection of changes of the model or the graph since a program was read from them.

Every call checks, so the check compares by identity in one sweep, which takes tens of microseconds for a
model of a few layers. A value replaced by an equal one counts as a change; the model is then read again.
"""

from __future__ import annotations

import numbers
import types
from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain
from operator import attrgetter, is_
from typing import Any

import torch
import xxhash
from torch import Tensor, nn, strided
from torch.nn.modules import module as torch_module
from torch.nn.parameter import is_lazy

from graphbraid.fullgraph.reading.exact import (
    COUNTED,
    GLOBAL_HOOKS,
    TORCH_OWN,
    computed_weights,
    is_from,
    runs_something,
)
from graphbraid.fullgraph.reading.reached import Reached, is_of_library, users_classes
from graphbraid.graph import Graph
from graphbraid.graph.identity import mark
from graphbraid.graph.scaled_features import ScaledFeatures
from graphbraid.graph.sparse_features import SparseFeatures

_ABOUT_PARAMETERS = attrgetter("dtype", "requires_grad", "shape")
_END = (object(),)
_LISTS = (list, tuple, set, frozenset, deque)
_DEEPEST, _LONGEST = 4, 80
"""Containers inside each other in which options are looked for, and characters of one that are shown."""


class ModelWatch:
    """Watches all of a model that decides what calling it computes, except its parameters' values.

    This covers every module's class, attributes, submodules, parameters, mode and hooks; what the classes of
    the user's own modules define; and all that their forward may read (:class:`.Reached`): globals, variables
    of enclosing functions, settings and containers. If one of these is replaced, the sweep notices, and a new
    watch must be made to look into the new one.
    """

    def __init__(self, model: nn.Module) -> None:
        self._modules = list(model.modules())
        self._dicts: list[dict[str, Any]] = []
        self._parts: list[tuple[dict[str, Any], frozenset[str]]] = []
        """Attributes of modules, with the names of those that hooks of torch's own compute in each call."""
        self._hooks: list[Any] = [getattr(torch_module, name, {}) for name in GLOBAL_HOOKS]
        for module in self._modules:
            held = vars(module)
            if computed := computed_weights(module):
                self._parts.append((held, computed))
                held = {}
            parts = held, *(vars(module).get(of) for of in ("_parameters", "_modules", "_buffers"))
            self._dicts += [part for part in parts if isinstance(part, dict)]  # of TorchScript, some are not
            self._hooks += [value for key, value in vars(module).items() if runs_something(key)]
        self._reached = reached = Reached(model)
        kinds = dict.fromkeys(kind for m in self._modules for kind in users_classes(type(m)))
        self._classes = [*(vars(kind) for kind in kinds), *reached.classes]
        self._named = reached.named
        self._parameters = [p for p in model.parameters() if not is_lazy(p)]
        moving = {id(b) for m in self._modules if _moves_vectors(m) for b in m.buffers(recurse=False)}
        buffers = [b for name, b in model.named_buffers() if not name.endswith(COUNTED)]
        self._buffers = [b for b in buffers if not b.is_inference() and id(b) not in moving]
        # Single numbers, such as GIN's epsilon, by value: a write through `data` has no version.
        on_host = (b for b in self._buffers if b.layout is strided and b.device.type == "cpu")
        self._single = [b for b in on_host if b.numel() == 1]
        self.numbers = self._numbers()
        """What is compared by value: about parameters, buffers and hooks."""
        self._before, self._before_numbers = tuple(self._values()), self._read_numbers()

    def has_changed(self) -> bool:
        """Return whether the model has changed since this watch was made."""
        if self._numbers() != self.numbers or self._read_numbers() != self._before_numbers:
            return True
        return not all(map(is_, self._before, self._values()))

    def _values(self) -> Iterator[Any]:
        """Yield all watched values and an end mark, so that no sequence of values is a prefix of another."""
        return chain(
            map(type, self._modules),
            chain.from_iterable(map(dict.values, self._dicts)),
            (value for held, computed in self._parts for key, value in held.items() if key not in computed),
            chain.from_iterable(map(dict.keys, self._reached.dicts)),
            chain.from_iterable(map(dict.values, self._reached.dicts)),
            chain.from_iterable(held.values() for held in self._classes),
            chain.from_iterable(self._reached.lists),
            chain.from_iterable(map(held.get, names) for held, names in self._named),
            _END,
        )

    def _read_numbers(self) -> list[Any]:
        """Versions of tensors, and bytes of arrays, whose numbers a forward may read but no program holds."""
        return [*map(_version, self._reached.tensors), *(a.tobytes() for a in self._reached.arrays)]

    def _numbers(self) -> tuple[Any, ...]:
        parameters = [(_ABOUT_PARAMETERS(p), p.is_contiguous()) for p in self._parameters]
        versions = list(map(_version, self._buffers))
        return any(self._hooks), parameters, versions, [b.item() for b in self._single]


def _moves_vectors(module: nn.Module) -> bool:
    """Return whether a module is torch's spectral norm, each of whose calls moves its two vectors.

    It runs inside graph breaks, where they are read as they are.
    """
    kind = type(module)
    return kind.__name__ == "_SpectralNorm" and is_from(kind, "torch.nn.utils.parametrizations")


def _version(tensor: Tensor) -> tuple[int, int]:
    """Return a tensor's version and address: one put in the place of ``data`` leaves the version."""
    return tensor._version, tensor.data_ptr() if tensor.layout is strided else 0


def options_of(model: nn.Module) -> dict[str, str]:
    """Return what a model was built with, by name and as text, such as ``convs.0.negative_slope``: ``0.2``.

    These are each module's class, its attributes that are plain values, functions, classes, tensors or
    containers of them, and whether a parameter is trained. What a library's classes keep for themselves is
    left out. Ranks compare it before they train one model: parameters of equal shapes do not show it.
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
    """Watches the tensors from which a program's constants were made, by address and version."""

    def __init__(self, graph: Graph, others: Iterable[object] = ()) -> None:
        held: list[object] = [graph.csc.weight, graph.edge_attr, graph.csc.indptr, graph.csc.indices, *others]
        for x in (graph.nodes_of(name).x for name in graph.node_types):
            if isinstance(x, SparseFeatures):
                held += (x.values, x.indices, x.indptr)
            else:
                held += (x.values, x.scale) if isinstance(x, ScaledFeatures) else (x,)
        self._tensors = [t for t in held if isinstance(t, Tensor) and not t.is_inference()]
        self._before = self._now()

    def add(self, tensor: Tensor) -> None:
        """Watch one more tensor, as it is now."""
        self._tensors.append(tensor)
        self._before += self._state_of([tensor])

    def _now(self) -> list[tuple[int, int, bool]]:
        return self._state_of(self._tensors)

    @staticmethod
    def _state_of(tensors: Iterable[Tensor]) -> list[tuple[int, int, bool]]:
        return [(t._version, t.data_ptr() if t.layout is strided else 0, t.requires_grad) for t in tensors]

    def has_changed(self) -> bool:
        """Return whether any tensor was written to or given other memory since this watch was made."""
        return self._now() != self._before

    def wants_gradients(self) -> bool:
        """Return whether any tensor requires gradients."""
        return any(t.requires_grad for t in self._tensors)
