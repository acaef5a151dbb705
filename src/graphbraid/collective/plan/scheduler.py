"""Scheduler: searches for the plan with the fastest simulated epoch that fits in memory.

With a device, the search is over the split between the routes, buffers, stock and workers. Without one, it is
over the division of the cores between preparing batches and training. There are three kinds of division: some
threads prepare batches and others train; all cores train while additional threads prepare; or they *take
turns*: threads prepare a few batches ahead and then rest, and the model uses their cores meanwhile. Each is
tried for some steps on copies of the model and optimizer.

Machine and alternatives plan the same run for other hardware, from stage times measured on this machine.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from graphbraid.arguments import MOST_THREADS, as_count, as_number
from graphbraid.collective.plan.plan import MOST_BATCHES, Plan, RunnerUp
from graphbraid.collective.plan.simulator import (
    CPU,
    Durations,
    EpochBound,
    ScheduleSetting,
    SimulatedEpoch,
    balanced_split,
    bound_with,
    braid,
    braid_routes,
    epoch_bound,
    simulate,
)
from graphbraid.collective.plan.times import Arrangement, Profile, StageTimes
from graphbraid.errors import ConfigError, ResourceError
from graphbraid.files.schema import SavedRecord, check_numbers
from graphbraid.files.writing import format_bytes
from graphbraid.signatures import typed


@typed
@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Limits on the resources of a plan and on the search for it."""

    host_bytes: int | None = None
    """Bytes of pinned memory for host buffers. If None, not limited."""
    device_bytes: int | None = None
    """Bytes of device memory for batches. If None, not limited."""
    most_cbs: int = 64
    """Largest number of host buffers."""
    most_gbs: int = 32
    """Largest number of device buffers."""
    most_tries: int = 100
    """Largest number of schedules to simulate; the best found by then is the plan."""

    def caps(self, profile: Profile) -> tuple[int, int]:
        """Return the largest ``cbs`` and ``gbs`` within the limits; ResourceError if no batch fits."""
        kept = profile.lookahead_bytes if any(times.lookahead for times in profile.times) else 0
        device_bytes = None if self.device_bytes is None else self.device_bytes - kept
        return (
            _fitting("host", self.host_bytes, profile.host_batch_bytes, self.most_cbs),
            _fitting("device", device_bytes, profile.device_batch_bytes, self.most_gbs),
        )


