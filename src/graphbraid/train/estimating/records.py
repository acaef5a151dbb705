"""Estimate: what a run needs in each mode, what would be chosen, and what more memory would buy."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from graphbraid.collective.plan.times import format_seconds
from graphbraid.estimates.records import Mode, Needs
from graphbraid.features.budgets.sizing import HostBudget
from graphbraid.features.tiers.device_sizing import DeviceBudget
from graphbraid.files.writing import format_bytes
from graphbraid.train.estimating.hardware import HardwareFile
from graphbraid.train.estimating.seconds.epoch_seconds import EpochSeconds


@dataclass(frozen=True, kw_only=True, slots=True)
class ModeEstimate:
    """What a run needs in one mode."""

    mode: Mode
    host: Needs | None
    """What it needs in memory; None if it is not known, and ``reason`` says why."""
    device: Needs | None = None
    """What it needs on the device that holds the model; None without one."""
    disk_bytes: int = 0
    """Bytes of files that the run writes: checkpoints, activations beyond exact inference's budget."""
    seconds: EpochSeconds | None = None
    """Time of an epoch; None if nothing is known or was asked for."""
    epochs: int = 1
    """Number of epochs of the run."""
    fits: bool = True
    """Whether memory, device and disk have room for it."""
    reason: str = ""
    """What there is no room for, or why nothing is known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TierEstimate:
    """A run on mini-batches with all lists and some of the rows in memory, the others in the store's file."""

    rows: int
    """Rows in memory."""
    host_bytes: int
    """The budget (``host``): these rows, the adjacency lists of a store, and what is noted of them."""
    expected_share: float
    """Share of the reads that memory serves."""
    disk_bytes_per_epoch: float
    """Bytes of rows that come from the file; whole blocks are more."""
    link_bytes_per_epoch: float | None
    """Bytes of rows that travel to the device; None without one."""
    memory_bytes: int
    """Peak of the whole run."""
    seconds: float | None
    """Seconds of an epoch's training; None if it is not known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HotEstimate:
    """A run on mini-batches with some of the rows on the device, which then do not travel."""

    rows: int
    """Rows on the device."""
    hot_bytes: int
    """The budget (``hot``): these rows, and the map that finds them."""
    expected_share: float
    """Share of the reads that they serve."""
    link_bytes_per_epoch: float
    """Bytes of the other rows, which travel to the device."""
    device_bytes: int
    """Peak of the whole run on the device, with the topology and labels that it samples from."""
    fits: bool
    """Whether the device has room for it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """What a run needs before it starts; printing it shows what ``graphbraid estimate`` does."""

    hardware: HardwareFile
    modes: tuple[ModeEstimate, ...]
    mode: Mode
    """What ``mode="auto"`` chooses."""
    mode_reason: str
    tiers: HostBudget
    """What ``tiers="auto"`` chooses for mini-batches."""
    device_tiers: DeviceBudget | None = None
    """What it chooses for rows on the device; None without one."""
    tier_curve: tuple[TierEstimate, ...] = ()
    """Mini-batches with more and more rows in memory; empty where no store's file holds the features."""
    hot_curve: tuple[HotEstimate, ...] = ()
    """Mini-batches with more and more rows on the device; empty without one, and for features not dense."""
    tier_score: str = ""
    """Score by which a run fills tiers, and why by that; empty where there are neither."""

    def of(self, mode: str) -> ModeEstimate:
        """Return the estimate of one mode, ``sampled`` or ``full``.

        Raises:
            KeyError: there is no such mode.
        """
        for found in self.modes:
            if found.mode == mode:
                return found
        raise KeyError(mode)

    def to_json(self) -> dict[str, Any]:
        """Return plain values, with the sums of each mode's needs."""
        content = dataclasses.asdict(self)
        for plain, found in zip(content["modes"], self.modes, strict=True):
            for place, needs in (("host", found.host), ("device", found.device)):
                if needs is not None:
                    plain[place] |= {"nbytes": needs.nbytes, "must_bytes": needs.must_bytes}
            if found.seconds is not None:
                run = found.seconds.of_run(found.epochs)
                plain["seconds"] |= {"total": found.seconds.total, "run": run}
        return content

    def __str__(self) -> str:
        lines = [f"mode {self.mode}: {self.mode_reason}", f"tiers: {self.tiers.reason}"]
        if self.device_tiers is not None:
            lines.append(f"device tiers: {self.device_tiers.reason}")
        if self.tier_score:
            lines.append(f"filled by the score {self.tier_score}")
        for found in self.modes:
            lines += ["", *_mode_lines(found)]
        return "\n".join(lines)


def _mode_lines(found: ModeEstimate) -> list[str]:
    heading = f"{found.mode}: {'fits' if found.fits else 'does not fit'}"
    lines = [f"{heading}; {found.reason}" if found.reason else heading]
    for place, needs in (("memory", found.host), ("device", found.device)):
        if needs is not None:
            lines.append(f"  {place} {format_bytes(needs.nbytes)}")
            lines += [f"    {name:<14} {format_bytes(size):>10}  {why}" for name, size, why in needs.rows()]
    if found.disk_bytes:
        lines.append(f"  disk {format_bytes(found.disk_bytes)}")
    if found.seconds is not None:
        lines.append(f"  epoch {with_spread(found.seconds.total, found.seconds.spread)}; {_of_run(found)}")
        lines += [f"    {name:<14} {size:>13}  {why}" for name, size, why in time_rows(found.seconds)]
    return lines


def time_rows(seconds: EpochSeconds) -> Iterator[tuple[str, str, str]]:
    """Yield name, time and reason of each part of an epoch; in brackets what comes once in a run."""
    for name, part in seconds.parts():
        yield name, "not known" if part.seconds is None else with_spread(part.seconds, part.spread), part.how


def with_spread(seconds: float, spread: float | None) -> str:
    """Format a time with the share by which its tries lay off, such as ``"1.23 s ±4%"``, if that is known."""
    said = format_seconds(seconds)
    return said if spread is None or not seconds else f"{said} ±{spread / seconds:.0%}"


def _of_run(found: ModeEstimate) -> str:
    assert found.seconds is not None
    epochs = f"{found.epochs:,} epoch{'s' * (found.epochs != 1)}"
    return f"{format_seconds(found.seconds.of_run(found.epochs))} for {epochs}"
