"""Filtered MRR of link prediction on a knowledge graph: DistMult on learned rows and on an R-GCN encoder.

    python -m benchmarks.accuracy.knowledge [--data ../shared/data] [--seeds 10] [--models distmult rgcn]

Trains through ``Trainer(task="link")`` alone, on the splits of the archive. The epoch is chosen by the MRR of
the validation triples; the test triples are ranked once, at the end: both ends among all entities, without
other true triples ("filtered"). Literature's level is 0.24 for both (R-GCN: Schlichtkrull et al. 2018, 0.248;
DistMult: Dettmers et al. 2018, 0.241; with more negatives and a choice of options up to 0.34: Ruffinelli et
al. 2020).
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.accuracy.literature import DATA
from benchmarks.common.options import add_out_argument, parser_of
from benchmarks.common.rows import write_rows
from graphbraid import Graph, Trainer, datasets, nn

ARCHIVE = "kg_fb15k237"
LEVEL = 0.24
"""Filtered MRR that the literature reports for both."""
COMMON: dict[str, Any] = {
    "task": "link",
    "negatives": "shared",
    "metrics": ("mrr", "hits@1", "hits@3", "hits@10"),
    "optimizer": "adam",
    "eval_every": 2,
    "patience": 3,
}
TRAIN: dict[str, dict[str, Any]] = {
    "distmult": {"epochs": 12, "batch_size": 1024, "num_negatives": 1, "lr": 0.005, "fanouts": (0,)},
    "rgcn": {"epochs": 8, "batch_size": 2048, "num_negatives": 1, "lr": 0.005, "fanouts": (10,)},
}
CHANNELS = {"distmult": 128, "rgcn": 128}
DROPOUT = {"distmult": 0.3, "rgcn": 0.2}


def graph_of(folder: Path, model: str) -> Graph:
    """The archive with its relations; an encoder of neighbours gets those back as well."""
    graph = datasets.load(folder / f"{ARCHIVE}.npz", with_types=True)
    return graph.with_reverse_relations() if model == "rgcn" else graph


def new_model(graph: Graph, name: str, seed: int) -> nn.LinkModel:
    """An encoder and DistMult with new weights."""
    torch.manual_seed(seed)
    channels, count = CHANNELS[name], len(graph.edge_types)
    layers = None
    if name == "rgcn":
        layers = nn.RGCNEncoder(channels, channels, channels, count, 1, num_bases=4)
    rows = nn.NodeEmbedding(graph.num_nodes, channels, layers, dropout=DROPOUT[name])
    return nn.LinkModel(rows, nn.DistMult(count, channels))


def run(graph: Graph, name: str, seed: int, changed: dict[str, Any]) -> dict[str, Any]:
    """Train and test once."""
    trainer = Trainer(new_model(graph, name, seed), graph, seed=seed, **COMMON | TRAIN[name] | changed)
    result = trainer.fit()
    found = {f"test_{key}": value for key, value in result.test.items()}
    return {
        "seed": seed,
        **found,
        "val_mrr": result.best_value,
        "best_epoch": result.best_epoch,
        "epochs": result.num_epochs,
        "seconds": round(result.seconds, 1),
    }


def summary(name: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """One row: mean and deviation over the seeds."""
    values = [one["test_mrr"] for one in runs]
    return {
        "model": name,
        "dataset": ARCHIVE,
        "literature": LEVEL,
        "mean": statistics.fmean(values),
        "deviation": statistics.stdev(values) if len(values) > 1 else 0.0,
        "options": {key: value for key, value in (COMMON | TRAIN[name]).items() if key != "metrics"},
        "channels": CHANNELS[name],
        "dropout": DROPOUT[name],
        "runs": runs,
    }


def show(rows: list[dict[str, Any]]) -> None:
    """Print the table."""
    table = Table("model", "filtered MRR", "Hits@1", "Hits@10", "literature", "seconds a seed")
    for row in rows:
        means = {
            key: statistics.fmean(one[key] for one in row["runs"])
            for key in ("test_hits@1", "test_hits@10", "seconds")
        }
        table.add_row(
            row["model"],
            f"{row['mean']:.4f} ± {row['deviation']:.4f}",
            f"{means['test_hits@1']:.3f}",
            f"{means['test_hits@10']:.3f}",
            f"{row['literature']:.2f}",
            f"{means['seconds']:.0f}",
        )
    Console(width=110).print(table)


def main() -> None:
    """Train, print, write; a model's row is written after each seed."""
    parser = parser_of(__doc__)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--models", nargs="+", choices=list(TRAIN), default=list(TRAIN))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--epochs", type=int, help="in place of each model's own number")
    parser.add_argument("--threads", type=int, help="of the model's operators")
    add_out_argument(parser)
    options = parser.parse_args()
    rows = []
    for name in options.models:
        graph, runs = graph_of(options.data, name), []
        changed: dict[str, Any] = {"threads": options.threads}
        changed |= {} if options.epochs is None else {"epochs": options.epochs}
        for seed in range(options.seeds):
            runs.append(run(graph, name, seed, changed))
            print(name, runs[-1], flush=True)
            path = write_rows(
                "knowledge_accuracy", {name: summary(name, runs)}, repeats=len(runs), out=options.out
            )
        print("wrote", path)
        rows.append(summary(name, runs))
    show(rows)


if __name__ == "__main__":
    main()
