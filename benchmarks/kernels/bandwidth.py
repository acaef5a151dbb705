"""The kernels' bandwidth on the CPU beside the limit of random-row reads, and SpMM beside torch.sparse.

    python -m benchmarks.kernels.bandwidth --graphs GRAPHS

A kernel's bytes are what it must ask for: every row it reads by id counts each time. Real and generated
graphs have hubs, whose rows the caches hold, so figures above the limit are no mistake. The limit reads rows
drawn uniformly from a matrix that no cache holds, and does nothing with them but add them up. What reads in
sequence (edge softmax, epilogues) stands beside a copy. GFLOP/s of binary features are those of the dense
product they stand for.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.common.options import add_graphs_argument, add_out_argument, parser_of
from benchmarks.common.rows import write_rows
from benchmarks.gpu.kernels import Case, cases
from graphbraid import SparseFeatures
from graphbraid.fullgraph.device import HOST
from graphbraid.fullgraph.step.features import SparseInput
from graphbraid.graph.csc import Csc, index_dtype
from graphbraid.ops import spmm
from graphbraid.ops.aggregation import Aggregation

WIDTHS = (16, 32, 64, 128)
IN_SEQUENCE = (
    "edge softmax",
    "epilogue",
    "epilogue backward",
    "layer norm",
    "layer norm backward",
    "column moments",
)
LIMIT_NODES, LIMIT_DEGREE = 1 << 21, 8


def row_limit(width: int) -> float:
    """Bytes a second of rows drawn uniformly."""
    draw = torch.Generator().manual_seed(0)
    nodes, edges = LIMIT_NODES // max(1, width // 32), LIMIT_DEGREE * LIMIT_NODES // max(1, width // 32)
    indices = torch.randint(nodes, (edges,), generator=draw, dtype=torch.int32)
    csc = Csc(torch.arange(0, edges + 1, LIMIT_DEGREE), indices, nodes)
    x, out = torch.ones(nodes, width), torch.empty(nodes, width)
    return 4.0 * edges * width / HOST.seconds(lambda: Aggregation(csc=csc).forward(x, out=out))


def further_cases(csc: Csc, width: int, density: float = 0.02, columns: int = 1024) -> list[Case]:
    """What the CPU adds to the cases of a GPU."""
    draw = torch.Generator().manual_seed(1)
    rows, edges = csc.num_dst, csc.num_edges
    x, out = torch.randn(rows, width, generator=draw), torch.empty(rows, width)
    gathered = 4 * edges * width + 4 * edges + 8 * rows + x.nbytes
    weighted = Aggregation(csc=csc, weight=torch.rand(edges, generator=draw), mean=True)
    features = SparseInput(sparse_features(rows, columns, density, draw), None)
    nnz, weight = int(density * columns) * rows, torch.randn(width, columns, generator=draw)
    return [
        Case("spmm weighted mean", lambda: weighted.forward(x, out=out), gathered + 4 * edges),
        Case("spmm max", lambda: spmm(csc, x, "max"), gathered + 4 * rows * width),
        Case(
            "sparse features x weight",
            lambda: features.multiply(weight, out, add=False),
            nnz * (8 + 4 * width) + x.nbytes,
        ),
    ]


def sparse_features(rows: int, columns: int, density: float, draw: torch.Generator) -> SparseFeatures:
    """Random features in CSR with as many values in each row."""
    per_row = int(density * columns)
    indices = torch.randint(columns, (rows, per_row), generator=draw).sort(1).values
    indptr = torch.arange(0, rows * per_row + 1, per_row)
    return SparseFeatures(
        indptr=indptr,
        indices=indices.flatten().to(torch.int32),
        values=torch.ones(rows * per_row),
        num_cols=columns,
    )


def load(folder: Path) -> Csc:
    """The adjacency of a graph's folder."""
    indptr, indices = (torch.from_numpy(np.load(folder / f"{name}.npy")) for name in ("indptr", "indices"))
    nodes = indptr.numel() - 1
    return Csc(indptr, indices.to(index_dtype(nodes)), nodes)


def measure(case: Case, limit: float) -> dict[str, Any]:
    """Time and rates of a case."""
    seconds = HOST.seconds(case.run)
    rate = case.nbytes / seconds
    found = {"kernel": case.name, "ms": 1e3 * seconds, "gb_per_s": rate / 1e9, "of_limit": rate / limit}
    return found | ({"gflops": case.flops / seconds / 1e9} if case.flops else {})


def show(rows: list[dict[str, Any]]) -> None:
    """Print the table."""
    table = Table("graph", "width", "kernel", "ms", "GB/s", "of the limit", "GFLOP/s")
    for row in rows:
        table.add_row(
            row["graph"],
            str(row["width"]),
            row["kernel"],
            f"{row['ms']:.2f}",
            f"{row['gb_per_s']:.1f}",
            f"{row['of_limit']:.0%}",
            f"{row['gflops']:.0f}" if "gflops" in row else "",
        )
    Console(width=110).print(table)


def spmm_ratios(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """torch.sparse's time over ours, by graph and width."""
    time = {(row["graph"], row["width"], row["kernel"]): row["ms"] for row in rows}
    return [
        {"graph": graph, "width": width, "ratio": time[graph, width, "spmm by torch.sparse"] / ms}
        for (graph, width, kernel), ms in time.items()
        if kernel == "spmm"
    ]


def main() -> None:
    """Measure, print, write."""
    parser = parser_of(__doc__)
    add_graphs_argument(parser)
    parser.add_argument("--names", nargs="+", default=["arxiv-like", "reddit-lite"])
    parser.add_argument("--threads", type=int, default=2)
    add_out_argument(parser)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.set_grad_enabled(False)
    source = torch.empty(1 << 27)
    target = torch.empty_like(source)
    copy = 2 * source.nbytes / HOST.seconds(lambda: target.copy_(source))
    limits = {width: row_limit(width) for width in WIDTHS}
    print(f"copy {copy / 1e9:.1f} GB/s; rows at random", {w: f"{r / 1e9:.1f}" for w, r in limits.items()})
    rows = []
    for name in options.names:
        csc = load(options.graphs / name)
        for width in WIDTHS:
            for case in [*cases(csc, width), *further_cases(csc, width)]:
                limit = copy if case.name in IN_SEQUENCE else limits[width]
                limits_here = {"copy_gb_per_s": copy / 1e9, "row_limit_gb_per_s": limits[width] / 1e9}
                rows.append({"graph": name, "width": width, **measure(case, limit), **limits_here})
    show(rows)
    for ratio in spmm_ratios(rows):
        print(f"torch.sparse over ours: {ratio['graph']} width {ratio['width']}: {ratio['ratio']:.1f}x")
    named = {f"{row['graph']}, width {row['width']}, {row['kernel']}": row for row in rows}
    print("wrote", write_rows("kernels", named, repeats=1, out=options.out))


if __name__ == "__main__":
    main()
