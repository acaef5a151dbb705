"""Reads the graphs the peers are measured on: folders of indptr, indices, x, y, train_idx (.npy).

    python -m benchmarks.graphs web_cnr2000.npz GRAPHS/web_cnr2000

makes such a folder of an npz archive; one without features gets random ones.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch

from graphbraid import Graph
from graphbraid.datasets.npz import load_npz
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


def from_npz(source: Path, folder: Path, *, num_features: int = 128) -> None:
    """Writes an npz graph as such a folder: both directions of its edges, 60 % of its labels for training.

    A graph without features gets random ones, random labels and a quarter of its nodes for training.
    """
    graph = load_npz(source)
    draw = np.random.default_rng(0)
    if graph.x is None or graph.y is None:
        csc, num_nodes = graph.csc, graph.num_nodes
        x = draw.standard_normal((num_nodes, num_features), dtype=np.float32)
        y, labelled, share = draw.integers(0, 16, num_nodes), np.arange(num_nodes), 0.25
    else:
        csc = graph.symmetrized().csc
        x, y, share = graph.dense_x().numpy(), graph.y.numpy(), 0.6
        labelled = (y >= 0).nonzero()[0]
    train = np.sort(draw.choice(labelled, int(share * len(labelled)), replace=False))
    parts = {"indptr": csc.indptr.numpy(), "indices": csc.indices.numpy().astype(np.int64), "x": x, "y": y}
    folder.mkdir(parents=True, exist_ok=True)
    for name, values in {**parts, "train_idx": train}.items():
        np.save(folder / f"{name}.npy", values)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Writes a graph folder from an npz archive.")
    parser.add_argument("source", type=Path)
    parser.add_argument("folder", type=Path)
    from_npz(**vars(parser.parse_args()))
