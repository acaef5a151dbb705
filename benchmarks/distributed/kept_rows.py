"""Mini-batches of ranks that hold parts alone: epochs by how many rows of others they keep, behind links.

    python -m benchmarks.distributed.kept_rows --ranks 2 --rates 1e9 1e8 --epochs 10

Each rank has a core and one part of a skewed graph: its features, and all adjacency lists. Ranks are hosts of
their own behind links that ``tc`` shapes to a rate in bits per second (:mod:`benchmarks.distributed.shaped`).
GraphSAGE is trained by ``Trainer`` in these ways:

- *each batch*: every row of another rank comes anew for every batch;
- *groups*: each row once for four batches;
- *kept*: the same with a tenth of the other ranks' rows in memory, chosen by look-ahead (Belady);
- *all kept*: with memory for all of them, so that later epochs send none. That is what a rank computes.

The ways take turns, round by round, in the same processes, so that other programs slow all alike. Beside
each epoch stand the processor time of a rank; the epoch by the longer of computing and sending; and the bytes
sent by those that were foreseen from batches drawn in advance. Sending takes the bytes of the busiest rank,
sent or received, at the link's rate. A rank has one core, so no epoch is shorter than its processor time:
the same ratio stands with that in place of computing, since moving rows takes the core, too. First losses
must be equal.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
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
COUNTED = 2
"""Epochs of each way that a round measures. One epoch before them fills the cache. One after them lets the
last of them send the first rows of the next one, as any other epoch does."""
ROW_SECONDS = 75
"""No round begins after so many seconds of a row."""


class _Notes(Callback):
    """Notes the processor time of this process after each epoch."""

    def __init__(self) -> None:
        self.processor = list[float]()

    def on_epoch_end(self, trainer: Trainer, record: EpochRecord) -> None:
        """Note it."""
        self.processor.append(time.process_time())


def budget_of(graph: distributed.ShardedGraph, way: str) -> int | str:
    """Return the memory of a rank for rows of others."""
    num_remote = graph.num_nodes - graph.shards.owned.numel()
    kept = int(KEPT_SHARE * num_remote) * (graph.shards.only.row_bytes + NOTED_BYTES)
    return {"kept": 8 * graph.num_nodes + kept, "all kept": "all"}.get(way, 0)


def as_rank(folder: Path, rounds: int) -> dict[str, dict[str, Any]]:
    """Train on the ranks that were started, by each way in turn; what all of them found, on the first one."""
    found: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    foreseen, group = dict[str, dict[str, float]](), pipeline.GROUP
    with distributed.init() as comm:
        graph = distributed.ShardedGraph.open(folder)
        for way in WAYS:
            pipeline.GROUP = 1 if way == "each batch" else group
            foreseen[way] = foreseen_traffic(graph, comm, way)
        started = time.monotonic()
        for _ in range(rounds):
            for way in WAYS:
                pipeline.GROUP = 1 if way == "each batch" else group
                found[way].append(trained(graph, way))
            if comm.share(time.monotonic() - started > ROW_SECONDS):
                break
        own = {way: joined(found[way]) | foreseen[way] for way in WAYS}
        every = comm.gather(own)
    return {way: {"loss": own[way]["loss"], "ranks": [of_rank[way] for of_rank in every]} for way in WAYS}


def joined(rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Join this rank's rounds: the seconds of all, and the fields that are equal in every round."""
    seconds = {
        name: [one for row in rounds for one in row[name]] for name in ("seconds", "processor_seconds")
    }
    return rounds[0] | seconds


def config_of(graph: distributed.ShardedGraph, way: str) -> TrainConfig:
    """Return the options of a round."""
    return TrainConfig(
        epochs=2 + COUNTED,
        batch_size=BATCH,
        fanouts=FANOUTS,
        layout="blocks",
        eval_every=0,
        test_at_end=False,
        remote=budget_of(graph, way),
    )


def trained(graph: distributed.ShardedGraph, way: str) -> dict[str, Any]:
    """Train a round by one way; what this rank took in each epoch but the first and the last."""
    torch.manual_seed(0)
    model: nn.Module = GraphSAGE(FEATURES, HIDDEN, CLASSES, num_layers=2, dropout=0.0)
    notes = _Notes()
    result = Trainer(model, graph, config=config_of(graph, way), callbacks=[notes]).fit()
    return {
        "loss": result.history[0]["train_loss"],
        "seconds": [row["epoch_seconds"] for row in result.history[1:-1]],
        "processor_seconds": [after - before for before, after in itertools.pairwise(notes.processor[:-1])],
        "sent_in_all": graph.shards.traffic.sent_bytes,
    }


