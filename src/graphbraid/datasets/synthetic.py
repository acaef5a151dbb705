"""Embedded datasets: made by a degree-corrected stochastic block model on first use, then kept in a cache.

Nodes are grouped into blocks, and blocks into classes. Node ``v`` has ``s_v`` stubs, where ``s`` follows a
power law with exponent 7/3 (weights ``u^(-3/4)`` of uniform ``u``, capped). Each stub makes one undirected
edge: with probability ``in_block`` into its own block, with ``in_class`` into its own class, else anywhere.
The other end is the owner of a stub drawn uniformly from there, so degrees follow the stubs. Self-loops and
repeated edges are dropped.

A node's features are the centre of its class plus noise that is larger than the distance between centres,
and a share of the labels is wrong on purpose, so that the best possible accuracy is known and below 1.

Everything comes from the counter RNG (``mix(key + i·φ)``) and integer or exactly rounded arithmetic, so a
spec gives the same bits on every machine, variant and number of threads. The C++ kernels draw edges and
features; without them the NumPy twins in this file do.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from graphbraid import native
from graphbraid.datasets.ids import sorted_unique
from graphbraid.datasets.npy import GENERATED_EDGE_BYTES, require_memory
from graphbraid.datasets.splits import draws, stream_key
from graphbraid.datasets.store.on_disk import open_store, save_store
from graphbraid.errors import ConfigError, DataError, ResourceError
from graphbraid.files.opening import cache_folder
from graphbraid.graph import Graph
from graphbraid.graph.csc import Csc
from graphbraid.ops.rng import PHI
from graphbraid.signatures import typed

_Array = npt.NDArray[Any]

_BLOCK, _WEIGHT, _EDGE, _CENTRE, _NOISE, _LABEL, _SPLIT = range(7)  # purposes of a key
_TWIN_CHUNK = 1 << 20  # draws per chunk, which bounds the twins' temporaries
_LOW_HALVES = np.uint64(0x0000FFFF0000FFFF)  # of both 32-bit halves
FEATURE_UNIT = 1 << 15  # features are whole multiples of 1 / FEATURE_UNIT


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockModel:
    """Parameters of a graph to generate; equal specs give equal bits."""

    num_nodes: int
    num_edges: int
    """Number of directed edges (both directions) to draw; about 5 %, loops and repeats, are dropped."""
    num_classes: int
    blocks_per_class: int
    num_features: int
    in_block: float = 0.3
    """Probability that a stub's edge stays in its block."""
    in_class: float = 0.2
    """Probability that the edge's other end is drawn from the whole class instead."""
    signal: float = 0.45
    """Largest coordinate of a class centre, uniform in [-signal, signal]; the noise has deviation 1.15."""
    label_noise: float = 0.1
    """Share of the labels that are redrawn from all classes."""
    train_share: float = 0.2
    val_share: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        """Raise ConfigError that names the first invalid field."""
        for field in ("num_nodes", "num_edges", "num_classes", "blocks_per_class", "num_features"):
            if getattr(self, field) < 1:
                raise ConfigError(f"{field} must be at least 1; got {getattr(self, field)}")
        if self.num_nodes < self.num_classes * self.blocks_per_class or self.num_nodes > 2**31 - 1:
            raise ConfigError(
                "num_nodes must lie between the number of blocks "
                f"({self.num_classes * self.blocks_per_class}) "
                f"and 2**31 - 1; got {self.num_nodes}"
            )
        if not 2 * self.num_nodes <= self.num_edges < 2**33:
            raise ConfigError(
                f"num_edges must be at least twice num_nodes ({2 * self.num_nodes}), for every "
                "node starts an edge, "
                f"and below 2**33; got {self.num_edges}"
            )
        for names in (("in_block", "in_class"), ("train_share", "val_share"), ("label_noise",)):
            shares = [getattr(self, name) for name in names]
            if min(shares) < 0 or sum(shares) > 1:
                raise ConfigError(f"{' + '.join(names)} must be shares of one; got {shares}")
        if not 0 <= self.signal <= 100:
            raise ConfigError(f"signal must lie in [0, 100]; got {self.signal}")
        if not 0 <= self.seed < 1 << 64:
            raise ConfigError(f"seed must fit 64 bits without a sign; got {self.seed}")

    @property
    def nbytes(self) -> int:
        """Approximate size of the graph in bytes, in memory or stored."""
        return 4 * self.num_edges + self.num_nodes * (8 + 4 * self.num_features + 8 + 8)


