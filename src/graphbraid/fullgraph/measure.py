"""This machine's rates, measured once and kept: what the cost model of the lowering passes weighs."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import logging
import time
from collections.abc import Callable
from pathlib import Path

import torch

from graphbraid import kernels
from graphbraid.errors import ResourceError
from graphbraid.files import atomic_write, cache_folder
from graphbraid.fullgraph.facts import Rates
from graphbraid.fullgraph.kernels import SparseInput
from graphbraid.hardware import Hardware
from graphbraid.ops.aggregation import Aggregation
from graphbraid.ops.dense import tall_gram, tall_product
from graphbraid.sparse_features import SparseFeatures
from graphbraid.topology import Csc

VERSION = 1
"""Part of the key: another way of measuring measures anew."""

_log = logging.getLogger(__name__)


@functools.cache
def machine_rates() -> Rates:
    """The rates of this machine with this number of threads and kernel variant.

    Measured at the first call and then read from the cache, so that later runs decide
    alike. Typical rates where there are no compiled kernels, or where the cache cannot be written.
    """
    if kernels.native() is None:
        return Rates()
    path = rates_file()
    try:
        return Rates(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        pass
    measured = measure()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as aside:
            aside.write_text(json.dumps(dataclasses.asdict(measured), indent=1))
    except (OSError, ResourceError) as error:
        _log.warning("the machine's rates could not be kept, typical ones are taken: %s", error)
        return Rates()
    return measured


def rates_file() -> Path:
    """Where this machine's rates are kept."""
    cpu = Hardware.detect().cpu_model or "unknown"
    key = f"{VERSION} {cpu} {torch.get_num_threads()} {kernels.active().variant} {torch.__version__}"
    return cache_folder("rates") / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"


def measure() -> Rates:
    """Measure now."""
    with torch.no_grad():
        return Rates(
            multiply_flops=_multiply_flops(),
            row_bytes=_row_bytes(),
            stream_bytes=_stream_bytes(),
            sparse_values=_sparse_values(),
        )


def _multiply_flops(rows: int = 1 << 15, depth: int = 256, width: int = 32) -> float:
    x, weight, grad = torch.ones(rows, depth), torch.ones(width, depth), torch.ones(rows, width)
    out = torch.empty(rows, width)

    def run() -> None:
        tall_product(x, weight.t(), out=out)
        tall_gram(grad, x)

    return 4.0 * rows * depth * width / _seconds(run)


def _row_bytes(num_nodes: int = 1 << 18, degree: int = 8, width: int = 64) -> float:
    draw = torch.Generator().manual_seed(0)
    indices = torch.randint(0, num_nodes, (num_nodes * degree,), generator=draw, dtype=torch.int32)
    csc = Csc(torch.arange(0, num_nodes * degree + 1, degree), indices, num_nodes)
    x, out = torch.ones(num_nodes, width), torch.empty(num_nodes, width)
    how = Aggregation(csc=csc)
    return 4.0 * csc.num_edges * width / _seconds(lambda: how.forward(x, out=out))


def _stream_bytes(count: int = 1 << 24) -> float:
    x, out = torch.ones(count), torch.empty(count)
    return 8.0 * count / _seconds(lambda: out.copy_(x))


def _sparse_values(rows: int = 1 << 14, columns: int = 2048, per_row: int = 32, width: int = 32) -> float:
    draw = torch.Generator().manual_seed(0)
    features = SparseFeatures(
        indptr=torch.arange(0, rows * per_row + 1, per_row),
        indices=torch.randint(0, columns, (rows * per_row,), generator=draw, dtype=torch.int32),
        values=torch.ones(rows * per_row),
        num_cols=columns,
    )
    sparse = SparseInput(features, None)
    weight, out = torch.ones(width, columns), torch.empty(rows, width)

    def run() -> None:
        sparse.multiply(weight, out, add=False)
        sparse.weight_grad(out)

    return 2.0 * rows * per_row * ((width + 15) // 16) / _seconds(run)


def _seconds(run: Callable[[], object], repeats: int = 7) -> float:
    """The least of some runs after one to warm up: what the machine does when nothing else does."""
    run()
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - started)
    return min(seconds)
