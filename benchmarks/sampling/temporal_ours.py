"""Our side of ``benchmarks.sampling.temporal``: mini-batches up to a time for each seed, as one JSON line."""

from __future__ import annotations

import json

import numpy as np
import torch
from torch_geometric.data import Data

from benchmarks.sampling.timed import parse_options, print_epoch
from graphbraid.loader import NeighborLoader


def main() -> None:
    """An epoch to warm up, then one that counts."""
    options = parse_options(__doc__, batches=60)
    torch.set_num_threads(options.workers)
    edges, times = (torch.from_numpy(np.load(options.graph / f"{name}.npy")) for name in ("edges", "times"))
    num_nodes = json.loads((options.graph / "graph.json").read_text(encoding="utf-8"))["num_nodes"]
    steps = min(options.batches, edges.shape[1] // options.batch_size)
    count = steps * options.batch_size  # the latest edges' destinations, at their times
    loader = NeighborLoader(
        Data(edge_index=edges, edge_time=times, num_nodes=num_nodes),
        options.fanouts,
        input_nodes=edges[1, -count:],
        input_time=times[-count:],
        time_attr="edge_time",
        batch_size=options.batch_size,
        num_workers=options.workers,
        layout="blocks",
        return_edge_id=False,
        seed=0,
    )
    print_epoch(loader, options, steps)


if __name__ == "__main__":
    main()
