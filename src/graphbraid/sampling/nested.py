"""Tensors inside values: a change of each, also of those that stand in lists, dicts and blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from graphbraid.graph.csc import Csc

Change = Callable[[Tensor], Tensor]
"""What is done with each tensor, such as a copy elsewhere."""


def apply_nested(value: Any, change: Change) -> Any:
    """``value`` with ``change`` of each tensor in it; what holds none is given back as it is."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Csc):
        return _changed_csc(value, change)
    if isinstance(value, tuple) and hasattr(value, "_fields"):  # a named tuple takes its parts one by one
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
