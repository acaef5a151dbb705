"""Generated graphs of many edges and no features, as folders of ``indptr.npy`` and ``indices.npy``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from benchmarks.graphs import rmat
from benchmarks.graphs.folder import save_parts
from graphbraid.graph.csc import Csc, index_dtype

EDGES_A_NODE = 24


def make(graphs: Path, num_edges: int) -> Path:
    """The folder of a graph of about so many edges, both directions of each; made if it is not there."""
    folder = graphs / f"topology-{num_edges}"
    if not folder.exists():
        num_nodes = num_edges // EDGES_A_NODE
        src, dst = rmat.draw_edges(num_nodes, num_edges // 2)
        both = np.concatenate((src, dst)), np.concatenate((dst, src))
        del src, dst
        indptr, indices = rmat.compressed(*both, num_nodes)
        save_parts({"indptr": indptr, "indices": indices}, folder)
    return folder


def load(folder: Path) -> Csc:
    """The adjacency of a folder, ids as small as they fit."""
    indptr = torch.from_numpy(np.load(folder / "indptr.npy"))
    num_nodes = indptr.numel() - 1
    indices = torch.from_numpy(np.load(folder / "indices.npy", mmap_mode="r+")).to(index_dtype(num_nodes))
    return Csc(indptr, indices, num_nodes)