def _fitting(where: str, limit_bytes: int | None, batch_bytes: int, most: int) -> int:
    if limit_bytes is None or batch_bytes == 0:
        return most
    if limit_bytes < batch_bytes:
        raise ResourceError(
            f"a mini-batch needs {format_bytes(batch_bytes)} of {where} memory and "
            f"{format_bytes(limit_bytes)} are allowed; lower batch_size or the fanouts"
        )
    return min(most, limit_bytes // batch_bytes)


AHEAD, REFILL = 8, 1
"""Number of batches that threads prepare before they rest, and number of batches left when they continue, for
arrangements in turns."""


def arrangements(cores: int, worker_counts: Sequence[int], *, may_take_turns: bool) -> list[Arrangement]:
    """Return the arrangements worth trying, the most promising first."""
    counts = sorted({*worker_counts, cores})
    found = [Arrangement(workers=w, threads=cores, turns=True) for w in counts] if may_take_turns else []
    found += [Arrangement(workers=w, threads=max(1, cores - w)) for w in counts]
    found.append(Arrangement(workers=1, threads=cores))
    return list(dict.fromkeys(found))


def expected_seconds(cores: Arrangement, times: Sequence[StageTimes], num_cores: int) -> float:
    """Estimate the seconds per step from stage times, to leave out arrangements that cannot win.

    Training is assumed to need the same core-seconds on any number of cores: those it took beside the largest
    number of workers.
    """
    alone = times[-1]
    prepare = min(t.cpu.seconds for t in times)
    train = alone.model.seconds * max(1, num_cores - alone.workers)
    if cores.turns or cores.workers + cores.threads > num_cores:
        return max((prepare + train) / num_cores, prepare / cores.workers, train / max(cores.threads, 1))
    return max(prepare / cores.workers, train / cores.threads)


def ahead_of(cores: Arrangement, profile: Profile, limits: Limits) -> int:
    """Return the number of batches prepared ahead: three per worker; in turns as many as fit, up to AHEAD."""
    if not cores.turns:
        return 3 * cores.workers  # as in a loader without a plan
    least = 2 * cores.workers
    if limits.host_bytes is None or not profile.host_batch_bytes:
        return max(least, AHEAD)
    return max(least, min(AHEAD, limits.host_bytes // profile.host_batch_bytes))


def plan_of_trials(profile: Profile, num_batches: int, limits: Limits) -> Plan:
    """Return the plan for the arrangement with the fastest trial."""
    best, *others = sorted(profile.trials, key=lambda trial: trial.seconds)
    times = _nearest(profile.times, best.cores.workers)
    alone, cores = profile.times[-1], max(trial.cores.threads for trial in profile.trials)
    work = min(t.cpu.seconds for t in profile.times) + alone.model.seconds * max(1, cores - alone.workers)
    return Plan(
        num_batches=num_batches,
        num_cpu=num_batches,
        cbs=ahead_of(best.cores, profile, limits),
        gbs=1,
        times=dataclasses.replace(times, workers=best.cores.workers),
        cores=best.cores,
        predicted_seconds=num_batches * best.seconds,
        bound_seconds=num_batches * min(best.seconds, work / cores),
        limit="cpu",
        runner_ups=tuple(
            RunnerUp(name=t.cores.name, split=1.0, predicted_seconds=num_batches * t.seconds) for t in others
        ),
    )


EQUAL = 1.0 + 1e-9
"""Factor within which two times count as equal, since they differ by rounding only."""
SEARCHED_BATCHES = 500
"""Length of the epoch that the search simulates in place of a longer one."""
_SIMULATED_BATCHES = 10_000
"""Twice this many batches of a longer epoch are simulated; the rest goes on as their second half does."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Candidate:
    """The parameters of a schedule and its simulated seconds per epoch."""

    times: StageTimes
    num_cpu: int
    stock: int | None
    cbs: int
    gbs: int
    seconds: float = 0.0

    def setting(self) -> ScheduleSetting:
        return ScheduleSetting(cbs=self.cbs, gbs=self.gbs, workers=self.times.workers)


@typed
def make_plan(profile: Profile, num_batches: int, limits: Limits | None = None) -> Plan:
    """Search for the plan with the fastest simulated epoch; a pure function of its arguments.

    If the profile has trials of core arrangements, the plan is the fastest of them. Otherwise, all batches on
    the CPU and all on the device are candidates like any other split. Numbers of workers are tried in the
    order of their lower bounds, and those whose bound is no better than the best schedule found are skipped.

    Args:
        profile: stage times for each number of workers.
        num_batches: number of steps in the epoch.
        limits: limits on memory and buffers. If None, the defaults of :class:`Limits`.

    Raises:
        ConfigError: ``num_batches`` is not in [1, ``MOST_BATCHES``].
        ResourceError: the limits have no room for a single batch.
    """
    num_batches = as_count(num_batches, "num_batches", least=1, most=MOST_BATCHES)
    limits = limits or Limits()
    if profile.trials:
        return plan_of_trials(profile, num_batches, limits)
    search = _Search(min(num_batches, SEARCHED_BATCHES), *limits.caps(profile), limits.most_tries)
    bounds = [(epoch_bound(times, search.num_batches), times) for times in profile.times]
    for bound, times in sorted(bounds, key=lambda pair: pair[0].seconds):
        search.try_workers(times, bound)
    return _of_length(search.plan(), profile, num_batches)


@typed
def fixed_plan(profile: Profile, num_batches: int, share: float, limits: Limits | None = None) -> Plan:
    """Return the best plan with a given share of the batches on the CPU.

    The number of workers and the stock are those with the fastest simulated epoch.

    Raises:
        ConfigError: ``share`` is outside [0, 1], or leaves batches to a device that cannot prepare them.
        ResourceError: the limits have no room for a single batch.
    """
    num_batches = as_count(num_batches, "num_batches", least=1, most=MOST_BATCHES)
    share = as_number(share, "share", least=0, most=1)
    limits = limits or Limits()
    search = _Search(num_batches, *limits.caps(profile), limits.most_tries)
    num_cpu = round(share * num_batches)
    for times in profile.times:
        if num_cpu < num_batches and times.uva is None:
            raise ConfigError(f"share={share:g} needs a device that prepares batches (times.uva is None)")
        for stock in search.stocks():
            search.consider(times, num_cpu, stock)
    return _of_length(search.plan(), profile, num_batches)


def one_sided(plan: Plan, route: int, *, cbs: int, gbs: int) -> Plan:
    """Return the plan with every batch on one route and with other numbers of buffers."""
    alone = dataclasses.replace(
        plan,
        times=dataclasses.replace(plan.times, uva=plan.times.uva or plan.times.cpu),
        num_cpu=plan.num_batches if route == CPU else 0,
        stock=None,
        cbs=cbs,
        gbs=gbs,
        runner_ups=(),
    )
    return dataclasses.replace(alone, predicted_seconds=simulated(alone).seconds)


@typed
def simulated(plan: Plan, times: StageTimes | None = None, num_batches: int | None = None) -> SimulatedEpoch:
    """Simulate an epoch of the plan in virtual time, by default with its own times and length."""
    given = plan.num_batches if num_batches is None else num_batches
    n = as_count(given, "num_batches", least=1, most=MOST_BATCHES)
    durations = Durations.constant(times or plan.times, n)
    return simulate(plan.routes(n), durations, plan.setting)


def _of_length(plan: Plan, profile: Profile, num_batches: int) -> Plan:
    """Return the plan for ``num_batches`` steps, with its lower bound over all numbers of workers."""
    scale = num_batches / plan.num_batches
    bound = min((epoch_bound(times, num_batches) for times in profile.times), key=lambda b: b.seconds)
    longer = dataclasses.replace(
        plan,
        num_batches=num_batches,
        num_cpu=round(plan.split * num_batches),
        bound_seconds=bound.seconds,
        limit=bound.limit,
        runner_ups=tuple(
            dataclasses.replace(other, predicted_seconds=other.predicted_seconds * scale)
            for other in plan.runner_ups
        ),
    )
    return dataclasses.replace(longer, predicted_seconds=_simulated_seconds(longer))


def _simulated_seconds(plan: Plan) -> float:
    """Return the seconds of a plan's epoch; a long one goes on as its simulated beginning does at its end."""
    if plan.num_batches <= 2 * _SIMULATED_BATCHES:
        return simulated(plan).seconds

    def of(num_batches: int) -> float:
        num_cpu = round(plan.split * num_batches)
        return simulated(dataclasses.replace(plan, num_batches=num_batches, num_cpu=num_cpu)).seconds

    first, both = of(_SIMULATED_BATCHES), of(2 * _SIMULATED_BATCHES)
    return both + (both - first) * (plan.num_batches / _SIMULATED_BATCHES - 2)


class _Search:
    """A search over schedules that keeps the best candidate and the best of each kind."""

    def __init__(self, num_batches: int, cbs: int, gbs: int, most_tries: int) -> None:
        self.num_batches, self._cbs, self._gbs = num_batches, cbs, gbs
        self._tries_left = most_tries
        self._best: _Candidate | None = None
        self._by_kind: dict[str, _Candidate] = {}

    def try_workers(self, times: StageTimes, bound: EpochBound) -> None:
        n = self.num_batches
        self.consider(times, n, None)
        if times.uva is None:
            return
        self.consider(times, 0, None)
        for stock in self.stocks():
            assert self._best is not None
            if self._tries_left <= 0 or self._best.seconds <= EQUAL * bound.seconds:
                return
            self._tune(times, bound, stock)
        self._try_regular(times)

    def _try_regular(self, times: StageTimes) -> None:
        """Try evenly spread splits of short period that can win; the greedy schedule may miss them."""
        n = self.num_batches
        shares = {i / 20 for i in range(1, 20)} | {1 / k for k in range(2, 41)}
        counts = {round(share * n) for share in shares}
        least = {m: max(bound_with(times, n, m).values()) for m in counts if 0 < m < n}
        for num_cpu in sorted(least, key=lambda m: least[m]):
            assert self._best is not None
            if self._tries_left <= 0 or least[num_cpu] >= self._best.seconds:
                return
            self.consider(times, num_cpu, None)

    def stocks(self) -> list[int | None]:
        """Return the stocks worth trying, the most promising first; None spreads the routes evenly."""
        powers = [1 << i for i in range(self._gbs.bit_length()) if 1 << i < self._gbs]
        largest, *others = sorted({0, *powers, self._gbs - 1}, reverse=True)
        return [largest, None, *others]

    def consider(self, times: StageTimes, num_cpu: int, stock: int | None) -> SimulatedEpoch:
        """Simulate a candidate and keep it if it is the best, or the best of its kind."""
        candidate = _Candidate(times=times, num_cpu=num_cpu, stock=stock, cbs=self._cbs, gbs=self._gbs)
        schedule = self._schedule(candidate)
        candidate = dataclasses.replace(candidate, seconds=schedule.seconds)
        kind = self._kind(candidate)
        if kind not in self._by_kind or candidate.seconds < self._by_kind[kind].seconds:
            self._by_kind[kind] = candidate
        if self._best is None or candidate.seconds < self._best.seconds:
            self._best = candidate
        return schedule

    def plan(self) -> Plan:
        """Return the plan of the best candidate with no more buffers than it needs and with no bound yet."""
        assert self._best is not None
        best = self._spared(self._best)
        own = self._kind(best)
        others = sorted((c for k, c in self._by_kind.items() if k != own), key=lambda c: c.seconds)
        return Plan(
            num_batches=self.num_batches,
            num_cpu=best.num_cpu,
            stock=best.stock,
            cbs=best.cbs,
            gbs=best.gbs,
            most_cbs=self._cbs,
            most_gbs=self._gbs,
            times=best.times,
            predicted_seconds=best.seconds,
            bound_seconds=0.0,
            limit="device",
            runner_ups=tuple(
                RunnerUp(name=self._kind(c), split=c.num_cpu / self.num_batches, predicted_seconds=c.seconds)
                for c in others[:4]
            ),
        )

    def _tune(self, times: StageTimes, bound: EpochBound, stock: int | None) -> None:
        """Let the dispatcher move batches between the routes until the schedule is balanced."""
        n = self.num_batches

        def run(num_cpu: int) -> tuple[float, int]:
            schedule = self.consider(times, num_cpu, stock)
            return schedule.seconds, schedule.feedback

        balanced_split(run, n, bound.num_cpu, max(1, n // 64), most_tries=8)

    def _spared(self, best: _Candidate) -> _Candidate:
        """Return the candidate with the fewest buffers, on the device, then the host, that stays as fast.

        A few spare buffers are then added if the epoch stays as fast, since real durations vary.
        """
        best = dataclasses.replace(best, seconds=self._fixed(best).seconds)
        most = EQUAL * best.seconds
        for name in ("gbs", "cbs"):
            too_few, enough = 0, getattr(best, name)
            while enough - too_few > 1:
                middle = (too_few + enough) // 2
                fewer = dataclasses.replace(best, **{name: middle})
                seconds = self._fixed(fewer).seconds
                if seconds <= most:
                    enough, best = middle, dataclasses.replace(fewer, seconds=seconds)
                else:
                    too_few = middle
        roomy = dataclasses.replace(
            best, cbs=min(best.cbs + best.times.workers, self._cbs), gbs=min(best.gbs + 1, self._gbs)
        )
        roomy = dataclasses.replace(roomy, seconds=self._fixed(roomy).seconds)
        return roomy if roomy.seconds <= most else best

    def _schedule(self, candidate: _Candidate) -> SimulatedEpoch:
        c = candidate
        if c.stock is None or c.num_cpu in (0, self.num_batches):
            return self._fixed(c)
        self._tries_left -= 1
        return braid(c.times, self.num_batches, c.num_cpu, c.stock, c.setting())

    def _fixed(self, candidate: _Candidate) -> SimulatedEpoch:
        self._tries_left -= 1
        c, n = candidate, self.num_batches
        routes = braid_routes(c.times, n, c.num_cpu, c.stock, c.setting())
        return simulate(routes, Durations.constant(c.times, n), c.setting())

    def _kind(self, candidate: _Candidate) -> str:
        if candidate.num_cpu == 0:
            return "gpu"
        name = "cpu" if candidate.num_cpu == self.num_batches else "braided"
        workers = candidate.times.workers
        return f"{name}, {workers} worker{'s' if workers > 1 else ''}"


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
        check_numbers(self, ("core_speed", "link_speed", "device_speed"), positive=True)

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
            powers = {1 << i for i in range(most.bit_length() - 1)}
            counts = {w for w in counts if w <= most} | powers | {most}
        speeds = {"core": self.core_speed, "link": self.link_speed, "device": self.device_speed}
        scaled = [_nearest(measured, w).what_if(**speeds).with_workers(w) for w in sorted(counts)]
        return dataclasses.replace(profile, times=tuple(scaled), trials=())


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
