"""Checks that a module is of an exact class and holds only attributes that its reader handles.

A class is identified by the class object, never by its name alone, since a subclass may do anything. An
instance may hold only attributes whose names and values its reader lists, so that anything new (an option of
a later PyG, a hook, a parametrization, a replaced method) makes a model run as it is written and not wrongly.
"""

from __future__ import annotations

import math
import sys
import types
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.nn.parameter import is_lazy

from graphbraid.arguments import shown
from graphbraid.fullgraph.program import NotLoweredError

Allowed = Callable[[Any], bool]
"""Test of whether a reader handles a value of an attribute."""


def python_value(value: Any) -> Any:
    """Return NumPy's scalars, alone or in a tuple, as Python's equal values, and anything else as it is."""
    if type(value) is tuple:
        return tuple(map(python_value, value))
    return value.item() if isinstance(value, np.generic) else value


def is_plain(value: Any) -> bool:
    """Return whether a value is a dense tensor or parameter of PyTorch's own classes, as it is in memory."""
    is_dense = type(value) in (Tensor, nn.Parameter) and value.layout == torch.strided
    return is_dense and not (value.is_neg() or value._is_zerotensor())


def anything(_: Any) -> bool:
    """Accept any value: the attribute changes nothing, or the reader handles all its values."""
    return True


def flag(value: Any) -> bool:
    """Accept True and False."""
    return type(value) is bool


def count(value: Any) -> bool:
    """Accept integers of at least 1."""
    return type(value) is int and value >= 1


def number(value: Any) -> bool:
    """Accept finite numbers."""
    return type(value) in (int, float) and math.isfinite(value)


def probability(value: Any) -> bool:
    """Accept numbers in ``[0, 1)``."""
    return type(value) in (int, float) and 0 <= value < 1


def one_of(*values: Any) -> Allowed:
    """Return a test that accepts these values, of the same types."""
    return lambda value: any(type(value) is type(v) and value == v for v in values)


def is_identity(value: Any) -> bool:
    """Accept a function that returns its only argument, such as ``lambda x: x``."""
    code = getattr(value, "__code__", None)
    identity = (lambda x: x).__code__
    is_plain = type(value) is types.FunctionType and not value.__defaults__ and not value.__kwdefaults__
    return is_plain and code is not None and (code.co_code, code.co_argcount) == (identity.co_code, 1)


@dataclass(frozen=True)
class Known:
    """The attributes that an instance of a class may hold for its reader to handle it.

    Attributes:
        attributes: tests of the values of plain attributes, by name.
        parameters: names of the parameters; each may be None.
        optional: names that may be a parameter or be absent.
        buffers: names of the buffers; each may be None.
        children: names of the submodules; the reader reads or checks each. If None, any name.
    """

    attributes: Mapping[str, Allowed] = field(default_factory=dict)
    parameters: Collection[str] = ()
    optional: Collection[str] = ()
    buffers: Collection[str] = ()
    children: Collection[str] | None = ()


_BEFORE = "_forward_pre_hooks"
_RUNS_SOMETHING = tuple(f"_{way}{pre}_hooks" for way in ("backward", "forward") for pre in ("", "_pre"))
TORCH_OWN = frozenset(vars(nn.Module()))
_OURS = ("torch", "torch_geometric", "graphbraid")
COUNTED = ("running_mean", "running_var", "num_batches_tracked")
"""Buffers that every step updates and that no program depends on."""
GLOBAL_HOOKS = tuple(f"_global{name}" for name in _RUNS_SOMETHING)


def is_own_method(module: nn.Module, key: str) -> bool:
    """Return whether an instance holds its class's own method, as PyG leaves ``propagate`` behind masks."""
    value = vars(module)[key]
    own = isinstance(value, types.MethodType) and value.__self__ is module
    return own and value.__func__ is getattr(type(module), key, None)


def check_model(model: nn.Module) -> None:
    """Refuse hooks, other parameters and methods of an instance, which a trace of the model would not show.

    Raises:
        NotLoweredError: there is such a thing; the message names the module.
    """
    if any(getattr(torch_module, name, None) for name in GLOBAL_HOOKS):
        raise NotLoweredError(
            type(model).__name__, "a hook is registered for all modules", "a run without that hook"
        )
    for name, parameter in model.named_parameters():
        if is_lazy(parameter):
            raise NotLoweredError(name, "it is made by the model's first run", "a run of the model before")
        if not isinstance(parameter, nn.Parameter):  # torch.func.functional_call has put it there
            raise NotLoweredError(name, f"it is a {type(parameter).__name__}", "a plain torch.nn.Parameter")
    for name, module in model.named_modules():
        part = name or type(module).__name__
        if not computed_weights(module):  # a graph break runs these as they are written
            _refuse_hooks(part, module)
        for key, value in vars(module).items():
            is_method = isinstance(value, types.MethodType | types.FunctionType) and hasattr(
                type(module), key
            )
            if is_method and not is_own_method(module, key):
                raise NotLoweredError(part, f"its {key} replaces that of its class", f"the class's {key}")


