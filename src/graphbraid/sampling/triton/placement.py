"""Placement: where the arrays that kernels read lie: on the device, or on the host, read over the link."""

from __future__ import annotations

import torch
from torch import Tensor

from graphbraid.errors import ConfigError, did_you_mean

PLACEMENTS = ("device", "host")


def check_placement(option: str, placement: str) -> None:
    """Refuse an unknown placement.

    Raises:
        ConfigError: names the option.
    """
    if placement not in PLACEMENTS:
        raise ConfigError(
            f"{option} must be one of {', '.join(PLACEMENTS)}; got {placement!r}."
            + did_you_mean(placement, PLACEMENTS)
        )


def place(array: Tensor, placement: str, device: torch.device) -> Tensor:
    """``array`` where kernels of ``device`` can read it.

    ``device`` copies it there. ``host`` gives page-locked memory, which the device maps (unified virtual
    addressing) and Triton's launcher takes as it is; an array that is not page-locked is copied once. What is
    on the device already stays there: on the CPU, where kernels are interpreted, it is the array itself.
    """
    if array.device == device:
        return array.contiguous()
    return array.to(device) if placement == "device" else array.contiguous().pin_memory()


def empty(count: int, dtype: torch.dtype, placement: str, device: torch.device) -> Tensor:
    """An array of so many numbers where :func:`place` would put it."""
    if device.type == "cpu" or placement == "device":
        return torch.empty(count, dtype=dtype, device=device)
    return torch.empty(count, dtype=dtype, pin_memory=True)
