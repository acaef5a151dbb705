"""The machine's rates between runs: measured once while nothing else runs, else doubtful and measured again.

Rates taken beside other programs are slower than the machine is, and some of them more than others, so that
plans made by them are wrong for good. They serve the process that took them; the file then says that they are
doubtful, and a later process measures again.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from graphbraid import native
from graphbraid.fullgraph.device.device import Device
from graphbraid.fullgraph.device.host import HOST
from graphbraid.fullgraph.measured.rates import VERSION, measure
from graphbraid.machine.contention import LEAST_SECONDS, OtherPrograms, is_disturbed
from graphbraid.machine.measurements import NOT_KEPT, Kept
from graphbraid.machine.rates import Rates

MOST_CHANGE = 2.0
"""Rates are believed if none is so many times faster or slower than in another quiet measurement."""
AGAIN_SECONDS = 60.0
"""After so long doubtful rates are measured again: a busy machine pays for it once a minute at most."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredRates:
    """Rates, and how far to believe them."""

    rates: Rates
    others: float | None = None
    """Share of the cores that other programs had meanwhile; None where that is not known."""
    doubt: str = ""
    """Why they may be wrong, as a sentence; empty where nothing speaks against them."""
    at: float = 0.0
    """When they were measured, in seconds since 1970."""
    measured_on: str = field(default="", compare=False)
    """The machine in words, whatever the version of torch."""


def machine_rates(device: Device = HOST) -> Rates:
    """The rates of this machine with this number of threads and kernel variant, or of a device of it."""
    return measured_rates(device).rates


@functools.cache
def measured_rates(device: Device = HOST) -> MeasuredRates:
    """The same with how far to believe them.

    Measured at the first call and then read from the cache, so that later runs decide alike; measured again
    where what is kept is doubtful and older than :data:`AGAIN_SECONDS`. Typical rates where there are no
    compiled kernels, or where the cache cannot be written.
    """
    if device.is_host and native.kernels() is None:
        return MeasuredRates(rates=Rates())
    kept = _KEPT.read(rates_file(device))
    if kept is not None and not (kept.doubt and time.time() - kept.at >= AGAIN_SECONDS):
        return kept
    try:
        found = _measured(device)
    except RuntimeError as error:  # a device with little memory left
        _log.warning("the rates of %s could not be measured, typical ones are taken: %s", device.name, error)
        return kept or MeasuredRates(rates=Rates())
    found = _judged(found, kept, list(_quiet_ones(device)))
    if found.doubt:
        _log.warning("the machine's rates are doubtful: %s; a later run measures them again", found.doubt)
    try:
        _KEPT.write(rates_file(device), found)
    except NOT_KEPT as error:
        _log.warning("the machine's rates could not be kept, typical ones are taken: %s", error)
        return MeasuredRates(rates=Rates())
    return found


def rates_file(device: Device = HOST) -> Path:
    """Where this machine's rates are kept."""
    return _KEPT.file(f"{_description(device)} {torch.__version__}")


def _measured(device: Device) -> MeasuredRates:
    """Measured for long enough to know what other programs did meanwhile."""
    watched, until = OtherPrograms(), time.perf_counter() + LEAST_SECONDS
    rates = measure(device)
    while device.is_host and time.perf_counter() < until:
        rates = _faster(rates, measure(device))
    others = watched.share() if device.is_host else None
    doubt = ""
    if is_disturbed(others):
        doubt = f"other programs had {others:.0%} of the cores while they were measured"
    return MeasuredRates(
        rates=rates, others=others, doubt=doubt, at=time.time(), measured_on=_description(device)
    )


def _judged(found: MeasuredRates, kept: MeasuredRates | None, quiet: list[Rates]) -> MeasuredRates:
    """``found``, doubted where it is unlike what was measured quietly before; ``kept`` is doubtful.

    A second quiet measurement that agrees with the first is believed, whatever came before them.
    """
    if found.doubt:  # of two that were disturbed, the one that was less
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
    """Which rate differs too much from an earlier one's, in words; empty where none does."""
    for name, now in dataclasses.asdict(rates).items():
        ratio = now / getattr(before, name)
        if not 1 / MOST_CHANGE <= ratio <= MOST_CHANGE:
            return f"{name} is {now:.3g}, but was {getattr(before, name):.3g}"
    return ""


def _faster(one: Rates, other: Rates) -> Rates:
    """The higher of each two rates: what slows a measurement for a while makes no machine faster."""
    return Rates(**{name: max(rate, getattr(other, name)) for name, rate in dataclasses.asdict(one).items()})


def _quiet_ones(device: Device) -> Iterator[Rates]:
    """What the same machine's kept files of other versions of torch say, where nothing disturbed them."""
    for kept in _KEPT.read_others(rates_file(device)):
        if kept.measured_on == _description(device) and not kept.doubt:
            yield kept.rates


def _description(device: Device) -> str:
    return f"{VERSION} {device.name}"


def _from_json(content: dict[str, Any]) -> MeasuredRates:
    rates = Rates(**content["rates"])
    if bad := [name for name, rate in content["rates"].items() if not _is_rate(rate)]:
        raise ValueError(f"the rate {bad[0]} is no positive number")
    return MeasuredRates(
        rates=rates,
        others=None if content["others"] is None else float(content["others"]),
        doubt=str(content["doubt"]),
        at=float(content["at"]),
        measured_on=str(content["measured_on"]),
    )


def _is_rate(value: object) -> bool:
    return isinstance(value, float | int) and math.isfinite(value) and value > 0


_KEPT = Kept("rates", dataclasses.asdict, _from_json)
