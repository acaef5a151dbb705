"""Filtered MRR of link prediction on a knowledge graph: predictors on learned rows, and on an R-GCN encoder.

    python -m benchmarks.accuracy.knowledge [--data ../shared/data] [--seeds 10] [--models complex rotate]

Trains through ``Trainer(task="link")`` alone, on the splits of the archive. The epoch is chosen by the MRR of
the validation triples; the test triples are ranked once, at the end: both ends among all entities, without
other true triples ("filtered"). Beside each model stands the literature's MRR:

- DistMult with few negatives 0.241 (Dettmers et al. 2018), R-GCN 0.248 (Schlichtkrull et al. 2018);
- DistMult among all entities 0.343, TransE 0.313 and RotatE 0.333 (the models of LibKGE, which belong to
  Ruffinelli et al. 2020);
- ComplEx with N3 0.35 at rank 100, as here (the page of the code of Lacroix et al. 2018).

A model's row is written after each seed, and a later call goes on where an earlier one stopped: seeds that
were trained with the same options are not trained again (``--afresh`` trains them). The seconds of a run are
no rate unless nothing else ran: seeds may be trained beside other work.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.accuracy.literature import DATA
from benchmarks.common.options import add_out_argument, parser_of
from benchmarks.common.rows import RESULTS, commit, read_lines, write_rows
from graphbraid import Graph, Trainer, datasets, nn

ARCHIVE = "kg_fb15k237"
LEVELS = {
    "distmult": 0.24,
    "rgcn": 0.24,
    "complex": 0.35,
    "distmult-all": 0.343,
    "transe": 0.313,
    "rotate": 0.333,
}
"""Filtered MRR that the literature reports."""
COMMON: dict[str, Any] = {
    "task": "link",
    "negatives": "shared",
    "metrics": ("mrr", "hits@1", "hits@3", "hits@10"),
    "optimizer": "adam",
    "eval_every": 2,
    "patience": 3,
}
AMONG_ALL: dict[str, Any] = {
    "negatives": "one-vs-all",
    "n3": 0.05,
    "optimizer": "adagrad",
    "lr": 0.1,
    "scheduler": "linear",
    "epochs": 10,
    "batch_size": 1000,
    "eval_every": 5,
    "precision": "bfloat16",
    "fanouts": (0,),
}
ADVERSARIAL: dict[str, Any] = {
    "negatives": "self-adversarial",
    "num_negatives": 0.25,
    "lr": 0.003,
    "scheduler": "linear",
    "epochs": 15,
    "batch_size": 1024,
    "eval_every": 15,
    "fanouts": (0,),
}
TRAIN: dict[str, dict[str, Any]] = {
    "distmult": {"epochs": 12, "batch_size": 1024, "num_negatives": 1, "lr": 0.005, "fanouts": (0,)},
    "rgcn": {"epochs": 8, "batch_size": 2048, "num_negatives": 1, "lr": 0.005, "fanouts": (10,)},
    "complex": AMONG_ALL,
    "distmult-all": AMONG_ALL,
    "transe": ADVERSARIAL,
    "rotate": ADVERSARIAL | {"epochs": 40},  # its MRR of validation is 0.27 after 15 and 0.30 after 40
}
CHANNELS = {"distmult": 128, "rgcn": 128, "complex": 200, "distmult-all": 200, "transe": 128, "rotate": 128}
DROPOUT = {"distmult": 0.3, "rgcn": 0.2}


def graph_of(folder: Path, model: str) -> Graph:
    """The archive with its relations; an encoder of neighbours gets those back as well."""
    graph = datasets.load(folder / f"{ARCHIVE}.npz")
    return graph.with_reverse_relations() if model == "rgcn" else graph


def predictor_of(name: str, count: int, channels: int) -> nn.RelationPredictor:
    """The predictor of a model; among all entities, each relation has a second row for its sources."""
    if name in ("distmult", "rgcn"):
        return nn.DistMult(count, channels)
    if name == "distmult-all":
        return nn.DistMult(count, channels, reciprocal=True)
    if name == "complex":
        return nn.ComplEx(count, channels, reciprocal=True)
    return nn.TransE(count, channels) if name == "transe" else nn.RotatE(count, channels)


def new_model(graph: Graph, name: str, seed: int) -> nn.LinkModel:
    """An encoder and a predictor with new weights."""
    torch.manual_seed(seed)
    channels, count = CHANNELS[name], len(graph.edge_types)
    layers = None
    if name == "rgcn":
        layers = nn.RGCNEncoder(channels, channels, channels, count, 1, num_bases=4)
    rows = nn.NodeEmbedding(graph.num_nodes, channels, layers, dropout=DROPOUT.get(name, 0.0))
    return nn.LinkModel(rows, predictor_of(name, count, channels))


def run(graph: Graph, name: str, seed: int, changed: dict[str, Any]) -> dict[str, Any]:
    """Train and test once."""
    trainer = Trainer(new_model(graph, name, seed), graph, seed=seed, **COMMON | TRAIN[name] | changed)
    result = trainer.fit()
    if not result.test:  # a signal ended it
        raise SystemExit(f"{name}, seed {seed}: ended before its test, so it is not written")
    found = {f"test_{key}": value for key, value in result.test.items()}
    return {
        "seed": seed,
        "commit": commit(),
        **found,
        "val_mrr": result.best_value,
        "best_epoch": result.best_epoch,
        "epochs": result.num_epochs,
        "seconds": round(result.seconds, 1),
    }


def chosen(name: str, epochs: int | None) -> dict[str, Any]:
    """What decides a seed's result, as it stands in a row."""
    changed = {} if epochs is None else {"epochs": epochs}
    options = {key: value for key, value in (COMMON | TRAIN[name] | changed).items() if key != "metrics"}
    found: dict[str, Any] = json.loads(
        json.dumps({"options": options, "channels": CHANNELS[name], "dropout": DROPOUT.get(name, 0.0)})
    )
    return found


