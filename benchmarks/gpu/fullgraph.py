"""Full-graph training on a GPU side by side with PyG (edge_index and torch.sparse) or plain PyTorch.

    python -m benchmarks.gpu.fullgraph            on a CUDA device
    python -m benchmarks.gpu.fullgraph --smoke    the same logic on tiny graphs, on the CPU

Three layers, hidden width 32, Adam (fused, for all). All contenders start from the same weights and must have
the same loss after five epochs. Each is warmed up; the median of the repeats of a row of epochs counts. Peak
memory is all that PyTorch allocated on the device, the graph and its features included. PyG under
torch.compile comes after all else, since its compilation takes long, and a row is written as it grows.
"""

from __future__ import annotations

import argparse
import copy
import functools
import gc
import statistics
import sys
import time
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import graphbraid
from benchmarks.common.options import add_out_argument, parser_of
from benchmarks.common.rows import write_rows
from benchmarks.gpu import peers as gpu_peers
from benchmarks.gpu.card import describe, goals_of, limits_of, timed
from benchmarks.graphs import generated
from graphbraid import Graph
from graphbraid import nn as gnn
from graphbraid.errors import ResourceError
from graphbraid.fullgraph import Engine
from graphbraid.fullgraph.device import Cuda

OURS = "graphbraid"
NOT_RECORDED = "not recorded"
"""Ours with every kernel started by a call of its own."""
LOSS_EPOCHS = 5
TOLERANCES = {"gcn": 2e-4, "sage": 2e-4, "gin": 2e-3, "gat": 2e-4}
"""Relative; GIN adds up all neighbours, so that its numbers, and what rounding does to them, are larger."""


def make_model(kind: str, graph: Graph) -> nn.Module:
    """Three layers of one kind, weights by seed 0."""
    torch.manual_seed(0)
    ends = (graph.num_features, 32, graph.num_classes, 3)
    if kind == "gat":
        return gnn.GAT(*ends, heads=4, dropout=0.0, act="relu")
    return {"gcn": gnn.GCN, "sage": gnn.GraphSAGE, "gin": gnn.GIN}[kind](*ends, dropout=0.0, act="relu")


class Contender:
    """One way to train, on fresh copies of the same weights."""

    def __init__(self, name: str, model: nn.Module, graph: Graph, place: torch.device) -> None:
        self.model = copy.deepcopy(model).to(place)
        nodes = graph.split("train")
        self.labels = graph.y[nodes].to(place)
        self.engine: Engine | None = None
        if name in (OURS, NOT_RECORDED):
            device = Cuda(place, records=False) if name == NOT_RECORDED else None
            engine = graphbraid.compile(self.model, graph, device=device)
            assert isinstance(engine, Engine), engine.explain()
            self.engine, self.outputs = engine, engine
        else:
            forward, there = gpu_peers.make(name, self.model, graph, place), nodes.to(place)
            self.outputs = lambda: forward().index_select(0, there)
        self.optimizer = torch.optim.Adam(self.model.parameters(), 0.01, fused=True)

    def epoch(self) -> Tensor:
        """One step over the whole graph; its loss, not read."""
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.outputs(), self.labels)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def measure(
    name: str, model: nn.Module, graph: Graph, place: torch.device, options: argparse.Namespace
) -> dict[str, Any]:
    """Loss, seconds an epoch of each repeat, peak memory; or why there are none."""
    started = time.perf_counter()
    free_memory(place)
    try:
        contender = Contender(name, model, graph, place)
        losses = [contender.epoch() for _ in range(LOSS_EPOCHS)]
        loss = float(losses[-1])
        first_seconds = time.perf_counter() - started
        seconds = [timed(contender.epoch, options.epochs, place) for _ in range(options.repeats)]
    except (torch.cuda.OutOfMemoryError, ResourceError) as error:
        return {"failed": str(error).splitlines()[0]}
    except RuntimeError as error:
        if name != gpu_peers.COMPILED:
            raise
        return {"failed": f"torch.compile: {str(error).splitlines()[0]}"}
    row: dict[str, Any] = {
        "loss": loss,
        "epoch_s": statistics.median(seconds),
        "runs": seconds,
        "setup_s": first_seconds,
    }
    if place.type == "cuda":
        row["peak_bytes"] = torch.cuda.max_memory_allocated(place)
        row["reserved_bytes"] = torch.cuda.max_memory_reserved(place)
    if contender.engine is not None:
        row["explain"] = contender.engine.explain().splitlines()
        row["engine_bytes"] = contender.engine.nbytes
    return row


def free_memory(place: torch.device) -> None:
    """Give back what earlier contenders had."""
    gc.collect()
    if place.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(place)


def problem_of(row: dict[str, Any], peers: list[str], tolerance: float = 2e-4) -> str:
    """What makes a row's figures mean nothing; empty where all that ran agree."""
    if "failed" in row[OURS]:
        return f"{OURS} failed: {row[OURS]['failed']}"
    mine = row[OURS]["loss"]
    for peer in peers:
        theirs = row.get(peer, {}).get("loss", mine)
        if not abs(mine - theirs) <= tolerance * max(1.0, abs(theirs)):
            return f"the losses differ: {mine} and {peer}'s {theirs}"
    return ""