def foreseen_traffic(
    graph: distributed.ShardedGraph, comm: distributed.Communicator, way: str
) -> dict[str, float]:
    """Return what this rank sends in a round, and in a counted epoch, from batches drawn in advance.

    Rows of an epoch begin to travel in the epoch before, so that no clock tells them apart.
    """
    config = config_of(graph, way)
    graph.shards.keep(config.remote or 0)
    schedule = SeedSchedule(
        seeds=graph.split("train"),
        batch_size=BATCH,
        shuffle=True,
        seed=config.seed,
        part=comm.rank,
        num_parts=comm.size,
    )
    sampler = SamplerConfig(fanouts=FANOUTS, layout="blocks")
    drawing = pipeline.ShardedPipeline(graph, sampler, gathers=False, num_threads=1)
    first, counted, every = (
        drawing.foreseen(schedule, range(count)) for count in (1, 1 + COUNTED, config.epochs)
    )
    later = RowTraffic(*(now - then for now, then in zip(counted, first, strict=True)))
    return {
        "foreseen_in_all": every.sent_bytes,
        "sent_bytes": later.sent_bytes / COUNTED,
        "received_bytes": later.sent_ids * graph.shards.only.row_bytes / COUNTED,
        "remote_share": later.remote_reads / max(later.reads, 1),
        "hits": later.hits / max(later.asked, 1),
        "messages": later.messages / COUNTED,
    }


def row_of(num_ranks: int, rate: float | None, options: argparse.Namespace) -> dict[str, Any]:
    """Measure all ways, which take turns."""
    with tempfile.TemporaryDirectory(prefix="graphbraid-") as temp:
        graph = skewed(options.nodes, num_ranks, CROSSING)
        train = torch.randperm(graph.num_nodes, generator=torch.Generator().manual_seed(1))
        graph = graph.replace(splits={"train": train[: BATCH * BATCHES]})
        folder = Path(temp) / "parts"
        distributed.save_partition(graph, partition_of(graph, num_ranks), folder, rows="whole")
        found = start(num_ranks, rate, [str(folder), str(options.epochs // COUNTED)], MODULE)
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
            "processor_seconds": seconds_of(one, "processor_seconds"),
            "sending_seconds": sending,
            "by_longer": seconds / max(computing, sending),
            "by_bound": seconds / max(seconds_of(one, "processor_seconds"), sending),
            "sent_by_foreseen": max(
                rank["sent_in_all"] / max(rank["foreseen_in_all"], 1) for rank in one["ranks"]
            ),
        }
    return {"ranks": num_ranks, "bits_per_second": rate, "num_nodes": graph.num_nodes, "ways": ways}


def seconds_of(found: dict[str, Any], kind: str = "seconds") -> float:
    """Return the median epoch of the slowest rank."""
    return statistics.median(map(max, zip(*(rank[kind] for rank in found["ranks"]), strict=True)))


def show(name: str, row: dict[str, Any]) -> None:
    """Print the table of a row."""
    heads = (
        "epoch, ms",
        "processor, ms",
        "by the longer of computing and sending",
        "of processor and sending",
        "MB sent",
        "kept",
        "sent by foreseen",
    )
    table = Table(name, *heads)
    for way, one in row["ways"].items():
        ranks = one["ranks"]
        table.add_row(
            way,
            f"{1e3 * one['seconds']:.0f}",
            f"{1e3 * one['processor_seconds']:.0f}",
            f"{one['by_longer']:.2f}",
            f"{one['by_bound']:.2f}",
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
    parser.add_argument(
        "--epochs", type=int, default=6, help=f"most epochs of each way that count, in rounds of {COUNTED}"
    )
    add_out_argument(parser)
    options = parser.parse_args(arguments)
    if options.epochs < 1 or options.epochs % COUNTED:
        parser.error(f"--epochs must be a multiple of {COUNTED}, not {options.epochs}")
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
            repeats = len(row["ways"]["kept"]["ranks"][0]["seconds"])
            write_rows("distributed_kept_rows", {name: row}, repeats=repeats, out=options.out)


def _one() -> None:
    core, folder, rounds = sys.argv[2:]
    os.sched_setaffinity(0, {int(core)})
    torch.set_num_threads(1)
    print(json.dumps(as_rank(Path(folder), int(rounds))))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        _one()
    else:
        main()
