"""Drawing time and nodes of a rank's share of a whole batch in layout ``subgraph``.

    python -m benchmarks.distributed.shares

One thread draws the batches of ``braid-2m`` without features, fanouts 15 and 10, 1,024 seeds: whole, for the
seeds of one rank alone, and as the share of one rank by a model that reads 2 edges (``graphbraid.nn``) or 3
(PyG's, whose layers may count their sources' in-edges), or 5 (PyG's with batch normalisation). The median of
the epochs counts.
"""

from __future__ import annotations

import statistics
import time

from rich.console import Console
from rich.table import Table

from benchmarks.common.options import add_out_argument, parser_of
from benchmarks.common.rows import write_rows
from graphbraid import Graph, datasets
from graphbraid.loader import LoaderSettings
from graphbraid.loader.batch_loader import BatchLoader
from graphbraid.sampling.source import BatchSource

FANOUTS, BATCH_SIZE, EPOCHS = [15, 10], 1024, 9


def measure(graph: Graph, num_parts: int, reach: int | None) -> dict[str, float]:
    """Milliseconds and nodes of a batch of the first of ``num_parts`` ranks."""
    settings = LoaderSettings(
        num_neighbors=FANOUTS,
        input_nodes=graph.split("train"),
        batch_size=BATCH_SIZE,
        shuffle=True,
        num_workers=1,
        num_parts=num_parts,
        reach=reach,
        return_edge_id=False,
    )
    loader = BatchLoader(BatchSource(graph=graph), settings)
    seconds, nodes = [], 0
    for epoch in range(EPOCHS):
        began, nodes = time.perf_counter(), 0
        for batch in loader.batches(epoch):
            nodes += batch.n_id.numel()
        seconds.append(time.perf_counter() - began)
    return {"ms": 1e3 * statistics.median(seconds) / len(loader), "nodes": nodes // len(loader)}


def main() -> None:
    """Run the benchmark."""
    parser = parser_of(__doc__)
    add_out_argument(parser)
    options = parser.parse_args()
    graph = datasets.load("braid-2m").replace(x=None)
    ways = {"whole batch": (1, None)}
    for ranks in (2, 4):
        ways[f"{ranks} ranks, own seeds alone"] = ranks, None
        for reach in (2, 3, 5):
            ways[f"{ranks} ranks, share, reach {reach}"] = ranks, reach
    rows = {name: measure(graph, *way) for name, way in ways.items()}
    table = Table("sample", "ms a batch", "nodes")
    for name, row in rows.items():
        table.add_row(name, f"{row['ms']:.2f}", f"{row['nodes']:,.0f}")
    Console(width=110).print(table)
    print("wrote", write_rows("distributed_shares", rows, repeats=EPOCHS, out=options.out))


if __name__ == "__main__":
    main()
