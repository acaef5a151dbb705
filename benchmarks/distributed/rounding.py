"""Rounding of attention: losses of one to four ranks in float32, epoch by epoch, beside one rank in float64.

    python -m benchmarks.distributed.rounding --ranks 1 2 3 4 --epochs 20

GAT is trained on shared mini-batches of ``braid-10k``, and GraphSAGE with batch normalisation beside it, both
with dropout, whose masks are the same in all runs. In float64 the model computes its rows, gradients and
updates; only the loss of the outputs is float32. The distance of one rank's losses to these is
the rounding of float32 itself; several ranks add theirs to it.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from benchmarks.common.options import add_out_argument, parser_of
from benchmarks.common.rows import write_rows
from benchmarks.distributed.shaped import start
from graphbraid import datasets, distributed
from graphbraid.nn import GAT, GraphSAGE
from graphbraid.train import Trainer

MODULE, DATA = "distributed.rounding", "braid-10k"
FANOUTS, BATCH, HIDDEN = (10, 5), 128, 64
MODELS: dict[str, Any] = {
    "GAT": (GAT, {"attention_dropout": 0.5}),
    "GraphSAGE, batch normalisation": (GraphSAGE, {"norm": "batch"}),
}
FLOAT64 = "1 rank, float64"
SHOWN = (1, 5, 10, 20)
"""Epochs whose losses the table compares."""


class InFloat64(nn.Module):
    """A model in float64, called with one block per layer."""

    takes_blocks = True

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner.double()
        self.num_layers = inner.num_layers

    def forward(self, x: Tensor, adjs: Any) -> Tensor:
        """Return the outputs of the last block's destinations."""
        out: Tensor = self.inner(x.double(), adjs)
        return out


def trained(name: str, dtype: str, epochs: int) -> list[float]:
    """Train on the ranks that there are; the mean loss of each epoch."""
    graph, (make, options) = datasets.load(DATA), MODELS[name]
    torch.manual_seed(0)
    model: nn.Module = make(graph.num_features, HIDDEN, graph.num_classes, dropout=0.5, **options)
    model = InFloat64(model) if dtype == "float64" else model
    trainer = Trainer(
        model,
        graph,
        epochs=epochs,
        batch_size=BATCH,
        fanouts=FANOUTS,
        layout="blocks",
        eval_every=0,
        test_at_end=False,
    )
    return [row["train_loss"] for row in trainer.fit().history]


def distances(row: dict[str, Any], run: str) -> list[float]:
    """The largest difference of losses from those in float64, by the smaller, up to each epoch shown."""
    pairs = zip(row["losses"][run], row["losses"][FLOAT64], strict=True)
    found = [abs(a - b) / min(a, b) for a, b in pairs]
    return [max(found[:count]) for count in SHOWN]


def show(rows: dict[str, dict[str, Any]]) -> None:
    """Print how far losses are from those in float64."""
    table = Table("model", "run", *(f"{count} epochs" for count in SHOWN))
    for name, row in rows.items():
        for run in row["losses"]:
            table.add_row(name, run, *(f"{one:.1e}" for one in distances(row, run)))
    Console(width=110).print(table)


def main(arguments: list[str] | None = None) -> None:
    """Train each model on each number of ranks."""
    parser = parser_of(__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 3, 4])
    parser.add_argument("--epochs", type=int, default=20)
    add_out_argument(parser)
    options = parser.parse_args(arguments)
    rows: dict[str, dict[str, Any]] = {}
    for name in MODELS:
        runs = {FLOAT64: (1, "float64")}
        runs |= {f"{count} rank{'s' * (count > 1)}": (count, "float32") for count in options.ranks}
        losses = {
            run: start(count, None, [name, dtype, str(options.epochs)], MODULE)["losses"]
            for run, (count, dtype) in runs.items()
        }
        rows[name] = {
            "data": DATA,
            "fanouts": FANOUTS,
            "batch_size": BATCH,
            "hidden": HIDDEN,
            "losses": losses,
        }
    show(rows)
    print("wrote", write_rows("distributed_rounding", rows, repeats=1, out=options.out))


def _one() -> None:
    core, name, dtype, epochs = sys.argv[2:]
    os.sched_setaffinity(0, {int(core)})
    torch.set_num_threads(1)
    with distributed.init():
        print(json.dumps({"losses": trained(name, dtype, int(epochs))}))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        _one()
    else:
        main()
