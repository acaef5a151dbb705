"""Applying a function to every tensor in a value, including those in lists, tuples, dicts and blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from graphbraid.graph.csc import Csc

Change = Callable[[Tensor], Tensor]
"""Function applied to each tensor, such as a copy to another device."""


def apply_nested(value: Any, change: Change) -> Any:
    """Return ``value`` with ``change`` applied to each tensor in it; all else is returned as it is."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Csc):
        return _changed_csc(value, change)
    if isinstance(value, tuple) and hasattr(value, "_fields"):  # named tuples take separate fields
        return type(value)(*(apply_nested(part, change) for part in value))
    if isinstance(value, list | tuple):
        return type(value)(apply_nested(part, change) for part in value)
    if isinstance(value, dict):
        return {name: apply_nested(part, change) for name, part in value.items()}
    return value


def _changed_csc(csc: Csc, change: Change) -> Csc:
    weight, degree, loop = (
        None if array is None else change(array) for array in (csc.weight, csc.src_degree, csc.src_loop)
    )
    return Csc(
        change(csc.indptr),
        change(csc.indices),
        csc.num_src,
        weight,
        src_degree=degree,
        src_loop=loop,
        trusted=True,
    )
