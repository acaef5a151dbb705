"""Strategies: other ways to run an epoch than a plan's, behind one interface, for comparison."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from graphbraid.collective.plan.scheduler import Limits, make_plan
from graphbraid.collective.plan.simulator import (
    CPU,
    GPU,
    Durations,
    Routes,
    ScheduleSetting,
    SimulatedEpoch,
    simulate,
    spread_routes,
)
from graphbraid.collective.plan.times import Profile, StageTimes


class Strategy(Protocol):
    """Simulates an epoch its own way."""

    def __call__(self, times: StageTimes, num_batches: int) -> SimulatedEpoch:
        """The epoch in virtual time."""
        ...


def braided(times: StageTimes, num_batches: int) -> SimulatedEpoch:
    """The plan the scheduler makes, whichever kind it is."""
    plan = make_plan(Profile(times=(times,)), num_batches)
    return simulate(plan.routes(), Durations.constant(times, num_batches), plan.setting)


def cpu_pipeline(times: StageTimes, num_batches: int) -> SimulatedEpoch:
    """Every batch from the CPU; preparing, copying and training overlap."""
    return _run(times, bytes([CPU]) * num_batches)


def gpu_only(times: StageTimes, num_batches: int) -> SimulatedEpoch:
    """Every batch from the device, which prepares and trains in turn."""
    return _run(times, bytes([GPU]) * num_batches)


def static_split(share: float) -> Strategy:
    """Every so-manieth batch from the CPU, for the whole epoch."""

    def run(times: StageTimes, num_batches: int) -> SimulatedEpoch:
        return _run(times, spread_routes(num_batches, round(share * num_batches)))

    return run


def naive_hybrid(share: float, seed: int = 0) -> Strategy:
    """Each batch from the CPU with a fixed probability; trains what is ready before it prepares more."""

    def run(times: StageTimes, num_batches: int) -> SimulatedEpoch:
        return _run(times, drawn_routes(num_batches, share, seed), fill_first=False)

    return run


def sequential(share: float) -> Strategy:
    """One batch after the other, nothing overlaps."""

    def run(times: StageTimes, num_batches: int) -> SimulatedEpoch:
        routes = spread_routes(num_batches, round(share * num_batches))
        setting = ScheduleSetting(cbs=1, gbs=1, workers=times.workers, one_at_a_time=True)
        return simulate(routes, Durations.constant(times, num_batches), setting)

    return run


def drawn_routes(num_batches: int, share: float, seed: int) -> Routes:
    """Each step takes route 0 with probability ``share``, whatever the others take."""
    draw = np.random.default_rng(seed).random(num_batches)
    return bytes(np.where(draw < share, CPU, GPU).astype(np.uint8))


def _run(times: StageTimes, routes: Routes, *, fill_first: bool = True) -> SimulatedEpoch:
    limits = Limits()
    setting = ScheduleSetting(
        cbs=limits.most_cbs, gbs=limits.most_gbs, workers=times.workers, fill_first=fill_first
    )
    return simulate(routes, Durations.constant(times, len(routes)), setting)
