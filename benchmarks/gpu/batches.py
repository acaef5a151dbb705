"""Steps of PyG's own models on mini-batches on a GPU: as written, lowered, and lowered and recorded.

    python -m benchmarks.gpu.batches            on a CUDA device
    python -m benchmarks.gpu.batches --smoke    the same logic on a tiny graph, on the CPU

Batches are sampled and moved beforehand, so that a step is the model's forward pass, the loss and the
backward pass. Three layers of hidden width 64, the same weights for all, and losses that must agree. All run
through the batches twice before they are timed. ``not recorded`` starts each kernel by a call of its own.
Recorded batches are padded to one of a few sizes and replay a CUDA graph.
"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import graphbraid
from benchmarks.common.options import parser_of
from benchmarks.common.rows import write_rows
from benchmarks.gpu import peers
from benchmarks.gpu.card import describe, goals_of, timed
from benchmarks.gpu.fullgraph import NOT_RECORDED, OURS, add_arguments, device_of, mean_ratio, software
from benchmarks.graphs import generated
from graphbraid.fullgraph.batches.recorded import RecordedBatches
from graphbraid.fullgraph.device import HOST
from graphbraid.loader import NeighborLoader

WRITTEN = "pyg"
MODELS = ("GCN", "GraphSAGE", "GIN", "GAT", "a message")
TOLERANCE = 2e-3


class Gated(nn.Module):
    """Two linear maps and a gated message of one's own, as users write it."""

    def __init__(self, channels: int, hidden: int, layers: int, classes: int) -> None:
        from torch_geometric.nn import MessagePassing

        class Layer(MessagePassing):
            def __init__(self, width: int, out: int) -> None:
                super().__init__(aggr="sum")
                self.lin, self.own = nn.Linear(width, out), nn.Linear(width, out)

            def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
                found: Tensor = self.propagate(edge_index, x=self.lin(x)) + self.own(x)
                return found

            def message(self, x_i: Tensor, x_j: Tensor) -> Tensor:
                return torch.sigmoid(x_i + x_j) * torch.tanh(x_j)

        super().__init__()
        widths = [channels, *[hidden] * (layers - 1), classes]
        self.layers = nn.ModuleList(map(Layer, widths[:-1], widths[1:]))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """The last layer's rows."""
        for number, layer in enumerate(self.layers):
            x = layer(x.relu() if number else x, edge_index)
        return x


def model_of(name: str, channels: int, classes: int) -> nn.Module:
    """One of PyG's models, or one with a message of its own."""
    from torch_geometric import nn as pyg

    torch.manual_seed(0)
    ends = channels, 64, 3, classes
    if name == "a message":
        return Gated(*ends)
    more: dict[str, Any] = {"heads": 4} if name == "GAT" else {}
    made: nn.Module = getattr(pyg, name)(*ends, **more)
    return made


def batches_of(key: str, spec: generated.Spec, place: torch.device, count: int) -> list[Any]:
    """Batches of 1,024 seeds, as PyG's Data on the device."""
    graph = generated.make(key, spec)
    seeds = graph.split("train")[: 1024 * count]
    options: dict[str, Any] = {"batch_size": 1024, "seed": 0, "return_edge_id": False}
    with NeighborLoader(graph, [15, 10, 5], input_nodes=seeds, **options) as loader:
        return [batch.to_data().to(place) for batch in loader]


def run_of(name: str, model: nn.Module) -> Callable[[Any], Tensor]:
    """How a contender computes the rows of a batch's seeds."""
    if name == WRITTEN:
        return lambda batch: model(batch.x, batch.edge_index)[: batch.batch_size]
    engine = graphbraid.compile(model, strict=True)
    if name == NOT_RECORDED:
        engine._runner.recorded = RecordedBatches(HOST)
    return engine


def measure(
    name: str, model: nn.Module, batches: list[Any], place: torch.device, repeats: int
) -> dict[str, Any]:
    """Mean loss, and seconds of a step in each pass over the batches."""
    own = copy.deepcopy(model).to(place)
    run, optimizer = run_of(name, own), torch.optim.SGD(own.parameters(), 0.0)
    losses: list[Tensor] = []

    def steps() -> None:
        losses.clear()
        for batch in batches:
            optimizer.zero_grad()
            loss = F.cross_entropy(run(batch), batch.y[: batch.batch_size])
            loss.backward()
            losses.append(loss.detach())

    for _ in range(2):  # a size is recorded at its second batch
        steps()
    seconds = [timed(steps, 1, place) / len(batches) for _ in range(repeats)]
    cell = {"loss": float(torch.stack(losses).mean()), "epoch_s": min(seconds), "runs": seconds}
    return cell | ({"why": run.explain().splitlines()[-1]} if name == OURS else {})


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Run the benchmark."""
    parser = parser_of(__doc__)
    add_arguments(parser)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args(argv)
    place, started = device_of(options), time.perf_counter()
    if not peers.has_pyg():
        print("PyG is not installed, whose models this measures", file=sys.stderr)
        return {"rows": [], "left_out": list(options.models)}
    key = next(iter(generated.SMOKE)) if options.smoke else "products-lite"
    spec = (generated.SMOKE if options.smoke else generated.SPECS)[key]
    count, repeats = (2, 1) if options.smoke else (options.batches, options.repeats)
    batches, there = batches_of(key, spec, place, count), software(place)
    print(describe(there["limits"]), flush=True)
    rows: dict[str, dict[str, Any]] = {}
    left_out, path = list[str](), None
    for name in options.models:
        row: dict[str, Any] = {"gpu": there, "graph": key, "model": name, "problem": ""}
        for contender in (OURS, NOT_RECORDED, WRITTEN):
            if time.perf_counter() - started > options.budget:
                left_out.append(f"{name}: {contender}")
                continue
            model = model_of(name, spec.num_features, spec.num_classes)
            row[contender] = measure(contender, model, batches, place, repeats)
            print(f"  {name}: {contender}: {1e3 * row[contender]['epoch_s']:.3f} ms a step", flush=True)
        losses = [cell["loss"] for cell in row.values() if isinstance(cell, dict) and "loss" in cell]
        if losses and not all(
            abs(one - losses[0]) <= TOLERANCE * max(1.0, abs(one)) for one in losses
        ):  # or NaN
            row["problem"] = f"the losses differ: {losses}"
        if OURS in row:
            rows[f"{key}, {name}"] = row
            file = f"gpu_batches{'_smoke' * options.smoke}"
            path = write_rows(file, rows, repeats=repeats, out=options.out)
    if left_out:
        print(f"left out for want of time: {'; '.join(left_out)}")
    goals = goals_of(
        ("times as fast as PyG on batches", mean_ratio(rows, WRITTEN, "epoch_s"), 2.0, True),
        ("times as fast as without recording", mean_ratio(rows, NOT_RECORDED, "epoch_s"), 1.0, True),
    )
    print("wrote", path)
    return {"rows": list(rows.values()), "left_out": left_out, "goals": goals}


if __name__ == "__main__":
    found = main()
    sys.exit("; ".join(row["problem"] for row in found["rows"] if row["problem"]) or 0)
