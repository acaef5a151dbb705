"""Our side of ``benchmarks.fullgraph.beside_peers``: the peer's PyG model, compiled; one JSON line.

The model is built as ``benchmarks.peers.fullgraph`` builds it, after the same seed, so both start from the
same weights.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import time
from itertools import pairwise
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import GATConv, GCNConv, GINConv, SAGEConv

import graphbraid
from benchmarks.peers.common import peak_gb, read_graph
from graphbraid import Graph
from graphbraid.fullgraph import ALL, Engine
from graphbraid.graph.csc import Csc, index_dtype


class Net(nn.Module):
    """The peer's stack of layers."""

    def __init__(self, kind: str, widths: list[int], heads: int) -> None:
        super().__init__()
        make = {
            "gcn": lambda i, o: GCNConv(i, o, cached=True),
            "sage": SAGEConv,
            "gin": lambda i, o: GINConv(nn.Linear(i, o)),
            "gat": lambda i, o: GATConv(i, o, heads=heads, concat=False),
        }[kind]
        self.c = nn.ModuleList(make(a, b) for a, b in pairwise(widths))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for i, conv in enumerate(self.c):
            x = conv(x, edge_index)
            if i < len(self.c) - 1:
                x = F.relu(x)
        return x


def load_graph(folder: Path) -> tuple[Graph, float]:
    """A graph's folder in memory, and the peak memory in GB once it is."""
    parts = read_graph(folder)
    data_gb, num_nodes = peak_gb(), parts["x"].shape[0]
    csc = Csc(parts["indptr"], parts["indices"].to(index_dtype(num_nodes)), num_nodes)
    return Graph(csc=csc, x=parts["x"], y=parts["y"], splits={"train": parts["train_idx"]}), data_gb


def make_net(graph: Graph, options: argparse.Namespace) -> Net:
    """The model that the options describe, for a graph's features and classes."""
    num_classes = int(graph.y.max()) + 1
    widths = [graph.x.shape[1], *[options.hidden] * (options.layers - 1), num_classes]
    return Net(options.model, widths, options.heads)


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """The graph, the model and the threads."""
    parser.add_argument("graph", type=Path)
    parser.add_argument("--model", default="gcn")
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--heads", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)


def seconds_of_process() -> float:
    """How long this process has been running."""
    ticks = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(ticks) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Train and time."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_model_arguments(parser)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--without", nargs="*", default=[], help="lowering passes to switch off")
    parser.add_argument("--storage", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--explain", action="store_true", help="print the lowered program, too")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    graph, data_gb = load_graph(options.graph)
    model = make_net(graph, options)
    started = time.perf_counter()
    engine = graphbraid.compile(model, graph, passes=ALL - set(options.without), storage=options.storage)
    engine()
    compile_seconds, startup_seconds = time.perf_counter() - started, seconds_of_process()
    optimizer = torch.optim.Adam(model.parameters(), 0.01, fused=True)
    labels = graph.y[graph.split("train")]
    seconds, losses = [], []
    for _ in range(options.epochs + 1):
        started = time.perf_counter()
        optimizer.zero_grad()
        loss = F.cross_entropy(engine(), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - started)
    if options.explain:
        print(engine.explain())
    peak = peak_gb()
    floor = engine.floor() if isinstance(engine, Engine) else None
    print(
        json.dumps(
            {
                "lib": "graphbraid",
                "model": options.model,
                "graph": options.graph.name,
                "epoch_s": sorted(seconds[1:])[len(seconds[1:]) // 2],
                "epochs_s": seconds[1:],
                "compile_s": compile_seconds,
                "startup_s": startup_seconds,
                "floor_s": floor and floor.floor_seconds,
                "floor_rates": floor and dataclasses.asdict(floor.rates),
                "doubt": floor and floor.doubt,
                "peak_rss_gb": peak,
                "data_rss_gb": data_gb,
                "engine_gb": engine.nbytes / 1e9,
                "loss": round(losses[-1], 4),
                "losses": losses,
            }
        )
    )


if __name__ == "__main__":
    main()
