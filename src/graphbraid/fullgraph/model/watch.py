"""Detection of changes of the model or the graph since a program was read from them.

Every call checks, so the check compares by identity in one sweep, which takes tens of microseconds for a
model of a few layers. A value replaced by an equal one counts as a change; the model is then read again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from operator import attrgetter, is_
from typing import Any

from torch import Tensor, nn, strided
from torch.nn.modules import module as torch_module
from torch.nn.parameter import is_lazy

from graphbraid.fullgraph.program.readers.exact import GLOBAL_HOOKS, TORCH_OWN, runs_something
from graphbraid.graph import Graph
from graphbraid.graph.scaled_features import ScaledFeatures
from graphbraid.graph.sparse_features import SparseFeatures

_LIBRARIES = ("torch.", "torch_geometric.", "graphbraid.")
_ABOUT_PARAMETERS = attrgetter("dtype", "requires_grad", "shape")
_END = (object(),)
_COUNTED = ("running_mean", "running_var", "num_batches_tracked")
"""Buffers that every step updates and that no program depends on."""


class Snapshot:
    """The state of a model at one moment; keeps the objects it compares alive."""

    __slots__ = ("numbers", "values")

    def __init__(self, values: tuple[Any, ...], numbers: tuple[Any, ...]) -> None:
        self.values, self.numbers = values, numbers


class ModelWatch:
    """Watches all of a model that decides what calling it computes, except its parameters' values.

    This covers every module's class, attributes, submodules, parameters, mode and hooks, and, one level deep,
    the lists, dicts and plain objects that the user's own modules hold. If a module or container is replaced,
    the sweep notices, and a new watch must be made to look into the new one.
    """

    def __init__(self, model: nn.Module) -> None:
        self._modules = list(model.modules())
        self._dicts: list[dict[str, Any]] = []
        self._lists: list[Any] = []
        self._hooks: list[Any] = [getattr(torch_module, name, {}) for name in GLOBAL_HOOKS]
        for module in self._modules:
            held = vars(module)
            self._dicts += [held, held["_parameters"], held["_modules"], held["_buffers"]]
            self._hooks += [value for key, value in held.items() if runs_something(key)]
            if not type(module).__module__.startswith(_LIBRARIES):
                self._look_into(held)
        self._parameters = [p for p in model.parameters() if not is_lazy(p)]
        named = list(model.named_buffers())
        self._buffers = [b for name, b in named if not name.endswith(_COUNTED) and not b.is_inference()]

    def _look_into(self, held: dict[str, Any]) -> None:
        for key, value in held.items():
            if key in TORCH_OWN:
                continue
            if isinstance(value, dict):
                self._dicts.append(value)
            elif isinstance(value, list):
                self._lists.append(value)
            elif not isinstance(value, Tensor | nn.Module | type) and not callable(value):
                self._dicts.append(getattr(value, "__dict__", {}))

    def now(self) -> Snapshot:
        """Return a snapshot of the model's current state."""
        return Snapshot(tuple(self._values()), self._numbers())

    def is_still(self, seen: Snapshot) -> bool:
        """Return whether the model is unchanged since ``seen``; makes no snapshot, since every step asks."""
        return self._numbers() == seen.numbers and all(map(is_, seen.values, self._values()))

    def _values(self) -> Iterator[Any]:
        """Yield all watched values and an end mark, so that no sequence of values is a prefix of another."""
        return chain(
            map(type, self._modules),
            chain.from_iterable(map(dict.values, self._dicts)),
            chain.from_iterable(self._lists),
            _END,
        )

    def _numbers(self) -> tuple[Any, ...]:
        parameters = list(map(_ABOUT_PARAMETERS, self._parameters))
        return any(self._hooks), parameters, [b._version for b in self._buffers]


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


__all__ = ["GraphWatch", "ModelWatch", "Snapshot"]
