"""Weights as a folder with a ``.npy`` file for each of a model's tensors, as programs read and write them."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from graphbraid.datasets.npy import read_npy
from graphbraid.errors import DataError
from graphbraid.files.writing import atomic_write
from graphbraid.signatures import typed


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors that training changes, by name: parameters and batch norm's running statistics.

    Raises:
        DataError: a name has other characters than letters, digits, ``_``, ``-`` and ``.``, so no file can
            have it.
    """
    found: dict[str, Tensor] = dict(model.named_parameters())
    for path, module in model.named_modules():
        if isinstance(module, nn.BatchNorm1d):
            prefix = f"{path}." if path else ""
            found |= {prefix + name: buffer for name, buffer in module.named_buffers(recurse=False)}
    if wrong := [name for name in found if not re.fullmatch(r"[\w.-]+", name)]:
        raise DataError(f"weights need names of letters, digits, _, - and .; rename {wrong[0]!r}")
    return found


@typed
def save_weights(model: nn.Module, folder: str | os.PathLike[str]) -> Path:
    """Write a model's weights to a folder, one file for each; return the folder.

    The weights are the parameters and the running statistics of batch normalisation.

    Raises:
        DataError: the place of the folder is taken by a file, or a weight's name cannot name a file.
        ResourceError: a file cannot be written.
    """
    place, weights = Path(folder), weights_of(model)
    try:
        place.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise DataError(f"cannot write weights to {place}: it or one of its parents is no folder") from error
    for name, weight in weights.items():
        with atomic_write(place / f"{name}.npy") as temporary, temporary.open("wb") as file:
            np.save(file, weight.detach().cpu().contiguous().numpy())
    return place


@typed
def load_weights(model: nn.Module, folder: str | os.PathLike[str]) -> None:
    """Read a model's weights from a folder that :func:`save_weights` or a synthesised program wrote.

    Raises:
        DataError: the file of a weight is missing, broken, or of another shape or dtype; nothing is
            changed.
    """
    weights = weights_of(model)
    read = {name: _read(Path(folder) / f"{name}.npy", weight) for name, weight in weights.items()}
    with torch.no_grad():
        for name, weight in weights.items():
            weight.copy_(read[name])


def _read(file: Path, weight: Tensor) -> Tensor:
    values = read_npy(file)
    dtype = str(weight.dtype).removeprefix("torch.")
    if values.shape != tuple(weight.shape) or values.dtype != dtype:
        wanted = f"{dtype} of shape {tuple(weight.shape)}"
        raise DataError(f"{file} must hold {wanted}; it holds {values.dtype} of shape {values.shape}")
    return torch.from_numpy(values)
