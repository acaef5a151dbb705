"""Memory that tensors share with NumPy's arrays, which then cannot be written to."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor


def as_shared(array: np.ndarray) -> Tensor:
    """Return a tensor that shares an array's memory, which may be read-only: nothing here writes to it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)


def read_only(values: Tensor) -> np.ndarray:
    """Return an array that shares a tensor's memory and cannot be written to.

    A write through NumPy would change indices of kernels after their check, and torch would not notice.
    """
    array = values.numpy()
    array.flags.writeable = False
    return array


def keep_shared(matrix: Any, *parts: Tensor | None) -> None:
    """Make those arrays of a ``scipy.sparse`` matrix read-only whose memory some tensors share."""
    shared = {one.data_ptr() for one in parts if one is not None and one.numel()}
    for array in (matrix.indptr, matrix.indices, matrix.data):
        if array.ctypes.data in shared:
            array.flags.writeable = False
