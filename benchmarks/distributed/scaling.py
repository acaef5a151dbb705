"""Simulated scaling: epochs on whole graphs of known sizes on up to 1,024 ranks, ranges, and what limits.

    python -m benchmarks.distributed.scaling

Nothing of these sizes is run. A step of a GCN of three layers is measured here on random graphs (RMAT) of two
sizes, with the mean degree and the widths of the graph in question, with and without features that are
aggregated once. An operation takes of that time as many parts as the graph has more edges, or nodes; ranks
divide it, and the network is the formula's of ``graphbraid plan --ranks``. A rank is as this machine is, with
the link and the memory of :data:`CLUSTER`.

The shorter time of a range is that of the faster of both measurements. As small a part of the rows that
random owners would send travels then as a partition of a real graph cuts of the edges
(``partitioning.jsonl``: the best at 64 parts). The longer time is that of the slower measurement, with random
owners. An edge takes as much longer then as on the largest graph that was trained here
(``fullgraph_growth.jsonl``).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.common.options import add_out_argument, parser_of
from benchmarks.common.rows import read_rows, write_rows
from benchmarks.graphs.rmat import Rmat, make
from graphbraid import compile  # noqa: A004
from graphbraid.estimates.full_ranks import Degrees, RankStep, degrees_of, predict, random_share, steps_of
from graphbraid.estimates.ranks import TYPICAL_BYTE_SECONDS, TYPICAL_MESSAGE_SECONDS, Cluster, RankEpoch
from graphbraid.fullgraph import ALL, Engine
from graphbraid.fullgraph.lowering.options import usual_spare_bytes
from graphbraid.graph import Graph
from graphbraid.graph.csc import Csc
from graphbraid.nn import GCN

HIDDEN, LAYERS = 256, 3
RANKS = (1, 8, 64, 256, 1024)
CLUSTER = Cluster(bandwidth_bytes=1.25e9, latency_seconds=5e-5, memory_bytes=64 << 30)
"""10 Gbit/s Ethernet, and 64 GiB of memory for each rank."""

HEADS = ("an epoch, s", "GB sent", "GB of memory", "limited by")


class Sizes(NamedTuple):
    """A graph by its sizes; each edge counts in both directions."""

    num_nodes: int
    num_edges: int
    num_features: int
    num_classes: int


GRAPHS = {
    "papers100M": Sizes(111_059_956, 2 * 1_615_685_872, 128, 172),
    "MAG240M, its types as one": Sizes(244_160_499, 2 * 1_728_364_232, 768, 153),
    "10 billion edges": Sizes(500_000_000, 10_000_000_000, 128, 64),
}


def stand_in(sizes: Sizes, num_nodes: int) -> Graph:
    """A random graph of the mean degree and the widths of another."""
    spec = Rmat(
        num_nodes=num_nodes,
        num_drawn=num_nodes * sizes.num_edges // sizes.num_nodes // 2,
        num_features=sizes.num_features,
        num_classes=sizes.num_classes,
        train_share=1.0,
    )
    arrays = {name: torch.from_numpy(array) for name, array in make(spec).items()}
    return Graph(
        csc=Csc(arrays["indptr"], arrays["indices"].int(), num_nodes),
        x=arrays["x"],
        y=arrays["y"],
        splits={"train": torch.arange(num_nodes)},
    )


def measured(sizes: Sizes, num_nodes: int) -> tuple[list[RankStep], Degrees]:
    """Steps on a graph of these sizes by those on a stand-in, and how many edges leave its nodes."""
    graph = stand_in(sizes, num_nodes)
    model = GCN(graph.num_features, HIDDEN, graph.num_classes, LAYERS, dropout=0.5)
    steps = []
    for passes in (ALL - {"prune"}, ALL - {"prune", "hoist"}):
        engine = compile(model, graph, passes=passes, spare_bytes=1 << 40)
        assert isinstance(engine, Engine)
        steps += [resized(step, sizes) for step in steps_of(engine.lowered, engine.floor(measure=True))]
    return steps, degrees_of(graph)


def resized(step: RankStep, sizes: Sizes) -> RankStep:
    """A step on a graph of other sizes: each operation by the edges, or by the nodes."""
    edges, nodes = sizes.num_edges / step.num_edges, sizes.num_nodes / step.num_nodes
    works = (work._replace(seconds=work.seconds * (edges if work.by_edges else nodes)) for work in step.works)
    return replace(
        step,
        works=tuple(works),
        num_nodes=sizes.num_nodes,
        num_edges=sizes.num_edges,
        constant_bytes=round(step.constant_bytes * nodes),
    )


def slowed(step: RankStep, times: float) -> RankStep:
    """A step whose operations over edges take longer."""
    works = (work._replace(seconds=work.seconds * times) if work.by_edges else work for work in step.works)
    return replace(step, works=tuple(works))


def least_cut() -> float:
    """The smallest part of random owners' cut edges that a partition of a real graph into 64 parts cuts."""
    graphs = [
        row for row in read_rows("partitioning") if row["num_parts"] == 64 and "mesh" not in row["graph"]
    ]
    return min(float(row["auto"]["cut"] / row["random"]["cut"]) for row in graphs)


