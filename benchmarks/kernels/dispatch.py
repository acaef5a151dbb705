"""What calling an operator costs beside its work: an autograd function and a custom op that do almost
nothing.

    python -m benchmarks.kernels.dispatch

Microseconds per forward and backward on 16 numbers, one thread, over those of the surrounding
``sum().backward()``; decision 0005 rests on it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.common.options import add_out_argument, parser_of
from benchmarks.common.rows import write_rows

REPEATS = 9


class _Double(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(_: Any, grad: Tensor) -> Tensor:
        return grad * 2


@torch.library.custom_op("graphbraid_benchmark::double", mutates_args=())
def _double(x: Tensor) -> Tensor:
    return x * 2


_double.register_autograd(lambda _, grad: grad * 2)


def microseconds(run: Callable[[Tensor], Tensor], *, calls: int, repeats: int = REPEATS) -> float:
    """Median over the repeats of the mean of so many calls."""
    x = torch.ones(16, requires_grad=True)
    means = []
    for _ in range(repeats):
        started = time.perf_counter()
        for _ in range(calls):
            run(x).sum().backward()
        means.append(1e6 * (time.perf_counter() - started) / calls)
    return statistics.median(means)


def main() -> None:
    """Measure and write."""
    parser = parser_of(__doc__)
    parser.add_argument("--calls", type=int, default=2000, help="of one mean")
    add_out_argument(parser)
    options = parser.parse_args()
    torch.set_num_threads(1)
    plain = microseconds(lambda x: x, calls=options.calls)
    times = {
        "surrounding": plain,
        "autograd function": microseconds(_Double.apply, calls=options.calls) - plain,
        "custom op": microseconds(_double, calls=options.calls) - plain,
    }
    for name, value in times.items():
        print(f"{name:20} {value:6.1f} us")
    named = {name: {"microseconds": value} for name, value in times.items()}
    print("wrote", write_rows("dispatch", named, repeats=REPEATS, out=options.out))


if __name__ == "__main__":
    main()
