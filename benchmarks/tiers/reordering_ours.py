"""Renumbering a graph's nodes with ``graphbraid.features.reorder``: seconds and peak memory; one JSON line.

    python -m benchmarks.tiers.reordering_ours GRAPH [--threads 2]

As :mod:`benchmarks.peers.reordering`; beside it the machine's own rates for what cannot be done without:
writing as many new bytes in sequence, and looking up each edge's new id.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.common.options import parser_of
from benchmarks.peers.reordering import degree_order, digest, peak_starts_here, resident_bytes
from benchmarks.tiers import topology
from graphbraid import Csc, Graph, features


def seconds_of(call: Callable[[], object]) -> float:
    """Seconds of one call, its result let go of."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def measure(options: argparse.Namespace) -> dict[str, object]:
    """Reorder and time."""
    small = Graph(csc=Csc(torch.tensor([0, 1, 2]), torch.tensor([1, 0], dtype=torch.int32), 2))
    features.reorder(small, torch.tensor([1, 0]))  # loads the kernels
    before = resident_bytes("VmRSS")
    graph = Graph(csc=topology.load(options.graph))
    order = degree_order(graph.csc.indices, graph.num_nodes)
    peak_starts_here()
    started = time.perf_counter()
    moved = features.reorder(graph, order)
    seconds = time.perf_counter() - started
    peak = resident_bytes("VmHWM") - before
    csc = moved.graph.csc
    ids = graph.csc.indices
    return {
        "seconds": seconds,
        "degree_seconds": seconds_of(lambda: features.reorder(graph, "degree")),
        "copy_seconds": seconds_of(ids.clone),
        "lookup_seconds": seconds_of(lambda: moved.inverse.index_select(0, ids)),
        "num_edges": graph.num_edges,
        "peak_bytes": peak,
        "topology_bytes": graph.csc.nbytes,
        "digest": digest(csc.indptr, csc.indices),
    }


def main() -> None:
    """Run."""
    parser = parser_of(__doc__)
    parser.add_argument("graph", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(json.dumps(measure(options)))


if __name__ == "__main__":
    main()
