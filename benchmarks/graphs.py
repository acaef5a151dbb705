"""Reads the graphs the peers are measured on: folders of indptr, indices, x, y, train_idx (.npy)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from graphbraid import Graph
from graphbraid.topology import Csc, index_dtype


def load(folder: Path, *, features: bool = True) -> Graph:
    """The graph of a folder, ids as small as they fit."""
    part = {name: np.load(folder / f"{name}.npy") for name in ("indptr", "indices", "y", "train_idx")}
    num_nodes = len(part["indptr"]) - 1
    indices = torch.from_numpy(part["indices"]).to(index_dtype(num_nodes))
    return Graph(
        csc=Csc(torch.from_numpy(part["indptr"]), indices, num_nodes),
        x=torch.from_numpy(np.load(folder / "x.npy")) if features else None,
        y=torch.from_numpy(part["y"]),
        splits={"train": torch.from_numpy(part["train_idx"])},
        name=folder.name,
    )
