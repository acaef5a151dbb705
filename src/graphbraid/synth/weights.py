"""Weights as a folder with one ``.npy`` file for each parameter: what synthesised programs read and write."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch
from torch import nn

from graphbraid.errors import DataError
from graphbraid.signatures import typed


@typed
def save_weights(model: nn.Module, folder: str | os.PathLike[str]) -> Path:
    """Write a model's parameters to a folder, each to the file of its name; return the folder."""
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    for name, parameter in model.named_parameters():
        np.save(place / f"{name}.npy", parameter.detach().cpu().contiguous().numpy())
    return place


@typed
def load_weights(model: nn.Module, folder: str | os.PathLike[str]) -> None:
    """Read a model's parameters from a folder that :func:`save_weights` or a synthesised program wrote.

    Raises:
        DataError: the file of a parameter is missing, broken, or of another shape or dtype; nothing
            is changed.
    """
    read = {name: _read(Path(folder) / f"{name}.npy", p) for name, p in model.named_parameters()}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(read[name])


def _read(file: Path, parameter: nn.Parameter) -> torch.Tensor:
    try:
        values = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"cannot read the weights {file}: {error}") from error
    if values.shape != tuple(parameter.shape) or values.dtype != np.float32:
        wanted = f"float32 of shape {tuple(parameter.shape)}"
        raise DataError(f"{file} must hold {wanted}; it holds {values.dtype} of shape {values.shape}")
    return torch.from_numpy(values)


__all__ = ["load_weights", "save_weights"]
