"""Features in tiers: rows and lists in memory and in a store's files, scores, orders."""

import itertools
from pathlib import Path
from typing import Any

import torch
from tests.fuzz.targets import Call, add, graph_use
from tests.fuzz.world import NODES, WIDTH, World

from graphbraid import datasets, features, sampling
from graphbraid.graph import Graph

IDS = torch.tensor([3, 1, 59, 1])


def stored(w: World) -> Graph:
    """The graph, mapped from a store in the folder of the case."""
    if not Path("store").exists():
        datasets.save_store(w.plain_graph, "store")
    return datasets.open_store("store")


def _disk(w: World) -> features.DiskRows:
    return features.DiskRows.behind(stored(w).x)


def _sampling(w: World) -> dict[str, Any]:
    return {
        "sampler": sampling.SamplerConfig(fanouts=(3, 3)),
        "schedule": sampling.SeedSchedule(seeds=w.splits["train"], batch_size=8, seed=0, shuffle=True),
    }


def _rows_use(rows: Any) -> Any:
    return [rows.gather(IDS), repr(rows) and None]


def _tiers_use(tiers: features.TieredFeatures) -> Any:
    number = tiers.announce(IDS)
    found = [tiers.gather(IDS, batch=number), tiers[5], tiers[2:9], tiers[[0, -1]]]
    tiers.explain()
    tiers.forget()
    return found


def _both_use(tiers: features.HostTiers) -> Any:
    tiers.explain()
    return _tiers_use(tiers.features)


def _score_use(score: features.Score) -> Any:
    return score.values


def _reads() -> torch.Tensor:
    return torch.arange(NODES) % 7


_CALLS = {
    "features.DiskOptions": lambda w: Call({"depth": 4, "longest_bytes": 8192}),
    "features.DiskRows": lambda w: Call(
        {
            "path": _disk(w).path,
            "offset": 128,
            "num_rows": NODES,
            "row_shape": (WIDTH,),
            "dtype": torch.float32,
        },
        _rows_use,
        exact=False,
    ),
    "features.DiskRows.behind": lambda w: Call({"x": stored(w).x}, _rows_use),
    "features.DiskRows.gather": lambda w: Call({"ids": IDS}, function=_disk(w).gather),
    "features.RowCache": lambda w: Call(
        {"disk": _disk(w), "num_rows": 10, "policy": "belady", "score": w.x[:, 0].clone()}, _rows_use
    ),
    "features.RowCache.gather": lambda w: Call({"ids": IDS}, function=features.RowCache(_disk(w), 10).gather),
    "features.RowCache.fill": lambda w: Call({"ids": IDS}, function=features.RowCache(_disk(w), 10).fill),
    "features.TieredFeatures.build": lambda w: Call(
        {"graph": stored(w), "host": 0, "score": "inclusion", **_sampling(w)}, _tiers_use
    ),
    "features.TieredFeatures with a score": lambda w: Call(
        {"graph": stored(w), "host": 0, "score": w.x[:, 0].clone()},
        _tiers_use,
        function=features.TieredFeatures.build,
    ),
    "features.TieredFeatures with hot rows": lambda w: Call(
        {"graph": w.plain_graph, "hot": 2000, "score": "degree"},
        _tiers_use,
        function=features.TieredFeatures.build,
    ),
    "features.TieredFeatures.gather": lambda w: Call(
        {"ids": IDS}, function=features.TieredFeatures.build(stored(w), host="all").gather
    ),
    "features.TieredTopology in parts": lambda w: Call(
        {"graph": stored(w), "host": 0, "score": torch.arange(NODES)},
        lambda t: t.explain() and t.num_lists and None,
        function=features.TieredTopology.build,
    ),
    "features.HostTiers in parts": lambda w: Call(
        {"graph": stored(w), "host": "all", "row_reads": _reads(), "list_reads": _reads()},
        _both_use,
        function=features.HostTiers.build,
    ),
    "features.score": lambda w: Call(
        {"graph": w.plain_graph, "kind": "inclusion", **_sampling(w), "epochs": 1, "workers": 1}, _score_use
    ),
    "features.coverage": lambda w: Call({"values": w.x[:, 0], "reads": _reads()}),
    "features.batch_reads": lambda w: Call(
        {"graph": w.plain_graph, **_sampling(w), "epochs": 1, "workers": 1},
        lambda batches: [ids.clone() for ids in itertools.islice(batches, 50)],
    ),
    "features.expected_list_blocks": lambda w: Call({"csc": w.csc, **_sampling(w)}),
    "features.order_by": lambda w: Call({"values": w.x[:, 0].clone()}),
    "features.reorder": lambda w: Call(
        {"graph": w.graph, "order": torch.arange(NODES).flip(0)},
        lambda r: [graph_use(r.graph), r.originals(IDS), r.nodes_of(IDS)],
    ),
}
add(_CALLS)
