"""Checks of single arguments of public calls: numbers in their bounds, and values of the right type.

Each check returns the value it was given, as a plain Python type, so that checking one takes a single line.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Iterable
from decimal import Decimal
from numbers import Integral
from typing import TYPE_CHECKING, Any

from graphbraid.errors import ConfigError, DataError, GraphbraidError, did_you_mean

if TYPE_CHECKING:
    import torch
    from torch import Tensor

MOST_THREADS = 1024
"""Largest number of threads of one kind: more than any machine has cores for."""
MOST_WIDTH = 1 << 24
"""Largest number of columns of a layer."""
MOST_COUNT = (1 << 31) - 1
"""Largest value of any other count."""
MOST_AMOUNT = 1 << 20
"""Largest number of negatives of a link."""
MOST_BYTES = 1 << 60
"""Largest size that a user may give."""
_UNITS = {
    **{f"{prefix}ib": 1 << (10 * power) for power, prefix in enumerate("kmgt", start=1)},
    **{f"{prefix}b": 1000**power for power, prefix in enumerate("kmgt", start=1)},
    "b": 1,
    "": 1,
}
_SIZE = re.compile(rf"(?P<number>\d+(\.\d+)?) *(?P<unit>{'|'.join(_UNITS)})")


def as_count(
    value: Any,
    name: str,
    *,
    least: int = 0,
    most: int = MOST_COUNT,
    error: type[GraphbraidError] = ConfigError,
) -> int:
    """Return ``value`` as an int in ``[least, most]``; NumPy and torch integers are accepted, bool is not.

    Raises:
        GraphbraidError: an ``error``, if ``value`` is not a whole number or is out of bounds.
    """
    is_flag = isinstance(value, bool) or str(getattr(value, "dtype", "")) in ("bool", "torch.bool")
    try:
        count = None if is_flag else operator.index(value)
    except (
        TypeError,
        ValueError,
        RuntimeError,
    ):  # a torch tensor of more than one element raises one of the last two
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
    """Return ``value`` as a finite float in ``[least, most]`` and less than ``below``.

    Raises:
        ConfigError: ``value`` is not a number, is not finite, or is out of bounds.
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


def as_size(value: Any, name: str) -> int:
    """Bytes, given as a whole number or as a text such as ``"4GiB"``, ``"1.5 GB"`` or ``"800 MB"``.

    Raises:
        ConfigError: neither, or less than nothing; or some bytes that are less than one, which are not none.
    """
    if not isinstance(value, str):
        return as_count(value, name, most=MOST_BYTES)
    match = _SIZE.fullmatch(value.strip().lower())
    if match is None:
        raise ConfigError(
            f"{name} must be a number of bytes or a size such as '4GiB' or '800 MB'; got {shown(value)}"
        )
    size = Decimal(match["number"]) * _UNITS[match["unit"]]
    if 0 < size < 1:
        raise ConfigError(f"{name} must be 0 or at least a byte; got {shown(value)}")
    return as_count(int(size), name, most=MOST_BYTES)


def as_budget(value: Any, name: str) -> int:
    """Bytes of memory that something may take, as :func:`as_size`; ``"all"`` is the largest number.

    Whoever asks whether a budget is none must ask this: 0, ``"0"`` and ``"0 GiB"`` are the same.

    Raises:
        ConfigError: likewise.
    """
    return MOST_BYTES if isinstance(value, str) and value == "all" else as_size(value, name)


def as_flag(value: Any, name: str) -> bool:
    """Return ``value`` as a bool; 0, 1 and NumPy's bools and integers are accepted.

    Raises:
        ConfigError: ``value`` is anything else, which Python might silently take for True.
    """
    if isinstance(value, bool):
        return value
    if str(getattr(value, "dtype", "")) == "bool" and not getattr(value, "shape", ()):
        return bool(value)
    if isinstance(value, Integral) and value in (0, 1):
        return bool(value)
    raise ConfigError(f"{name} must be True or False; got {shown(value)}")


def as_device(value: Any, name: str = "device") -> torch.device:
    """Return the torch device that ``value`` is or names.

    Raises:
        ConfigError: ``value`` does not name a device.
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
    """Return :func:`as_device` of ``value``, checking that this machine and this build of torch have it.

    Raises:
        ConfigError: ``value`` does not name a device, or names one that cannot be used here.
    """
    import torch

    device = as_device(value, name)
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError, ImportError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"{name} {str(device)!r} cannot be used here: {reason}") from None
    return device


def check_choice(value: Any, name: str, choices: Iterable[str]) -> None:
    """Raise ConfigError unless ``value`` is one of ``choices``; the message suggests the nearest one."""
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
    """Raise ``error`` unless ``value`` is an instance of ``kind``, which ``wanted`` describes in words."""
    if not isinstance(value, kind):
        raise error(f"{name} must be {wanted}; got {shown(value)}")


def check_tensor(value: Any, name: str, *, ndim: int | None = None, floating: bool = False) -> Tensor:
    """Return ``value`` after checking that it is a dense tensor, and its dimensions and dtype if asked to.

    Args:
        value: the argument.
        name: its name, for messages.
        ndim: number of dimensions it must have. If None, any.
        floating: whether its dtype must be floating point.

    Raises:
        DataError: ``value`` is not such a tensor.
    """
    import torch

    if not isinstance(value, torch.Tensor):
        raise DataError(f"{name} must be a torch.Tensor; got {shown(value)}")
    if value.layout != torch.strided or value.is_meta or value.is_nested or value.is_quantized:
        kind = "on the device 'meta'" if value.is_meta else f"of layout {value.layout}"
        kind = "that is nested or quantized" if value.is_nested or value.is_quantized else kind
        raise DataError(f"{name} must be a dense tensor that holds values; got one {kind}")
    # DLPack drops these flags, so kernels would misread it. torch.compile cannot ask, and carries them out.
    if not torch.compiler.is_dynamo_compiling() and (value.is_neg() or value.is_conj()):
        raise DataError(f"{name} must not be a lazily negated or conjugated view; make it one with .clone()")
    if ndim is not None and value.ndim != ndim:
        raise DataError(f"{name} must have {ndim} dimensions; got shape {tuple(value.shape)}")
    if floating and not value.dtype.is_floating_point:
        raise DataError(f"{name} must be floating point; got {value.dtype}. Convert it with {name}.float()")
    return value


def shown(value: Any) -> str:
    """Describe a value for a message: a short one by its repr, any other by its type and shape."""
    shape = getattr(value, "shape", None)
    if shape is not None and getattr(value, "dtype", None) is not None:
        return f"{type(value).__name__} of {value.dtype} and shape {tuple(shape)}"
    try:
        text = repr(value)
    except Exception:
        return f"a {type(value).__name__}"
    return text if len(text) <= 60 and "\n" not in text else f"a {type(value).__name__}"
