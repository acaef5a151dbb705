"""Full-graph epochs beside their floor: what a step cannot avoid at this machine's measured rates.

    python -m benchmarks.fullgraph.floor --graphs GRAPHS --names arxiv-like amazon_computers

Every graph is a process of its own, with the model of ``benchmarks.fullgraph.beside_peers``. An epoch is the
step with its loss and Adam. The floor is that of the step, by ``engine.floor()``, and what these two have to
read, write and exponentiate, which stands in a column of its own. Where an epoch takes more than 1.3 times
its floor, the table says where it goes: the operations that lose most, what lies between the kernels' calls,
and what the loss and the optimizer take beyond theirs.
Epochs, steps and the machine's rates are measured in turns, several rounds of them, and of each the least
disturbed counts.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import graphbraid
from benchmarks.common.contenders import Contender, ours, run_in_turn
from benchmarks.common.options import add_graphs_argument, add_out_argument, parser_of
from benchmarks.common.rows import write_rows
from benchmarks.fullgraph.ours import add_model_arguments, load_graph, make_net
from graphbraid.fullgraph import Engine
from graphbraid.fullgraph.explain.floor import Floor
from graphbraid.fullgraph.explain.ledger import Work
from graphbraid.fullgraph.rates import machine_rates
from graphbraid.fullgraph.rates import measure as measure_rates
from graphbraid.machine.hardware import Rates
from graphbraid.machine.measurements import OtherPrograms, is_disturbed

GOAL = 1.3
LARGEST = 5
ROUNDS = 5
"""Rounds, each of some epochs, a measurement of the step, and one of the rates."""


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """One graph: epochs, and the floor of its step beside the times of its tasks."""
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    graph, _ = load_graph(options.graph)
    model = make_net(graph, options)
    engine = graphbraid.compile(model, graph)
    if not isinstance(engine, Engine):
        sys.exit(engine.explain())
    optimizer = torch.optim.Adam(model.parameters(), 0.01, fused=True)
    labels = graph.y[graph.split("train")]

    def epoch_seconds() -> float:
        started = time.perf_counter()
        optimizer.zero_grad()
        graphbraid.ops.cross_entropy(engine(), labels).backward()
        optimizer.step()
        return time.perf_counter() - started

    watched, rates = OtherPrograms(), machine_rates()
    _, _, seconds, floors = epoch_seconds(), epoch_seconds(), [], []
    for _ in range(ROUNDS):
        seconds += [epoch_seconds() for _ in range(max(1, options.epochs // ROUNDS))]
        floors.append(engine.floor(measure=True))
        rates = rates.fastest(measure_rates())
    floor = min(floors, key=lambda found: found.step_seconds or 0.0).at(rates)
    epoch, others = min(seconds), watched.share()
    beside = least_beside(engine, labels.numel(), floor.rates)
    return {
        "graph": options.graph.name,
        "model": options.model,
        "hidden": options.hidden,
        "epoch_s": epoch,
        "step_s": floor.step_seconds,
        "floor_s": floor.floor_seconds + beside,
        "beside_s": beside,
        "doubt": f"other programs had {others:.0%} of the cores" if is_disturbed(others) else "",
        "goes": where_it_goes(floor, epoch - beside),
        "floor": floor.to_json(),
    }


def least_beside(engine: Engine, num_labels: int, rates: Rates) -> float:
    """Least seconds of the loss and of Adam, which an epoch cannot avoid either.

    The loss reads outputs, writes their gradient, and takes an exponential of each number. Adam reads each
    parameter, its gradient and two moments, and writes all of them but the gradient.
    """
    program = engine.program
    logits, learned = num_labels * program.width(program.output), sum(p.numel() for p in engine.parameters())
    nbytes = 8.0 * logits + 28 * learned
    in_cache = nbytes <= rates.cache_bytes
    work = Work(
        stream_bytes=0.0 if in_cache else nbytes,
        outer_stream_bytes=nbytes if in_cache else 0.0,
        exponentials=logits,
    )
    return work.seconds(rates)


def where_it_goes(floor: Floor, epoch: float) -> list[tuple[str, float]]:
    """What the step, and an epoch around it, take beyond their floors, largest first, in seconds."""
    assert floor.step_seconds is not None
    lost = [
        (f"{'<-' if o.backward else '->'} {o.operation} {o.what}", o.seconds - o.floor_seconds)
        for o in floor.operations
    ]
    between = ("between the kernels' calls", floor.between_seconds)
    around = ("loss and optimizer", epoch - floor.step_seconds)
    largest = sorted(lost, key=lambda entry: -entry[1])
    others = ("other operations", sum(seconds for _, seconds in largest[LARGEST:]))
    return sorted([*largest[:LARGEST], others, between, around], key=lambda entry: -entry[1])


def show(rows: list[dict[str, Any]]) -> None:
    """Print the table."""
    headings = ("epoch ms", "step ms", "floor ms", "of it loss and Adam", "epoch / floor")
    table = Table("graph", *headings, "where the rest goes, ms")
    for row in rows:
        ratio = row["epoch_s"] / row["floor_s"]
        goes = ", ".join(f"{what} {1e3 * seconds:.2f}" for what, seconds in row["goes"] if seconds > 0)
        times = [f"{1e3 * row[key]:.2f}" for key in ("epoch_s", "step_s", "floor_s", "beside_s")]
        table.add_row(row["graph"], *times, f"{ratio:.2f}", goes if ratio > GOAL else "")
    Console(width=160).print(table)
    for doubt in {row["doubt"] for row in rows if row["doubt"]}:
        print("doubtful:", doubt)


def main() -> None:
    """Run the benchmark, or one graph of it."""
    parser = parser_of(__doc__)
    add_graphs_argument(parser)
    parser.add_argument("--names", nargs="+", required=True)
    parser.add_argument("--repeats", type=int, default=3)
    add_out_argument(parser)
    options, passed = parser.parse_known_args()
    rows = []
    for name in options.names:
        folder = str(options.graphs / name)
        contender = Contender(name, ours("fullgraph.floor", "--one", folder, *passed))
        run_in_turn([contender], options.repeats)
        middle = sorted(contender.runs, key=lambda run: run["epoch_s"] / run["floor_s"])[options.repeats // 2]
        rows.append(middle)
        named = {f"{name}, {middle['model']}, width {middle['hidden']}": middle}
        write_rows("fullgraph_floor", named, repeats=options.repeats, out=options.out)
    show(rows)


def one() -> None:
    """One graph; one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_model_arguments(parser)
    parser.add_argument("--epochs", type=int, default=50)
    print(json.dumps(measure(parser.parse_args(sys.argv[2:]))))


if __name__ == "__main__":
    one() if sys.argv[1:2] == ["--one"] else main()
