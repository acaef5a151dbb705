"""Partitions beside METIS's own: edges cut, balance, seconds, peak memory; streaming under a stated limit.

    python -m benchmarks.distributed.partitioning --graphs FOLDER --names collab_dblp2010 web_cnr2000 ...

Each contender divides each graph into 2 to 64 parts, in a process of its own per graph:

- ``auto``: :func:`graphbraid.distributed.partition` as it comes, in-edges balanced;
- ``metis``: METIS's own k-way partition, by pymetis, of the same weighted nodes, nothing checked or repaired;
- ``metis-nodes``: the same with nodes balanced, METIS's default;
- ``streaming``: the graph read from a store's files in blocks, within ``--memory`` beside it;
- ``contiguous`` and ``random``.

The cut is counted alike for all. Memory is the peak of resident memory above what there was with the graph
opened: METIS's symmetric graph is part of it.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.common.contenders import last_json_line, ours
from benchmarks.common.options import add_graphs_argument, add_out_argument, parser_of
from benchmarks.common.rows import write_rows
from benchmarks.graphs.folder import load
from benchmarks.peers.reordering import peak_starts_here, resident_bytes
from graphbraid import Graph
from graphbraid.datasets import open_store, save_store
from graphbraid.distributed import partition
from graphbraid.distributed.partitioning.choose import symmetric
from graphbraid.distributed.partitioning.records import imbalance, node_loads, part_loads
from graphbraid.distributed.partitioning.streaming import cut_edges
from graphbraid.graph.csc import Csc

CONTENDERS = ("auto", "metis", "metis-nodes", "streaming", "contiguous", "random")
PARTS = (2, 4, 8, 16, 32, 64)
MEMORY = "16MiB"


def metis_itself(csc: Csc, num_parts: int, *, balance_nodes: bool) -> torch.Tensor:
    """METIS's k-way partition with its default options, ``(num_nodes,)`` int32."""
    import pymetis

    graph = symmetric(csc)
    weight = None if graph.weight is None else graph.weight.long().numpy()
    loads = None if balance_nodes else csc.degrees().numpy()
    adjacency = pymetis.CSRAdjacency(graph.indptr.numpy(), graph.indices.long().numpy())
    found = pymetis.part_graph(num_parts, adjacency, vweights=loads, eweights=weight, recursive=False)
    return torch.as_tensor(found.vertex_part, dtype=torch.int32)


def divide(contender: str, csc: Csc, num_parts: int, memory: str) -> tuple[torch.Tensor, str]:
    """A contender's partition, and what gave it."""
    if contender.startswith("metis"):
        return metis_itself(csc, num_parts, balance_nodes=contender == "metis-nodes"), contender
    limit = memory if contender == "streaming" else None
    found = partition(csc, num_parts, strategy=contender, memory=limit)  # type: ignore[arg-type]
    return found.part_of, found.strategy


def measure(contender: str, csc: Csc, num_parts: int, memory: str) -> dict[str, Any]:
    """One partition: seconds and memory, then what it is worth."""
    ctypes.CDLL(None).malloc_trim(0)  # what earlier partitions left would hide what this one takes
    before = resident_bytes("VmRSS")
    peak_starts_here()
    started = time.perf_counter()
    part_of, strategy = divide(contender, csc, num_parts, memory)
    seconds = time.perf_counter() - started
    peak = resident_bytes("VmHWM") - before
    return {
        "strategy": strategy,
        "cut": cut_edges(csc, part_of) / max(csc.num_edges, 1),
        "edges": imbalance(part_loads(part_of, node_loads(csc, "edges"), num_parts)),
        "nodes": imbalance(part_loads(part_of, node_loads(csc, "nodes"), num_parts)),
        "seconds": seconds,
        "peak_bytes": peak,
    }


def one(options: argparse.Namespace) -> dict[str, Any]:
    """All partitions of one graph by one contender; the smallest first, so that nothing is loaded for it."""
    graph = load(options.folder, features=False)
    with tempfile.TemporaryDirectory() as place:
        csc = graph.csc
        if options.contender == "streaming":
            save_store(Graph(csc=csc), Path(place) / "store")
            csc = open_store(Path(place) / "store", verify=False).csc
        measure(options.contender, csc, 2, options.memory)  # loads what there is to load
        found = {
            str(parts): measure(options.contender, csc, parts, options.memory) for parts in options.parts
        }
    return {"num_nodes": graph.num_nodes, "num_edges": graph.num_edges, "found": found}


def rows_of(name: str, options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """The rows of one graph: a line per number of parts."""
    folder, passed = (
        str(options.graphs / name),
        ["--memory", options.memory, "--parts", *map(str, options.parts)],
    )
    runs = {}
    for contender in options.contenders:
        print(f"  {name}: {contender}", file=sys.stderr, flush=True)
        command = ours("distributed.partitioning", "--one", folder, contender, *passed)
        runs[contender] = last_json_line(contender, command)
    sizes = {key: next(iter(runs.values()))[key] for key in ("num_nodes", "num_edges")}
    common = {"graph": name, "memory": options.memory, **sizes}
    return {
        f"{name}, {parts} parts": common
        | {"num_parts": parts, **{contender: run["found"][str(parts)] for contender, run in runs.items()}}
        for parts in options.parts
    }


def show(rows: dict[str, dict[str, Any]]) -> None:
    """Print one graph's table."""
    table = Table("", *CONTENDERS, title="% of edges cut / heaviest part's edges by the mean / s / MB")
    cell: Callable[[dict[str, Any]], str] = lambda run: (  # noqa: E731
        f"{100 * run['cut']:.2f} / {run['edges']:.3f} / {run['seconds']:.2f} / {run['peak_bytes'] / 1e6:.0f}"
    )
    for name, row in rows.items():
        table.add_row(name, *(cell(row[contender]) if contender in row else "" for contender in CONTENDERS))
    Console(width=200).print(table)


def main(arguments: list[str] | None = None) -> None:
    """Measure graph by graph; each one's rows are printed and kept before the next begins."""
    parser = parser_of(__doc__)
    add_graphs_argument(parser)
    parser.add_argument("--names", nargs="+", required=True)
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=CONTENDERS)
    _add_sizes(parser)
    add_out_argument(parser)
    options = parser.parse_args(arguments)
    for name in options.names:
        rows = rows_of(name, options)
        show(rows)
        write_rows("partitioning", rows, repeats=1, out=options.out)


def _add_sizes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--parts", type=int, nargs="+", default=PARTS)
    parser.add_argument("--memory", default=MEMORY, help="of streaming, beside the graph")


def _one() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("contender", choices=CONTENDERS)
    _add_sizes(parser)
    print(json.dumps(one(parser.parse_args(sys.argv[2:]))))


if __name__ == "__main__":
    _one() if sys.argv[1:2] == ["--one"] else main()
