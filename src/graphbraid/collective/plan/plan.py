"""Plan: who prepares which mini-batch, with how many buffers and workers, and what that should cost."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import ConfigDict

from graphbraid.arguments import as_number
from graphbraid.collective.plan.arrangement import Arrangement
from graphbraid.collective.plan.braid import braid_routes
from graphbraid.collective.plan.dispatcher import Resource
from graphbraid.collective.plan.records import STRICT, load_record, save_record
from graphbraid.collective.plan.routes import Routes
from graphbraid.collective.plan.simulator import Setting
from graphbraid.collective.plan.times import StageTimes, format_seconds
from graphbraid.errors import ConfigError
from graphbraid.signatures import typed

if TYPE_CHECKING:
    from rich.table import Table

PlanName = Literal["cpu", "gpu", "braided"]
"""Who prepares the batches: the CPU, the device itself, or both."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunnerUp:
    """The best schedule of another kind, for comparison."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    name: str
    """What it is, such as ``"cpu"`` or ``"braided, 2 workers"``."""
    split: float
    """Share of the batches on route 0."""
    predicted_seconds: float
    """Of an epoch, simulated."""


@typed
@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """How an epoch runs. Results do not depend on it: a batch is the same whoever prepares it."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    num_batches: int
    """Steps of the epoch it was made for."""
    num_cpu: int
    """Of them prepared by the CPU."""
    stock: int | None = None
    """Untrained batches on the device at which copies begin (see ``braid.py``); None: the routes are spread
    evenly instead, which is better where one copy lasts many trainings."""
    cbs: int
    """Host buffers, each for one batch."""
    gbs: int
    """Device buffers, each for one batch."""
    most_cbs: int | None = None
    """Host buffers it might have taken: what a new plan may take when durations drift; None: ``cbs``."""
    most_gbs: int | None = None
    """The same of device buffers."""
    times: StageTimes
    """What it was made from; ``times.workers`` threads prepare on the CPU."""
    predicted_seconds: float
    """Of the epoch, simulated."""
    bound_seconds: float
    """No schedule of the epoch is faster."""
    limit: Resource
    """The resource that the bound is due to."""
    runner_ups: tuple[RunnerUp, ...] = ()
    """By predicted time."""
    cores: Arrangement | None = None
    """Without a device, where arrangements were tried: who has the cores. None: training has those that
    ``workers`` leave."""

    def __post_init__(self) -> None:
        if self.num_batches < 1 or not 0 <= self.num_cpu <= self.num_batches:
            raise ConfigError(
                f"num_cpu must be in [0, num_batches] and num_batches at least 1; "
                f"got num_cpu={self.num_cpu}, num_batches={self.num_batches}"
            )
        for name, least in (("stock", 0), ("cbs", 1), ("gbs", 1), ("most_cbs", 1), ("most_gbs", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"{name} must be at least {least}; got {value}")
        for name in ("predicted_seconds", "bound_seconds"):
            as_number(getattr(self, name), name, least=0)
        if self.num_cpu < self.num_batches and self.times.uva is None:
            raise ConfigError(
                f"{self.num_batches - self.num_cpu} batches are for the device to prepare, but times.uva is "
                "None: it cannot"
            )

    @property
    def split(self) -> float:
        """Share of the batches that the CPU prepares."""
        return self.num_cpu / self.num_batches

    @property
    def workers(self) -> int:
        """Threads that prepare batches on the CPU."""
        return self.times.workers

    @property
    def name(self) -> PlanName:
        """Which kind of plan it is."""
        if self.num_cpu == self.num_batches:
            return "cpu"
        return "gpu" if self.num_cpu == 0 else "braided"

    @property
    def setting(self) -> Setting:
        """Buffers and workers, for the simulator and the executor."""
        return Setting(cbs=self.cbs, gbs=self.gbs, workers=self.workers)

    def routes(self, num_batches: int | None = None) -> Routes:
        """The route of each step of an epoch; of another length than planned, with the same split."""
        n = self.num_batches if num_batches is None else num_batches
        num_cpu = self.num_cpu if n == self.num_batches else round(self.split * n)
        return braid_routes(self.times, n, num_cpu, self.stock, self.setting)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write as JSON."""
        save_record(self, "plan", path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Plan:
        """Read what :meth:`save` wrote.

        Raises:
            DataError: the file is not there or holds no sound plan.
        """
        return load_record(cls, "plan", path)

    def rows(self) -> list[tuple[str, str]]:
        """Label and value of each line worth reading."""
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

    def table(self) -> Table:
        """The plan for a terminal."""
        from rich.table import Table

        table = Table(show_header=False, box=None, pad_edge=False)
        for label, value in self.rows():
            table.add_row(label, value)
        return table

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(width=100, force_terminal=False, color_system=None, markup=False, emoji=False)
        with console.capture() as capture:
            console.print(self.table())
        return "\n".join(line.rstrip() for line in capture.get().rstrip().splitlines())