def show(rows: list[dict[str, Any]]) -> None:
    """Print a line per row and contender."""
    for row in rows:
        mine = row[OURS].get("epoch_s")
        print(f"{row['graph']}, {row['model']} {row['problem']}".rstrip())
        for name, cell in row.items():
            if name not in (OURS, NOT_RECORDED, *gpu_peers.names(row["model"])):
                continue
            if "failed" in cell:
                print(f"  {name:12} {cell['failed']}")
                continue
            ratio = f"{cell['epoch_s'] / mine:6.1f}x" if mine else ""
            peak = f"{cell['peak_bytes'] / 1e6:9,.0f} MB" if "peak_bytes" in cell else ""
            print(f"  {name:12} {1e3 * cell['epoch_s']:9.3f} ms {ratio} {peak}  loss {cell['loss']:.5f}")


def device_of(options: argparse.Namespace) -> torch.device:
    """The CPU for ``--smoke``, else the CUDA device that must be there."""
    if options.smoke:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        sys.exit("there is no CUDA device here; --smoke runs the same on the CPU with tiny graphs")
    return torch.device("cuda", torch.cuda.current_device())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options that the GPU benchmarks share."""
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, on the CPU")
    parser.add_argument("--budget", type=float, default=1e9, help="seconds after which no row is begun")
    add_out_argument(parser)


def software(place: torch.device) -> dict[str, Any]:
    """The device and what drives it."""
    if place.type != "cuda":
        return {"device": "cpu", "limits": limits_of(place)}
    properties = torch.cuda.get_device_properties(place)
    return {
        "device": properties.name,
        "memory_bytes": properties.total_memory,
        "cuda": torch.version.cuda,
        "pyg": gpu_peers.has_pyg(),
        "limits": limits_of(place),
    }


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Run the benchmark."""
    parser = parser_of(__doc__)
    add_arguments(parser)
    parser.add_argument("--names", nargs="+", help="graphs; default: all, as for --smoke without these")
    parser.add_argument("--models", nargs="+", default=list(gpu_peers.KINDS), choices=gpu_peers.KINDS)
    parser.add_argument("--epochs", type=int, default=20, help="in a row, for one time")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args(argv)
    place, started = device_of(options), time.perf_counter()
    if not gpu_peers.has_pyg():
        print("PyG is not installed; plain PyTorch stands in for its two ways", file=sys.stderr)
    specs = generated.SMOKE if options.smoke else generated.SPECS
    names = list(options.names or specs)
    if options.smoke:
        options.epochs = options.repeats = 1
        names = [name for name in names if name in specs] or list(specs)
    elif unknown := set(names) - set(specs):
        parser.error(f"--names takes {', '.join(specs)}; got {', '.join(sorted(unknown))}")
    there, file = software(place), f"gpu_fullgraph{'_smoke' * options.smoke}"
    print(describe(there["limits"]), flush=True)
    rows: dict[str, dict[str, Any]] = {}
    left_out: list[str] = []
    path = None
    ours = [OURS, *[NOT_RECORDED] * (place.type == "cuda")]
    todo = [
        (key, kind, one) for key in names for kind in options.models for one in ours + gpu_peers.names(kind)
    ]
    for key, kind, contender in sorted(todo, key=lambda one: one[2] == gpu_peers.COMPILED):
        name = f"{key}, {kind}"
        if time.perf_counter() - started > options.budget:
            left_out.append(f"{name}: {contender}")
            continue
        graph = graph_of(key, specs[key])
        row = rows.setdefault(
            name, {"gpu": there, "graph": key, "model": kind, "edges": graph.num_edges, "problem": ""}
        )
        print(f"  {name}: {contender}", file=sys.stderr, flush=True)
        row[contender] = measure(contender, make_model(kind, graph), graph, place, options)
        row["problem"] = problem_of(row, [NOT_RECORDED, *gpu_peers.names(kind)], TOLERANCES[kind])
        path = write_rows(file, {name: row}, repeats=options.repeats, out=options.out)
    show(list(rows.values()))
    if left_out:
        print(f"left out for want of time: {'; '.join(left_out)}")
    goals = goals_of(
        ("times as fast as PyG", mean_ratio(rows, "pyg", "epoch_s"), 5.0, True),
        ("times as fast as torch.compile", mean_ratio(rows, gpu_peers.COMPILED, "epoch_s"), 2.0, True),
        ("times less memory than PyG", mean_ratio(rows, "pyg", "peak_bytes"), 10.0, True),
    )
    if rows:
        goal_row = {"goals": {"gpu": there, "goals": goals}}
        path = write_rows(file, goal_row, repeats=options.repeats, out=options.out)
    print("wrote", path)
    return {"rows": list(rows.values()), "left_out": left_out, "goals": goals}


@functools.lru_cache(maxsize=1)
def graph_of(name: str, spec: generated.Spec) -> Graph:
    """A generated graph; the last one is kept."""
    return generated.make(name, spec)


def mean_ratio(rows: dict[str, dict[str, Any]], peer: str, figure: str) -> float | None:
    """The geometric mean of a peer's figure over ours, of the rows that have both; None without any."""
    pairs = [(row.get(peer, {}), row.get(OURS, {})) for row in rows.values()]
    ratios = [theirs[figure] / mine[figure] for theirs, mine in pairs if figure in theirs and figure in mine]
    return statistics.geometric_mean(ratios) if ratios else None


if __name__ == "__main__":
    found = main()
    sys.exit("; ".join(row["problem"] for row in found["rows"] if row["problem"]) or 0)
