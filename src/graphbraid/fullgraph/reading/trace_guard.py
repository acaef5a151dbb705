"""Guards around traces: they undo what a trace changes, and refuse forwards that a trace would not show."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode

from graphbraid.fullgraph.program import NotLoweredError
from graphbraid.fullgraph.reading.exact import COUNTED
from graphbraid.fullgraph.reading.reached import Reached

# ---- changes of the model, of what it reads and of the random generators

_CHANGEABLE = (dict, list, set, deque)


@contextmanager
def restore_after_trace(model: nn.Module, reached: Reached) -> Iterator[None]:
    """Undo all changes to a model, what it reads and the random generators, and refuse it if there were any.

    Raises:
        NotLoweredError: something changed, so that another call might take another path.
    """
    held = _containers(model, reached)
    looked_up = [(names, {n: names[n] for n in of if n in names}) for names, of in reached.named]
    tensors = [t for t in (*reached.tensors, *model.buffers()) if not t.is_inference()]
    numbers = [(t, t._version, t.detach().clone()) for t in tensors]
    drawn_before = generators()
    drew, changed = False, ""
    try:
        with torch.inference_mode(False), torch.enable_grad(), torch.autocast("cpu", enabled=False):
            yield
    finally:
        drew = put_back(drawn_before)
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
            type(model).__name__,
            "its forward draws random numbers of its own",
            "dropout, which has a form",
            code="draws",
        )
    if changed:
        raise NotLoweredError(
            type(model).__name__,
            f"its forward changes {changed!r}, which its next call may read",
            "a forward without effects",
            code="effects",
        )


def generators() -> tuple[Any, Any, torch.Tensor]:
    """Return the states of Python's, NumPy's and torch's generators of random numbers."""
    return random.getstate(), np.random.get_state(legacy=True), torch.get_rng_state()  # noqa: NPY002


def put_back(before: tuple[Any, Any, torch.Tensor]) -> bool:
    """Restore the generators and return whether anything was drawn."""
    python, numpy, torch_state = generators()
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


# ---- numbers that steps change


class ValueReads(TorchFunctionMode):
    """Notices constants that a trace made of numbers that steps change: of parameters and statistics."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        changing: list[Tensor] = [*model.parameters()]
        changing += [b for name, b in model.named_buffers() if name.endswith(COUNTED)]
        self._changing, self._made = {id(one) for one in changing}, False
        self._name = type(model).__name__

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        is_number = isinstance(out, float | int) and getattr(func, "__name__", "") in _TO_NUMBERS
        if (is_number or isinstance(out, Tensor)) and any(id(one) in self._changing for one in args):
            if is_number:
                raise self._refused()
            self._made = True
        return out

    def check(self, graph: fx.Graph) -> None:
        """Refuse a trace that holds constants, if any may come from such numbers.

        Raises:
            NotLoweredError: it does.
        """
        made = (node for node in graph.nodes if node.op == "get_attr")
        if self._made and any(str(node.target).startswith("_tensor_constant") for node in made):
            raise self._refused()

    def _refused(self) -> NotLoweredError:
        what = "its forward computes with a parameter's or a statistic's numbers apart from its inputs"
        needed = "parameters that are attributes of a module"
        return NotLoweredError(self._name, what, needed, code="reads-values")


_TO_NUMBERS = {"item", "__bool__", "__float__", "__int__", "__index__"}
