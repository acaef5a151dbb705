"""Measurement of this machine's rates, for the cost model of the lowering passes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from graphbraid.fullgraph.device.device import Device
from graphbraid.fullgraph.device.host import HOST
from graphbraid.fullgraph.step.calls.kernels import SparseInput
from graphbraid.graph.csc import Csc
from graphbraid.graph.sparse_features import SparseFeatures
from graphbraid.machine.rates import Rates
from graphbraid.ops.aggregation import Aggregation
from graphbraid.ops.linear.bit_product import bit_gram, bit_product
from graphbraid.ops.linear.dense import tall_gram, tall_product

VERSION = 6
"""Part of the storage key; raise it when the way of measuring changes."""
_WIDTH = 64
"""Columns of the rows that are read at random."""


def measure(device: Device = HOST) -> Rates:
    """Measure the rates now, with larger operands on a device, so that they exceed its caches."""
    shift = 0 if device.is_host else 3
    with torch.no_grad(), torch.device(device.place):
        memory = _row_bytes(device.seconds, num_nodes=1 << (18 + shift))
        cached = _row_bytes(device.seconds, num_nodes=1 << (13 + shift), degree=64)
        size, outer = _cache(device.seconds, cached, memory, num_nodes=1 << (13 + shift))
        return Rates(
            multiply_flops=_multiply_flops(device.seconds, rows=1 << (15 + shift)),
            row_bytes=memory,
            cached_row_bytes=cached,
            outer_row_bytes=outer,
            inner_cache_bytes=_table_bytes(1 << (13 + shift)),
            cache_bytes=size,
            stream_bytes=_stream_bytes(device.seconds, count=1 << (24 + shift)),
            outer_stream_bytes=_stream_bytes(device.seconds, count=int(size) // 8),
            sparse_values=_sparse_values(device.seconds, rows=1 << (14 + shift)),
            binary_values=_binary_values(device.seconds, rows=1 << (14 + shift)),
        )


Seconds = Callable[[Callable[[], object]], float]


def _multiply_flops(seconds: Seconds, rows: int, depth: int = 256, width: int = 32) -> float:
    x, weight, grad = torch.ones(rows, depth), torch.ones(width, depth), torch.ones(rows, width)
    out = torch.empty(rows, width)

    def run() -> None:
        tall_product(x, weight.t(), out=out)
        tall_gram(grad, x)

    return 4.0 * rows * depth * width / seconds(run)


def _table_bytes(num_nodes: int) -> float:
    return 4.0 * _WIDTH * num_nodes


def _row_bytes(seconds: Seconds, num_nodes: int, degree: int = 8, width: int = _WIDTH) -> float:
    indices = _drawn(num_nodes, num_nodes * degree)
    csc = Csc(torch.arange(0, num_nodes * degree + 1, degree), indices, num_nodes, trusted=True)
    x, out = torch.ones(num_nodes, width), torch.empty(num_nodes, width)
    how = Aggregation(csc=csc)
    return 4.0 * csc.num_edges * width / seconds(lambda: how.forward(x, out=out))


def _cache(seconds: Seconds, cached: float, memory: float, num_nodes: int) -> tuple[float, float]:
    """Return the size of the cache, and the rate of its rows beyond the cores' own caches.

    The size is the largest, by doubling, whose rows are read nearer to the cache's rate than to memory's: the
    sizes that a processor reports do not tell this, since the last-level cache may be slow, or shared. Of
    rows drawn from that size the cores' caches hold as many as fit, and the others have the second rate.
    """
    rates = [cached]
    for doubling in range(1, 5):
        rate = _row_bytes(seconds, num_nodes << doubling, degree=32)
        if rate**2 < cached * memory:
            break
        rates.append(min(rate, cached))
    doublings = len(rates) - 1
    inside = 0.5**doublings
    outer = (1 - inside) / (1 / rates[-1] - inside / cached) if doublings else cached
    return _table_bytes(num_nodes << doublings), outer


def _stream_bytes(seconds: Seconds, count: int) -> float:
    x, out = torch.ones(count), torch.empty(count)
    return 8.0 * count / seconds(lambda: out.copy_(x))


def _sparse_values(
    seconds: Seconds, rows: int, columns: int = 2048, per_row: int = 32, width: int = 32
) -> float:
    features = SparseFeatures(
        indptr=torch.arange(0, rows * per_row + 1, per_row),
        indices=_drawn(columns, rows * per_row),
        values=torch.ones(rows * per_row),
        num_cols=columns,
    )
    sparse = SparseInput(features, None)
    weight, out = torch.ones(width, columns), torch.empty(rows, width)

    def run() -> None:
        sparse.multiply(weight, out, add=False)
        sparse.weight_grad(out)

    return 2.0 * rows * per_row * ((width + 15) // 16) / seconds(run)


def _binary_values(seconds: Seconds, rows: int, columns: int = 512, width: int = 32) -> float:
    words = [_drawn(1 << 31, count * other // 32) for count, other in ((columns, rows), (rows, columns))]
    by_row, by_column = words[0].view(-1, rows), words[1].view(-1, columns)
    weight, out = torch.ones(width, columns), torch.empty(rows, width)

    def run() -> None:
        bit_product(by_row, weight.t(), out=out)
        bit_gram(out, by_column, out=weight)

    return 2.0 * rows * columns * ((width + 15) // 16) / seconds(run)


def _drawn(bound: int, count: int) -> Tensor:
    """Draw ``(count,)`` int32 numbers in ``[0, bound)``, the same on every device."""
    draw = torch.Generator("cpu").manual_seed(0)
    ids = torch.randint(0, bound, (count,), generator=draw, dtype=torch.int32, device="cpu")
    return ids.to(torch.get_default_device())
