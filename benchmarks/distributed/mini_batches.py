"""Mini-batches that ranks share: epochs measured beside those that ``graphbraid plan`` predicts.

    python -m benchmarks.distributed.mini_batches --ranks 2 --rates 1e9 1e8

Each rank has a core. Without shaping, ranks reach each other as processes of a machine do; behind links that
``tc`` shapes to a rate in bits per second they are hosts of their own (:mod:`benchmarks.distributed.shaped`),
where that is permitted. GraphSAGE is trained on a random graph by ``Trainer``, which all ranks call as a user
does; layers are so wide that their gradients take a part of a step on the slowest link.

The prediction is made by a process on one core, from its own shares of the batches, before and after the
ranks run, while every other core trains the same, as ranks share the memory; from latency and rate of sums
over the ranks, and from what messages and moving bytes cost their cores, all measured. It stands with the
range that these give. One process's epoch is measured and predicted, too. First losses must agree.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from dataclasses import replace
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from benchmarks.common.options import add_out_argument, parser_of
from benchmarks.common.rows import write_rows
from benchmarks.distributed.busy import busy_until_end, others_busy
from benchmarks.distributed.links import why_not
from benchmarks.distributed.planted import CLASSES, FEATURES, scattered
from benchmarks.distributed.probes import measured_sums, message_seconds, moving_seconds
from benchmarks.distributed.shaped import start
from graphbraid import distributed
from graphbraid.estimates.ranks import Cluster, RanksForecast, forecast_sampled, predict_sampled
from graphbraid.graph import Graph
from graphbraid.nn import GraphSAGE
from graphbraid.train import TrainConfig, Trainer

MODULE = "distributed.mini_batches"
HIDDEN, FANOUTS, BATCH = 256, (10, 5), 1024
BATCHES = 16
"""Batches in an epoch."""
SAME = 1e-4
"""Largest difference of the first epoch's losses, by the smaller."""


def graph_of(num_nodes: int) -> Graph:
    """A random graph, with as many training nodes as fill the batches of an epoch, or all if it has fewer."""
    return scattered(num_nodes).replace(splits={"train": torch.arange(min(num_nodes, BATCH * BATCHES))})


def model_of() -> nn.Module:
    """The same on every rank, without dropout, whose numbers depend on their number."""
    torch.manual_seed(0)
    return GraphSAGE(FEATURES, HIDDEN, CLASSES, num_layers=2, dropout=0.0)


def config_of(epochs: int) -> TrainConfig:
    """Options of the run. Draws of layout ``blocks`` do not depend on the number of ranks, nor do losses."""
    return TrainConfig(
        epochs=epochs, batch_size=BATCH, fanouts=FANOUTS, layout="blocks", eval_every=0, test_at_end=False
    )


def trained(graph: Graph, epochs: int) -> dict[str, Any]:
    """Train on the ranks that there are; the seconds of the epochs after the first, and its loss."""
    result = Trainer(model_of(), graph, config=config_of(1 + epochs)).fit()
    return {
        "seconds": [row["epoch_seconds"] for row in result.history[1:]],
        "loss": result.history[0]["train_loss"],
    }


def as_rank(graph: Graph, epochs: int) -> dict[str, Any]:
    """Train on the ranks that were started; what the first one found."""
    with distributed.init() as comm:
        (latency, bandwidth), windows = measured_sums(comm), moving_seconds(comm)
        message = message_seconds(comm)
        found = trained(graph, epochs)
        every = comm.gather(found["seconds"])
        windows += moving_seconds(comm)
    return found | {
        "seconds": [max(epoch) for epoch in zip(*every, strict=True)],
        "latency_seconds": latency,
        "bandwidth_bytes": bandwidth,
        "message_processor_seconds": message,
        "byte_processor_quartiles": statistics.quantiles(windows, n=4, method="inclusive"),
    }


def alone(graph: Graph, num_ranks: int, options: argparse.Namespace) -> tuple[dict[str, Any], RanksForecast]:
    """One process's epochs, and what it measures of shares; the network is not asked here."""
    found = trained(graph, options.epochs)
    shares = forecast_sampled(
        model_of(),
        graph,
        config_of(1),
        counts=[1, num_ranks],
        cluster=Cluster(),
        seconds=options.seconds,
    )
    return found, shares


