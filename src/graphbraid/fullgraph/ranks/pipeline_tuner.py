"""PipelineTuner: finds the fastest configuration of the kernel that reads peers' rows, while training runs.

After Wang et al., "MGG", section 4: a model of the device says which configurations are worth a trial, and
the cross-iteration search tries some of them. Each trial is a few steps of training. Names are the paper's:
``ps`` edges of a neighbour partition, ``dist`` partitions of a kind for each warp, ``wpb`` warps of a block.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, NamedTuple, Self

import torch

from graphbraid.distributed.ranks.communicator import Communicator
from graphbraid.fullgraph.device import DeviceLimits
from graphbraid.fullgraph.step.planned_step import PlannedStep
from graphbraid.machine.measurements import Kept
from graphbraid.ops.peers import MOST_WARPS, PipelineConfig

Setting = tuple[int, ...]
"""The value of each field of a :class:`.PipelineConfig`, in the order of :data:`FIELDS`."""
FIELDS = ("ps", "dist", "wpb")
SIZES = (4, 8, 16, 32)
"""Values of ``ps`` that are tried. The kernel reads four rows of a partition at a time, so that fewer edges
would leave some of these reads empty; 32 is the paper's largest."""
DISTANCES = (1, 2, 4, 8, 16)
WARPS = tuple(1 << shift for shift in range(MOST_WARPS.bit_length()))
NEARLY_ALL = 0.9
"""Least share of the highest occupancy that a value of ``wpb`` must reach to be tried."""
TILE_COLUMNS = 128
"""Most columns of a row that one warp sums; further blocks sum the others."""
INT_BYTES = FLOAT_BYTES = 4

MOST_TRIALS = 15
TOP = 3
LEAST_GAIN = 0.01
"""Least share of the first setting's time that another must save to be chosen."""
NOISE = 0.1
"""Share by which two trials of one setting may differ."""
FINAL_TRIALS = 4
"""Trials kept for the settings within noise of the fastest; of fewer trials, a third."""
FINAL_ROUNDS = 2
"""Rounds in which these are tried."""
STEPS = 6
"""Steps of a trial. The first one does not count: it allocates the setting's memory."""
MOST_SPREAD = 0.1
"""The table is kept only if the counted steps of a typical trial differ by at most this share."""
_VERSION = "3"

_log = logging.getLogger(__name__)


# ---- MGG's model of a device


class Partitions(NamedTuple):
    """Numbers of neighbour partitions of one rank."""

    local: int
    """Partitions of own rows."""
    remote: int
    """Partitions of peers' rows."""


def shared_bytes(config: PipelineConfig, columns: int) -> int:
    """Return the bytes of a block's ids and partial results (equation 1).

    ``SMEM = ps wpb IntS + 2 wpb D FloatS``. The paper keeps them in shared memory. The kernel here keeps them
    in registers. A multiprocessor has more bytes of registers, so that the bound is on the safe side.
    """
    return config.ps * config.wpb * INT_BYTES + 2 * config.wpb * columns * FLOAT_BYTES


