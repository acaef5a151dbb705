"""Which rows are read most? The share of reads that the top 5, 10 and 25 % of the rows serve, by score.

    python -m benchmarks.tiers --graphs FOLDER [--names web_cnr2000 products-lite ...]

For each graph and sampler the rows are counted that a loader's batches read in some epochs. Beside every
score stand

- the best fixed choice of as many rows, made afterwards from these very reads; looking ahead must reach 0.995
  of it, and the benchmark ends where it does not;
- Belady's replacement: the most that a cache of as many rows can answer which may change between batches,
  filled beforehand as the fixed choices are.

Presampled are the reads of one epoch with another seed. Counts are counts: nothing here needs a quiet machine
but the seconds that the scores took, which are no speed figures.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.common.options import add_graphs_argument, add_out_argument, parser_of
from benchmarks.common.rows import Row, write_rows
from benchmarks.graphs.folder import load
from benchmarks.graphs.named import PREDICTED
from benchmarks.tables.pages import write_pages
from benchmarks.tiers.belady import Trace, belady_hits
from graphbraid import Graph, features
from graphbraid.features.scores.choice import SHARES
from graphbraid.loader import BatchLoader, LoaderSettings

SCORES = tuple(kind for kind in features.KINDS if kind != "auto")
SAMPLERS = ("15,10,5x1024", "10,5x256")
"""Fanouts and seeds a batch."""
GOAL = 0.995
"""Share of the best fixed choice that looking ahead reaches at least."""
GRID = tuple(part / 40 for part in range(41))
"""Shares of rows at which the curves are drawn."""


def measure(graph: Graph, sampled: str, options: argparse.Namespace) -> Row:
    """One row: a graph, and a sampler as in ``SAMPLERS``."""
    fanouts, _, batch_size = sampled.partition("x")
    settings = LoaderSettings(
        num_neighbors=[int(fanout) for fanout in fanouts.split(",")],
        input_nodes="train",
        batch_size=int(batch_size),
        shuffle=True,
        seed=options.seed,
        num_workers=2,
        gather=False,
        return_edge_id=False,
    )
    with BatchLoader(graph, settings) as loader:
        reads = counted(loader, options.epochs)
        sampler, schedule = loader.config, loader.schedule
    given: dict[str, Any] = {"sampler": sampler, "schedule": schedule}
    scores = {
        kind: features.score(graph, kind, epochs=options.epochs if kind == "lookahead" else 1, **given)
        for kind in SCORES
    }
    auto = features.score(graph, "auto", epochs=options.epochs, **given)
    batches = features.batch_reads(graph, sampler, schedule, options.epochs)
    trace = Trace.of(batches, graph.num_nodes)
    assert trace.num_reads == int(reads.sum()), "the loader's batches are not those looked ahead"
    row: Row = {
        "graph": graph.name,
        "num_nodes": graph.num_nodes,
        "num_edges": graph.num_edges,
        "sampler": sampled,
        "config": {"epochs": options.epochs, "seed": options.seed},
        "num_batches": len(trace.batches),
        "num_reads": trace.num_reads,
        "shares": SHARES,
        "served": {kind: features.coverage(found.values, reads) for kind, found in scores.items()},
        "best": features.coverage(reads, reads),
        "belady": [belady_hits(trace, int(s * graph.num_nodes)) / trace.num_reads for s in SHARES],
        "auto": auto.kind,
        "trial": dict(auto.trial),
        "seconds": {kind: found.seconds for kind, found in scores.items()},
        "grid": GRID,
        "curves": {kind: curve(found.values, reads) for kind, found in scores.items()},
    }
    row["curves"]["best"] = curve(reads, reads)
    return row


def counted(loader: BatchLoader, epochs: int) -> Tensor:
    """How often the loader's batches read each row."""
    reads = torch.zeros(loader.graph.num_nodes, dtype=torch.int64)
    for epoch in range(epochs):
        for batch in loader.batches(epoch):
            reads += torch.bincount(batch.n_id, minlength=reads.numel())
    return reads


def curve(values: Tensor, reads: Tensor) -> list[float]:
    """Share of the reads at each share of the rows."""
    return [round(served, 4) for served in features.coverage(values, reads, GRID)]


def check(row: Row) -> None:
    """End the benchmark where looking ahead is no better than it must be, or Belady below a fixed choice."""
    name = f"{row['graph']}, {row['sampler']}"
    for share, ahead, best, belady in zip(
        SHARES, row["served"]["lookahead"], row["best"], row["belady"], strict=True
    ):
        if ahead < GOAL * best:
            raise SystemExit(f"{name}, {share:.0%}: looking ahead serves {ahead:.4f}, the best {best:.4f}")
        if belady < best:
            raise SystemExit(f"{name}, {share:.0%}: Belady answers {belady:.4f}, the best {best:.4f}")


def show(row: Row) -> None:
    """Print one graph's table."""
    table = Table(
        "rows kept",
        *SCORES,
        "best fixed",
        "Belady",
        title=f"{row['graph']}, {row['sampler']}, auto: {row['auto']}",
    )
    for place, share in enumerate(SHARES):
        found = [row["served"][kind][place] for kind in SCORES] + [row["best"][place], row["belady"][place]]
        table.add_row(f"{share:.0%}", *(f"{100 * served:.1f} %" for served in found))
    Console(width=150).print(table)


def main(arguments: list[str] | None = None) -> None:
    """Measure every graph, then write rows, tables and the picture."""
    parser = parser_of(__doc__)
    add_graphs_argument(parser)
    parser.add_argument("--names", nargs="+", default=list(PREDICTED))
    parser.add_argument("--samplers", nargs="+", default=list(SAMPLERS), help="fanouts, x, seeds a batch")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    add_out_argument(parser)
    options = parser.parse_args(arguments)
    rows = {}
    for name in options.names:
        graph = load(options.graphs / name, features=False)
        for sampled in options.samplers:
            row = measure(graph, sampled, options)
            show(row)
            check(row)
            rows[f"{name}, {sampled}"] = row
    print("wrote", write_rows("tiers_prediction", rows, repeats=1, out=options.out))
    if options.out is None:
        write_pages()


if __name__ == "__main__":
    main()