def done_before(path: Path, name: str, choice: dict[str, Any]) -> list[dict[str, Any]]:
    """The runs of a model's row that came from the same choice."""
    rows = (row for row in read_lines(path) if row["row"] == name)
    return next((row["runs"] for row in rows if choice.items() <= row.items()), [])


def summary(name: str, runs: list[dict[str, Any]], choice: dict[str, Any]) -> dict[str, Any]:
    """One row: mean and deviation over the seeds."""
    values = [one["test_mrr"] for one in runs]
    return {
        "model": name,
        "dataset": ARCHIVE,
        "literature": LEVELS[name],
        "mean": statistics.fmean(values),
        "deviation": statistics.stdev(values) if len(values) > 1 else 0.0,
        **choice,
        "runs": runs,
    }


def train_seeds(
    name: str,
    seeds: range,
    data: Path,
    choice: dict[str, Any],
    changed: dict[str, Any],
    *,
    path: Path,
    afresh: bool,
) -> list[dict[str, Any]]:
    """Train the seeds that have no run yet, each written as it ends; returns the runs of all."""
    runs = [] if afresh else done_before(path, name, choice)
    missing = [seed for seed in seeds if all(one["seed"] != seed for one in runs)]
    graph = graph_of(data, name) if missing else None
    for seed in missing:
        assert graph is not None
        runs = sorted([*runs, run(graph, name, seed, changed)], key=lambda one: int(one["seed"]))
        print(name, next(one for one in runs if one["seed"] == seed), flush=True)
        row = summary(name, runs, choice)
        print("wrote", write_rows("knowledge_accuracy", {name: row}, repeats=len(runs), out=path), flush=True)
    return runs


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
            f"{row['literature']:g}",
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
    parser.add_argument("--afresh", action="store_true", help="train seeds again that have a run")
    add_out_argument(parser)
    options = parser.parse_args()
    path, rows = options.out or RESULTS / "knowledge_accuracy.jsonl", []
    for name in options.models:
        choice = chosen(name, options.epochs)
        changed = {"threads": options.threads, "epochs": choice["options"]["epochs"]}
        seeds = range(options.seeds)
        runs = train_seeds(name, seeds, options.data, choice, changed, path=path, afresh=options.afresh)
        rows.append(summary(name, runs, choice))
    show(rows)


if __name__ == "__main__":
    main()
