"""A graph as a folder of arrays, which the peers read too."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from graphbraid import Graph
from graphbraid.graph.csc import Csc, index_dtype


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


def save(graph: Graph, folder: Path) -> None:
    """Write a graph with dense features as such a folder."""
    assert isinstance(graph.x, torch.Tensor)
    assert graph.y is not None
    csc, indices = graph.csc, graph.csc.indices.to(torch.int64)
    parts = {"indptr": csc.indptr, "indices": indices, "x": graph.x, "y": graph.y}
    save_parts({**parts, "train_idx": graph.split("train")}, folder)


def save_parts(parts: Mapping[str, np.ndarray | torch.Tensor], folder: Path) -> None:
    """Write the files of a folder: all of them, or no folder."""
    begun = folder.with_name(f"{folder.name}.begun")
    shutil.rmtree(begun, ignore_errors=True)
    begun.mkdir(parents=True)
    for name, values in parts.items():
        np.save(begun / f"{name}.npy", np.asarray(values))
    shutil.rmtree(folder, ignore_errors=True)
    begun.rename(folder)