def growth_beyond(num_edges: int) -> float:
    """Times as long as an edge takes on the largest graph that was trained here, by one of this size."""
    rows = sorted(read_rows("fullgraph_growth"), key=lambda row: int(row["num_edges"]))
    alike = min(rows, key=lambda row: abs(int(row["num_edges"]) - num_edges))
    return max(1.0, float(rows[-1]["ns_per_edge"] / alike["ns_per_edge"]))


def limit_of(epoch: RankEpoch, memory_bytes: int) -> str:
    """What takes the most of an epoch's time, or that a rank has too little memory."""
    if epoch.memory_bytes > memory_bytes:
        return "memory"
    shares = {
        "computing": epoch.compute_seconds,
        "moving bytes": epoch.moving_seconds,
        "waiting for the link": epoch.waiting_seconds,
    }
    return max(shares, key=lambda name: shares[name])


def row_of(sizes: Sizes, stand_ins: Sequence[int], cluster: Cluster) -> dict[str, Any]:
    """Both ends of each range."""
    found = [measured(sizes, num_nodes) for num_nodes in stand_ins]
    assert cluster.memory_bytes is not None, "it is given above"
    spare, part = usual_spare_bytes(cluster.memory_bytes), least_cut()
    times = growth_beyond(stand_ins[-1] * sizes.num_edges // sizes.num_nodes)
    ranks: dict[str, Any] = {}
    for count in RANKS:
        few, most = list[RankEpoch](), list[RankEpoch]()
        for steps, degrees in found:
            random = random_share(count, degrees)
            divided = random._replace(remote=part * random.remote, halo=part * random.halo)
            few.append(predict(steps, divided, cluster, spare))
            most.append(predict([slowed(step, times) for step in steps], random, cluster, spare))
        ends = min(few, key=lambda each: each.seconds), max(most, key=lambda each: each.seconds)
        ranks[str(count)] = {
            "seconds": [end.seconds for end in ends],
            "sent_bytes": [end.sent_bytes for end in ends],
            "memory_bytes": [end.memory_bytes for end in ends],
            "limits": [limit_of(end, cluster.memory_bytes) for end in ends],
        }
    return {**sizes._asdict(), "ranks": ranks, "least_cut": part, "growth": times, "stand_ins": stand_ins}


def cells_of(found: dict[str, Any]) -> list[str]:
    """The ranges of one number of ranks, as text: seconds, bytes sent, memory and limits."""
    seconds = " to ".join(f"{each:,.1f}" for each in found["seconds"])
    sent, memory = (
        " to ".join(f"{each / 1e9:,.1f}" for each in found[name]) for name in ("sent_bytes", "memory_bytes")
    )
    return [seconds, sent, memory, ", then ".join(dict.fromkeys(found["limits"]))]


def show(rows: dict[str, dict[str, Any]]) -> None:
    """Print the table."""
    table = Table("", "ranks", *HEADS)
    for name, row in rows.items():
        for count, found in row["ranks"].items():
            table.add_row(name, count, *cells_of(found))
    Console(width=160).print(table)


def main(arguments: list[str] | None = None) -> None:
    """Simulate graph by graph."""
    parser = parser_of(__doc__)
    parser.add_argument("--graphs", nargs="+", choices=GRAPHS, default=list(GRAPHS))
    parser.add_argument("--stand-ins", type=int, nargs=2, default=[1 << 14, 1 << 16], help="their nodes")
    add_out_argument(parser)
    options: argparse.Namespace = parser.parse_args(arguments)
    threads = torch.get_num_threads()
    cluster = replace(
        CLUSTER,
        message_processor_seconds=TYPICAL_MESSAGE_SECONDS / threads,
        byte_processor_seconds=TYPICAL_BYTE_SECONDS / threads,
    )
    for name in options.graphs:
        rows = {name: row_of(GRAPHS[name], options.stand_ins, cluster)}
        show(rows)
        write_rows("distributed_scaling", rows, repeats=1, out=options.out)


if __name__ == "__main__":
    main()
