"""Graphs with types as folders that every library can read: generated, or from archives.

A folder has ``types.json`` (nodes of each type, relations, type of the seeds), an array ``(2, num_edges)``
int64 for each relation in their order, ``0.npy``, ``1.npy``, ..., and ``seeds.npy``.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from graphbraid.datasets import load_npz
from graphbraid.graph import EdgeType, Graph

MAG = {"paper": 736_389, "author": 1_134_649, "institution": 8_740, "field": 59_965}
"""Nodes of ogbn-mag, whose published counts the generated graph has."""
MAG_EDGES: dict[EdgeType, int] = {
    ("author", "affiliated", "institution"): 1_043_998,
    ("author", "writes", "paper"): 7_145_660,
    ("paper", "cites", "paper"): 5_416_271,
    ("paper", "about", "field"): 7_505_078,
}
SEED_TYPES = {"mag-like": "paper", "het_acm": "paper", "het_dblp": "author", "het_movielens_small": "movie"}


def mag_like(share: float = 1.0) -> Graph:
    """Graph of ogbn-mag's size times ``share``, by nodes and edges; the ends of edges follow a power law."""
    draw = np.random.default_rng(0)
    sizes = {name: max(int(count * share), 1) for name, count in MAG.items()}

    def ends(count: int, most: int) -> npt.NDArray[np.int64]:
        return (most * draw.random(count) ** 2).astype(np.int64)  # density 1 / sqrt(id)

    edges = {
        (src, name, dst): np.stack([ends(int(n * share), sizes[src]), ends(int(n * share), sizes[dst])])
        for (src, name, dst), n in MAG_EDGES.items()
    }
    return Graph.from_relations(edges, sizes).with_reverse_relations()


def make(folder: Path, name: str, data: Path, share: float) -> Path:
    """Write a graph's folder unless it is there; returns it."""
    path = folder / (name if share == 1.0 else f"{name}-{share:g}")
    if (path / "types.json").exists():
        return path
    path.mkdir(parents=True, exist_ok=True)
    graph = mag_like(share) if name == "mag-like" else load_npz(data / f"{name}.npz").with_reverse_relations()
    for number, pairs in enumerate(graph.to_edge_indices().values()):
        np.save(path / f"{number}.npy", pairs.numpy())
    seed_type = SEED_TYPES[name]
    count = graph.nodes_of(seed_type).num_nodes
    np.save(path / "seeds.npy", np.random.default_rng(1).permutation(count))
    sizes = {node_type: graph.nodes_of(node_type).num_nodes for node_type in graph.node_types}
    told = {"num_nodes": sizes, "edge_types": graph.edge_types, "seed_type": seed_type}
    (path / "types.json").write_text(json.dumps(told), encoding="utf-8")
    return path


def read(path: Path) -> tuple[Graph, str, torch.Tensor]:
    """A folder's graph, the type of its seeds, and these."""
    told = json.loads((path / "types.json").read_text(encoding="utf-8"))
    edges = {tuple(one): np.load(path / f"{number}.npy") for number, one in enumerate(told["edge_types"])}
    seeds = torch.from_numpy(np.load(path / "seeds.npy"))
    return Graph.from_relations(edges, told["num_nodes"]), told["seed_type"], seeds
