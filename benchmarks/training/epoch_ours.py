"""Our side of ``benchmarks.training.epoch``: PyG's model, compiled, on NeighborLoader's batches."""

from __future__ import annotations

import json
import time

import numpy as np
import torch
import torch.nn.functional as F

import graphbraid
from benchmarks.graphs.folder import load
from benchmarks.peers.common import epoch_options
from benchmarks.peers.epoch_pyg import make_model
from graphbraid.loader import NeighborLoader


def main() -> None:
    """Train and time."""
    parser = epoch_options(__doc__)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--bfloat16", action="store_true", help="under autocast")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    graph = load(options.graph)
    weights = dict(np.load(options.weights))
    model = make_model(options.model, options.hidden, weights, len(options.fanouts))
    run = graphbraid.compile(model)
    optimizer = torch.optim.Adam(model.parameters(), options.lr)
    loader = NeighborLoader(
        graph,
        options.fanouts,
        input_nodes="train",
        batch_size=options.batch_size,
        shuffle=True,
        layout="blocks",
        num_workers=options.workers,
        return_edge_id=False,
        seed=0,
    )
    seconds, losses, waits = [], [], []
    for _ in range(options.epochs):
        started, total, wait = time.perf_counter(), 0.0, 0.0
        batches = iter(loader)
        while True:
            asked = time.perf_counter()
            batch = next(batches, None)
            wait += time.perf_counter() - asked
            if batch is None:
                break
            with torch.autocast("cpu", torch.bfloat16, enabled=options.bfloat16):
                out = run(batch)
                loss = F.cross_entropy(out, batch.seed_y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * batch.batch_size
        seconds.append(time.perf_counter() - started)
        losses.append(total / len(graph.split("train")))
        waits.append(wait)
    middle = len(seconds) // 2 - 1
    result = {"lib": "graphbraid", "epoch_s": sorted(seconds[1:])[middle], "losses": losses}
    print(json.dumps({**result, "wait_s": sorted(waits[1:])[middle]}))


if __name__ == "__main__":
    main()