def check(name: str, module: nn.Module, known: Known) -> None:
    """Refuse an instance that holds something its reader does not handle.

    Raises:
        NotLoweredError: there is such a thing; the message names it and the module.
    """
    kind = type(module).__name__
    refuse_changed(name, module)
    for key, value in vars(module).items():
        if key in TORCH_OWN or is_own_method(module, key):
            continue
        allowed = known.attributes.get(key)
        if allowed is None:
            raise NotLoweredError(name, f"{kind} has an attribute {key!r} that is not known here")
        if not allowed(python_value(value)):
            raise NotLoweredError(
                name, f"{kind} with {key}={shown(value)} has no lowered form", f"another {key}"
            )
    _check_tensors(name, module, known)
    if known.children is not None and (extra := set(module._modules) - set(known.children)):
        raise NotLoweredError(name, f"{kind} has a module {min(extra)!r} that is not known here")


def is_from(kind: type, home: str) -> bool:
    """Return whether a class is the one that the module ``home`` has under its name."""
    return kind.__module__ == home and getattr(sys.modules.get(home), kind.__name__, None) is kind


def _check_tensors(name: str, module: nn.Module, known: Known) -> None:
    parameters, kind = known.parameters, type(module).__name__
    for key, parameter in module._parameters.items():
        if parameter is None and key == "_edge_mask":  # PyG's, once an explanation has ended
            continue
        if key not in parameters and key not in known.optional:
            raise NotLoweredError(name, f"{kind} has a parameter {key!r} that is not known here")
        if parameter is not None:
            check_parameter(name, key, parameter)
    if extra := set(module._buffers) - set(known.buffers):
        raise NotLoweredError(name, f"{kind} has a buffer {min(extra)!r} that is not known here")
    # A computed weight (weight norm, pruning) is a plain attribute of the instance, not a parameter.
    if missing := [key for key in parameters if key not in module._parameters]:
        raise NotLoweredError(
            name, f"{missing[0]} of {kind} is not a parameter", f"a plain parameter {missing[0]}"
        )


def check_parameter(name: str, key: str, parameter: nn.Parameter) -> None:
    """Refuse anything but a plain parameter of float32 or float64; only matrices may have any strides.

    Raises:
        NotLoweredError: it is something else; the message names it.
    """
    if type(parameter) is not nn.Parameter:
        raise NotLoweredError(name, f"{key} is a {type(parameter).__name__}", "a plain torch.nn.Parameter")
    if parameter.dtype not in (torch.float32, torch.float64) or parameter.layout != torch.strided:
        raise other_dtype(name, key, parameter)
    if parameter.ndim != 2 and not parameter.is_contiguous():
        raise NotLoweredError(name, f"{key} is not contiguous", f"{key}.data = {key}.data.contiguous()")
    if parameter.is_inference():
        raise NotLoweredError(name, f"{key} was made in inference mode", "a model made outside of it")


def other_dtype(name: str, key: str, parameter: nn.Parameter) -> NotLoweredError:
    """Return the error for a parameter of a dtype or layout that no kernel takes."""
    what = str(parameter.dtype).removeprefix("torch.")
    return NotLoweredError(name, f"{key} is {what}, and kernels run in float32", "model.float()")


def runs_something(key: str) -> bool:
    """Return whether an attribute of this name holds hooks that run when the module is called."""
    return key in _RUNS_SOMETHING or (key.endswith("_hooks") and key not in TORCH_OWN)


def computed_weights(module: nn.Module) -> frozenset[str]:
    """Return the names of the weights that hooks of ``torch.nn.utils.weight_norm`` compute in each call.

    Empty if there are none, or the module has any other hook.
    """
    others = (value for key, value in vars(module).items() if key != _BEFORE and runs_something(key))
    hooks = list(vars(module).get(_BEFORE, {}).values())
    norm = getattr(sys.modules.get("torch.nn.utils.weight_norm"), "WeightNorm", None)
    if any(others) or not all(type(hook) is norm for hook in hooks):
        return frozenset()
    return frozenset(hook.name for hook in hooks)


def _refuse_hooks(name: str, module: nn.Module) -> None:
    for key, value in vars(module).items():
        if runs_something(key) and value:
            raise NotLoweredError(name, "it has hooks", "the model without them")


def refuse_changed(name: str, module: nn.Module) -> None:
    """Refuse a module with hooks, or of a class of PyG or torch that had a method replaced.

    Raises:
        NotLoweredError: the module is one.
    """
    _refuse_hooks(name, module)
    for base in type(module).__mro__[:-1]:
        for key, member in vars(base).items():
            home = getattr(member, "__globals__", None)
            if home is not None and str(home.get("__name__", "")).split(".")[0] not in _OURS:
                raise NotLoweredError(name, f"{base.__name__}.{key} was replaced", "the class as it was")
