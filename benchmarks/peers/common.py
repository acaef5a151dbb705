"""Shared parts of the peers' scripts: a graph's folder, peak memory, sampled epochs.

Needs PyTorch and NumPy, nothing of ours.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

PARTS = ("indptr", "indices", "x", "y", "train_idx")


def read_graph(folder: Path) -> dict[str, Tensor]:
    """A graph's folder in memory: ``indptr``, ``indices`` (CSC, int64), ``x``, ``y``, ``train_idx``."""
    return {name: torch.from_numpy(np.load(folder / f"{name}.npy")) for name in PARTS}


def edge_index(graph: dict[str, Tensor]) -> Tensor:
    """``(2, num_edges)`` int64, sources above destinations, as PyG takes edges."""
    degrees = graph["indptr"].diff()
    return torch.stack([graph["indices"], torch.repeat_interleave(torch.arange(degrees.numel()), degrees)])


def peak_gb() -> float:
    """Peak resident memory of this process so far, in GB.

    Not from getrusage, whose peak a process inherits from the one that started it.
    """
    with Path("/proc/self/status").open() as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) * 1024 / 1e9


def median(values: list[float]) -> float:
    """The middle one, of an even number the upper of both."""
    return sorted(values)[len(values) // 2]


def epoch_options(description: str | None, *libs: str) -> argparse.ArgumentParser:
    """The options of all contenders of ``benchmarks.training.epoch``, after a choice among ``libs``."""
    parser = argparse.ArgumentParser(description=description)
    if libs:
        parser.add_argument("lib", choices=libs)
    parser.add_argument("graph", type=Path)
    parser.add_argument("weights", type=Path)
    parser.add_argument("--model", default="SAGE", choices=["SAGE", "GCN", "GAT"])
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--fanouts", type=int, nargs="+", default=[15, 10, 5])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--lr", type=float, default=0.003)
    return parser


def train_epochs(
    lib: str,
    model: torch.nn.Module,
    options: argparse.Namespace,
    num_seeds: int,
    batches: Callable[[], Iterable[tuple[Tensor, int]]],
) -> None:
    """Train by Adam; print the median epoch but the first, and the mean loss of each epoch, as one JSON line.

    ``batches()`` computes an epoch: the loss of each mini-batch, and how many seeds that has.
    """
    optimizer = torch.optim.Adam(model.parameters(), options.lr)
    seconds, losses = [], []
    for _ in range(options.epochs):
        started, total = time.perf_counter(), 0.0
        for loss, size in batches():
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * size
        seconds.append(time.perf_counter() - started)
        losses.append(total / num_seeds)
    print(json.dumps({"lib": lib, "epoch_s": median(seconds[1:]), "losses": losses}))
