"""The reads of each row by which a run's tiers are filled, as an estimate of the run counts them."""

from __future__ import annotations

from graphbraid.estimates.trial import Trial
from graphbraid.features import Score
from graphbraid.train.estimating.memory.sampled import may_try_steps
from graphbraid.train.estimating.run_seconds import RunSeconds
from graphbraid.train.step.tiers import expected_reads

LOOKED_AHEAD_EPOCHS = 3
"""Epochs that an estimate counts at most of a run that looks ahead; whether one does is not up to this."""


def run_reads(
    trial: Trial, *, host: int | str | None, rate: float | None = None, is_here: bool = True
) -> tuple[Score, float | None]:
    """Return the reads of each row in an epoch, by the score that the Trainer takes, and training's seconds.

    Where a step is too much to be tried, the seconds are None, and nothing is looked ahead.

    Args:
        trial: the run, whose model was tried.
        host: memory for tiers. If None, the graph is used as it is.
        rate: rows that come from the store's file at random in a second. If None, it is measured.
        is_here: whether the run is for this machine, whose disk may be measured.
    """
    run_time = None
    if may_try_steps(trial):
        run_time = RunSeconds(trial, host=host, rate=rate, is_here=is_here)
        trial.forget_gradients()
    reads = expected_reads(trial.graph, trial.config, run_time, most_epochs=LOOKED_AHEAD_EPOCHS)
    return reads, None if run_time is None else run_time.train
