"""Plan: which side prepares each mini-batch, with which buffers and workers, and the predicted time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from graphbraid.collective.plan.simulator import Resource, Routes, ScheduleSetting, braid_routes
from graphbraid.collective.plan.times import Arrangement, StageTimes, format_seconds
from graphbraid.errors import ConfigError
from graphbraid.files.schema import SavedRecord, StrictRecord, check_numbers
from graphbraid.signatures import typed

PlanName = Literal["cpu", "gpu", "braided"]
"""Kind of plan: the CPU prepares all batches, the device prepares all, or both prepare some."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunnerUp(StrictRecord):
    """The best schedule of another kind, for comparison."""

    name: str
    """Kind of the schedule, such as ``"cpu"`` or ``"braided, 2 workers"``."""
    split: float
    """Share of the batches on route 0, in [0, 1]."""
    predicted_seconds: float
    """Simulated seconds per epoch."""


MOST_BATCHES = 10_000_000
"""Largest number of batches in an epoch that can be planned, as plans are simulated batch by batch."""


@typed
@dataclass(frozen=True, kw_only=True, slots=True)
class Plan(SavedRecord):
    """A plan for running an epoch. Results do not depend on it: a batch is the same whoever prepares it."""

    KIND: ClassVar[str] = "plan"

    num_batches: int
    """Number of steps of the epoch that the plan was made for."""
    num_cpu: int
    """Number of those steps whose batches the CPU prepares."""
    stock: int | None = None
    """Number of untrained batches on the device at which copies begin (see ``braid``). If None, the routes
    are spread evenly, which is better if one copy takes as long as many training steps."""
    cbs: int
    """Number of host buffers; each holds one batch."""
    gbs: int
    """Number of device buffers; each holds one batch."""
    most_cbs: int | None = None
    """Largest number of host buffers that a new plan may use when durations drift. If None, ``cbs``."""
    most_gbs: int | None = None
    """Largest number of device buffers that a new plan may use when durations drift. If None, ``gbs``."""
    times: StageTimes
    """Stage times that the plan was made from; ``times.workers`` threads prepare batches on the CPU."""
    predicted_seconds: float
    """Simulated seconds per epoch."""
    bound_seconds: float
    """Lower bound in seconds on the epoch's time under any schedule."""
    limit: Resource
    """Resource that determines the bound."""
    runner_ups: tuple[RunnerUp, ...] = ()
    """Best schedules of other kinds, in order of predicted time."""
    cores: Arrangement | None = None
    """Division of the cores on a machine without a device, if arrangements were tried. If None, training uses
    the cores that ``workers`` leave."""

    def __post_init__(self) -> None:
        if not 1 <= self.num_batches <= MOST_BATCHES or not 0 <= self.num_cpu <= self.num_batches:
            raise ConfigError(
                f"num_cpu must be in [0, num_batches] and num_batches in [1, {MOST_BATCHES}]; "
                f"got num_cpu={self.num_cpu}, num_batches={self.num_batches}"
            )
        check_numbers(self, ("stock", "predicted_seconds", "bound_seconds"))
        check_numbers(self, ("cbs", "gbs", "most_cbs", "most_gbs"), positive=True)
        if self.num_cpu < self.num_batches and self.times.uva is None:
            raise ConfigError(
                f"{self.num_batches - self.num_cpu} batches are for the device to prepare, but times.uva is "
                "None: the device cannot"
            )

    @property
    def split(self) -> float:
        """Share of the batches that the CPU prepares."""
        return self.num_cpu / self.num_batches

    @property
    def workers(self) -> int:
        """Number of threads that prepare batches on the CPU."""
        return self.times.workers

    @property
    def name(self) -> PlanName:
        """Kind of plan: ``cpu``, ``gpu`` or ``braided``."""
        if self.num_cpu == self.num_batches:
            return "cpu"
        return "gpu" if self.num_cpu == 0 else "braided"

    @property
    def setting(self) -> ScheduleSetting:
        """Buffers and workers, for the simulator and the executor."""
        return ScheduleSetting(cbs=self.cbs, gbs=self.gbs, workers=self.workers)

    def routes(self, num_batches: int | None = None) -> Routes:
        """Return the route of each step of an epoch; one of another length has the same split."""
        n = self.num_batches if num_batches is None else num_batches
        num_cpu = self.num_cpu if n == self.num_batches else round(self.split * n)
        return braid_routes(self.times, n, num_cpu, self.stock, self.setting)

    def rows(self) -> list[tuple[str, str]]:
        """Return the label and value of each line of the plan's table."""
        over = 100 * (self.predicted_seconds / self.bound_seconds - 1) if self.bound_seconds else 0.0
        rows = [
            ("plan", self.name),
            *self.times.rows(),
            ("split", f"{100 * self.split:.1f} % of {self.num_batches} batches on the CPU"),
            ("buffers", f"cbs {self.cbs}, gbs {self.gbs}"),
            ("workers", str(self.workers)) if self.cores is None else ("cores", self.cores.name),
            ("predicted", f"{format_seconds(self.predicted_seconds)} per epoch"),
            ("bound", f"{format_seconds(self.bound_seconds)}, limited by the {self.limit} (+{over:.1f} %)"),
        ]
        for other in self.runner_ups:
            text = format_seconds(other.predicted_seconds)
            if self.predicted_seconds > 0:
                text += f", {other.predicted_seconds / self.predicted_seconds:.2f} times the plan's"
            rows.append((other.name, text))
        return rows

    def __str__(self) -> str:
        rows = self.rows()
        width = max(len(label) for label, _ in rows)
        return "\n".join(f"{label:<{width}}  {value}" for label, value in rows)

    def _repr_html_(self) -> str:
        from graphbraid.figures import notebook, table

        return notebook(f"Plan of {self.num_batches:,} batches", table(self.rows()))
