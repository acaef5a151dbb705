"""Exact outputs on ranks that hold parts alone: layer by layer, and from batches with all neighbours.

    python -m benchmarks.distributed.exact --layers 2 3

Each rank has a core and one part of a skewed graph (:func:`benchmarks.distributed.planted.skewed`), and asks
for the outputs of an equal share of all nodes of GraphSAGE, which it mostly does not own. Both ways get the
same ``memory_budget_bytes``. Their outputs must agree.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from benchmarks.common.options import add_out_argument, parser_of
from benchmarks.common.rows import write_rows
from benchmarks.distributed.planted import CLASSES, FEATURES, HIDDEN, partition_of, skewed
from benchmarks.distributed.shaped import start
from graphbraid import distributed
from graphbraid.fullgraph.program import NotLoweredError
from graphbraid.nn import GraphSAGE
from graphbraid.train import TrainConfig, Trainer
from graphbraid.train.inference import infer

MODULE = "distributed.exact"
CROSSING = 0.3
"""Share of the edges between parts."""
WAYS = ("layer by layer", "all neighbours")


def as_rank(folder: Path, num_layers: int, budget: int) -> dict[str, Any]:
    """Compute on the ranks that were started; what all found."""
    with distributed.init() as comm:
        graph = distributed.ShardedGraph.open(folder)
        shards = graph.shards
        config = TrainConfig(fanouts=(5,) * num_layers, memory_budget_bytes=budget)
        torch.manual_seed(0)
        model: nn.Module = GraphSAGE(FEATURES, HIDDEN, CLASSES, num_layers=num_layers)
        trainer = Trainer(model, graph, config=config)
        nodes = torch.arange(comm.rank, graph.num_nodes, comm.size)
        by_level, outputs, found = infer.by_level, dict[str, torch.Tensor](), dict[str, Any]()
        for way in WAYS:
            if way == "all neighbours":
                infer.by_level = lambda *_: NotLoweredError("forward", "the other way is measured")
            before = sent(shards)
            comm.barrier()
            started = time.perf_counter()
            outputs[way] = trainer.predict(nodes)
            seconds = time.perf_counter() - started
            found[way] = {"seconds": seconds, "sent_bytes": sent(shards) - before}
        infer.by_level = by_level
        torch.testing.assert_close(*outputs.values(), rtol=1e-4, atol=1e-5)
        every = comm.gather(found)
    return {way: {name: max(one[way][name] for one in every) for name in every[0][way]} for way in WAYS}


def sent(shards: Any) -> int:
    """Return the bytes that a rank has sent so far."""
    ways = shards.ranks, shards.comm, shards._asks, shards._rows_comm
    return sum(one.sent_bytes for one in ways)


def row_of(num_ranks: int, num_layers: int, options: argparse.Namespace) -> dict[str, Any]:
    """Measure both ways."""
    with tempfile.TemporaryDirectory(prefix="graphbraid-") as temp:
        graph, folder = skewed(options.nodes, num_ranks, CROSSING), Path(temp) / "parts"
        distributed.save_partition(graph, partition_of(graph, num_ranks), folder, rows="parts")
        ways = start(num_ranks, None, [str(folder), str(num_layers), str(options.budget)], MODULE)
    return {"ranks": num_ranks, "num_nodes": graph.num_nodes, "budget_bytes": options.budget, "ways": ways}


def show(name: str, row: dict[str, Any]) -> None:
    """Print the table of a row."""
    table = Table(name, "seconds", "MB that the busiest rank sends")
    for way, one in row["ways"].items():
        table.add_row(way, f"{one['seconds']:.2f}", f"{one['sent_bytes'] / 1e6:.1f}")
    Console(width=100).print(table)


def main(arguments: list[str] | None = None) -> None:
    """Measure each number of layers."""
    parser = parser_of(__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--layers", type=int, nargs="+", default=[2, 3])
    parser.add_argument("--nodes", type=int, default=50_000)
    parser.add_argument("--budget", type=int, default=256 << 20, help="memory_budget_bytes of a rank")
    add_out_argument(parser)
    options = parser.parse_args(arguments)
    for num_layers in options.layers:
        name = f"{num_layers} layers"
        row = row_of(options.ranks, num_layers, options)
        show(name, row)
        write_rows("distributed_exact", {name: row}, repeats=1, out=options.out)


def _one() -> None:
    core, folder, num_layers, budget = sys.argv[2:]
    os.sched_setaffinity(0, {int(core)})
    torch.set_num_threads(1)
    print(json.dumps(as_rank(Path(folder), int(num_layers), int(budget))))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        _one()
    else:
        main()
