"""The machine's rates between runs: measured once while nothing else runs, else doubtful and measured again.

Rates taken beside other programs are slower than the machine is, and some of them more than others, so that
plans made by them are wrong for good. They serve the process that took them; the file then says that they are
doubtful, and a later process measures again.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import logging
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from graphbraid import native
from graphbraid.errors import DataError, ResourceError
from graphbraid.files.caches import cache_folder
from graphbraid.files.checksums import FIELD, sealed, unsealed
from graphbraid.files.writing import atomic_write
from graphbraid.fullgraph.device.device import Device
from graphbraid.fullgraph.device.host import HOST
from graphbraid.fullgraph.measured.rates import VERSION, measure
from graphbraid.machine.contention import LEAST_SECONDS, OtherPrograms
from graphbraid.machine.rates import Rates

MOST_OTHERS = 0.1
"""Rates are believed if other programs had no more than this share of the cores."""
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
    kept = _read(rates_file(device))
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
        _write(rates_file(device), found, device)
    except (OSError, ResourceError) as error:
        _log.warning("the machine's rates could not be kept, typical ones are taken: %s", error)
        return MeasuredRates(rates=Rates())
    return found


def rates_file(device: Device = HOST) -> Path:
    """Where this machine's rates are kept."""
    key = f"{VERSION} {device.name} {torch.__version__}"
    return cache_folder("rates") / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"


def _measured(device: Device) -> MeasuredRates:
    """Measured for long enough to know what other programs did meanwhile."""
    watched, until = OtherPrograms(), time.perf_counter() + LEAST_SECONDS
    rates = measure(device)
    while device.is_host and time.perf_counter() < until:
        rates = _faster(rates, measure(device))
    others = watched.share() if device.is_host else None
    doubt = ""
    if others is not None and others > MOST_OTHERS:
        doubt = f"other programs had {others:.0%} of the cores while they were measured"
    return MeasuredRates(rates=rates, others=others, doubt=doubt, at=time.time())


def _judged(found: MeasuredRates, kept: MeasuredRates | None, quiet: list[Rates]) -> MeasuredRates:
    """``found``, doubted where it is unlike what was measured quietly before; ``kept`` is doubtful.

    A second quiet measurement that agrees with the first is believed, whatever came before them.
    """
    if found.doubt:  # of two that were disturbed, the one that was less
        is_less = kept is not None and kept.others is not None and kept.others < (found.others or 0.0)
        return dataclasses.replace(kept, at=found.at) if kept is not None and is_less else found
    was_quiet = kept is not None and (kept.others is None or kept.others <= MOST_OTHERS)
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
    here = rates_file(device)
    for path in sorted(here.parent.glob("*.json")):
        if path == here or _described(path) != _description(device):
            continue
        kept = _read(path)
        if kept is not None and not kept.doubt:
            yield kept.rates


def _description(device: Device) -> str:
    return f"{VERSION} {device.name}"


def _described(path: Path) -> str:
    try:
        return str(json.loads(path.read_text())["measured_on"])
    except (OSError, ValueError, TypeError, KeyError):
        return ""


def _read(path: Path) -> MeasuredRates | None:
    """What a file holds; None where there is none, or where it is no record of sound rates, which is said."""
    try:
        content: dict[str, Any] = json.loads(path.read_text())
        if FIELD not in content:
            raise DataError(f"{path} has no checksum")
        content = unsealed(content, path)
        rates = Rates(**content["rates"])
        sound = [isinstance(v, float | int) and math.isfinite(v) and v > 0 for v in content["rates"].values()]
        others = None if content["others"] is None else float(content["others"])
        kept = MeasuredRates(rates=rates, others=others, doubt=str(content["doubt"]), at=float(content["at"]))
        if not all(sound):
            raise DataError(f"{path} holds a rate that is no positive number")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        _log.warning("the rates kept in the cache %s cannot be used (%s)", path, error)
        return None
    return kept


def _write(path: Path, found: MeasuredRates, device: Device) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = dataclasses.asdict(found) | {"measured_on": _description(device)}
    with atomic_write(path) as aside:
        aside.write_text(json.dumps(sealed(content), indent=1))
