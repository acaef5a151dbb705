"""The kernels' bandwidth on a GPU beside the advertised and a copy's, and SpMM beside torch.sparse.

    python -m benchmarks.gpu.kernels            on a CUDA device
    python -m benchmarks.gpu.kernels --smoke    the same logic at a tiny size, on the CPU

A kernel's bytes are what it must ask for: every row it reads by id counts each time. Rows that the cache
holds make that more than the memory gives, so figures above the copy's are no mistake. Operations are of
float32 beside the advertised ones without tensor cores. SpMM must give what torch.sparse gives.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.common.options import parser_of
from benchmarks.common.rows import write_rows
from benchmarks.gpu.card import Limits, beside, describe
from benchmarks.gpu.fullgraph import add_arguments, device_of, software
from benchmarks.graphs import generated
from graphbraid.fullgraph.device import Device, device_at, on_place
from graphbraid.fullgraph.step.device_copies import csr_of, multiply
from graphbraid.graph.csc import Csc
from graphbraid.ops.aggregation import Aggregation
from graphbraid.ops.binary import WORD_BITS, bit_gram, bit_product
from graphbraid.ops.kernels import backend
from graphbraid.ops.linear import tall_gram, tall_product

WIDTHS = (16, 32, 64, 128, 256)
HEADS = 4


@dataclass(frozen=True)
class Case:
    """One call of a kernel."""

    name: str
    run: Callable[[], object]
    nbytes: int
    flops: int = 0
    out: Tensor | None = None
    """What it writes, where another case must write the same."""


def cases(csc: Csc, width: int) -> list[Case]:
    """Every kernel at one width."""
    place, edges, rows = csc.indptr.device, csc.num_edges, csc.num_dst
    kernels = backend(torch.empty(0, device=place))
    draw = torch.Generator(place).manual_seed(0)

    def values(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw, device=place)

    x, out, grad, bias = values(rows, width), values(rows, width), values(rows, width), values(width)
    logits, alpha = values(edges, HEADS), torch.empty(edges, HEADS, device=place)
    ends = (values(rows, HEADS), values(rows, HEADS))
    kept = [
        torch.empty(rows, HEADS, device=place),
        torch.empty_like(x),
        torch.empty(rows, HEADS, device=place),
    ]
    ids = torch.randperm(rows, generator=draw, device=place)
    row_moments = (values(rows), values(rows))
    column_grads = (torch.empty(width, device=place), torch.empty(width, device=place))
    how, table = Aggregation(csc=csc), x.view(torch.uint8).view(rows, -1)
    copied = torch.empty_like(table)
    weight = values(width, 32)
    matrix = csr_of(how)
    transposed, perm = csc.transpose()
    both = (csc.indptr, csc.indices, transposed.indptr, transposed.indices, perm)
    attention = (0.2, 0, 0.0, 0)
    grads = (torch.empty_like(x), *(torch.empty_like(end) for end in ends))
    index, matrix_bytes = csc.indices.element_size(), 4 * rows * width
    gathered = 4 * edges * width + index * edges + 8 * rows
    return [
        Case("spmm", lambda: how.forward(x, out=out), gathered + matrix_bytes, out=out),
        Case(
            "spmm by torch.sparse",
            lambda: multiply(matrix, x, None, out),
            gathered + matrix_bytes,
            out=out,
        ),
        Case(
            "sddmm",
            lambda: kernels.sddmm(csc.indptr, csc.indices, x, grad, None, None, alpha),
            gathered + matrix_bytes + 4 * HEADS * edges,
        ),
        Case(
            "edge softmax",
            lambda: kernels.edge_softmax(csc.indptr, logits, alpha),
            3 * 4 * HEADS * edges + 8 * rows,
        ),
        Case(
            "gat forward",
            lambda: kernels.gat_forward(csc.indptr, csc.indices, x, *ends, *attention, out, *kept),
            gathered + 4 * HEADS * edges + matrix_bytes,
        ),
        Case(
            "gat backward",
            lambda: kernels.gat_backward(*both, x, *ends, *attention, out, kept[0], grad, *grads, *kept[1:]),
            gathered + (8 + 5 * 4 * HEADS) * edges + 4 * matrix_bytes,
        ),
        Case("epilogue", lambda: kernels.epilogue(x, bias, 1, 0.01, 0.5, 7, out), 2 * matrix_bytes),
        Case(
            "epilogue backward",
            lambda: kernels.epilogue_backward(grad, out, 1, 0.01, 0.5, 7, x, bias),
            3 * matrix_bytes,
        ),
        Case(
            "layer norm",
            lambda: kernels.layer_norm(x, bias, bias, 1e-5, out, *row_moments),
            2 * matrix_bytes + 8 * rows,
        ),
        Case(
            "layer norm backward",
            lambda: kernels.layer_norm_backward(grad, x, bias, *row_moments, out, *column_grads),
            3 * matrix_bytes + 8 * rows,
        ),
        Case("column moments", lambda: kernels.column_moments(x, *column_grads), matrix_bytes),
        Case("gather rows", lambda: kernels.gather_rows(table, ids, copied), 2 * matrix_bytes + 8 * rows),
        Case(
            "product with a weight",
            lambda: tall_product(x, weight),
            matrix_bytes + 4 * 32 * rows,
            2 * rows * width * 32,
        ),
        Case("weight's gradient", lambda: tall_gram(x, grad), 2 * matrix_bytes, 2 * rows * width**2),
        *binary_cases(rows, width, draw),
    ]


def binary_cases(rows: int, width: int, draw: torch.Generator, columns: int = 512) -> list[Case]:
    """Features of zeros and ones, as bits; operations are those of the dense product they stand for."""
    rows -= rows % WORD_BITS
    by_row, by_column = (
        torch.randint(-(1 << 31), (1 << 31) - 1, shape, generator=draw, dtype=torch.int32, device=draw.device)
        for shape in ((columns // WORD_BITS, rows), (rows // WORD_BITS, columns))
    )
    weight, out = (
        torch.randn(shape, generator=draw, device=draw.device) for shape in ((width, columns), (rows, width))
    )
    flops = 2 * rows * columns * width
    return [
        Case(
            "binary features x weight",
            lambda: bit_product(by_row, weight.t(), out=out),
            by_row.nbytes + out.nbytes,
            flops,
        ),
        Case(
            "binary features' gradient",
            lambda: bit_gram(out, by_column, out=weight),
            by_column.nbytes + out.nbytes,
            flops,
        ),
    ]


def problem_of(made: list[Case]) -> str:
    """What differs between cases that must write the same; empty if nothing does."""
    first: dict[int, tuple[str, Tensor]] = {}
    for case in made:
        if case.out is None:
            continue
        case.run()
        name, wanted = first.setdefault(case.out.data_ptr(), (case.name, case.out.clone()))
        if not torch.allclose(case.out, wanted, rtol=1e-4, atol=1e-3):
            return f"{case.name} differs from {name} by {float((case.out - wanted).abs().max()):.3g}"
    return ""


def measure(case: Case, device: Device, limits: Limits) -> dict[str, Any]:
    """Time and rates of a case."""
    try:
        seconds = device.seconds(case.run)
    except RuntimeError as error:
        return {"kernel": case.name, "failed": str(error).splitlines()[0]}
    rate = case.nbytes / seconds
    found = {
        "kernel": case.name,
        "ms": 1e3 * seconds,
        "gb_per_s": rate / 1e9,
        "of_copy": rate / limits["measured"]["hbm"],
    }
    return found | ({"tflops": case.flops / seconds / 1e12} if case.flops else {})


def main(argv: list[str] | None = None) -> list[dict[str, Any]]:
    """Run the benchmark."""
    parser = parser_of(__doc__)
    add_arguments(parser)
    parser.add_argument("--names", nargs="+", help="graphs; default: two of different degree")
    options = parser.parse_args(argv)
    place, started = device_of(options), time.perf_counter()
    device, specs = device_at(place), generated.SMOKE if options.smoke else generated.SPECS
    names = options.names or (["dense"] if options.smoke else ["arxiv-like", "reddit-lite"])
    there, file = software(place), f"gpu_kernels{'_smoke' * options.smoke}"
    limits, path = there["limits"], None
    print(describe(limits), flush=True)
    rows: list[dict[str, Any]] = []
    with torch.no_grad():
        for name in names:
            csc = on_place(generated.make(name, specs[name]), place).csc
            for width in WIDTHS[:2] if options.smoke else WIDTHS:
                if time.perf_counter() - started > options.budget:
                    print(f"left out for want of time: {name}, {width} columns")
                    continue
                made, named = cases(csc, width), {}
                problem = problem_of(made)
                for case in made:
                    found = (
                        {"kernel": case.name, "failed": problem} if problem and case.out is not None else {}
                    )
                    row = {"graph": name, "width": width, **(found or measure(case, device, limits))}
                    rows.append(row)
                    named[f"{name}, width {width}, {case.name}"] = {"gpu": there, **row}
                    print(line_of(row, limits), flush=True)
                path = write_rows(file, named, repeats=1, out=options.out)
    print("wrote", path)
    return rows


def line_of(row: dict[str, Any], limits: Limits) -> str:
    """One line to print."""
    head = f"{row['graph']:12} {row['width']:4} {row['kernel']:24}"
    if "failed" in row:
        return f"{head} {row['failed']}"
    claim = limits["advertised"].get("fp32")
    of_claim = f" of {claim / 1e12:.0f}" if claim else ""
    flops = f" {row['tflops']:6.2f}{of_claim} TFLOP/s" if "tflops" in row else ""
    return f"{head} {row['ms']:9.4f} ms {beside(1e9 * row['gb_per_s'], 'hbm', limits)}{flops}"


if __name__ == "__main__":
    sys.exit(1 if any("failed" in row for row in main()) else 0)
