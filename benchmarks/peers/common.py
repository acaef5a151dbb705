"""What the peers' scripts share: a graph's folder, peak memory. Needs PyTorch and NumPy, nothing of ours."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

PARTS = ("indptr", "indices", "x", "y", "train_idx")


def read_graph(folder: Path) -> dict[str, Tensor]:
    """A graph's folder in memory: ``indptr``, ``indices`` (CSC, int64), ``x``, ``y``, ``train_idx``."""
    return {name: torch.from_numpy(np.load(folder / f"{name}.npy")) for name in PARTS}


def edge_index(graph: dict[str, Tensor]) -> Tensor:
    """``(2, num_edges)`` int64, sources above destinations, as PyG takes edges."""
    degrees = graph["indptr"].diff()
    return torch.stack([graph["indices"], torch.repeat_interleave(torch.arange(degrees.numel()), degrees)])


def peak_gb() -> float:
    """Peak resident memory of this process so far, in GB.

    Not from getrusage, whose peak a process inherits from the one that started it.
    """
    with Path("/proc/self/status").open() as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) * 1024 / 1e9


def median(values: list[float]) -> float:
    """The middle one, of an even number the upper of both."""
    return sorted(values)[len(values) // 2]
