"""How long an epoch of training takes by how much of it is read from disk: some steps tried with tiers."""

from __future__ import annotations

import numpy as np

from graphbraid.errors import ConfigError, ResourceError
from graphbraid.estimates.trial import Trial
from graphbraid.machine.hardware import free_memory_bytes
from graphbraid.train.estimating.seconds.batch_seconds import Tried, tried_epoch
from graphbraid.train.estimating.seconds.epoch_seconds import Pace
from graphbraid.train.estimating.tiers import TieredRun
from graphbraid.train.step.tiers import make_tiers

MOST_FILLED_BYTES = 1 << 30
"""Memory for rows and lists that a trial fills at most; what a larger budget takes lies between points."""
MOST_FILLED_SHARE = 0.25
"""The same as a share of the free memory."""
MOST_BATCH_SECONDS = 1.5
"""Longest time for which a batch may read from disk to be tried; beyond that, reading decides alone."""


def pace_of(trial: Trial, run: TieredRun, train_seconds: float, host: int | None) -> Pace | None:
    """Return the pace of a run by its tiers; None where the disk's rate is not known.

    On this machine, some steps are tried with nothing in memory, and some with the budget that is asked for.

    Args:
        trial: the run with its rows in memory.
        run: its rows in tiers.
        train_seconds: of an epoch then.
        host: the budget of the run. If None, it has none.
    """
    rate, most = run.rows_per_second, run.disk_reads(0)
    if rate is None:
        return None
    found, how = {0.0: train_seconds}, "the slower of training and reading from disk"
    for budget in _budgets(host) if run.is_here else ():
        reads = run.disk_reads(budget)
        if reads in found or reads > rate * MOST_BATCH_SECONDS * run.num_batches:
            continue
        tried = _tried(trial, budget, run)
        if tried is not None:
            found[reads], how = tried.seconds, f"rows in tiers, {tried.how}"
    if most not in found:
        known = max(found)
        # Up to there, reading takes no longer than what is known already.
        found[max(known, min(found[known] * rate, most))] = found[known]
        found[most] = most / rate
    points = sorted(found.items())
    slowest = np.maximum.accumulate([seconds for _, seconds in points]).tolist()
    return Pace(tuple(zip((reads for reads, _ in points), slowest, strict=True)), how)


def _budgets(host: int | None) -> list[int]:
    """Return the budgets to try, that of the run last."""
    if not host:
        return [0]
    free = free_memory_bytes()
    most = MOST_FILLED_BYTES if free is None else min(MOST_FILLED_BYTES, int(MOST_FILLED_SHARE * free))
    return [0, min(host, most)]


def _tried(trial: Trial, host: int, run: TieredRun) -> Tried | None:
    """Return the time of an epoch with tiers as a run makes them; None if the budget holds none."""
    config = trial.config.updated(host=host, hot=None)
    try:
        tiers = make_tiers(trial.graph, config, reads=run.reads)
    except (ConfigError, ResourceError):
        return None
    return tried_epoch(Trial(trial.runner.model, trial.graph, config, tiers))
