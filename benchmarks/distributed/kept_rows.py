"""Mini-batches of ranks that hold parts alone: epochs by how many rows of others they keep, behind links.

    python -m benchmarks.distributed.kept_rows --ranks 2 --rates 1e9 1e8

Each rank has a core and one part of a skewed graph: its features, and all adjacency lists. Ranks are hosts of
their own behind links that ``tc`` shapes to a rate in bits per second (:mod:`benchmarks.distributed.shaped`).
GraphSAGE is trained by ``Trainer`` in these ways:

- *each batch*: every row of another rank comes anew for every batch;
- *groups*: each row once for four batches;
- *kept*: the same with a tenth of the other ranks' rows in memory, chosen by look-ahead (Belady);
- *all kept*: with memory for all of them, so that later epochs send none. That is what a rank computes.

Beside each epoch stands the longer of computing and sending, which is the busiest rank's bytes either way at
the link's rate, and the bytes that were foreseen from batches drawn in advance. First losses must be equal.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from benchmarks.common.options import add_out_argument, parser_of
from benchmarks.common.rows import write_rows
from benchmarks.distributed.links import why_not
from benchmarks.distributed.planted import CLASSES, FEATURES, partition_of, skewed
from benchmarks.distributed.shaped import start
from graphbraid import distributed
from graphbraid.distributed.shards import pipeline
from graphbraid.distributed.shards.feature_rows import RowTraffic
from graphbraid.nn import GraphSAGE
from graphbraid.sampling import SamplerConfig, SeedSchedule
from graphbraid.train import Callback, EpochRecord, TrainConfig, Trainer

MODULE = "distributed.kept_rows"
HIDDEN, FANOUTS, BATCH, BATCHES = 64, (10, 5), 1024, 24
CROSSING = 0.3
"""Share of the edges between blocks."""
KEPT_SHARE = 0.1
NOTED_BYTES = 32
"""Bytes beside each kept row."""
WAYS = ("each batch", "groups", "kept", "all kept")


class _Traffic(Callback):
    """Notes the rows read and the bytes sent, after each epoch."""

    def __init__(self, graph: distributed.ShardedGraph) -> None:
        self._graph, self.by_epoch = graph, list[RowTraffic]()

    def on_epoch_end(self, trainer: Trainer, record: EpochRecord) -> None:
        """Note it."""
        self.by_epoch.append(self._graph.shards.rows.traffic)


def budget_of(graph: distributed.ShardedGraph, way: str) -> int | str:
    """Return the memory of a rank for rows of others."""
    num_remote = graph.num_nodes - graph.shards.owned.numel()
    kept = int(KEPT_SHARE * num_remote) * (graph.shards.only.row_bytes + NOTED_BYTES)
    return {"kept": 8 * graph.num_nodes + kept, "all kept": "all"}.get(way, 0)


def as_rank(folder: Path, way: str, epochs: int) -> dict[str, Any]:
    """Train on the ranks that were started; what the first one found."""
    if way == "each batch":
        pipeline.GROUP = 1
    with distributed.init() as comm:
        graph = distributed.ShardedGraph.open(folder)
        config = TrainConfig(
            epochs=1 + epochs,
            batch_size=BATCH,
            fanouts=FANOUTS,
            layout="blocks",
            eval_every=0,
            test_at_end=False,
            remote=budget_of(graph, way),
        )
        torch.manual_seed(0)
        model: nn.Module = GraphSAGE(FEATURES, HIDDEN, CLASSES, num_layers=2, dropout=0.0)
        traffic = _Traffic(graph)
        result = Trainer(model, graph, config=config, callbacks=[traffic]).fit()
        later = traffic.by_epoch[-1].since(traffic.by_epoch[0])
        graph.shards.keep(distributed.KeptRows(budget=config.remote or 0))
        schedule = SeedSchedule(
            seeds=graph.split("train"),
            batch_size=BATCH,
            shuffle=True,
            seed=config.seed,
            part=comm.rank,
            num_parts=comm.size,
        )
        sampler = SamplerConfig(fanouts=FANOUTS, layout="blocks")
        foreseen = pipeline.foreseen(graph, sampler, schedule, range(1 + epochs))
        every = comm.gather(
            {
                "seconds": [row["epoch_seconds"] for row in result.history[1:]],
                "sent_bytes": later.sent_bytes / epochs,
                "received_bytes": later.sent_ids * graph.shards.only.row_bytes / epochs,
                "sent_in_all": traffic.by_epoch[-1].sent_bytes,
                "foreseen_in_all": foreseen.sent_bytes,
                "remote_share": later.remote_reads / max(later.reads, 1),
                "hits": later.hits / max(later.asked, 1),
                "messages": later.messages / epochs,
            }
        )
    return {"loss": result.history[0]["train_loss"], "ranks": every}


def row_of(num_ranks: int, rate: float | None, options: argparse.Namespace) -> dict[str, Any]:
    """Measure all ways, one after the other."""
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="graphbraid-") as temp:
        graph = skewed(options.nodes, num_ranks, CROSSING)
        train = torch.randperm(graph.num_nodes, generator=torch.Generator().manual_seed(1))
        graph = graph.replace(splits={"train": train[: BATCH * BATCHES]})
        folder = Path(temp) / "parts"
        distributed.save_partition(graph, partition_of(graph, num_ranks), folder, rows="whole")
        for way in WAYS:
            found[way] = start(num_ranks, rate, [str(folder), way, str(options.epochs)], MODULE)
    losses = {way: one.pop("loss") for way, one in found.items()}
    if len(set(losses.values())) > 1:
        raise SystemExit(f"ways differ in their first loss: {losses}")
    computing = seconds_of(found["all kept"])
    ways = {}
    for way, one in found.items():
        busiest = max(max(rank["sent_bytes"], rank["received_bytes"]) for rank in one["ranks"])
        sending = 0.0 if rate is None else 8 * busiest / rate
        seconds = seconds_of(one)
        ways[way] = one | {
            "seconds": seconds,
            "sending_seconds": sending,
            "by_longer": seconds / max(computing, sending),
            "sent_by_foreseen": max(
                rank["sent_in_all"] / max(rank["foreseen_in_all"], 1) for rank in one["ranks"]
            ),
        }
    return {"ranks": num_ranks, "bits_per_second": rate, "num_nodes": graph.num_nodes, "ways": ways}


def seconds_of(found: dict[str, Any]) -> float:
    """Return the median epoch of the slowest rank."""
    return statistics.median(map(max, zip(*(rank["seconds"] for rank in found["ranks"]), strict=True)))


def show(name: str, row: dict[str, Any]) -> None:
    """Print the table of a row."""
    heads = ("epoch, ms", "by the longer of computing and sending", "MB sent", "kept", "sent by foreseen")
    table = Table(name, *heads)
    for way, one in row["ways"].items():
        ranks = one["ranks"]
        table.add_row(
            way,
            f"{1e3 * one['seconds']:.0f}",
            f"{one['by_longer']:.2f}",
            f"{max(rank['sent_bytes'] for rank in ranks) / 1e6:.1f}",
            f"{statistics.fmean(rank['hits'] for rank in ranks):.1%}",
            f"{one['sent_by_foreseen']:.3f}",
        )
    Console(width=140).print(table)


def main(arguments: list[str] | None = None) -> None:
    """Measure each number of ranks within the machine and at each rate."""
    parser = parser_of(__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2])
    parser.add_argument("--rates", type=float, nargs="*", default=[1e9, 1e8], help="bits per second")
    parser.add_argument("--nodes", type=int, default=200_000)
    parser.add_argument("--epochs", type=int, default=5)
    add_out_argument(parser)
    options = parser.parse_args(arguments)
    rates: list[float | None] = [None]
    if why := why_not() if options.rates else "":
        print(f"only within the machine, as links cannot be shaped here: {why}", file=sys.stderr)
    else:
        rates += options.rates
    for num_ranks in options.ranks:
        for rate in rates:
            name = f"{num_ranks} ranks, " + ("one machine" if rate is None else f"{rate / 1e6:g} Mbit/s")
            row = row_of(num_ranks, rate, options)
            show(name, row)
            write_rows("distributed_kept_rows", {name: row}, repeats=options.epochs, out=options.out)


def _one() -> None:
    core, folder, way, epochs = sys.argv[2:]
    os.sched_setaffinity(0, {int(core)})
    torch.set_num_threads(1)
    print(json.dumps(as_rank(Path(folder), way, int(epochs))))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        _one()
    else:
        main()
