"""Scheduler: the best simulated epoch over split, buffers, stock and workers, within memory."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from graphbraid.arguments import as_count, as_number
from graphbraid.collective.plan.braid import braid, braid_routes
from graphbraid.collective.plan.cores import plan_of_trials
from graphbraid.collective.plan.dispatcher import Dispatcher, EpochBound, bound_with, epoch_bound
from graphbraid.collective.plan.limits import Limits
from graphbraid.collective.plan.plan import Plan, RunnerUp
from graphbraid.collective.plan.routes import CPU
from graphbraid.collective.plan.simulator import Durations, Setting, SimulatedEpoch, simulate
from graphbraid.collective.plan.times import Profile, StageTimes
from graphbraid.errors import ConfigError
from graphbraid.signatures import typed

EQUAL = 1.0 + 1e-9
"""Seconds within this factor are the same: they differ by rounding."""
MOST_BATCHES = 10_000_000
"""Of an epoch that is planned: its plan is simulated batch by batch."""
SEARCHED_BATCHES = 500
"""A longer epoch is searched as one of this length, then simulated whole."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Candidate:
    """Choices of a schedule, and its simulated epoch."""

    times: StageTimes
    num_cpu: int
    stock: int | None
    cbs: int
    gbs: int
    seconds: float = 0.0

    def setting(self) -> Setting:
        return Setting(cbs=self.cbs, gbs=self.gbs, workers=self.times.workers)


@typed
def make_plan(profile: Profile, num_batches: int, limits: Limits | None = None) -> Plan:
    """Search for the plan with the fastest simulated epoch: a pure function of its arguments.

    Where arrangements of the cores were tried, the fastest of them is the plan. Otherwise all-CPU and all-GPU
    are candidates like any other. Numbers of workers are tried in the order of their
    bounds, and those whose bound is no better than what was found are left out.

    Args:
        profile: times for each number of workers.
        num_batches: steps of the epoch.
        limits: memory and buffers; None: the defaults.

    Raises:
        ConfigError: ``num_batches`` is not positive.
        ResourceError: not one batch fits the limits.
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
    """A plan with a share chosen by hand, for the number of workers and the stock it runs best with.

    Raises:
        ConfigError: the share is outside [0, 1], or needs the device to prepare batches and it cannot.
        ResourceError: not one batch fits the limits.
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
    """The plan with every batch on one route, and other buffers."""
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
    """The plan's epoch in virtual time, with its own times or others."""
    n = (
        plan.num_batches
        if num_batches is None
        else as_count(num_batches, "num_batches", least=1, most=MOST_BATCHES)
    )
    durations = Durations.constant(times or plan.times, n)
    return simulate(plan.routes(n), durations, plan.setting)


def _of_length(plan: Plan, profile: Profile, num_batches: int) -> Plan:
    """The plan for an epoch of ``num_batches``, with that epoch's bound over all numbers of workers."""
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
    return dataclasses.replace(longer, predicted_seconds=simulated(longer).seconds)


class _Search:
    """Candidates tried so far, the best of each kind kept."""

    def __init__(self, num_batches: int, cbs: int, gbs: int, most_tries: int) -> None:
        self.num_batches, self._cbs, self._gbs = num_batches, cbs, gbs
        self._tries_left = most_tries
        self._best: _Candidate | None = None
        self._by_kind: dict[str, _Candidate] = {}

    def try_workers(self, times: StageTimes, bound: EpochBound) -> None:
        """Search with one number of workers."""
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
        """Static splits with a short period, whose steady rhythm the braid may miss; those that can win."""
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
        """Stocks worth trying, the likeliest to be best first; None spreads the routes evenly."""
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
        """The best candidate with no more buffers than it needs; its bound is not known here."""
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
            runner_ups=tuple(self._runner_up(c) for c in others[:4]),
        )

    def _tune(self, times: StageTimes, bound: EpochBound, stock: int | None) -> None:
        """Let the dispatcher move batches between the routes until the schedule is balanced."""
        n = self.num_batches
        dispatcher = Dispatcher(num_batches=n, num_cpu=bound.num_cpu, step=max(1, n // 64))

        def run(num_cpu: int) -> tuple[float, int]:
            schedule = self.consider(times, num_cpu, stock)
            return schedule.seconds, schedule.feedback

        dispatcher.tune(run, most_tries=8)

    def _spared(self, best: _Candidate) -> _Candidate:
        """The fewest buffers with which the epoch does not grow, first on the device, then on the host.

        And then a few in hand where they do no harm, since real durations vary.
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
        """As the greedy rule lays it."""
        c = candidate
        if c.stock is None or c.num_cpu in (0, self.num_batches):
            return self._fixed(c)
        self._tries_left -= 1
        return braid(c.times, self.num_batches, c.num_cpu, c.stock, c.setting())

    def _fixed(self, candidate: _Candidate) -> SimulatedEpoch:
        """As it runs once the routes are laid."""
        self._tries_left -= 1
        c, n = candidate, self.num_batches
        routes = braid_routes(c.times, n, c.num_cpu, c.stock, c.setting())
        return simulate(routes, Durations.constant(c.times, n), c.setting())

    def _runner_up(self, candidate: _Candidate) -> RunnerUp:
        return RunnerUp(
            name=self._kind(candidate),
            split=candidate.num_cpu / self.num_batches,
            predicted_seconds=candidate.seconds,
        )

    def _kind(self, candidate: _Candidate) -> str:
        if candidate.num_cpu == 0:
            return "gpu"
        name = "cpu" if candidate.num_cpu == self.num_batches else "braided"
        workers = candidate.times.workers
        return f"{name}, {workers} worker{'s' if workers > 1 else ''}"
