"""Embedded datasets: generated on first use, then opened from a cache on disk."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import shutil

from graphbraid.datasets.blockmodel import BlockModel, generate
from graphbraid.datasets.memory import GENERATED_EDGE_BYTES, require_memory
from graphbraid.datasets.store.on_disk import open_store, save_store
from graphbraid.errors import ConfigError, DataError, ResourceError
from graphbraid.files.caches import cache_folder
from graphbraid.graph import Graph
from graphbraid.signatures import typed

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
"""Parameters of each embedded dataset; the number in the name is that of directed edges."""

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
