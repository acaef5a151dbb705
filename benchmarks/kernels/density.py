"""The input paths over feature densities from 0.001 to 1, and which one lowering takes.

    python -m benchmarks.kernels.density

Forward and backward of the first layer's product, 20,000 nodes, 2,000 columns, hidden width 32; features of
any numbers, then zeros and ones, which can be read as bits too. The choice costs what the chosen path takes
over the fastest.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.common.options import add_out_argument, parser_of
from benchmarks.common.rows import write_rows
from graphbraid import Graph, SparseFeatures
from graphbraid.fullgraph.lowering.costs import cost_model
from graphbraid.fullgraph.lowering.passes import choose_input_path
from graphbraid.fullgraph.rates import machine_rates
from graphbraid.fullgraph.reading.read import read_model
from graphbraid.fullgraph.step.features import BinaryInput, DenseInput, Input, SparseInput
from graphbraid.graph.csc import Csc
from graphbraid.nn import GCN

DENSITIES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.2, 0.3, 0.5, 1.0)
NODES, COLUMNS, HIDDEN = 20_000, 2_000, 32


def features(density: float, binary: bool) -> torch.Tensor:
    """Random features with about that share of non-zeros, ones if binary."""
    draw = torch.Generator().manual_seed(0)
    x = torch.ones(NODES, COLUMNS) if binary else torch.rand(NODES, COLUMNS, generator=draw)
    return torch.where(torch.rand(NODES, COLUMNS, generator=draw) < density, x, 0.0)


def seconds(run: Callable[[], object], repeats: int) -> float:
    """Median after one run to warm up."""
    run()
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def choice(x: torch.Tensor) -> str:
    """The path that lowering takes for these features."""
    csc = Csc(torch.zeros(NODES + 1, dtype=torch.int64), torch.zeros(0, dtype=torch.int32), NODES)
    costs = cost_model(Graph(csc=csc, x=x), machine_rates(), rows=(NODES,) * 3, edges=(0, 0), hoist_bytes=0)
    program = choose_input_path(read_model(GCN(COLUMNS, HIDDEN, 10, 2), COLUMNS), costs)
    return str(program.settings["input_path"])


def measure(density: float, binary: bool, repeats: int) -> dict[str, Any]:
    """One row."""
    x = features(density, binary)
    weight, out = torch.rand(HIDDEN, COLUMNS), torch.empty(NODES, HIDDEN)

    def both(path: Input) -> float:
        return seconds(lambda: (path.multiply(weight, out, add=False), path.weight_grad(out)), repeats)

    times = {
        "sparse": both(SparseInput(SparseFeatures.from_dense(x), None)),
        "dense": both(DenseInput(x, None)),
    }
    if binary:
        times["binary"] = both(BinaryInput.of(x, None))
    chosen = choice(x)
    return {
        "density": density,
        "binary features": binary,
        **times,
        "chosen": chosen,
        "cost": times[chosen] / min(times.values()),
    }


def main() -> None:
    """Measure, print, write."""
    parser = parser_of(__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    add_out_argument(parser)
    options = parser.parse_args()
    torch.set_grad_enabled(False)
    console, rows = Console(width=100), []
    for binary, title in ((False, "features of any numbers"), (True, "zeros and ones")):
        paths = ["sparse", "dense", *["binary"] * binary]
        table = Table("density", *(f"{path} ms" for path in paths), "chosen", "over the fastest", title=title)
        for density in DENSITIES:
            rows.append(row := measure(density, binary, options.repeats))
            times = [f"{1e3 * row[path]:.2f}" for path in paths]
            table.add_row(f"{row['density']:g}", *times, row["chosen"], f"{row['cost'] - 1:.0%}")
        console.print(table)
    worst = max(row["cost"] for row in rows)
    console.print(
        f"gamma {machine_rates().gamma:.3f}; the choice is at most {worst - 1:.0%} over the fastest path"
    )
    kinds = {False: "any numbers", True: "zeros and ones"}
    named = {f"density {row['density']:g}, {kinds[row['binary features']]}": row for row in rows}
    print("wrote", write_rows("density", named, repeats=options.repeats, out=options.out))


if __name__ == "__main__":
    main()
