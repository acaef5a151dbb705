"""Each lowering pass switched off in turn, on one graph, side by side in one process; one JSON line.

    python -m benchmarks.fullgraph.ablation GRAPH_DIR --rounds 15

All variants are compiled first; then each trains an epoch in turn, round after round. What slows the machine
for a while slows all of them, and a median of many short turns tells apart what single runs cannot. The
variants start from the same weights and must end at the same loss.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

import graphbraid
from benchmarks.common.options import parser_of
from benchmarks.fullgraph.ours import add_model_arguments, load_graph, make_net
from graphbraid import Graph
from graphbraid.fullgraph import ALL

PASSES = ["prune", "symmetry", "input_path", "hoist", "order", "fuse", "locality"]
"""``storage`` is off unless asked for."""
VARIANTS: dict[str, list[str]] = {"all": [], **{f"without {p}": [p] for p in PASSES}, "none": PASSES}
SAME_LOSS = 2e-4


def make_epoch(graph: Graph, options: argparse.Namespace, off: list[str]) -> Callable[[], float]:
    """One variant, ready to train an epoch and give its loss."""
    torch.manual_seed(0)
    model = make_net(graph, options)
    engine = graphbraid.compile(model, graph, passes=ALL - set(off))
    optimizer = torch.optim.Adam(model.parameters(), 0.01, fused=True)
    labels = graph.y[graph.split("train")]

    def run() -> float:
        optimizer.zero_grad()
        loss = F.cross_entropy(engine(), labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    return run


def main() -> None:
    """Time the variants."""
    parser = parser_of(__doc__)
    add_model_arguments(parser)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--variants", nargs="+", default=[*VARIANTS], choices=[*VARIANTS])
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    graph, _ = load_graph(options.graph)
    epochs = {name: make_epoch(graph, options, VARIANTS[name]) for name in options.variants}
    losses = {name: [run()] for name, run in epochs.items()}  # the first epoch warms up
    seconds: dict[str, list[float]] = {name: [] for name in epochs}
    for _ in range(options.rounds):
        for name, run in epochs.items():
            started = time.perf_counter()
            losses[name].append(run())
            seconds[name].append(time.perf_counter() - started)
    after_five = {name: found[:6][-1] for name, found in losses.items()}
    if max(after_five.values()) - min(after_five.values()) > SAME_LOSS * max(1.0, *after_five.values()):
        sys.exit(f"the variants' losses differ: {after_five}")
    found = {name: spread(times) for name, times in seconds.items()}
    print(json.dumps({"graph": options.graph.name, "loss": after_five, "variants": found}))


def spread(times: list[float]) -> dict[str, object]:
    """The median and the quartiles beside the times themselves."""
    low, middle, high = statistics.quantiles(times, n=4, method="inclusive") if len(times) > 1 else times * 3
    return {"median_s": middle, "quartiles_s": [low, high], "epochs_s": times}


if __name__ == "__main__":
    main()
