"""A guard around traces that restores what they change of a model or the random generators, and refuses."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from graphbraid.fullgraph.program.reached import Reached
from graphbraid.fullgraph.program.refusal import NotLoweredError

_CHANGEABLE = (dict, list, set, deque)


@contextmanager
def untouched(model: nn.Module, reached: Reached) -> Iterator[None]:
    """Undo all changes to a model, what it reads and the random generators, and refuse it if there were any.

    Raises:
        NotLoweredError: something changed, so that another call might take another path.
    """
    held = _containers(model, reached)
    looked_up = [(names, {n: names[n] for n in of if n in names}) for names, of in reached.named]
    tensors = [t for t in (*reached.tensors, *model.buffers()) if not t.is_inference()]
    numbers = [(t, t._version, t.detach().clone()) for t in tensors]
    generators = _generators()
    drew, changed = False, ""
    try:
        with torch.inference_mode(False), torch.enable_grad(), torch.autocast("cpu", enabled=False):
            yield
    finally:
        drew = _put_back(generators)
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
    if drew:
        raise NotLoweredError(
            type(model).__name__, "its forward draws random numbers of its own", "dropout, which has a form"
        )
    if changed:
        raise NotLoweredError(
            type(model).__name__,
            f"its forward changes {changed!r}, which its next call may read",
            "a forward without effects",
        )


def _generators() -> tuple[Any, Any, torch.Tensor]:
    return random.getstate(), np.random.get_state(legacy=True), torch.get_rng_state()  # noqa: NPY002


def _put_back(before: tuple[Any, Any, torch.Tensor]) -> bool:
    """Restore the generators and return whether anything was drawn."""
    python, numpy, torch_state = _generators()
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
    """Give a container its contents back; return the name, else the class, of what had changed."""
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


__all__ = ["untouched"]
