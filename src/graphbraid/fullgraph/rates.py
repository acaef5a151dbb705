"""The machine's rates: measured once, stored between runs, measured again if other programs disturbed them.

Rates measured while other programs run are too low, some more than others, so that plans made from them
would be wrong in every later run. The process that measured such rates uses them, but the file marks them as
doubtful and a later process measures again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from graphbraid import native
from graphbraid.files.writing import format_bytes
from graphbraid.fullgraph.device import HOST, Device
from graphbraid.fullgraph.lowering.costs import sound_seconds
from graphbraid.fullgraph.step.features import SparseInput
from graphbraid.fullgraph.step.tasks import in_huge_pages
from graphbraid.graph.csc import Csc
from graphbraid.graph.sparse_features import SparseFeatures
from graphbraid.machine.hardware import Rates
from graphbraid.machine.measurements import LEAST_SECONDS, NOT_KEPT, Kept, OtherPrograms, is_disturbed
from graphbraid.ops.aggregation import Aggregation
from graphbraid.ops.binary import bit_gram, bit_product
from graphbraid.ops.epilogue import ACTIVATION_CODES
from graphbraid.ops.kernels import backend
from graphbraid.ops.linear import tall_gram, tall_product

VERSION = 7
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
            exponentials=_exponentials(device.seconds, rows=1 << (13 + shift)),
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


def _row_bytes(
    seconds: Seconds, num_nodes: int, degree: int = 8, *, num_dst: int | None = None, x: Tensor | None = None
) -> float:
    """Return the bytes per second of rows read at random, of ``x`` or of ``num_nodes`` rows of ones."""
    num_dst, x = num_dst or num_nodes, torch.ones(num_nodes, _WIDTH) if x is None else x
    indices = _drawn(num_nodes, num_dst * degree)
    csc = Csc(torch.arange(0, num_dst * degree + 1, degree), indices, num_nodes, trusted=True)
    out, how = torch.empty(num_dst, x.shape[1]), Aggregation(csc=csc)
    return 4.0 * csc.num_edges * x.shape[1] / seconds(lambda: how.forward(x, out=out))


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


def _exponentials(seconds: Seconds, rows: int) -> float:
    """Return the exponentials per second of ELU, which computes one for each number that it overwrites."""
    x = torch.full((rows, _WIDTH), -1.0)
    how = ACTIVATION_CODES["elu"], 0.0, 0.0, 0
    return x.numel() / seconds(lambda: backend(x).epilogue(x, None, *how, x, None))


def _drawn(bound: int, count: int) -> Tensor:
    """Draw ``(count,)`` int32 numbers in ``[0, bound)``, the same on every device."""
    draw = torch.Generator("cpu").manual_seed(0)
    ids = torch.randint(0, bound, (count,), generator=draw, dtype=torch.int32, device="cpu")
    return ids.to(torch.get_default_device())


MOST_CHANGE = 2.0
"""Largest factor by which a believed rate may differ from another undisturbed measurement."""
AGAIN_SECONDS = 60.0
"""Seconds after which doubtful rates are measured again, so at most once a minute on a busy machine."""

_OPERANDS_BYTES = 192 << 20
"""Taken on the host while rates are measured, with some room."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredRates:
    """Rates, with how and when they were measured and any doubt about them."""

    rates: Rates
    others: float | None = None
    """Share of the cores that other programs used during the measurement; None if unknown."""
    doubt: str = ""
    """Why the rates may be wrong, as a sentence; empty if there is no doubt."""
    at: float = 0.0
    """Time of the measurement, in seconds since 1970."""
    measured_on: str = field(default="", compare=False)
    """Description of the machine, without the version of torch."""


def machine_rates(device: Device = HOST) -> Rates:
    """Return the rates of this machine, with its threads and kernel variant, or of one of its devices."""
    return measured_rates(device).rates


@functools.cache
def measured_rates(device: Device = HOST) -> MeasuredRates:
    """Return the rates of :func:`machine_rates` with how and when they were measured.

    The first call measures; later ones read the stored rates, so that later runs make the same choices. Rates
    that are doubtful and older than :data:`AGAIN_SECONDS` are measured again. Without compiled kernels, or if
    the cache cannot be written, typical rates are returned.
    """
    if device.is_host and native.kernels() is None:
        return MeasuredRates(rates=Rates())
    kept = _KEPT.read(rates_file(device))
    if kept is not None and not (kept.doubt and time.time() - kept.at >= AGAIN_SECONDS):
        return kept
    try:
        found = _measured(device)
    except RuntimeError as error:  # little memory is left
        _log.warning("the rates of %s could not be measured, typical ones are taken: %s", device.name, error)
        return kept or MeasuredRates(rates=Rates())
    others = _KEPT.read_others(rates_file(device))  # of the same machine under other versions of torch
    quiet = [one.rates for one in others if one.measured_on == _description(device) and not one.doubt]
    found = _judged(found, kept, quiet)
    if found.doubt:
        _log.warning("the machine's rates are doubtful: %s; a later run measures them again", found.doubt)
    try:
        _KEPT.write(rates_file(device), found)
    except NOT_KEPT as error:
        _log.warning("the machine's rates could not be kept, typical ones are taken: %s", error)
        return MeasuredRates(rates=Rates())
    return found


