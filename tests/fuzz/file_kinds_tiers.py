"""The kinds of files that are read by parts: stores behind tiers, the parts of a partition, weights."""

from pathlib import Path
from typing import Any

import torch
from tests.fuzz.file_kinds import KINDS, FileKind
from tests.fuzz.targets_distributed import saved, saved_use
from tests.fuzz.world import NODES, World

from graphbraid import datasets, distributed, features, synth
from graphbraid.graph import Graph
from graphbraid.loader import NeighborLoader


def _write_store(f: Path, w: World) -> None:
    """Features of several blocks, so that a read is one of some of them."""
    x = torch.arange(NODES * 256, dtype=torch.float32).view(NODES, 256)
    datasets.save_store(w.plain_graph.replace(x=x), f / "s")


def _opened(f: Path) -> Graph:
    """Opened without a look at the arrays, as a store is that was verified before: reads must notice."""
    return datasets.open_store(f / "s", verify=False)


def _rows(f: Path) -> Any:
    return features.TieredFeatures.build(_opened(f), host=0).gather(torch.arange(NODES))


def _some_rows_kept(f: Path) -> Any:
    tiers = features.TieredFeatures.build(_opened(f), host="all")
    return tiers.gather(torch.arange(NODES).flip(0))


def _batches(f: Path) -> Any:
    graph = _opened(f)
    tiers = features.HostTiers.build(graph, host=0)
    loader = NeighborLoader(
        graph,
        [-1, -1],
        torch.arange(20),
        batch_size=8,
        shuffle=False,
        tiers=tiers.features,
        topology=tiers.topology,
    )
    return [[batch.n_id, batch.x] for batch in loader.batches(0)]


# The other arrays are mapped, and only an open that verifies compares them.
_BY_BLOCKS = ("x.npy", "x_sums.npy")
KINDS["store behind tiers"] = FileKind(
    _write_store,
    {"rows": _rows, "rows kept": _some_rows_kept},
    is_damaged=lambda path: path.name in _BY_BLOCKS,
)
KINDS["store behind tiers of lists"] = FileKind(
    _write_store,
    {"batches": _batches},
    is_damaged=lambda path: path.name in (*_BY_BLOCKS, "indices.npy", "indices_sums.npy"),
)


# ---- partitions


def _all_parts(f: Path) -> Any:
    return saved_use(distributed.SavedPartition(f / "p", World().graph))


def _one_part(f: Path) -> Any:
    part = distributed.SavedPartition(f / "p").part(1)
    return [part.owned, part.halo, part.send, part.joined()]


KINDS["partition"] = FileKind(
    lambda f, w: saved(w, f / "p") and None,
    {"SavedPartition": _all_parts, "part": _one_part},
    is_damaged=lambda path: path.suffix != ".svg",
)


# ---- weights of synthesised programs, which have no checksums: a changed number is another weight


def _weights(f: Path) -> Any:
    model = World().model("gcn")
    synth.load_weights(model, f / "w")
    return [list(parameter.shape) for parameter in model.parameters()]


KINDS["weights of a program"] = FileKind(
    lambda f, w: synth.save_weights(w.model("gcn"), f / "w") and None, {"load_weights": _weights}
)
