"""Times of a step on one batch, and the share of the parts that run as written."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from graphbraid import native
from graphbraid.fullgraph.batches.fusing import BatchProgram
from graphbraid.fullgraph.batches.operations import BatchRun
from graphbraid.fullgraph.device import HOST
from graphbraid.fullgraph.program import Break, Operation
from graphbraid.fullgraph.reading.modes import kept_buffers
from graphbraid.ops.kernels import Calls, watched
from graphbraid.ops.linear import tall_product

_REPEATS = 5
"""Number of timed steps, after one that is not timed."""
_PRODUCTS: dict[str, Callable[..., int]] = {
    "tall_product": lambda a, _, out, *__: a.shape[1] * out.numel(),
    "tall_gram": lambda a, _, out, *__: a.shape[0] * out.numel(),
}
"""Multiplications of each kernel for dense products, by its arguments."""
_LARGE_ROWS, _LARGE_WIDTH = 4096, 256
"""Size of the product that says how fast this machine multiplies."""


class NotedRun(BatchRun):
    """A run that notes the rows that graph breaks read."""

    noted: dict[str, list[Tensor]]

    def read(self, op: Operation, place: int = 0) -> Tensor:
        """Return the rows of an operation's input."""
        rows = super().read(op, place)
        if isinstance(op, Break) and op.is_graph_break:
            vars(self).setdefault("noted", {}).setdefault(op.out, []).append(rows.detach())
        return rows


def timed_lines(model: nn.Module, program: BatchProgram, make: Callable[[], NotedRun]) -> list[str]:
    """Time steps, forward and backward without loss and optimizer; return the lines to print.

    Gradients, buffers and torch's random state stay as they are.

    Args:
        model: the model.
        program: the model's program.
        make: makes a run of the program on the batch.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    devices = {one.device for one in parameters if one.is_cuda}
    with torch.random.fork_rng(devices), torch.enable_grad(), kept_buffers(model):
        step = _seconds(lambda: make().outputs(), parameters)
        with watched() as calls:
            _gradients(make().outputs(), parameters)
        products = _product_lines(calls, step)
        run = make()
        run.outputs()
        lines, written = [], 0.0
        for op in program.breaks:
            rows = [one.requires_grad_(one.is_floating_point()) for one in run.noted[op.out]]
            seconds = _seconds(lambda op=op, rows=rows: run.made_of(rows, op), [*rows, *op.parameters()])  # type: ignore[misc]
            lines.append(f"    {1e3 * seconds:.3f} ms in {op.out} = {op.details()}")
            written += seconds
    share = f"  {1e3 * written:.3f} ms of it, {written / step:.0%}, in parts that run as written"
    return [f"A step on this batch: {1e3 * step:.3f} ms", *run.lines(), *products, share, *lines]


def _product_lines(calls: Calls, step: float) -> list[str]:
    """Time the dense products of a step again by themselves, beside a large product on this machine."""
    products = [(name, arguments) for name, arguments in calls if name in _PRODUCTS]
    kernels: Any = native.kernels()
    if not products:
        return []

    flops = 2.0 * sum(_PRODUCTS[name](*arguments) for name, arguments in products)
    taken = HOST.seconds(
        lambda: [getattr(kernels, name)(*arguments) for name, arguments in products], _REPEATS
    )
    a, b = torch.ones(_LARGE_ROWS, _LARGE_WIDTH), torch.ones(_LARGE_WIDTH, _LARGE_WIDTH)
    rate = 2.0 * a.numel() * _LARGE_WIDTH / HOST.seconds(lambda: tall_product(a, b), _REPEATS)
    return [
        f"  {1e3 * taken:.3f} ms of it, {taken / step:.0%}, in {len(products)} dense products: "
        f"{flops / 1e9:.3g} GFLOP at {flops / taken / 1e9:.3g} GFLOP/s",
        f"    floor {1e3 * flops / rate:.3f} ms at the {rate / 1e9:.3g} GFLOP/s of a product of "
        f"{_LARGE_ROWS} x {_LARGE_WIDTH} by {_LARGE_WIDTH} x {_LARGE_WIDTH}",
    ]


def _seconds(run: Callable[[], Tensor], wanted: Sequence[Tensor]) -> float:
    """Return the median time of a forward pass and the gradients of ``wanted``."""
    inputs, taken = [one for one in wanted if one.requires_grad], []
    for _ in range(_REPEATS + 1):
        started = time.perf_counter()
        out = run()
        _gradients(out, inputs)
        if out.is_cuda:
            torch.cuda.synchronize(out.device)
        taken.append(time.perf_counter() - started)
    return statistics.median(taken[1:])


def _gradients(out: Tensor, wanted: Sequence[Tensor]) -> None:
    if out.requires_grad and wanted:
        torch.autograd.grad(out, wanted, torch.ones_like(out), allow_unused=True)
