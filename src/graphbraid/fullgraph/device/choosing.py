"""Choice of the device that a model runs on."""

from __future__ import annotations

import torch
from torch import nn

from graphbraid.arguments import as_device, check_type
from graphbraid.errors import ConfigError
from graphbraid.fullgraph.device.cuda import Cuda
from graphbraid.fullgraph.device.device import Device
from graphbraid.fullgraph.device.host import HOST


def device_for(model: nn.Module, device: Device | torch.device | str | None = None) -> Device:
    """Return the device to run a model on: the one named, or that of its parameters.

    Raises:
        ConfigError: the device does not exist or is of an unsupported type, or the parameters are elsewhere.
    """
    check_type(model, "model", nn.Module, "a torch.nn.Module")
    places = {p.device for p in model.parameters()}
    if isinstance(device, Device):
        chosen = device
    else:
        named = as_device(device) if device is not None else next(iter(places), torch.device("cpu"))
        chosen = device_at(named)
    if elsewhere := [place for place in places if place != chosen.place]:
        raise ConfigError(
            f"the model has parameters on {elsewhere[0]}, but is to run on {chosen.place}; move it there "
            f"first, with model.to({str(chosen.place)!r})"
        )
    return chosen


def device_at(place: torch.device) -> Device:
    """Return the engine's device for a ``torch.device``.

    Raises:
        ConfigError: the device does not exist or is of an unsupported type.
    """
    if place.type == "cpu":
        return HOST
    if place.type != "cuda":
        raise ConfigError(f"full-graph training runs on the CPU and on CUDA devices; got {place}")
    return Cuda(place)


__all__ = ["device_at", "device_for"]
