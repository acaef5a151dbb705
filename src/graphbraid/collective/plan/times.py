"""StageTimes: durations of the stages of a mini-batch; Profile: stage times for each number of workers."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median, pstdev
from typing import ClassVar

from graphbraid.errors import ConfigError
from graphbraid.files.schema import SavedRecord, StrictRecord, check_numbers
from graphbraid.signatures import typed


@dataclass(frozen=True, kw_only=True, slots=True)
class Arrangement(StrictRecord):
    """A division of the cores between preparing batches and training."""

    workers: int
    """Number of threads that prepare batches."""
    threads: int
    """Number of threads of the model's operators; if ``turns``, while the workers rest."""
    turns: bool = False
    """Whether the model uses only those cores on which no worker is busy."""

    def __post_init__(self) -> None:
        check_numbers(self, ("workers", "threads"), positive=True)

    @property
    def name(self) -> str:
        """Description of the arrangement in words."""
        turns = ", in turns" if self.turns else ""
        return f"{self.workers} sampling, {self.threads} training{turns}"


@dataclass(frozen=True, kw_only=True, slots=True)
class TimedArrangement(StrictRecord):
    """An arrangement and the measured time of a mini-batch with it."""

    cores: Arrangement
    seconds: float
    """Seconds per step, from preparing the batch to training on it."""


@typed
@dataclass(frozen=True, kw_only=True, slots=True)
class Duration(StrictRecord):
    """The time that a stage takes for one mini-batch."""

    seconds: float
    """Mean in seconds."""
    cv: float = 0.0
    """Coefficient of variation: standard deviation divided by mean."""

    def __post_init__(self) -> None:
        check_numbers(self, ("seconds", "cv"))

    @classmethod
    def typical(cls, seconds: Sequence[float]) -> Duration:
        """Make a duration from measurements, leaving out those above twice the median."""
        middle = median(seconds)
        kept = [s for s in seconds if s <= 2.0 * middle] or [middle]
        mean = fmean(kept)
        return cls(seconds=mean, cv=pstdev(kept) / mean if mean else 0.0)

    def __str__(self) -> str:
        return f"{format_seconds(self.seconds)} ± {100 * self.cv:.0f} %"

    def times(self, factor: float) -> Duration:
        """Return a duration of ``factor`` times the mean with the same coefficient of variation."""
        return Duration(seconds=self.seconds * factor, cv=self.cv)


ZERO = Duration(seconds=0.0)


@typed
@dataclass(frozen=True, kw_only=True, slots=True)
class StageTimes(StrictRecord):
    """The stage durations that planning is based on (MorphGL, section 4.2.1), for one number of CPU workers.

    Route 0 occupies one worker for ``cpu``, then the link for ``dma``, then the device for ``model``. Route 1
    occupies device and link together for ``uva``, then the device for ``model``.
    """

    workers: int
    """Number of threads that prepare batches on the CPU."""
    cpu: Duration
    """T_cpu: time of one worker for a batch while all ``workers`` are busy."""
    dma: Duration
    """T_dma: time to copy a prepared batch to the device; 0 if the device is the CPU."""
    model: Duration
    """T_model: time of forward pass, backward pass and optimizer step."""
    uva: Duration | None = None
    """T_uva: time of the device to prepare a batch, its reads over the link included. None if it cannot."""
    gpu: Duration | None = None
    """T_gpu: the part of T_uva that remains if graph and features are in device memory. None if unknown."""
    lookahead: bool = False
    """Whether ``cpu`` and ``dma`` are with look-ahead, which runs then use as well (see ``lookahead.py``)."""

    def __post_init__(self) -> None:
        check_numbers(self, ("workers",), positive=True)
        if self.gpu is not None and self.uva is None:
            raise ConfigError("gpu was given without uva: T_gpu is the part of T_uva that is not the link's")
        if not self.cpu.seconds + self.dma.seconds + self.model.seconds > 0:
            raise ConfigError("cpu, dma and model cannot all take no time")

    def with_workers(self, workers: int) -> StageTimes:
        """Return the same durations for another number of workers, as if workers did not slow each other."""
        return dataclasses.replace(self, workers=workers)

    def what_if(self, *, core: float = 1.0, link: float = 1.0, device: float = 1.0) -> StageTimes:
        """Return the times on hardware that is faster by the given factors.

        The part of ``uva`` beyond ``gpu`` is attributed to the link; without ``gpu``, all of it is.

        Raises:
            ConfigError: a factor is not positive and finite.
        """
        for name, factor in (("core", core), ("link", link), ("device", device)):
            if not (math.isfinite(factor) and factor > 0):
                raise ConfigError(f"{name} must be a positive factor of speed; got {factor!r}")
        gpu = self.gpu or ZERO
        uva = None
        if self.uva is not None:
            own = min(gpu.seconds, self.uva.seconds)
            uva = Duration(seconds=own / device + (self.uva.seconds - own) / link, cv=self.uva.cv)
        return dataclasses.replace(
            self,
            cpu=self.cpu.times(1 / core),
            dma=self.dma.times(1 / link),
            model=self.model.times(1 / device),
            uva=uva,
            gpu=None if self.gpu is None else self.gpu.times(1 / device),
        )

    def rows(self) -> list[tuple[str, str]]:
        """Return the label and value of each stage."""
        rows = [("T_cpu", self.cpu), ("T_dma", self.dma), ("T_gpu", self.gpu), ("T_uva", self.uva)]
        rows.append(("T_model", self.model))
        shown = [(label, "none" if value is None else str(value)) for label, value in rows]
        return shown + [("look-ahead", "on: T_cpu and T_dma are with it")] * self.lookahead


@typed
@dataclass(frozen=True, kw_only=True, slots=True)
class Profile(SavedRecord):
    """Measured stage times for each number of workers tried, and the memory of a batch."""

    KIND: ClassVar[str] = "profile"

    times: tuple[StageTimes, ...]
    """Stage times in strictly increasing order of the number of workers."""
    host_batch_bytes: int = 0
    """Bytes of pinned host memory of the largest batch seen; 0 if unknown."""
    device_batch_bytes: int = 0
    """Bytes of device memory of the largest batch seen; 0 if unknown."""
    lookahead_bytes: int = 0
    """Bytes of device memory that look-ahead reserves when it is on."""
    source: str = ""
    """Description of where the times were measured."""
    trials: tuple[TimedArrangement, ...] = ()
    """Arrangements of the cores that were tried on a machine without a device."""

    def __post_init__(self) -> None:
        workers = [times.workers for times in self.times]
        if not workers or workers != sorted(set(workers)):
            raise ConfigError(f"times must be given for rising, distinct numbers of workers; got {workers}")
        check_numbers(self, ("host_batch_bytes", "device_batch_bytes", "lookahead_bytes"))


def format_seconds(seconds: float) -> str:
    """Format a time with three significant digits and a unit, such as ``"1.23 ms"``."""
    for factor, unit in ((1.0, "s"), (1e3, "ms")):
        if seconds * factor >= 1 or seconds == 0:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"
