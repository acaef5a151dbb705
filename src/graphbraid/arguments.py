"""Checks of single arguments of public calls: numbers in their bounds, and values of the right type.

Each gives back what it was given, in plain Python types, so that a check is one line where a value comes in.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from graphbraid.errors import ConfigError, DataError, GraphbraidError, did_you_mean

if TYPE_CHECKING:
    import torch
    from torch import Tensor

MOST_THREADS = 1024
"""Threads of one kind, at most: more than any machine has cores for."""
MOST_WIDTH = 1 << 24
"""Columns of a layer, at most."""
MOST_COUNT = (1 << 31) - 1
"""Of anything that is only counted."""


def as_count(
    value: Any,
    name: str,
    *,
    least: int = 0,
    most: int = MOST_COUNT,
    error: type[GraphbraidError] = ConfigError,
) -> int:
    """A whole number in ``[least, most]``; NumPy's and torch's are taken, bool is not.

    Raises:
        GraphbraidError: of the class ``error``: no whole number, or out of bounds.
    """
    is_flag = isinstance(value, bool) or str(getattr(value, "dtype", "")) in ("bool", "torch.bool")
    try:
        count = None if is_flag else operator.index(value)
    except (
        TypeError,
        ValueError,
        RuntimeError,
    ):  # torch's tensors of more than one number raise the last two
        count = None
    if count is None or not least <= count <= most:
        raise error(f"{name} must be a whole number in [{least}, {most}]; got {shown(value)}")
    return count


def as_number(
    value: Any,
    name: str,
    *,
    least: float = -math.inf,
    most: float = math.inf,
    below: float = math.inf,
) -> float:
    """A finite number in ``[least, most]`` and, unless infinite, less than ``below``.

    Raises:
        ConfigError: no number, not finite, or out of bounds.
    """
    try:
        number = math.nan if isinstance(value, bool | str | bytes) else float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        number = math.nan
    if not (math.isfinite(number) and least <= number <= most and number < below):
        closing = f"{below:g})" if below != math.inf else f"{most:g}]"
        bounds = "finite" if (least, most, below) == (-math.inf, math.inf, math.inf) else None
        wanted = f"a {bounds} number" if bounds else f"a number in [{least:g}, {closing}"
        raise ConfigError(f"{name} must be {wanted}; got {shown(value)}")
    return number


def as_flag(value: Any, name: str) -> bool:
    """True or False; 0, 1 and NumPy's are taken.

    Raises:
        ConfigError: anything else, which would silently count as True.
    """
    if isinstance(value, bool):
        return value
    if str(getattr(value, "dtype", "")) == "bool" and not getattr(value, "shape", ()):
        return bool(value)
    if isinstance(value, int) and value in (0, 1):
        return bool(value)
    raise ConfigError(f"{name} must be True or False; got {shown(value)}")


def as_device(value: Any, name: str = "device") -> torch.device:
    """A torch device, given as it is or by its name.

    Raises:
        ConfigError: it names none.
    """
    import torch

    try:
        if isinstance(value, str | torch.device):
            return torch.device(value)
    except RuntimeError:
        pass
    raise ConfigError(
        f"{name} must be a torch device such as 'cpu' or 'cuda:0'; got {shown(value)}"
    ) from None


def as_present_device(value: Any, name: str = "device") -> torch.device:
    """:func:`as_device`, which this machine and this build of torch have.

    Raises:
        ConfigError: it names none, or one that there is not.
    """
    import torch

    device = as_device(value, name)
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError, ImportError) as error:  # whatever torch raises
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"{name} {str(device)!r} cannot be used here: {reason}") from None
    return device


def check_choice(value: Any, name: str, choices: Iterable[str]) -> None:
    """Raise ConfigError unless ``value`` is one of ``choices``; names the nearest."""
    known = list(choices)
    if not isinstance(value, str) or value not in known:
        raise ConfigError(
            f"{name} must be one of {', '.join(map(repr, known))}; got {shown(value)}."
            + did_you_mean(value, known)
        )


def check_type(
    value: Any,
    name: str,
    kind: type | tuple[type, ...],
    wanted: str,
    *,
    error: type[GraphbraidError] = DataError,
) -> None:
    """Raise ``error`` unless ``value`` is an instance of ``kind``, which ``wanted`` puts in words."""
    if not isinstance(value, kind):
        raise error(f"{name} must be {wanted}; got {shown(value)}")


def check_tensor(value: Any, name: str, *, ndim: int | None = None, floating: bool = False) -> Tensor:
    """A dense tensor of ``ndim`` dimensions, if given, and, where asked for, of floating-point numbers.

    Raises:
        DataError: it is none.
    """
    import torch

    if not isinstance(value, torch.Tensor):
        raise DataError(f"{name} must be a torch.Tensor; got {shown(value)}")
    if value.layout != torch.strided or value.is_meta or value.is_nested or value.is_quantized:
        kind = "on the device 'meta'" if value.is_meta else f"of layout {value.layout}"
        kind = "that is nested or quantized" if value.is_nested or value.is_quantized else kind
        raise DataError(f"{name} must be a dense tensor that holds values; got one {kind}")
    if value.is_neg() or value.is_conj():  # DLPack drops the mark, and kernels would read the other values
        raise DataError(f"{name} must not be a lazily negated or conjugated view; make it one with .clone()")
    if ndim is not None and value.ndim != ndim:
        raise DataError(f"{name} must have {ndim} dimensions; got shape {tuple(value.shape)}")
    if floating and not value.dtype.is_floating_point:
        raise DataError(f"{name} must be floating point; got {value.dtype}. Convert it with {name}.float()")
    return value


def shown(value: Any) -> str:
    """A value as messages show it: short ones as they are, others by type and shape."""
    shape = getattr(value, "shape", None)
    if shape is not None and getattr(value, "dtype", None) is not None:
        return f"{type(value).__name__} of {value.dtype} and shape {tuple(shape)}"
    try:
        text = repr(value)
    except Exception:
        return f"a {type(value).__name__}"
    return text if len(text) <= 60 and "\n" not in text else f"a {type(value).__name__}"
