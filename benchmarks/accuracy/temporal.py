"""Link prediction in time: what a model seems to know where neighbours may be of any time, and what it knows.

    python -m benchmarks.accuracy.temporal [--data ../shared/data] [--seeds 10] [--names tmp_mathoverflow]

The last fifth of the links is the future; half of it, by chance, is the test. A model is trained by
:class:`graphbraid.Trainer` in one of the ways below, and tested twice, on the same links and negatives: with
the links that it was trained with as neighbours ("as trained"), and with those from before the future alone
("honest"), which is all that a prediction has. The first way splits by chance, as is usual for links without
times: its neighbours, of training and test, may be later than a link. What its AUC loses from the first test
to the second was leakage. The other ways split by time, and differ in the neighbours that training draws for
a link: any of those to train on, later ones too; any from before the link; the latest from before it. The
model is the same each time: two layers of GraphSAGE on random features, scored by the dot product.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.accuracy.literature import DATA
from benchmarks.common.options import add_out_argument, parser_of
from benchmarks.common.rows import write_rows
from graphbraid import Trainer, nn
from graphbraid.graph import Graph

FANOUTS, WIDTH, BATCH_SIZE, LEARNING_RATE = (8, 4), 32, 512, 0.003
BY_CHANCE = "split by chance, any time"
WAYS: dict[str, str | None] = {
    BY_CHANCE: None,
    "split by time, any time": None,
    "split by time, before the link": "uniform",
    "split by time, the last before the link": "last",
}
"""The strategy of temporal sampling of each way."""
MEETS = ("node", "meets", "node")


def read(path: Path, share: float) -> tuple[Graph, Graph]:
    """Return the graph of an archive with random features, split by time and split by chance.

    Both have the same links to test on. The one split by time is trained on the last ``share`` of all links
    from before the future, and so are as many links of the other, by chance of the future, too.
    """
    with np.load(path) as file:
        edges, times = torch.from_numpy(file["edge_index"]).long(), torch.from_numpy(file["edge_time"])
        num_nodes = int(file["num_nodes"])
    order = times.argsort(stable=True)
    edges, times, draw = edges[:, order], times[order], torch.Generator().manual_seed(0)
    future = int((times < times[int(0.8 * times.numel())]).sum())  # where the time changes
    later = future + torch.randperm(times.numel() - future, generator=draw)
    test, others = later.tensor_split(2)
    past = torch.arange(future - round(share * times.numel()), future).clamp(min=0).unique()
    mixed = torch.cat([past[: -others.numel()], others])
    x = torch.randn(num_nodes, WIDTH, generator=draw)

    def graph(train: Tensor) -> Graph:
        return Graph.from_relations(
            {MEETS: edges},
            {"node": num_nodes},
            x={"node": x},
            edge_time={MEETS: times},
            edge_splits={MEETS: {"train": train, "test": test}},
            name=path.stem,
        )

    return graph(past), graph(mixed)


def run(by_time: Graph, by_chance: Graph, way: str, seed: int, epochs: int) -> dict[str, Any]:
    """Train in one way, and test as trained and honestly."""
    started = time.perf_counter()
    torch.manual_seed(seed)
    encoder = nn.GraphSAGE(WIDTH, 64, WIDTH, num_layers=2, dropout=0.0)
    model = nn.LinkModel(encoder, nn.DotProduct())
    options: dict[str, Any] = {
        "task": "link",
        "fanouts": FANOUTS,
        "batch_size": BATCH_SIZE,
        "optimizer": "adam",
        "lr": LEARNING_RATE,
        "epochs": epochs,
        "seed": seed,
        "metrics": ("auc",),
        "eval_every": 0,
        "test_at_end": False,
    }
    own = by_chance if way == BY_CHANCE else by_time
    trainer = Trainer(model, own, **options, temporal_strategy=WAYS[way])
    trainer.fit()
    as_trained = trainer.evaluate("test")["auc"]
    honest = Trainer(model, by_time, **options, temporal_strategy="uniform").evaluate("test")["auc"]
    seconds = round(time.perf_counter() - started, 1)
    return {"seed": seed, "as_trained": as_trained, "honest": honest, "seconds": seconds}


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
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--share", type=float, default=0.4, help="of all links to learn, up to 0.8")
    add_out_argument(parser)
    options, rows = parser.parse_args(), []
    for name in options.names:
        graphs = read(options.data / f"{name}.npz", options.share)
        for way in options.ways:
            rows.append(measured(graphs, way, options))
            key = f"{name}, {way}"
            path = write_rows("temporal_links", {key: rows[-1]}, repeats=options.seeds, out=options.out)
            print("wrote", path, key, flush=True)
    show(rows)


def measured(graphs: tuple[Graph, Graph], way: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return the row of one way: the mean over the seeds, and each run."""
    runs = [run(*graphs, way, seed, options.epochs) for seed in range(options.seeds)]
    row: dict[str, Any] = {"dataset": graphs[0].name, "way": way, "epochs": options.epochs}
    for key in ("as_trained", "honest"):
        values = [one[key] for one in runs]
        row[f"{key}_mean"] = statistics.fmean(values)
        row[f"{key}_deviation"] = statistics.stdev(values) if len(values) > 1 else 0.0
    return row | {"share": options.share, "runs": runs}


if __name__ == "__main__":
    main()
