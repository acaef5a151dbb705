"""Graph folders made of npz archives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from scipy.sparse import csr_array

from benchmarks.graphs.folder import save_parts
from graphbraid.datasets.npz import load_npz


def shuffled(parts: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same graph, features, labels and split, the nodes' ids drawn anew.

    What is left of a web graph crawled site by site when somebody numbers its pages by a hash.
    """
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
    """Write an archive's graph as a folder: both directions of its edges, 60 % of its labels for training.

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
