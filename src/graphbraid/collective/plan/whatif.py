"""Planning of the same run for other hardware, from stage times measured on this machine."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import ClassVar

from graphbraid.arguments import MOST_THREADS, as_count
from graphbraid.collective.plan.plan import Plan
from graphbraid.collective.plan.scheduler import Limits, make_plan
from graphbraid.collective.plan.times import Profile, StageTimes
from graphbraid.errors import ConfigError
from graphbraid.files.schema import SavedRecord


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine(SavedRecord):
    """Hardware to plan for, relative to the machine that was measured.

    A file names what differs: ``{"graphbraid": "machine", "cores": 16}``.
    """

    KIND: ClassVar[str] = "machine"

    cores: int | None = None
    """Number of cores that may prepare batches. If None, as measured."""
    core_speed: float = 1.0
    """Speed of a core as a multiple of the measured one."""
    link_speed: float = 1.0
    """Speed of the link as a multiple of the measured one."""
    device_speed: float = 1.0
    """Speed of the device as a multiple of the measured one."""
    host_bytes: int | None = None
    """Bytes of pinned memory for host buffers. If None, not limited."""
    device_bytes: int | None = None
    """Bytes of device memory for batches. If None, not limited."""

    def __post_init__(self) -> None:
        if self.cores is not None:
            as_count(self.cores, "cores", least=1, most=MOST_THREADS)
        for name in ("core_speed", "link_speed", "device_speed"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ConfigError(f"{name} must be a positive factor; got {value!r}")

    @property
    def limits(self) -> Limits:
        """Memory that a plan may use."""
        return Limits(host_bytes=self.host_bytes, device_bytes=self.device_bytes)

    def apply(self, profile: Profile) -> Profile:
        """Return the profile that this machine would have.

        A number of workers that was not measured gets the per-worker time of the nearest smaller one that
        was, as if workers did not slow each other.
        """
        if self == Machine():
            return profile
        measured = profile.times
        counts = {times.workers for times in measured}
        if self.cores is not None:
            most = self.cores
            counts = (
                {w for w in counts if w <= most} | {most} | {1 << i for i in range(most.bit_length() - 1)}
            )
        scaled = [self._scaled(_nearest(measured, w)).with_workers(w) for w in sorted(counts)]
        return dataclasses.replace(profile, times=tuple(scaled), trials=())

    def _scaled(self, times: StageTimes) -> StageTimes:
        return times.what_if(core=self.core_speed, link=self.link_speed, device=self.device_speed)


def alternatives(profile: Profile, num_batches: int, machine: Machine) -> list[tuple[str, Plan]]:
    """Return plans for a machine with one property changed, to show what would help and how much."""
    most = max(times.workers for times in machine.apply(profile).times)
    more = min(2 * most, MOST_THREADS)
    changed = {
        f"{more} cores": dataclasses.replace(machine, cores=more),
        f"{max(most // 2, 1)} cores": dataclasses.replace(machine, cores=max(most // 2, 1)),
        "link twice as fast": dataclasses.replace(machine, link_speed=2 * machine.link_speed),
        "device twice as fast": dataclasses.replace(machine, device_speed=2 * machine.device_speed),
    }
    if all(times.uva is None and times.dma.seconds < 1e-4 for times in profile.times):
        del changed["link twice as fast"]  # there is no link
    return [
        (name, make_plan(other.apply(profile), num_batches, other.limits)) for name, other in changed.items()
    ]


def _nearest(measured: tuple[StageTimes, ...], workers: int) -> StageTimes:
    """Return the times of the most workers measured up to ``workers``, or else of the fewest measured."""
    fitting = [times for times in measured if times.workers <= workers]
    return fitting[-1] if fitting else measured[0]
