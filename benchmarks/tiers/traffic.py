"""How many bytes of features travel to a device that keeps the rows that are read most?

    python -m benchmarks.tiers.traffic --graphs FOLDER [--names web_cnr2000 products-lite ...]

An epoch's batches go to an emulated device whose link counts what it carries, with 0, 5, 10, 25 and 50 % of
the rows hot by the best score, which counts the epoch's reads ahead. Three ways:

- the CPU prepares the batches and copies leave hot rows out;
- likewise with look-ahead: copies also leave out rows that the batches before brought;
- the device samples, and reads over the link what is not hot.

The score's share of the reads says beforehand how many bytes must travel. The first and the third way have to
carry that to within 1 %, the second no more; and every batch must have the graph's rows. The benchmark ends
where one does not. Counts are counts: nothing here needs a quiet machine.
"""

from __future__ import annotations

import argparse
import dataclasses

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.common.emulated import EmulatedAccelerator
from benchmarks.common.options import add_graphs_argument, add_out_argument, parser_of
from benchmarks.common.rows import Row, write_rows
from benchmarks.graphs.folder import load
from benchmarks.graphs.named import PREDICTED
from benchmarks.tables.pages import write_pages
from graphbraid import Graph, features
from graphbraid.collective import Profile, fixed_plan
from graphbraid.collective.plan.scheduler import Limits
from graphbraid.collective.plan.times import Duration, StageTimes
from graphbraid.collective.run.executor import Executor
from graphbraid.collective.run.operators import Operators
from graphbraid.collective.run.stages import Context
from graphbraid.loader import BatchLoader, LoaderSettings
from graphbraid.sampling.source import BatchSource

SHARES = (0.0, 0.05, 0.10, 0.25, 0.50)
"""Shares of the rows that are hot."""
WAYS = {"copies": (1.0, False), "look-ahead": (1.0, True), "device": (0.0, False)}
"""Share of the batches that the CPU prepares, and whether copies leave out what earlier ones brought."""
GOAL = 0.01
"""How far what travels may be from what the score's share says."""
AT_ONCE = Limits(most_cbs=4, most_gbs=2)
_INSTANT = Duration(seconds=1e-6, cv=0.0)
_TIMES = StageTimes(workers=2, cpu=_INSTANT, dma=_INSTANT, uva=_INSTANT, gpu=None, model=_INSTANT)


def measure(graph: Graph, options: argparse.Namespace) -> Row:
    """One row: what travels of a graph's features, by share and way, and what the score's share foretells."""
    x = torch.arange(graph.num_nodes).float().unsqueeze(1).repeat(1, options.width)
    graph = graph.replace(x=x)
    settings = LoaderSettings(
        num_neighbors=options.fanouts,
        input_nodes="train",
        batch_size=options.batch_size,
        shuffle=True,
        seed=options.seed,
        num_workers=2,
        return_edge_id=False,
    )
    loader = BatchLoader(graph, settings)
    score = features.score(graph, "lookahead", sampler=loader.config, schedule=loader.schedule)
    num_reads, row_bytes = int(score.values.sum()), x[:1].nbytes
    served = features.coverage(score.values, score.values, SHARES)
    row: Row = {
        "graph": graph.name,
        "num_nodes": graph.num_nodes,
        "num_edges": graph.num_edges,
        "config": {
            "fanouts": list(options.fanouts),
            "batch_size": options.batch_size,
            "width": options.width,
            "seed": options.seed,
        },
        "num_batches": len(loader),
        "num_reads": num_reads,
        "row_bytes": row_bytes,
        "shares": SHARES,
        "foretold_bytes": [(1 - share) * num_reads * row_bytes for share in served],
    }
    for way, (by_cpu, looks_ahead) in WAYS.items():
        context = dataclasses.replace(loader.context(2), lookahead=looks_ahead)
        found = [travelled(context, score.values, share, by_cpu) for share in SHARES]
        row[f"{way}_bytes"] = found
    return row


def travelled(context: Context, score: Tensor, share: float, by_cpu: float) -> int:
    """Bytes of feature rows that the link carries in an epoch with a share of the rows hot."""
    graph, device = context.source.graph, EmulatedAccelerator(_TIMES, emulate_cpu=False)
    num_hot = int(share * graph.num_nodes)
    tiers = None
    if num_hot:
        assert isinstance(graph.x, Tensor)
        budget = 4 * graph.num_nodes + num_hot * graph.x[:1].nbytes  # with the map that finds them
        tiers = features.TieredFeatures.build(graph, hot=budget, score=score)
        assert tiers.hot is not None
        assert tiers.hot.num_rows == num_hot
    source = BatchSource(graph=graph, rows=tiers)
    operators = Operators.of(dataclasses.replace(context, source=source, device=device))
    num_steps = context.schedule.num_steps
    plan = fixed_plan(Profile(times=(_TIMES,)), num_steps, by_cpu, AT_ONCE)
    with Executor(operators, plan, num_steps=num_steps) as executor:
        for batch in executor:
            assert batch.x is not None
            if not torch.equal(batch.x[:, -1], batch.n_id.float()):
                raise SystemExit(f"{graph.name}, {share:.0%} hot: batch {batch.step} has rows of other nodes")
    return device.link_row_bytes


def check(row: Row) -> None:
    """End the benchmark where other bytes travel than the score's share says."""
    for way in WAYS:
        for share, foretold, found in zip(
            row["shares"], row["foretold_bytes"], row[f"{way}_bytes"], strict=True
        ):
            fits = found <= (1 + GOAL) * foretold and (way == "look-ahead" or found >= (1 - GOAL) * foretold)
            if not fits:
                raise SystemExit(
                    f"{row['graph']}, {share:.0%} hot, {way}: {found:,} bytes travelled, where the score's "
                    f"share says {foretold:,.0f}"
                )


def show(row: Row) -> None:
    """Print one graph's table."""
    table = Table("rows hot", "foretold", *WAYS, title=f"{row['graph']}, MB an epoch")
    for place, share in enumerate(row["shares"]):
        found = [row[f"{name}_bytes"][place] for name in ("foretold", *WAYS)]
        table.add_row(f"{share:.0%}", *(f"{num_bytes / 1e6:,.1f}" for num_bytes in found))
    Console(width=100).print(table)


def main(arguments: list[str] | None = None) -> None:
    """Measure every graph, then write rows and tables."""
    parser = parser_of(__doc__)
    add_graphs_argument(parser)
    parser.add_argument("--names", nargs="+", default=list(PREDICTED))
    parser.add_argument("--fanouts", nargs="+", type=int, default=[15, 10, 5])
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--width", type=int, default=32, help="float32 numbers a row")
    parser.add_argument("--seed", type=int, default=0)
    add_out_argument(parser)
    options = parser.parse_args(arguments)
    rows = {}
    for name in options.names:
        row = measure(load(options.graphs / name, features=False), options)
        show(row)
        check(row)
        rows[name] = row
    print("wrote", write_rows("tiers_traffic", rows, repeats=1, out=options.out))
    if options.out is None:
        write_pages()


if __name__ == "__main__":
    main()
