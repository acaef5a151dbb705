"""Temporal mini-batches prepared by GraphBolt: milliseconds per batch; one JSON line.

    python -m benchmarks.peers.temporal_sampling GRAPH [--workers 2] [--batches 60]

GraphBolt draws edges before a seed's time, so that seeds get the time after theirs. An epoch warms up, the
next one counts.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import dgl.graphbolt as gb
import numpy as np
import torch

warnings.filterwarnings("ignore", message=".*timestamp.*")  # it warns of a name that its own sampler reads


def main() -> None:
    """Prepare and time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("graph", type=Path)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--fanouts", type=int, nargs="+", default=[10, 5])
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(options.workers)
    edges, times = (torch.from_numpy(np.load(options.graph / f"{name}.npy")) for name in ("edges", "times"))
    num_nodes = json.loads((options.graph / "graph.json").read_text(encoding="utf-8"))["num_nodes"]
    order = edges[1].argsort(stable=True)
    indptr = torch.zeros(num_nodes + 1, dtype=torch.int64)
    torch.cumsum(torch.bincount(edges[1], minlength=num_nodes), 0, out=indptr[1:])
    graph = gb.fused_csc_sampling_graph(indptr, edges[0][order], edge_attributes={"timestamp": times[order]})
    steps = min(options.batches, edges.shape[1] // options.batch_size)
    count = steps * options.batch_size
    seeds = gb.ItemSet((edges[1, -count:], times[-count:] + 1), names=("seed_nodes", "timestamp"))
    fanouts = [torch.tensor([fanout]) for fanout in options.fanouts[::-1]]

    def epoch() -> Iterator[tuple[int, int]]:
        pipe = gb.ItemSampler(seeds, batch_size=options.batch_size, shuffle=False)
        pipe = pipe.temporal_sample_neighbor(graph, fanouts, edge_timestamp_attr_name="timestamp")
        for batch in gb.DataLoader(pipe, num_workers=0):
            drawn = sum(len(layer.sampled_csc.indices) for layer in batch.sampled_subgraphs)
            yield len(batch.input_nodes), drawn

    list(epoch())
    started = time.perf_counter()
    sizes = list(epoch())
    seconds = time.perf_counter() - started
    nodes, drawn = (sum(size) / len(sizes) for size in zip(*sizes, strict=True))
    found = {"lib": "graphbolt", "graph": options.graph.name, "workers": options.workers}
    found |= {"batches": len(sizes), "ms_per_batch": 1e3 * seconds / len(sizes)}
    print(json.dumps(found | {"nodes_per_batch": nodes, "edges_per_batch": drawn}))


if __name__ == "__main__":
    main()
