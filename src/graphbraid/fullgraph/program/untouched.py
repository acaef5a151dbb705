"""A guard around traces that restores what they change of a model or the random generators, and refuses."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from graphbraid.fullgraph.program.refusal import NotLoweredError


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Undo all changes to a model and to the random generators, and refuse the model if there were any.

    Raises:
        NotLoweredError: something changed, so that another call might take another path.
    """
    held = [(module, *_held(module)) for module in model.modules()]
    generators = _generators()
    drew, changed = False, ""
    try:
        with torch.inference_mode(False), torch.enable_grad(), torch.autocast("cpu", enabled=False):
            yield
    finally:
        drew = _put_back(generators)
        for module, attributes, contents in held:
            changed = _restored(module, attributes, contents) or changed
    if drew:
        raise NotLoweredError(
            type(model).__name__, "its forward draws random numbers of its own", "dropout, which has a form"
        )
    if changed:
        raise NotLoweredError(
            type(model).__name__, f"its forward changes {changed!r} of a module", "a forward without effects"
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


def _held(module: nn.Module) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the attributes of a module, and copies of those that are containers."""
    attributes = dict(vars(module))
    contents = {k: v.copy() for k, v in attributes.items() if isinstance(v, dict | list | set)}
    return attributes, contents


def _restored(module: nn.Module, attributes: dict[str, Any], contents: dict[str, Any]) -> str:
    """Restore all attributes and return the name of one that had changed; empty if none had."""
    now, changed = vars(module), ""
    for key in now.keys() - attributes.keys():
        del now[key]
        changed = key
    for key, value in attributes.items():
        if key not in now or now[key] is not value:
            now[key] = value
            changed = key
        if key in contents and not _same_contents(value, contents[key]):
            value.clear()
            value.extend(contents[key]) if isinstance(value, list) else value.update(contents[key])
            changed = key
    return changed


def _same_contents(now: Any, before: Any) -> bool:
    if isinstance(now, set):
        return bool(now == before)
    if isinstance(now, dict):
        return list(now) == list(before) and _same_contents(list(now.values()), list(before.values()))
    return len(now) == len(before) and all(a is b for a, b in zip(now, before, strict=True))


__all__ = ["untouched"]