@dataclass(frozen=True, slots=True)
class _Stubs:
    """Input of the edge kernel; see ``csrc/graph/blockmodel.cpp``."""

    owner: _Array
    block_start: _Array
    blocks_per_class: int
    in_block: int
    in_class: int
    key: int
    num_nodes: int


def generate(spec: BlockModel, name: str = "") -> Graph:
    """Generate the graph of ``spec``: undirected (both directions stored), rows sorted, no loops, no repeats.

    Returns:
        A graph with int32 ``indices``, float32 ``x``, int64 ``y`` and the splits train, val and test, which
        together hold all nodes.
    """
    graph, parts = generate_in_parts(spec, name, rows_in_part=spec.num_nodes)
    return graph.replace(x=next(parts))


def generate_in_parts(
    spec: BlockModel, name: str = "", *, rows_in_part: int = 1 << 16
) -> tuple[Graph, Iterator[Tensor]]:
    """Generate the graph of ``spec`` without features, and these in parts, so that they may exceed memory.

    Returns:
        The graph of :func:`generate` without ``x``, and an iterator over the rows of its ``x`` in parts. Each
        part has ``rows_in_part`` rows; the last one has the rest.
    """
    block = _choose(draws(_key(spec, _BLOCK), spec.num_nodes), spec.num_classes * spec.blocks_per_class)
    class_of = (block // spec.blocks_per_class).astype(np.int32)
    indptr, indices = draw_csc(_stubs(spec, block))
    graph = Graph(
        csc=Csc(indptr, indices, spec.num_nodes, trusted=True),
        y=torch.from_numpy(_labels(spec, class_of)),
        splits=_splits(spec),
        name=name,
    )
    centre, key = _centres(spec), _key(spec, _NOISE)
    parts = (
        draw_features(class_of[first : first + rows_in_part], centre, key, first)
        for first in range(0, spec.num_nodes, rows_in_part)
    )
    return graph, parts


def draw_csc(stubs: _Stubs) -> tuple[Tensor, Tensor]:
    """Draw the edges, by the kernel or its twin; return ``indptr`` (int64) and ``indices`` (int32)."""
    kernels = native.kernels()
    if kernels is None:
        return reference_csc(stubs)
    indptr, indices = kernels.block_model_csc(
        torch.from_numpy(stubs.owner),
        torch.from_numpy(stubs.block_start),
        stubs.blocks_per_class,
        stubs.in_block,
        stubs.in_class,
        stubs.key,
        stubs.num_nodes,
    )
    return indptr, indices


def draw_features(class_of: _Array, centre: _Array, key: int, first: int = 0) -> Tensor:
    """Draw ``(len(class_of), num_features)`` float32 features, of nodes from ``first`` on."""
    key = (key + first * centre.shape[1] * PHI) % (1 << 64)  # draw i of it is draw first * width + i
    kernels = native.kernels()
    if kernels is None:
        return reference_features(class_of, centre, key)
    out = torch.empty(len(class_of), centre.shape[1])
    kernels.block_model_features(torch.from_numpy(class_of), torch.from_numpy(centre), key, out)
    return out


def reference_csc(stubs: _Stubs) -> tuple[Tensor, Tensor]:
    """Draw the edges; the twin of the edge kernel."""
    num_stubs = len(stubs.owner)
    pairs = [_edges(stubs, at, min(at + _TWIN_CHUNK, num_stubs)) for at in range(0, num_stubs, _TWIN_CHUNK)]
    u, v = (np.concatenate(ends) for ends in zip(*pairs, strict=True))
    codes = sorted_unique(np.concatenate([u * stubs.num_nodes + v, v * stubs.num_nodes + u]))
    indptr = np.zeros(stubs.num_nodes + 1, np.int64)
    np.cumsum(np.bincount(codes // stubs.num_nodes, minlength=stubs.num_nodes), out=indptr[1:])
    return torch.from_numpy(indptr), torch.from_numpy((codes % stubs.num_nodes).astype(np.int32))


def _edges(stubs: _Stubs, first: int, last: int) -> tuple[_Array, _Array]:
    """Return both ends (int64) of the edges of the stubs in ``[first, last)``, without loops."""
    at = np.arange(first, last)
    block = np.searchsorted(stubs.block_start, at, side="right") - 1
    bits = draws(stubs.key, 2 * (last - first), 2 * first)
    where, which = bits[0::2] >> np.uint64(32), bits[1::2]
    own_class = block // stubs.blocks_per_class * stubs.blocks_per_class
    ranges = [(block, block + 1), (own_class, own_class + stubs.blocks_per_class)]
    low, high = np.zeros(len(at), np.int64), np.full(len(at), len(stubs.owner))
    for taken, (start, end) in ((where < stubs.in_class, ranges[1]), (where < stubs.in_block, ranges[0])):
        low = np.where(taken, stubs.block_start[start], low)
        high = np.where(taken, stubs.block_start[end], high)
    u = stubs.owner[first:last].astype(np.int64)
    v = stubs.owner[low + _choose(which, high - low)].astype(np.int64)
    return u[u != v], v[u != v]


def reference_features(class_of: _Array, centre: _Array, key: int) -> Tensor:
    """Draw the features; the twin of the feature kernel."""
    width = centre.shape[1]
    out = np.empty((len(class_of), width), np.float32)
    rows = max(1, _TWIN_CHUNK // width)
    for first in range(0, len(class_of), rows):
        chunk = out[first : first + rows]
        bits = draws(key, chunk.size, first * width)
        # A draw is four 16-bit parts. Two sums of two parts fit the halves of 32 bits, so nothing is carried.
        pairs = (bits & _LOW_HALVES) + ((bits >> np.uint64(16)) & _LOW_HALVES)
        parts = pairs.view(np.uint32).reshape(*chunk.shape, 2)
        noise = (parts[..., 0] + parts[..., 1]).astype(np.int32) - 2 * 65535
        chunk[:] = (noise + centre[class_of[first : first + rows]]).astype(np.float32) / FEATURE_UNIT
    return torch.from_numpy(out)


def _stubs(spec: BlockModel, block: _Array) -> _Stubs:
    num_blocks = spec.num_classes * spec.blocks_per_class
    order = np.argsort(block.astype(np.uint16 if num_blocks < 1 << 16 else np.int64), kind="stable")
    counts = _stub_counts(spec)
    block_start = np.zeros(num_blocks + 1, np.int64)
    np.cumsum(np.bincount(block, weights=counts, minlength=num_blocks).astype(np.int64), out=block_start[1:])
    return _Stubs(
        owner=np.repeat(order.astype(np.int32), counts[order]),
        block_start=block_start,
        blocks_per_class=spec.blocks_per_class,
        in_block=int(spec.in_block * 2**32),
        in_class=int((spec.in_block + spec.in_class) * 2**32),
        key=_key(spec, _EDGE),
        num_nodes=spec.num_nodes,
    )


def _stub_counts(spec: BlockModel) -> _Array:
    """Return ``(num_nodes,)`` int64 stubs per node: a power law from 1 up, in sum about ``num_edges / 2``."""
    u = ((draws(_key(spec, _WEIGHT), spec.num_nodes) >> np.uint64(32)) + np.uint64(1)) / 2.0**32
    # u^(-3/4) from square roots, which IEEE 754 rounds exactly; pow differs between machines.
    # The cap keeps a hub's degree below about 10 sqrt(num_nodes) times the mean.
    weight = np.minimum(1 / (np.sqrt(u) * np.sqrt(np.sqrt(u))), 2 * np.sqrt(spec.num_nodes))
    units = (weight * 65536).astype(np.int64)
    total = int(units.sum())
    counts: _Array = np.maximum((units * (spec.num_edges // 2) + total // 2) // total, 1)
    return counts


def _centres(spec: BlockModel) -> _Array:
    """Draw ``(num_classes, num_features)`` int32 class centres in units of ``1 / FEATURE_UNIT``."""
    bound = int(spec.signal * FEATURE_UNIT)
    bits = draws(_key(spec, _CENTRE), spec.num_classes * spec.num_features)
    return (
        (_choose(bits, 2 * bound + 1) - bound).astype(np.int32).reshape(spec.num_classes, spec.num_features)
    )


def _labels(spec: BlockModel, class_of: _Array) -> _Array:
    """Return ``(num_nodes,)`` int64 labels: the class, or a random one for a share of ``label_noise``."""
    bits = draws(_key(spec, _LABEL), spec.num_nodes)
    other = ((bits & np.uint64(0xFFFFFFFF)) * np.uint64(spec.num_classes)) >> np.uint64(32)
    wrong = (bits >> np.uint64(32)) < int(spec.label_noise * 2**32)
    return np.where(wrong, other.astype(np.int64), class_of.astype(np.int64))


def _splits(spec: BlockModel) -> dict[str, Tensor]:
    bits = draws(_key(spec, _SPLIT), spec.num_nodes) >> np.uint64(32)
    train = bits < int(spec.train_share * 2**32)
    held = bits < int((spec.train_share + spec.val_share) * 2**32)
    masks = {"train": train, "val": held & ~train, "test": ~held}
    return {split: torch.from_numpy(np.flatnonzero(mask)) for split, mask in masks.items() if mask.any()}


def _key(spec: BlockModel, purpose: int) -> int:
    return stream_key(spec.seed, purpose + 1)


def _choose(bits: _Array, below: _Array | int) -> _Array:
    """Map the high 32 bits of each draw to an int64 in ``[0, below)``."""
    return (((bits >> np.uint64(32)) * np.asarray(below).astype(np.uint64)) >> np.uint64(32)).astype(np.int64)


GENERATOR_VERSION = 1  # part of a cached graph's name; raise it if the same spec gives other bits

EMBEDDED: dict[str, BlockModel] = {
    "braid-10k": BlockModel(
        num_nodes=1_000, num_edges=11_000, num_classes=4, blocks_per_class=1, num_features=32
    ),
    "braid-100k": BlockModel(
        num_nodes=5_000, num_edges=111_500, num_classes=8, blocks_per_class=1, num_features=64
    ),
    "braid-2m": BlockModel(
        num_nodes=100_000, num_edges=2_100_000, num_classes=16, blocks_per_class=6, num_features=64
    ),
    "braid-20m": BlockModel(
        num_nodes=1_000_000, num_edges=21_100_000, num_classes=16, blocks_per_class=60, num_features=64
    ),
    "braid-100m": BlockModel(
        num_nodes=5_000_000, num_edges=105_500_000, num_classes=16, blocks_per_class=300, num_features=64
    ),
}
"""Parameters of each embedded dataset; the number in the name is the number of directed edges."""

DEFAULT = "braid-2m"
"""Name of the default dataset: 100,000 nodes, 2 million edges."""

_log = logging.getLogger(__name__)


@typed
def load_embedded(name: str, *, seed: int = 0, mmap: bool = True, cache: bool = True) -> Graph:
    """Generate an embedded dataset, or open it from the cache if it was generated before.

    Several processes may load the same one at once: none sees an incomplete copy, and one copy is kept.

    Args:
        name: A key of :data:`EMBEDDED`.
        seed: Seed of the generator; another seed gives another graph with the same statistics.
        mmap: Map the cached arrays instead of reading them.
        cache: Whether to keep the graph in the cache; if False, it is generated in memory. If the cache
            cannot be written, a warning is logged and the graph is returned from memory.

    Raises:
        ConfigError: No embedded dataset has that name.
    """
    if name not in EMBEDDED:
        raise ConfigError(f"no embedded dataset is called {name!r}; there are {', '.join(EMBEDDED)}")
    spec = dataclasses.replace(EMBEDDED[name], seed=seed)
    needed = spec.num_edges * GENERATED_EDGE_BYTES + 4 * spec.num_nodes * spec.num_features
    if not cache:
        require_memory(needed, f"generating {name}")
        return generate(spec, name)
    folder = cache_folder("datasets") / f"{name}-{_digest(spec)}"
    if folder.exists():
        try:
            return open_store(folder, mmap=mmap)
        except (DataError, ResourceError) as error:
            _log.warning("%s in the cache %s is broken and is generated again: %s", name, folder, error)
            shutil.rmtree(folder, ignore_errors=True)
    require_memory(needed, f"generating {name}")
    graph = generate(spec, name)
    try:
        save_store(graph, folder, if_exists="keep")
    except ResourceError as error:
        _log.warning("%s could not be cached and will be generated again next time: %s", name, error)
        return graph
    del graph  # before the stored copy is read
    return open_store(folder, mmap=mmap)


def _digest(spec: BlockModel) -> str:
    text = json.dumps({"generator": GENERATOR_VERSION, **dataclasses.asdict(spec)}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
