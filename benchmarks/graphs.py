"""Reads the graphs the peers are measured on: folders of indptr, indices, x, y, train_idx (.npy).

    python -m benchmarks.graphs web_cnr2000.npz GRAPHS/web_cnr2000

makes such a folder of an npz archive that has no features of its own.
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


def from_npz(source: Path, folder: Path, *, num_features: int = 128, train_share: float = 0.25) -> None:
    """Writes a topology-only npz graph as such a folder, with random features, labels and training nodes."""
    topology = load_npz(source).csc
    draw = np.random.default_rng(0)
    parts = {
        "indptr": topology.indptr.numpy(),
        "indices": topology.indices.numpy().astype(np.int64),
        "x": draw.standard_normal((topology.num_src, num_features), dtype=np.float32),
        "y": draw.integers(0, 16, topology.num_src),
        "train_idx": np.sort(
            draw.choice(topology.num_src, int(train_share * topology.num_src), replace=False)
        ),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, values in parts.items():
        np.save(folder / f"{name}.npy", values)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description="Writes a graph folder from an npz archive without features."
    )
    parser.add_argument("source", type=Path)
    parser.add_argument("folder", type=Path)
    from_npz(**vars(parser.parse_args()))
