"""Reads the graphs the peers are measured on: folders of indptr, indices, x, y, train_idx (.npy).

    python -m benchmarks.graphs web_cnr2000.npz GRAPHS/web_cnr2000

makes such a folder of an npz archive; one without features gets random ones. With --shuffle the nodes' ids
are drawn anew: what is left of a web graph crawled site by site when somebody numbers its pages by a hash.
The name of a generated graph (``benchmarks.gpu_graphs``), such as photo-like, does in place of an archive.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from scipy.sparse import csr_array

from benchmarks import gpu_graphs
from graphbraid import Graph
from graphbraid.datasets.npz import load_npz
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
    """Write the files of a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, values in parts.items():
        np.save(folder / f"{name}.npy", np.asarray(values))


def shuffled(parts: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same graph, features, labels and split, the nodes' ids drawn anew."""
    indptr, indices = parts["indptr"], parts["indices"]
    num_nodes = len(indptr) - 1
    order = np.random.default_rng(0).permutation(num_nodes)
    edges = csr_array(
        (np.ones(len(indices), bool), np.argsort(order)[indices], indptr), (num_nodes, num_nodes)
    )
    rows = edges[order]
    topology = {"indptr": rows.indptr.astype(np.int64), "indices": rows.indices.astype(np.int64)}
    return {**topology, **{name: parts[name][order] for name in ("x", "y", "in_train")}}


def from_npz(source: Path, folder: Path, *, num_features: int = 128, shuffle: bool = False) -> None:
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
    in_train = np.zeros(graph.num_nodes, bool)
    in_train[draw.choice(labelled, int(share * len(labelled)), replace=False)] = True
    indptr, indices = csc.indptr.numpy(), csc.indices.numpy().astype(np.int64)
    parts = {"indptr": indptr, "indices": indices, "x": x, "y": y, "in_train": in_train}
    if shuffle:
        parts = shuffled(parts)
    parts["train_idx"] = parts.pop("in_train").nonzero()[0]
    save_parts(parts, folder)


def main() -> None:
    """Write one folder."""
    parser = argparse.ArgumentParser(description="Writes a graph folder from an npz archive or a generator.")
    parser.add_argument("source", help="an archive's path, or the name of a generated graph")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shuffle", action="store_true", help="draw the nodes' ids anew")
    options = parser.parse_args()
    spec = (gpu_graphs.SPECS | gpu_graphs.OTHERS).get(options.source)
    if spec is None:
        from_npz(Path(options.source), options.folder, shuffle=options.shuffle)
    elif options.shuffle:
        parser.error("a generated graph's ids are random as they are")
    else:
        graph = gpu_graphs.make(options.source, spec)
        save(graph.replace(x=graph.dense_x()), options.folder)


if __name__ == "__main__":
    main()
