"""Placement of the arrays that kernels read: on the device, or on the host and read over the link."""

from __future__ import annotations

import torch
from torch import Tensor

from graphbraid.errors import ConfigError, did_you_mean
from graphbraid.sampling.rows.pinning import pinned

PLACEMENTS = ("device", "host")


def check_placement(option: str, placement: str) -> None:
    """Check that a placement is known.

    Raises:
        ConfigError: it is not; the message names the option.
    """
    if placement not in PLACEMENTS:
        raise ConfigError(
            f"{option} must be one of {', '.join(PLACEMENTS)}; got {placement!r}."
            + did_you_mean(placement, PLACEMENTS)
        )


def place(array: Tensor, placement: str, device: torch.device) -> Tensor:
    """Return ``array`` in memory that kernels on ``device`` can read.

    Placement ``device`` copies it to the device. ``host`` keeps it in page-locked memory, which the device
    maps (unified virtual addressing) and Triton's launcher accepts; a large array is page-locked where it
    is, for as long as what is returned, and any other copied once (:func:`pinned`). An array already on the
    device stays there, as on the CPU, where kernels are interpreted.
    """
    if array.device == device:
        return array.contiguous()
    return array.to(device) if placement == "device" else pinned(array.contiguous())


def empty(count: int, dtype: torch.dtype, placement: str, device: torch.device) -> Tensor:
    """Return an uninitialised array of ``count`` numbers where :func:`place` would put it."""
    if device.type == "cpu" or placement == "device":
        return torch.empty(count, dtype=dtype, device=device)
    return torch.empty(count, dtype=dtype, pin_memory=True)
