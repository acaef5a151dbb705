"""Our side of ``benchmarks.training.epoch``: PyG's model, compiled, on NeighborLoader's batches."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric import nn as pyg

import graphbraid
from benchmarks.graphs.folder import load
from graphbraid.loader import NeighborLoader

MODELS = {"SAGE": pyg.GraphSAGE, "GCN": pyg.GCN, "GAT": pyg.GAT}


def make_model(name: str, hidden: int, weights: dict[str, np.ndarray], num_layers: int) -> nn.Module:
    """PyG's model; GraphSAGE with the weights every contender starts from."""
    channels, classes = weights["own0"].shape[1], weights[f"own{num_layers - 1}"].shape[0]
    heads = {"heads": 4} if name == "GAT" else {}
    model: nn.Module = MODELS[name](channels, hidden, num_layers, classes, **heads)
    for i, conv in enumerate(cast("Any", model).convs if name == "SAGE" else []):
        conv.lin_r.weight.data.copy_(torch.from_numpy(weights[f"own{i}"]))
        conv.lin_l.weight.data.copy_(torch.from_numpy(weights[f"neighbours{i}"]))
        conv.lin_l.bias.data.copy_(torch.from_numpy(weights[f"bias{i}"]))
    return model


def main() -> None:
    """Train and time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("graph", type=Path)
    parser.add_argument("weights", type=Path)
    parser.add_argument("--model", default="SAGE", choices=list(MODELS))
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--fanouts", type=int, nargs="+", default=[15, 10, 5])
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument("--bfloat16", action="store_true", help="under autocast")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    graph = load(options.graph)
    weights = dict(np.load(options.weights))
    sizes = options.hidden, weights, len(options.fanouts)
    model = make_model(options.model, *sizes)
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
