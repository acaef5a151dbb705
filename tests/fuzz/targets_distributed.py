"""Partitions: made, cut into parts, saved and read."""

from pathlib import Path
from typing import Any

import torch
from tests.fuzz.targets import Call, add
from tests.fuzz.world import NODES, World

from graphbraid import distributed


def partition_of(w: World) -> distributed.Partition:
    """Three parts."""
    return distributed.partition(w.graph, 3, strategy="contiguous")


def saved(w: World, folder: Path = Path("parts")) -> Path:
    """A partition's folder."""
    if not folder.exists():
        distributed.save_partition(w.graph, partition_of(w), folder, keep_edges=True)
    return folder


def with_rows(w: World, folder: Path = Path("shards")) -> Path:
    """A partition's folder with the rows of its parts."""
    if not folder.exists():
        distributed.save_partition(w.graph.replace(edge_attr=None), partition_of(w), folder, rows="parts")
    return folder


def _shards_use(found: distributed.ShardedGraph) -> Any:
    shards = found.shards
    return [found.csc.indices, shards.only.own_rows(shards.owned), shards.owners(shards.owned)]


def part_use(part: distributed.Part) -> Any:
    """Everything a part says."""
    return [part.owned, part.joined(), part.num_edges, part.send]


def _partition_use(found: distributed.Partition) -> Any:
    return [found.part_of, found.sizes(), found.owned(0)]


def saved_use(found: distributed.SavedPartition) -> Any:
    """Everything a saved partition gives."""
    parts = [part_use(found.part(part)) for part in range(found.num_parts)]
    return [found.partition().part_of, parts, found.report.halo_rows]


_CALLS = {
    "distributed.partition": lambda w: Call(
        {"graph": w.graph, "num_parts": 3, "strategy": "greedy", "tolerance": 1.1, "seed": 0}, _partition_use
    ),
    "distributed.PartitionOptions": lambda w: Call(
        {"num_parts": 3, "strategy": "streaming", "memory": "1MiB"}
    ),
    "distributed.Partition": lambda w: Call(
        {"part_of": (torch.arange(NODES) % 3).int(), "num_parts": 3, "strategy": "mine", "balance": "nodes"},
        lambda p: [part_use(part) for part in distributed.split(w.graph, p)],
        exact=False,  # which dtype says so
    ),
    "distributed.split": lambda w: Call(
        {"graph": w.graph, "partition": partition_of(w), "keep_edges": True},
        lambda parts: [part_use(part) for part in parts],
    ),
    "distributed.Division": lambda w: Call(
        {"graph": w.graph, "partition": partition_of(w)}, lambda d: [part_use(d.part(1)), d.sent(0, 1)]
    ),
    "distributed.Division.part": lambda w: Call(
        {"part": 1}, function=distributed.Division(w.graph, partition_of(w)).part
    ),
    "distributed.report_of": lambda w: Call(
        {"partition": partition_of(w), "outlines": distributed.Division(w.graph, partition_of(w)).outlines},
        lambda r: r.to_json() and None,
        fixed=("outlines",),
    ),
    "distributed.save_partition": lambda w: Call(
        {"graph": w.graph, "partition": partition_of(w), "path": Path("made"), "options": {"seed": 0}},
        lambda r: saved_use(distributed.SavedPartition("made")),
    ),
    "distributed.SavedPartition": lambda w: Call({"path": saved(w), "graph": w.graph}, saved_use),
    "distributed.SavedPartition.part": lambda w: Call(
        {"part": 2}, part_use, function=distributed.SavedPartition(saved(w)).part
    ),
    "distributed.ShardedGraph": lambda w: Call(
        {"path": with_rows(w)}, _shards_use, function=distributed.ShardedGraph.open
    ),
    "distributed.is_partition": lambda w: Call({"path": saved(w)}),
    "distributed.current": lambda w: Call({}),
}
add(_CALLS)