def row_of(num_ranks: int, rate: float | None, options: argparse.Namespace) -> dict[str, Any]:
    """Measure ranks, and predict the same."""
    num_cores = min(num_ranks, len(os.sched_getaffinity(0)))
    graph = graph_of(options.nodes)
    with others_busy(num_cores, MODULE, str(options.nodes)):
        before = alone(graph, num_ranks, options)
    found = start(num_ranks, rate, [str(options.nodes), str(options.epochs)], MODULE)
    with others_busy(num_cores, MODULE, str(options.nodes)):
        after = alone(graph, num_ranks, options)
    loss = before[0]["loss"]
    if abs(found["loss"] / loss - 1) > SAME:
        raise SystemExit(f"one process begins with a loss of {loss}, {num_ranks} ranks with {found['loss']}")
    low, middle, high = found.pop("byte_processor_quartiles")
    cluster = Cluster(
        latency_seconds=found["latency_seconds"],
        bandwidth_bytes=found["bandwidth_bytes"],
        message_processor_seconds=found["message_processor_seconds"],
        byte_processor_seconds=middle,
        speed=num_cores / num_ranks,  # ranks that share a core
    )
    forecasts = [shares for _, shares in (before, after)]
    seconds = {
        "alone": statistics.median([*before[0]["seconds"], *after[0]["seconds"]]),
        "ranks": statistics.median(found.pop("seconds")),
    }
    of_ranks = forecasts[0].epochs[-1]
    return found | {
        "ranks": num_ranks,
        "bits_per_second": rate,
        "cores": num_cores,
        "num_nodes": graph.num_nodes,
        "num_edges": graph.num_edges,
        "hidden": HIDDEN,
        "fanouts": FANOUTS,
        "batch_size": BATCH,
        "seconds": seconds,
        **predictions(forecasts, cluster, (low, high)),
        "byte_processor_seconds": middle,
        "share": {
            "repeats": of_ranks.details["read_by"],
            "sent_bytes": of_ranks.sent_bytes,
        },
    }


def predictions(
    forecasts: list[RanksForecast], cluster: Cluster, costs: tuple[float, float]
) -> dict[str, dict[str, Any]]:
    """Epochs of one process and of the ranks, by the shares before and after.

    Args:
        forecasts: made before and after the ranks ran.
        cluster: the ranks' network.
        costs: of a byte, between which the range lies.
    """
    predicted: dict[str, Any] = {}
    ranges: dict[str, Any] = {}
    for name, place, network in (("alone", 0, Cluster()), ("ranks", -1, cluster)):
        times = [shares.epochs[place].details["times"] for shares in forecasts]
        predicted[name] = statistics.fmean(predict_sampled(each, network).seconds for each in times)
        clusters = [
            network if place == 0 else replace(network, byte_processor_seconds=cost) for cost in costs
        ]
        found = [predict_sampled(each, other).seconds for each in times for other in clusters]
        ranges[name] = [min(found), max(found)]
    return {"predicted": predicted, "predicted_range": ranges}


def ranged(row: dict[str, Any], name: str = "ranks") -> str:
    """What was predicted by what was measured, with the range in brackets."""
    measured = row["seconds"][name]
    low, high = (seconds / measured for seconds in row["predicted_range"][name])
    return f"{row['predicted'][name] / measured:.2f} ({low:.2f} to {high:.2f})"


def show(rows: dict[str, dict[str, Any]]) -> None:
    """Print the table."""
    table = Table("", "one process, ms", "predicted", "ranks, ms", "predicted", "speedup", "read by")
    for name, row in rows.items():
        one, several = row["seconds"]["alone"], row["seconds"]["ranks"]
        share = row["share"]
        table.add_row(
            name,
            f"{1e3 * one:.0f}",
            ranged(row, "alone"),
            f"{1e3 * several:.0f}",
            ranged(row),
            f"{one / several:.2f}",
            f"{share['repeats']:.2f}",
        )
    Console(width=200).print(table)


def name_of(num_ranks: int, rate: float | None) -> str:
    """The name of a row."""
    return f"{num_ranks} ranks, " + ("one machine" if rate is None else f"{rate / 1e6:g} Mbit/s")


def main(arguments: list[str] | None = None) -> None:
    """Measure each number of ranks within the machine and at each rate."""
    parser = parser_of(__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2])
    parser.add_argument("--rates", type=float, nargs="*", default=[1e9, 1e8], help="bits per second")
    parser.add_argument("--nodes", type=int, default=200_000)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=8.0, help="of measuring a number of ranks")
    add_out_argument(parser)
    options = parser.parse_args(arguments)
    rates: list[float | None] = [None]
    if why := why_not() if options.rates else "":
        print(f"only within the machine, as links cannot be shaped here: {why}", file=sys.stderr)
    else:
        rates += options.rates
    torch.set_num_threads(1)
    for num_ranks in options.ranks:
        for rate in rates:
            name, began = name_of(num_ranks, rate), time.perf_counter()
            rows = {name: row_of(num_ranks, rate, options)}
            print(f"  {name}: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
            show(rows)
            write_rows("distributed_mini_batches", rows, repeats=options.epochs, out=options.out)


def _one() -> None:
    core, num_nodes, epochs = sys.argv[2:]
    os.sched_setaffinity(0, {int(core)})
    torch.set_num_threads(1)
    print(json.dumps(as_rank(graph_of(int(num_nodes)), int(epochs))))


def _busy() -> None:
    core, num_nodes = sys.argv[1:]
    os.sched_setaffinity(0, {int(core)})
    torch.set_num_threads(1)
    graph = graph_of(int(num_nodes))
    busy_until_end(lambda: trained(graph, 1))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        _one()
    elif sys.argv[1:2] and sys.argv[1].isdigit():
        _busy()
    else:
        main()
