"""Random graphs with the sizes, feature widths and densities of well-known data sets (RMAT; no communities).

The same bits everywhere: NumPy's generator from fixed seeds. Labels and splits are drawn, so that there is
nothing to learn; caches, reordering and accuracy must be judged on real graphs instead.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

SEED = 7
QUADRANTS = (0.57, 0.19, 0.19)
"""The chances that an edge's next bits are (0, 0), (0, 1) and (1, 0)."""


@dataclass(frozen=True, kw_only=True)
class Rmat:
    """One graph."""

    num_nodes: int
    num_drawn: int
    """Undirected edges drawn; loops and repeated ones go."""
    num_features: int
    num_classes: int
    train_share: float
    density: float = 1.0
    """Share of the features that are not zero; below 1 they are zeros and ones, at 1 normal numbers."""


SPECS = {
    "corafull-like": Rmat(
        num_nodes=19_793,
        num_drawn=63_421,
        num_features=8710,
        num_classes=70,
        train_share=0.5,
        density=0.0065,
    ),
    "physics-like": Rmat(
        num_nodes=34_493,
        num_drawn=247_962,
        num_features=8415,
        num_classes=5,
        train_share=0.5,
        density=0.0039,
    ),
    "flickr-like": Rmat(
        num_nodes=89_250, num_drawn=449_878, num_features=500, num_classes=7, train_share=0.5, density=0.46
    ),
    "arxiv-like": Rmat(
        num_nodes=169_343, num_drawn=1_166_243, num_features=128, num_classes=40, train_share=0.5
    ),
    "products-lite": Rmat(
        num_nodes=500_000, num_drawn=6_200_000, num_features=100, num_classes=47, train_share=0.08
    ),
    "reddit-lite": Rmat(
        num_nodes=232_965, num_drawn=5_730_794, num_features=602, num_classes=41, train_share=0.6
    ),
    "rmat-1m": Rmat(
        num_nodes=1 << 20, num_drawn=12_000_000, num_features=128, num_classes=64, train_share=0.1
    ),
}


def make(spec: Rmat) -> dict[str, np.ndarray]:
    """The arrays of a graph's folder: equal specs give equal bits."""
    sources, destinations = draw_edges(spec.num_nodes, spec.num_drawn)
    both = np.r_[sources, destinations], np.r_[destinations, sources]
    indptr, indices = compressed(*both, spec.num_nodes)
    draw = np.random.default_rng(SEED + 1)
    return {
        "indptr": indptr,
        "indices": indices,
        "x": draw_features(spec, draw),
        "y": draw.integers(0, spec.num_classes, spec.num_nodes),
        "train_idx": draw.permutation(spec.num_nodes)[: int(spec.train_share * spec.num_nodes)],
    }


def draw_edges(num_nodes: int, num_drawn: int) -> tuple[np.ndarray, np.ndarray]:
    """Sources and destinations, bit by bit; ids are permuted, so that they say nothing of degrees."""
    draw = np.random.default_rng(SEED)
    low_low, low_high, high_low = QUADRANTS
    bits = int(np.ceil(np.log2(num_nodes)))
    sources, destinations = np.zeros(num_drawn, np.int64), np.zeros(num_drawn, np.int64)
    for _ in range(bits):
        chance = draw.random(num_drawn)
        high_source = chance >= low_low + low_high
        high_destination = (chance >= low_low) & ~high_source
        high_destination |= chance >= low_low + low_high + high_low
        sources = 2 * sources + high_source
        destinations = 2 * destinations + high_destination
    new_ids = draw.permutation(1 << bits)
    sources, destinations = new_ids[sources] % num_nodes, new_ids[destinations] % num_nodes
    no_loop = sources != destinations
    return sources[no_loop], destinations[no_loop]


def compressed(
    sources: np.ndarray, destinations: np.ndarray, num_nodes: int
) -> tuple[np.ndarray, np.ndarray]:
    """CSC: ``indptr`` and ``indices`` (int64), each node's sources ascending and distinct."""
    edges = np.unique(destinations * num_nodes + sources)
    indptr = np.zeros(num_nodes + 1, np.int64)
    np.cumsum(np.bincount(edges // num_nodes, minlength=num_nodes), out=indptr[1:])
    return indptr, edges % num_nodes


def draw_features(spec: Rmat, draw: np.random.Generator) -> np.ndarray:
    """``(num_nodes, num_features)`` float32; places of ones may be drawn twice."""
    if spec.density == 1:
        return draw.standard_normal((spec.num_nodes, spec.num_features), dtype=np.float32)
    x = np.zeros((spec.num_nodes, spec.num_features), np.float32)
    x.reshape(-1)[draw.integers(0, x.size, int(spec.density * x.size))] = 1.0
    return x
