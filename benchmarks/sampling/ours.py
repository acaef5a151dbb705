"""Our side of ``benchmarks.sampling.beside_peers``: mini-batches from NeighborLoader.

Prints one JSON line, like the peers' scripts.

With ``--limit`` it measures the machine instead: the best rate of copying the rows that the batches read, or,
without features, a cache line of each node's adjacency list.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from benchmarks.graphs.folder import load
from benchmarks.sampling.timed import epoch
from graphbraid import native
from graphbraid.graph import Graph
from graphbraid.loader import NeighborLoader

FANOUTS = [15, 10, 5]
Way = Callable[[torch.Tensor, torch.Tensor], object]


def make_loader(graph: Graph, options: argparse.Namespace) -> NeighborLoader:
    """The loader under test: the peers' fanouts and seeds, in their order."""
    seeds = graph.split("train")
    batch_size = min(options.batch_size, len(seeds))
    steps = min(options.batches, len(seeds) // batch_size)
    return NeighborLoader(
        graph,
        FANOUTS,
        input_nodes=seeds[: steps * batch_size],
        batch_size=batch_size,
        num_workers=options.workers,
        layout=options.layout,
        return_edge_id=False,
        seed=0,
    )


def measure(graph: Graph, options: argparse.Namespace) -> dict[str, object]:
    """An epoch to warm up, then one that counts."""
    loader = make_loader(graph, options)
    epoch(loader)
    loader.reset_stage_seconds()
    seconds, nodes, edges = epoch(loader)
    stages, steps = loader.stage_seconds, len(loader)
    row_bytes = graph.x.shape[1] * graph.x.element_size() if isinstance(graph.x, torch.Tensor) else 0
    return {
        "lib": "graphbraid",
        "feat": not options.no_features,
        "graph": graph.name,
        "workers": options.workers,
        "batches": steps,
        "ms_per_batch": 1e3 * seconds / steps,
        "nodes_per_batch": nodes // steps,
        "edges_per_batch": edges // steps,
        "sample_ms": 1e3 * stages["sample"] / steps,
        "gather_ms": 1e3 * stages["gather"] / steps,
        "gather_gb_per_s": nodes * row_bytes / stages["gather"] / 1e9 if row_bytes else 0.0,
    }


def measure_limit(graph: Graph, options: argparse.Namespace) -> dict[str, object]:
    """What the machine's memory allows for the same batches: gathering rows, or reading adjacency lists."""
    loader = make_loader(graph.replace(x=None), options)
    ids = [batch.n_id.clone() for _, batch in zip(range(8), loader, strict=False)]
    rates = line_rate(graph, ids) if options.no_features else copy_rates(graph, ids)
    return {"graph": graph.name, "workers": options.workers, "gb_per_s": rates}


def copy_rates(graph: Graph, ids: list[torch.Tensor]) -> dict[str, float]:
    """Rates of ways to copy the batches' rows, in their order, into memory that is already mapped."""
    x, kernels = graph.x, native.kernels()
    assert isinstance(x, torch.Tensor)
    assert kernels is not None
    outs = [torch.ones(len(i), x.shape[1]) for i in ids]
    ways = {
        "index_select": lambda i, out: torch.index_select(x, 0, i, out=out),
        "numpy.take": lambda i, out: np.take(x.numpy(), i.numpy(), axis=0, out=out.numpy(), mode="clip"),
        "gather_rows": lambda i, out: kernels.gather_rows(x.view(torch.uint8), i, out.view(torch.uint8)),
        "sequential copy": lambda i, out: out.copy_(x[: len(i)]),
    }
    return {name: rate_of(way, ids, outs) for name, way in ways.items()}


def line_rate(graph: Graph, ids: list[torch.Tensor]) -> dict[str, float]:
    """Rate of copying one cache line of each sampled node's adjacency list."""
    kernels = native.kernels()
    assert kernels is not None
    whole = graph.csc.indices.numel() // 16 * 16
    lines = graph.csc.indices[:whole].view(-1, 16).view(torch.uint8)
    of_node = graph.csc.indptr[:-1].div(16, rounding_mode="floor").clamp_(max=len(lines) - 1)
    ids = [of_node[i] for i in ids]
    outs = [torch.ones(len(i), 64, dtype=torch.uint8) for i in ids]
    return {"adjacency lines": rate_of(lambda i, out: kernels.gather_rows(lines, i, out), ids, outs)}


def rate_of(way: Way, ids: list[torch.Tensor], outs: list[torch.Tensor]) -> float:
    """Bytes written a second, in GB: the median of five passes."""
    seconds = []
    for _ in range(5):
        started = time.perf_counter()
        for i, out in zip(ids, outs, strict=True):
            way(i, out)
        seconds.append(time.perf_counter() - started)
    return sum(out.nbytes for out in outs) / sorted(seconds)[2] / 1e9


def main() -> None:
    """Measure one setting."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("graph", type=Path)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--layout", default="blocks")
    parser.add_argument("--no-features", action="store_true")
    parser.add_argument("--limit", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.workers)
    graph = load(options.graph, features=not options.no_features)
    print(json.dumps((measure_limit if options.limit else measure)(graph, options)))


if __name__ == "__main__":
    main()