def num_blocks(partitions: Partitions, config: PipelineConfig, width: int) -> int:
    """Return the number of blocks (equations 2 and 3), counted for each tile of a row's columns."""
    warps = -(-max(partitions) // config.dist)
    return -(-warps // config.wpb) * -(-width // TILE_COLUMNS)


def resident_blocks(config: PipelineConfig, columns: int, limits: DeviceLimits) -> int:
    """Return how many blocks a multiprocessor holds at a time; 0 if one block is too large."""
    by_memory = limits.shared_bytes_per_sm // shared_bytes(config, columns)
    return min(limits.blocks_per_sm, limits.warps_per_sm // config.wpb, by_memory)


def ladders(
    width: int, partitions: Mapping[int, Partitions], limits: DeviceLimits
) -> tuple[tuple[tuple[int, ...], ...], Callable[[Setting], bool]]:
    """Return the values of each field that are worth a trial, and which settings of them are.

    A block must fit, and every multiprocessor must have one. A warp takes more than one partition of a kind
    only if blocks fill the device: otherwise more warps would do the same work with more reads under way. The
    first setting is always tried: a small graph has no other. Departs from the paper in where ``ps`` and
    ``wpb`` begin, because smaller values would leave reads or places for warps empty. ``partitions`` are
    those of the busiest rank, for each of :data:`SIZES`.
    """
    columns = min(width, TILE_COLUMNS)
    occupied = {
        wpb: resident_blocks(PipelineConfig(ps=SIZES[0], wpb=wpb), columns, limits) * wpb for wpb in WARPS
    }
    warps = tuple(wpb for wpb, count in occupied.items() if count >= NEARLY_ALL * max(occupied.values()))
    values = (SIZES, DISTANCES, warps)
    first = tuple(of_field[0] for of_field in values)

    def allowed(setting: Setting) -> bool:
        if tuple(setting) == first:
            return True
        config = config_of(setting)
        resident = resident_blocks(config, columns, limits)
        blocks = num_blocks(partitions[config.ps], config, width)
        if resident == 0 or blocks < limits.num_sms:
            return False
        return config.dist == 1 or blocks >= limits.num_sms * resident

    def alone(place: int, value: int) -> Setting:
        return (*first[:place], value, *first[place + 1 :])

    kept = [tuple(v for v in values[place] if allowed(alone(place, v))) for place in range(len(values))]
    return tuple(kept), allowed


def config_of(setting: Setting) -> PipelineConfig:
    """Return the configuration of a setting; raise ConfigError if a value is out of bounds."""
    return PipelineConfig(**dict(zip(FIELDS, setting, strict=True)))


# ---- the search


class CrossIterationSearch:
    """A search that names the next setting to try and takes the time of that trial.

    The cross-iteration optimisation of MGG: all fields begin at their first value. One after the other is
    raised as long as that pays. Then the first field goes back one value at a time, and the last one up
    again, until the result is not among the three fastest of the table. Departs from the paper in raising all
    fields again while one of them still pays, and in two things for the noise of live times:

    - a field is raised further until two values are slower by more than noise, not merely slower;
    - the settings within noise of the fastest, three at most, take turns in further trials, so that a slow
      moment of the machine meets all of them. The least time of each counts, and the first setting stays
      unless another gains more than a hundredth.

    Args:
        ladders: the values of each field, the one to begin with first. Fields raised first come first.
        allowed: whether a setting is worth a trial. If one is not, those of larger values must not be either.
            The first setting is always tried. If None, all are allowed.
        most_trials: number of trials after which the fastest so far is chosen.
    """

    def __init__(
        self,
        ladders: Sequence[Sequence[int]],
        allowed: Callable[[Setting], bool] | None = None,
        most_trials: int = MOST_TRIALS,
    ) -> None:
        self._ladders, self._most_trials = tuple(ladders), most_trials
        self._allowed = allowed or (lambda _: True)
        self.first = self._setting([0] * len(self._ladders))
        """The setting that is tried first."""
        self.table: dict[Setting, float] = {}
        """Least seconds of each setting that was tried, in the order of the trials."""
        self.num_trials = 0
        """Number of trials so far."""
        self._trials = self._searched()
        self.next: Setting | None = next(self._trials, None)
        """The setting to try next; None if the search is over."""

    def tell(self, seconds: float) -> None:
        """Take the time of :attr:`next`, and go on to another."""
        assert self.next is not None, "the search is over"
        self.table[self.next] = min(seconds, self.table.get(self.next, seconds))
        self.num_trials += 1
        self.next = None if self.num_trials >= self._most_trials else next(self._trials, None)

    @property
    def best(self) -> Setting:
        """The setting to choose by the trials so far."""
        first, fastest = next(iter(self.table)), self._fastest()[0]
        gains = self.table[fastest] < (1 - LEAST_GAIN) * self.table[first]
        return fastest if gains else first

    def _fastest(self) -> list[Setting]:
        return sorted(self.table, key=self.table.__getitem__)[:TOP]

    # Settings are tried as places on the ladders: value 0, 1, ... of each field.

    def _searched(self) -> Generator[Setting]:
        most = self._most_trials - min(FINAL_TRIALS, self._most_trials // 3)
        for setting in self._climbed():
            yield setting
            if self.num_trials >= most:
                break
        yield from self._in_turns()

    def _in_turns(self) -> Generator[Setting]:
        """Try those within noise of the fastest again, in rounds, until one is left."""
        for number in range(FINAL_ROUNDS):
            fastest = self._fastest()
            close = [one for one in fastest if self.table[one] <= (1 + NOISE) * self.table[fastest[0]]]
            if number > 0 and len(close) == 1:
                return
            yield from close

    def _climbed(self) -> Generator[Setting]:
        places = [0] * len(self._ladders)
        yield from self._tried(places)
        before: list[int] = []
        while places != before:
            before = places
            for field in range(len(self._ladders)):
                places = yield from self._raised(places, field)
        while len(places) > 1 and places[0] > 0:
            lowered = [places[0] - 1, *places[1:]]
            yield from self._tried(lowered)
            if self._setting(lowered) not in self._fastest():
                return
            places = yield from self._raised(lowered, len(self._ladders) - 1)

    def _raised(self, places: list[int], field: int) -> Generator[Setting, None, list[int]]:
        """Raise one field until two values in a row are no match; return the fastest places on the way."""
        best, misses = places, 0
        for place in range(places[field] + 1, len(self._ladders[field])):
            raised = [*places[:field], place, *places[field + 1 :]]
            if not self._allowed(self._setting(raised)):
                break
            yield from self._tried(raised)
            if self._seconds(raised) < self._seconds(best):
                best, misses = raised, 0
            elif self._seconds(raised) > (1 + NOISE) * self._seconds(best):
                misses += 1
            if misses == 2:
                break
        return best

    def _tried(self, places: Sequence[int]) -> Generator[Setting]:
        if self._setting(places) not in self.table:
            yield self._setting(places)

    def _seconds(self, places: Sequence[int]) -> float:
        return self.table[self._setting(places)]

    def _setting(self, places: Sequence[int]) -> Setting:
        return tuple(ladder[place] for ladder, place in zip(self._ladders, places, strict=True))


# ---- trials in training


@dataclass(frozen=True, kw_only=True, slots=True)
class TunedPipeline:
    """The result of a search."""

    table: dict[Setting, float]
    """Seconds of a step's passes by setting, in the order of the trials."""
    chosen: Setting
    num_trials: int
    """Number of trials; those near the fastest were tried more than once."""

    @property
    def config(self) -> PipelineConfig:
        """The configuration that was chosen."""
        return config_of(self.chosen)

    def described(self) -> str:
        """Return the choice and its trials in words."""
        first, chosen = next(iter(self.table.values())), self.table[self.chosen]
        return (
            f"{described(self.config)}: {1e3 * chosen:.2f} ms a step, {1e3 * first:.2f} ms at first, by "
            f"{self.num_trials} trials of {', '.join(FIELDS)}"
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        table = [[list(setting), seconds] for setting, seconds in self.table.items()]
        return {"table": table, "chosen": list(self.chosen), "num_trials": self.num_trials}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        """Make the result from the values of :meth:`to_json`.

        Raises:
            ValueError, TypeError, KeyError: it is something else.
            ConfigError: the kernel has no such setting.
        """
        table = {tuple(map(int, setting)): float(seconds) for setting, seconds in content["table"]}
        chosen = tuple(map(int, content["chosen"]))
        if chosen not in table:
            raise ValueError("the setting that was chosen is not in the table")
        config_of(chosen)
        return cls(table=table, chosen=chosen, num_trials=int(content["num_trials"]))


class PipelineTuner:
    """Sets the kernel's configuration before each step; every rank has one.

    All ranks tell each other their times and search alike, so that each does the same without being told. The
    result is kept between runs. The size of a partition changes the bits of learned parameters by rounding.
    Steps are timed by the host's clock: it waits for the device whenever rows are published, so that only the
    work after a pass's last sum may be left out, which is alike in all trials. ``identity`` differs where the
    program or the partition does.
    """

    def __init__(self, comm: Communicator, identity: str, device: str, limits: DeviceLimits) -> None:
        self._comm, self._identity, self._device, self._limits = comm, identity, device, limits
        self._search: CrossIterationSearch | None = None
        self._seconds: list[float] = []
        self._spreads: list[float] = []
        self._key = ""
        self.is_kept = False
        """Whether :attr:`found` comes from an earlier run."""
        self.found: TunedPipeline | None = None
        """The result; None while trials go on."""

    def before_step(self, step: PlannedStep) -> None:
        """Take the time of the step before, and set the configuration of the next."""
        if self.found is not None:
            return
        if self._search is None:
            self._begin(step)
        elif step.seconds is not None:
            self._seconds.append(step.seconds)
            if len(self._seconds) == STEPS:
                self._end_trial(step, self._search)

    def explain(self) -> list[str]:
        """Return lines with the result and its trials."""
        if self.found is None:
            when = "tried in the first steps" if self._search is None else "being tried"
            return [f"  the kernel's configuration is {when}"]
        lines = [f"  {self.found.described()}{' in an earlier run' if self.is_kept else ''}"]
        for setting, seconds in self.found.table.items():
            text = ", ".join(f"{name} {value}" for name, value in zip(FIELDS, setting, strict=True))
            lines.append(f"    {text}: {1e3 * seconds:.2f} ms")
        return lines

    def _begin(self, step: PlannedStep) -> None:
        """Read the kept table, or begin a search, by the busiest rank and the device of the first one."""
        width = max(one.width for one in step.peer_reads.values())
        told = self._comm.gather([self._device, asdict(self._limits), width, partitions_of(step)])
        self._key = f"{_VERSION} {self._comm.name} {self._identity} {told}"
        kept = _KEPT.read(_KEPT.file(self._key)) if self._comm.rank == 0 else None
        kept = self._comm.share(None if kept is None else kept.to_json())
        if kept is not None:
            self.is_kept, self.found = True, TunedPipeline.from_json(kept)
            step.plan.exchanges.pipeline = self.found.config
            return
        counts = torch.tensor([by_size for *_, by_size in told]).amax(0).tolist()
        busiest = {size: Partitions(*two) for size, two in zip(SIZES, counts, strict=True)}
        limits, widest = DeviceLimits(**told[0][1]), max(width for _, _, width, _ in told)
        values, allowed = ladders(widest, busiest, limits)
        self._search = CrossIterationSearch(values, allowed)
        step.plan.exchanges.pipeline = config_of(self._search.first)

    def _end_trial(self, step: PlannedStep, search: CrossIterationSearch) -> None:
        counted, self._seconds = self._seconds[1:], []
        told = self._comm.gather([min(counted), max(counted)])
        self._spreads.append(max(most / least - 1 for least, most in told))
        search.tell(max(least for least, _ in told))
        if search.next is not None:
            step.plan.exchanges.pipeline = config_of(search.next)
            return
        self.found = TunedPipeline(table=search.table, chosen=search.best, num_trials=search.num_trials)
        step.plan.exchanges.pipeline = self.found.config
        if self._comm.rank == 0:
            self._keep(self.found)

    def _keep(self, found: TunedPipeline) -> None:
        """Keep the result, unless something disturbed the trials."""
        if median(self._spreads) > MOST_SPREAD:
            _log.info("steps of one setting differ by %.0f %%: not kept", 100 * median(self._spreads))
            return
        _KEPT.keep(_KEPT.file(self._key), found, "the fastest configuration of the kernel")


def partitions_of(step: PlannedStep) -> list[list[int]]:
    """Return for each of :data:`SIZES` the local and remote partitions of a step's largest peer sum."""
    kinds = list(zip(*(one.lazy.degrees for one in step.peer_reads.values()), strict=True))
    return [[max(int(-(-of // ps).sum()) for of in kind) for kind in kinds] for ps in SIZES]


def described(config: PipelineConfig) -> str:
    """Describe a configuration."""
    return f"partitions of {config.ps} edges, {config.dist} of a kind a warp, {config.wpb} warps a block"


_KEPT = Kept("pipelines", TunedPipeline.to_json, TunedPipeline.from_json)
"""Tables of trials by machine, ranks, graph and program."""