def rates_file(device: Device = HOST) -> Path:
    """Return the file in which this machine's rates are stored."""
    return _KEPT.file(f"{_description(device)} {torch.__version__}")


def _measured(device: Device) -> MeasuredRates:
    """Measure for long enough to see how much other programs ran; RuntimeError if memory is too short."""
    free = device.free_bytes()
    if device.is_host and free is not None and free < _OPERANDS_BYTES:
        raise RuntimeError(f"it takes {format_bytes(_OPERANDS_BYTES)}, and {format_bytes(free)} are free")
    watched, until = OtherPrograms(), time.perf_counter() + LEAST_SECONDS
    rates = measure(device)
    while device.is_host and time.perf_counter() < until:
        rates = rates.fastest(measure(device))
    others = watched.share() if device.is_host else None
    doubt = ""
    if is_disturbed(others):
        doubt = f"other programs had {others:.0%} of the cores while they were measured"
    return MeasuredRates(
        rates=rates, others=others, doubt=doubt, at=time.time(), measured_on=_description(device)
    )


def _judged(found: MeasuredRates, kept: MeasuredRates | None, quiet: list[Rates]) -> MeasuredRates:
    """Return ``found``, marked doubtful if it differs from earlier undisturbed rates; ``kept`` is doubtful.

    If the last two undisturbed measurements agree, the second is believed, also against earlier ones.
    """
    if found.doubt:  # of two disturbed measurements, keep the less disturbed one
        is_less = kept is not None and kept.others is not None and kept.others < (found.others or 0.0)
        return dataclasses.replace(kept, at=found.at) if kept is not None and is_less else found
    was_quiet = kept is not None and not is_disturbed(kept.others)
    if kept is not None and was_quiet and not _unlike(found.rates, kept.rates):
        return found
    for before in quiet:
        if changed := _unlike(found.rates, before):
            return dataclasses.replace(found, doubt=f"{changed} in an earlier quiet measurement")
    return found


def _unlike(rates: Rates, before: Rates) -> str:
    """Describe the rate that differs too much from an earlier one; empty if none does."""
    for name, now in dataclasses.asdict(rates).items():
        ratio = now / getattr(before, name)
        if not 1 / MOST_CHANGE <= ratio <= MOST_CHANGE:
            return f"{name} is {now:.3g}, but was {getattr(before, name):.3g}"
    return ""


# ---- rows read at random from memory, by the size of their region: beside the floor of a step alone

_LINE = 64


def row_rate(region_bytes: int, row_bytes: int) -> float:
    """Return the bytes per second of rows of a size read at random from a region of the host's memory.

    Rows lie in huge pages, as those of a step do. A rate is measured at its first use, for the power of two
    below the region's size and a row's cache lines, and kept unless other programs disturbed it. A smaller
    region is measured where little memory is free.
    """
    free = HOST.free_bytes() or region_bytes
    most = max(2 * int(machine_rates().cache_bytes), free // 8)
    region, lines = min(region_bytes, most), -(-row_bytes // _LINE)
    return _row_rate(1 << max(0, region.bit_length() - 1), min(lines, 16))


@functools.cache
def _row_rate(region: int, lines: int) -> float:
    file, name = _KEPT_READS.file(f"{_description(HOST)} {torch.__version__}"), f"{region} {lines}"
    kept = _KEPT_READS.read(file) or {}
    if name in kept:
        return kept[name]
    rows = max(1, region // (_LINE * lines))
    nbytes = rows * _LINE * lines
    x = in_huge_pages(nbytes)[:nbytes].view(torch.float32).view(rows, -1).fill_(1.0)
    watched, until, rate = OtherPrograms(), time.perf_counter() + LEAST_SECONDS, 0.0
    while rate == 0.0 or time.perf_counter() < until:
        rate = max(rate, _row_bytes(HOST.seconds, len(x), x=x, num_dst=1 << 17))
    if not is_disturbed(watched.share()):
        with contextlib.suppress(*NOT_KEPT):
            _KEPT_READS.write(file, kept | {name: rate})
    return rate


def _description(device: Device) -> str:
    return f"{VERSION} {device.name}"


def _from_json(content: dict[str, Any]) -> MeasuredRates:
    return MeasuredRates(
        rates=Rates.from_json(content["rates"]),
        others=None if content["others"] is None else float(content["others"]),
        doubt=str(content["doubt"]),
        at=float(content["at"]),
        measured_on=str(content["measured_on"]),
    )


_KEPT = Kept("rates", dataclasses.asdict, _from_json)
_KEPT_READS: Kept[dict[str, float]] = Kept("reads", dict, sound_seconds)
