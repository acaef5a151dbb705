"""Link prediction in time: neighbours up to each link's own time, beside neighbours of any time, which leak.

    python -m benchmarks.accuracy.temporal [--data ../shared/data] [--seeds 3] [--names tmp_mathoverflow]

Links are split by time: the first 80 % are the past, of whose end a model learns, the last 10 % the test. A
model is trained with one way of drawing neighbours and tested twice: with the same way ("as trained"), and
with neighbours that were there before the link ("honest"), which is all that a prediction can use. Where
neighbours are of any time, the graph that they are drawn from has the future, the link itself included,
unless it is left out. What the AUC loses from the first test to the second was leakage. The model is the same
each time: two layers of GraphSAGE on random features, scored by the dot product, with a random pair of nodes
per link as a negative.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch_geometric.data import Data

from benchmarks.accuracy.literature import DATA
from benchmarks.common.options import add_out_argument, parser_of
from benchmarks.common.rows import write_rows
from graphbraid import nn
from graphbraid.loader import LinkNeighborLoader
from graphbraid.train import link_auc

FANOUTS, WIDTH, BATCH_SIZE, LEARNING_RATE = [8, 4], 32, 512, 0.003
WAYS: dict[str, dict[str, Any]] = {
    "any time": {},
    "any time, without the link itself": {"exclude_seed_edges": "reverse"},
    "up to the link's time, uniform": {"temporal_strategy": "uniform"},
    "up to the link's time, the last": {"temporal_strategy": "last"},
}
"""Options of the loader; those with a strategy also get the times."""


def read(path: Path) -> Data:
    """The graph of an archive, its edges in the order of their times, with random features."""
    with np.load(path) as file:
        edges, times = torch.from_numpy(file["edge_index"]).long(), torch.from_numpy(file["edge_time"])
        num_nodes = int(file["num_nodes"])
    order = times.argsort(stable=True)
    x = torch.randn(num_nodes, WIDTH, generator=torch.Generator().manual_seed(0))
    return Data(x=x, edge_index=edges[:, order], edge_time=times[order], num_nodes=num_nodes)


def loader_of(data: Data, links: slice, way: str, seed: int, *, shuffle: bool) -> LinkNeighborLoader:
    """Batches of some of the links, whose neighbours are drawn in one of the ways."""
    options = {"exclude_seed_edges": False, **WAYS[way]}
    if "temporal_strategy" in options:  # edges of the link's very time are early enough: the link is left out
        options |= {"time_attr": "edge_time", "edge_label_time": data.edge_time[links]}
        options["exclude_seed_edges"] = "reverse"
    return LinkNeighborLoader(
        data,
        FANOUTS,
        data.edge_index[:, links],
        neg_sampling="binary",
        batch_size=BATCH_SIZE,
        shuffle=shuffle,
        seed=seed,
        num_workers=1,
        return_edge_id=False,
        **options,
    )


def scored(model: nn.GraphSAGE, loader: LinkNeighborLoader) -> Iterator[tuple[Tensor, Tensor]]:
    """Scores and labels of each batch's links and negatives."""
    for batch in loader:
        z = model(batch.x, batch.edge_index)
        src, dst = batch.edge_label_index
        yield (z[src] * z[dst]).sum(-1), batch.edge_label


def auc(model: nn.GraphSAGE, loader: LinkNeighborLoader) -> float:
    """AUC of links against their negatives."""
    model.eval()
    with torch.no_grad():
        scores, labels = (torch.cat(parts) for parts in zip(*scored(model, loader), strict=True))
    return link_auc(scores[labels == 1], scores[labels == 0])


def run(data: Data, way: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Train in one way, and test in it and honestly."""
    started, count = time.perf_counter(), data.num_edges
    torch.manual_seed(seed)
    model = nn.GraphSAGE(WIDTH, 64, WIDTH, num_layers=2, dropout=0.0)
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    past = slice(int((0.8 - options.share) * count), int(0.8 * count))
    train = loader_of(data, past, way, seed, shuffle=True)
    for _ in range(options.epochs):
        model.train()
        for scores, labels in scored(model, train):
            optimizer.zero_grad()
            F.binary_cross_entropy_with_logits(scores, labels).backward()
            optimizer.step()
    test = slice(int(0.9 * count), count)
    honest = way if "temporal_strategy" in WAYS[way] else "up to the link's time, uniform"
    found = {
        name: auc(model, loader_of(data, test, how, 1_000_000, shuffle=False))
        for name, how in (("as_trained", way), ("honest", honest))
    }
    return {"seed": seed, **found, "seconds": round(time.perf_counter() - started, 1)}


def show(rows: list[dict[str, Any]]) -> None:
    """Print the table."""
    table = Table("graph", "neighbours", "AUC as trained", "AUC honest", "leakage")
    for row in rows:
        cells = [
            f"{row[f'{key}_mean']:.3f} ± {row[f'{key}_deviation']:.3f}" for key in ("as_trained", "honest")
        ]
        leak = row["as_trained_mean"] - row["honest_mean"]
        table.add_row(row["dataset"], row["way"], *cells, f"{leak:+.3f}")
    Console(width=110).print(table)


def main() -> None:
    """Train, print, write; a row as soon as it is there."""
    parser = parser_of(__doc__)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--names", nargs="+", default=["tmp_mathoverflow"])
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--share", type=float, default=0.2, help="of all links to learn, up to 0.8")
    add_out_argument(parser)
    options, rows = parser.parse_args(), []
    for name in options.names:
        data = read(options.data / f"{name}.npz")
        for way in options.ways:
            runs = [run(data, way, seed, options) for seed in range(options.seeds)]
            row: dict[str, Any] = {"dataset": name, "way": way, "epochs": options.epochs}
            for key in ("as_trained", "honest"):
                values = [one[key] for one in runs]
                row[f"{key}_mean"] = statistics.fmean(values)
                row[f"{key}_deviation"] = statistics.stdev(values) if len(values) > 1 else 0.0
            rows.append(row | {"share": options.share, "runs": runs})
            key = f"{name}, {way}"
            path = write_rows("temporal_links", {key: rows[-1]}, repeats=options.seeds, out=options.out)
            print("wrote", path, key, flush=True)
    show(rows)


if __name__ == "__main__":
    main()
