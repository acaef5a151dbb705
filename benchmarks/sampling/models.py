"""Steps of models on mini-batches: as PyG runs them, trimmed by PyG, by DGL, compiled, and graphbraid.nn's.

    python -m benchmarks.sampling.models --graphs GRAPHS

Batches of 1,024 seeds, fanouts 15,10,5, are sampled beforehand, so that a step is the model's forward pass,
the loss and the backward pass. Three layers. All contenders take turns in one process. Counted is the
processor's time of one thread, which other programs change little, and of a batch's turns the least. Memory
is the most that a step holds through torch at a time, beside the model and the batch. PyG's own model,
trimmed and compiled have the same weights, and their losses must agree. PyG's ``trim_to_layer`` leaves GCN
fewer edges to count degrees of, so its loss there is another. DGL runs the models that it has in a process
of its own, on blocks of the same batches. The floor is that of a batch as a whole graph, by
:meth:`graphbraid.Engine.floor` with the seeds as training nodes: the least time of forward and backward,
without the loss, at the rates of as many threads. Last come the geometric means of all rows.

``--batch-size 1 --fanouts 3 2 2 --hidden 16 --batches 64 --repeats 20 --typed`` shows Python's time: kernels
take little of a step on such batches. How much of a compiled step they leave to Python and to torch is taken
in turns of its own, where clocks in the compiled passes say what to subtract.

``--typed`` adds models over node types and relations, on a share of a graph like ogbn-mag
(:mod:`benchmarks.sampling.typed_models`), beside DGL (:mod:`benchmarks.peers.typed_steps`).
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.nn.models.basic_gnn import BasicGNN

import graphbraid
from benchmarks.common.contenders import last_json_line, peer
from benchmarks.common.options import add_graphs_argument, add_out_argument, add_peer_arguments, parser_of
from benchmarks.common.rows import write_rows
from benchmarks.fullgraph.models import plain
from benchmarks.fullgraph.models.listed import Sizes
from benchmarks.graphs.folder import load
from graphbraid import Graph, native
from graphbraid import nn as gnn
from graphbraid.estimates.machine import allocation_of
from graphbraid.fullgraph import ALL
from graphbraid.loader import NeighborLoader


class Transformer(BasicGNN):
    """PyG's ``TransformerConv`` with four heads."""

    supports_edge_weight, supports_edge_attr = False, True

    def init_conv(self, in_channels: Any, out_channels: int, **more: Any) -> pyg.MessagePassing:
        """Return a layer; the last has the mean of its heads."""
        if getattr(self, "_is_conv_to_out", False):
            return pyg.TransformerConv(in_channels, out_channels, heads=4, concat=False, **more)
        return pyg.TransformerConv(in_channels, out_channels // 4, heads=4, **more)


class Gine(BasicGNN):
    """PyG's ``GINEConv`` with GIN's network."""

    supports_edge_weight, supports_edge_attr = False, True

    def init_conv(self, in_channels: Any, out_channels: int, **more: Any) -> pyg.MessagePassing:
        """Return a layer."""
        return pyg.GINEConv(pyg.MLP([in_channels, out_channels, out_channels], norm=None), **more)


class GatedConv(pyg.MessagePassing):
    """A user's own layer: each neighbour passes a gate that both ends open."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(aggr="add")
        self.gates = nn.Linear(in_channels, out_channels)
        self.values = nn.Linear(in_channels, out_channels)
        self.own = nn.Linear(in_channels, out_channels)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Return the new rows."""
        summed = self.propagate(edge_index, gate=self.gates(x), value=self.values(x))
        out: Tensor = summed + self.own(x)
        return out

    def message(self, gate_i: Tensor, gate_j: Tensor, value_j: Tensor) -> Tensor:
        """Return a row for each edge."""
        return torch.sigmoid(gate_i + gate_j) * torch.tanh(value_j)


class Gated(BasicGNN):
    """Layers of a user's own."""

    supports_edge_weight = supports_edge_attr = False

    def init_conv(self, in_channels: Any, out_channels: int, **_: Any) -> pyg.MessagePassing:
        """Return a layer."""
        return GatedConv(in_channels, out_channels)


def _pna(inputs: int, hidden: int, outputs: int, **more: Any) -> nn.Module:
    aggregators, scalers = ["mean", "min", "max", "std"], ["identity", "amplification", "attenuation"]
    degrees = torch.ones(16, dtype=torch.long)
    return pyg.PNA(inputs, hidden, 3, outputs, aggregators=aggregators, scalers=scalers, deg=degrees, **more)


Maker = Callable[[int, int, int], nn.Module]


def _plain(make: Callable[[int, int], nn.Module]) -> Maker:
    """Return the maker of a model that gathers and scatters in a plain ``forward``."""
    return lambda i, h, o: plain.Net(make, Sizes(channels=i, hidden=h, classes=o, dropout=0.0))


EDGE_CHANNELS = 4
"""Features of an edge, for the models that read some."""
THEIRS: dict[str, Maker] = {
    "GCN": lambda i, h, o: pyg.GCN(i, h, 3, o),
    "SAGE": lambda i, h, o: pyg.GraphSAGE(i, h, 3, o),
    "SAGE max": lambda i, h, o: pyg.GraphSAGE(i, h, 3, o, aggr="max"),
    "GIN": lambda i, h, o: pyg.GIN(i, h, 3, o),
    "GAT": lambda i, h, o: pyg.GAT(i, h, 3, o, heads=4),
    "GATv2": lambda i, h, o: pyg.GAT(i, h, 3, o, heads=4, v2=True),
    "TransformerConv": lambda i, h, o: Transformer(i, h, 3, o),
    "PNA": _pna,
    "own message": lambda i, h, o: Gated(i, h, 3, o),
    "GINE, edges": lambda i, h, o: Gine(i, h, 3, o, edge_dim=EDGE_CHANNELS),
    "GAT, edges": lambda i, h, o: pyg.GAT(i, h, 3, o, heads=4, edge_dim=EDGE_CHANNELS),
    "GATv2, edges": lambda i, h, o: pyg.GAT(i, h, 3, o, heads=4, v2=True, edge_dim=EDGE_CHANNELS),
    "TransformerConv, edges": lambda i, h, o: Transformer(i, h, 3, o, edge_dim=EDGE_CHANNELS),
    "PNA, edges": lambda i, h, o: _pna(i, h, o, edge_dim=EDGE_CHANNELS),
    "plain GCN": _plain(plain.LoopedGCN),
    "plain mean": _plain(plain.ScatteredMean),
    "plain GAT": _plain(plain.EdgeGAT),
}
OURS: dict[str, Maker] = {
    "GCN": lambda i, h, o: gnn.GCN(i, h, o, num_layers=3),
    "SAGE": lambda i, h, o: gnn.GraphSAGE(i, h, o, num_layers=3),
    "SAGE max": lambda i, h, o: gnn.GraphSAGE(i, h, o, num_layers=3, aggr="max"),
    "GIN": lambda i, h, o: gnn.GIN(i, h, o, num_layers=3),
    "GAT": lambda i, h, o: gnn.GAT(i, h, o, num_layers=3, heads=4, out_heads=4),
    "GATv2": lambda i, h, o: gnn.GATv2(i, h, o, num_layers=3, heads=4, out_heads=4),
}
DGLS = ("GCN", "SAGE", "SAGE max", "GIN", "GAT", "GATv2")
TYPED = ("R-GCN", "to_hetero SAGE", "to_hetero SAGE, adj_t", "HGT")
Run = Callable[[Any], Tensor]
SEEDS = 1024
WRITTEN, TRIMMED, DGL, LOWERED, OWN = "as written", "trim_to_layer", "DGL", "compiled", "graphbraid.nn"


def batches_of(graph: Graph, fanouts: list[int], edges: bool, count: int, batch_size: int) -> list[Any]:
    """Mini-batches as PyG's Data, whose edge lists PyG's models read; with ``edges``, edges have features."""
    seeds = graph.split("train")[: count * batch_size]
    options: dict[str, Any] = {"batch_size": batch_size, "seed": 0, "return_edge_id": False}
    with NeighborLoader(graph, fanouts, input_nodes=seeds, **options) as loader:
        batches = list(loader)
    draw = torch.Generator().manual_seed(0)
    for batch in batches if edges else ():
        batch.edge_attr = torch.rand(batch.edge_index.shape[1], EDGE_CHANNELS, generator=draw)
    return batches


def contenders(name: str, graph: Graph, hidden: int) -> dict[str, tuple[nn.Module, Run]]:
    """The models, and how each runs on a batch; the first three share their weights."""
    channels, classes = int(graph.x.shape[1]), int(graph.y.max()) + 1
    torch.manual_seed(0)
    written = THEIRS[name](channels, hidden, classes)
    trimmed, lowered = copy.deepcopy(written), copy.deepcopy(written)
    engine = graphbraid.compile(lowered, strict=True)

    def read(batch: Any) -> dict[str, Tensor]:
        return {"edge_attr": batch.edge_attr} if name.endswith("edges") else {}

    def trim(batch: Any) -> Tensor:
        out: Tensor = trimmed(
            batch.x,
            batch.edge_index,
            **read(batch),
            num_sampled_nodes_per_hop=batch.num_sampled_nodes,
            num_sampled_edges_per_hop=batch.num_sampled_edges,
        )
        return out[: batch.batch_size]

    runs: dict[str, tuple[nn.Module, Run]] = {
        WRITTEN: (
            written,
            lambda batch: written(batch.x, batch.edge_index, **read(batch))[: batch.batch_size],
        ),
        TRIMMED: (trimmed, trim),
        LOWERED: (lowered, engine),
    }
    if not isinstance(written, BasicGNN):  # it takes no numbers of sampled nodes
        del runs[TRIMMED]
    if name in OURS:
        own = OURS[name](channels, hidden, classes)
        runs[OWN] = own, lambda batch: own(batch.x, batch.blocks)
    return runs


def parts_of(batch: Any) -> dict[str, Any]:
    """What DGL makes its blocks of."""
    return {
        "x": batch.x,
        "y": batch.y[: batch.batch_size],
        "edge_index": batch.edge_index,
        "nodes": list(batch.num_sampled_nodes),
        "edges": list(batch.num_sampled_edges),
    }


def dgl_ms(
    module: str,
    name: str,
    batches: list[dict[str, Any]],
    classes: int,
    hidden: int,
    options: argparse.Namespace,
) -> float:
    """Milliseconds of a step by DGL, on blocks of the batches that the others have.

    Args:
        module: the peer.
        name: the model.
        batches: parts of each batch.
        classes: columns of the outputs.
        hidden: columns between the layers.
        options: of the benchmark.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "batches.pt"
        torch.save(batches, path)
        flags = ["--classes", str(classes), "--hidden", str(hidden), "--threads", str(options.threads)]
        flags += ["--repeats", str(options.repeats)]
        command = peer(options.peer_python, module, name, str(path), *flags)
        found: float = last_json_line("dgl", command)["ms"]
    return found


def measure(
    name: str,
    runs: Mapping[str, tuple[nn.Module, Run]],
    batches: Callable[[int, int], list[Any]],
    options: argparse.Namespace,
) -> dict[str, Any]:
    """The steps of one model, whose contenders are ``runs``."""

    def labels_of(batch: Any, who: str) -> Tensor:
        """The labels of a batch's seeds; what the contender reads of the batch is made before its step."""
        store = batch if hasattr(batch, "blocks") else batch["paper"]
        if store is batch:
            _ = batch.x, batch.edge_index if who in (WRITTEN, TRIMMED) else batch.blocks
            if "edge_type" in batch:
                _ = batch.edge_index, batch.edge_type
        y: Tensor = store.y[: store.batch_size]
        return y

    turns: dict[str, list[list[float]]] = {who: [[] for _ in range(options.batches)] for who in runs}
    losses: dict[str, float] = {}
    for _ in range(options.repeats):
        for who, (model, run) in runs.items():
            # New batches, with which nothing of an earlier turn is kept; one more, since the first step of a
            # turn pays for memory that the contender before it has left.
            for number, batch in enumerate(batches(options.batches + 1, options.batch_size)):
                y = labels_of(batch, who)
                started = time.process_time()
                model.zero_grad()
                loss = F.cross_entropy(run(batch), y)
                loss.backward()
                if number:
                    turns[who][number - 1].append(round(time.process_time() - started, 7))
                losses[who] = loss.item()
    model, run = runs[LOWERED]
    outside = list[list[float]]()
    for _ in range(options.repeats):
        found = []
        for number, batch in enumerate(batches(options.batches + 1, options.batch_size)):
            y = labels_of(batch, LOWERED)
            with compiled_passes() as inside:
                started = time.process_time()
                model.zero_grad()
                F.cross_entropy(run(batch), y).backward()
                found += [time.process_time() - started - sum(inside)] * (number > 0)
        outside.append(found)
    alike = [who for who in (LOWERED, TRIMMED) if who in losses and (name, who) != ("GCN", TRIMMED)]
    if any(abs(losses[who] - losses[WRITTEN]) > 1e-4 * max(1.0, losses[WRITTEN]) for who in alike):
        sys.exit(f"{name}: the losses differ: {losses}")
    ms = {who: 1e3 * statistics.mean(map(min, taken)) for who, taken in turns.items()}
    peaks = {}
    [batch] = batches(1, options.batch_size)
    floors = dict(zip(("all", "products"), floor_ms(runs[WRITTEN][0], batch), strict=True))
    for who, (_, run) in runs.items():
        [batch] = batches(1, options.batch_size)
        y = labels_of(batch, who)
        step = partial(_step, run, batch, y)
        peaks[who] = allocation_of(step, torch.device("cpu")).peak
    outside_ms = 1e3 * statistics.mean(map(min, zip(*outside, strict=True)))
    times = {"ms": ms, "outside_ms": outside_ms, "floor_ms": floors}
    return {"model": name, **times, "peak_bytes": peaks, "turns": turns}


def floor_ms(model: nn.Module, batch: Any) -> tuple[float, float]:
    """Least milliseconds of a step on a batch, and those of its products alone."""
    store = batch if hasattr(batch, "blocks") else batch["paper"]
    seeds, data = range(store.batch_size), copy.copy(batch)
    del (data if store is batch else data["paper"]).batch_size  # PyG's models have an argument of this name
    passes = ALL - {"hoist", "symmetry"}  # what one batch cannot do, as its features and edges are new
    floor = graphbraid.compile(copy.deepcopy(model), data, nodes=seeds, passes=passes, strict=True).floor()
    flops = sum(operation.work.flops for operation in floor.operations)
    return 1e3 * floor.floor_seconds, 1e3 * flops / floor.rates.multiply_flops


@contextlib.contextmanager
def compiled_passes() -> Iterator[list[float]]:
    """Yield a list that gets the processor's seconds of each compiled pass inside the ``with`` block."""
    kernels: Any = native.kernels()
    of_class, seconds = kernels.SegmentPass, list[float]()
    passes = {name: getattr(of_class, name) for name in ("forward", "backward")}

    def timed(run: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            started = time.process_time()
            found = run(*arguments)
            seconds.append(time.process_time() - started)
            return found

        return call

    try:
        for name, run in passes.items():
            setattr(of_class, name, timed(run))
        yield seconds
    finally:
        for name, run in passes.items():
            setattr(of_class, name, run)


def _step(run: Run, batch: Any, y: Tensor) -> None:
    F.cross_entropy(run(batch), y).backward()


def main() -> None:
    """Run the benchmark."""
    parser = parser_of(__doc__)
    add_graphs_argument(parser)
    parser.add_argument("--names", nargs="*", default=["products-lite", "rmat-1m", "web_cnr2000"])
    parser.add_argument("--models", nargs="+", default=list(THEIRS), choices=list(THEIRS))
    parser.add_argument("--typed", nargs="*", default=list(TYPED), choices=list(TYPED))
    parser.add_argument("--share", type=float, default=0.05, help="of ogbn-mag's nodes and edges")
    parser.add_argument("--hidden", nargs="+", type=int, default=[64, 256])
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=SEEDS)
    parser.add_argument("--fanouts", nargs="+", type=int, default=[15, 10, 5], help="of models without types")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    add_peer_arguments(parser)
    add_out_argument(parser)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    ways = (WRITTEN, TRIMMED, DGL, LOWERED, OWN)
    heads = (*(f"{who} ms" for who in ways), "x written", "x trimmed", "x DGL", "x floor", "MiB", "of PyG's")
    table, rows = Table("graph, model, hidden", *heads), []

    def enter(graph_name: str, hidden: int, found: dict[str, Any]) -> None:
        key, ms = f"{graph_name}, {found['model']}, hidden {hidden}", found["ms"]
        row = {"graph": graph_name, "hidden": hidden, **found}
        if options.batch_size != SEEDS:
            key = f"{key}, {options.batch_size} seeds"
            row |= {"seeds": options.batch_size, "fanouts": options.fanouts}
        rows.append(ms)
        write_rows("sampled_models", {key: row}, repeats=options.repeats, out=options.out)
        factors = (f"{ms[who] / ms[LOWERED]:.1f}" if who in ms else "" for who in (WRITTEN, TRIMMED, DGL))
        over = f"{ms[LOWERED] / found['floor_ms']['all']:.2f}"
        ours, of_pyg = found["peak_bytes"][LOWERED], found["peak_bytes"][WRITTEN]
        memory = f"{ours / 2**20:.0f}", f"{ours / of_pyg:.2f}"
        table.add_row(key, *(f"{ms[who]:#.3g}" if who in ms else "" for who in ways), *factors, over, *memory)

    for graph_name in options.names:
        graph = load(options.graphs / graph_name)
        for hidden in options.hidden:
            for name in options.models:
                runs = contenders(name, graph, hidden)
                draw = partial(batches_of, graph, options.fanouts, name.endswith("edges"))
                found = measure(name, runs, draw, options)
                if name in DGLS:
                    batches = [parts_of(one) for one in draw(options.batches + 1, options.batch_size)]
                    classes = int(graph.y.max()) + 1
                    found["ms"][DGL] = dgl_ms("steps", name, batches, classes, hidden, options)
                enter(graph_name, hidden, found)
    if options.typed:
        # here: the graph takes its memory
        from benchmarks.sampling.typed_models import CLASSES, MATRICES, TypedModels

        models = TypedModels(options.share)
        for hidden in options.hidden:
            for name in options.typed:
                runs = models.contenders(name, hidden)
                found = measure(name, runs, partial(models.batches, name), options)
                if name != MATRICES:  # DGL has one form of edges
                    drawn = models.batches(name, options.batches + 1, options.batch_size)
                    batches = [models.parts_of(name, one) for one in drawn]
                    found["ms"][DGL] = dgl_ms("typed_steps", name, batches, CLASSES, hidden, options)
                enter(f"mag-like x {options.share:g}", hidden, found)
    leads = []
    for who in (WRITTEN, TRIMMED, DGL):
        factors = [ms[who] / ms[LOWERED] for ms in rows if who in ms]
        leads.append(f"{statistics.geometric_mean(factors):.1f}" if factors else "")
    table.add_section()
    table.add_row("geometric mean", *[""] * len(ways), *leads, *[""] * 3)
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
