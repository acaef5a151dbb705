"""Values that operators derive from an object, such as a Csc, once and keep for as long as it lives."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from graphbraid.graph.csc import Csc
from graphbraid.graph.scans import tracing

T = TypeVar("T")
_KEPT: WeakKeyDictionary[Any, dict[Hashable, Any]] = WeakKeyDictionary()


def derived(owner: object, key: Hashable, make: Callable[[], T]) -> T:
    """Return ``make()``, called once per ``owner`` and ``key`` and kept until ``owner`` is garbage.

    While torch traces, nothing is kept: the trace belongs to no owner.

    The result must not refer to ``owner``: that would keep both alive forever.
    """
    if tracing():
        return make()
    kept = _KEPT.get(owner)
    if kept is None:
        kept = _KEPT.setdefault(owner, {})
    if key not in kept:
        kept[key] = make()
    return cast("T", kept[key])


def share(owner: object, other: object, key: Hashable, make: Callable[[], T]) -> None:
    """Share with ``other`` the value that ``owner`` keeps under ``key``; make it first if needed."""
    if not tracing():
        _KEPT.setdefault(other, {})[key] = derived(owner, key, make)


def inverse_degrees(csc: Csc, dtype: torch.dtype) -> Tensor:
    """Return 1 over the in-degree of each destination, ``(num_dst,)``; 1 where the degree is 0."""
    return derived(
        csc, ("inverse_degrees", dtype), lambda: csc.degrees().clamp(min=1).to(dtype).reciprocal_()
    )


def stored_loops(csc: Csc) -> Tensor | None:
    """Return the positions of the stored edges ``v -> v``, or None if there are none."""

    def find() -> Tensor | None:
        loops = (csc.indices == csc.destinations()).nonzero().squeeze(1)
        return loops if loops.numel() else None

    return derived(csc, "stored_loops", find)
