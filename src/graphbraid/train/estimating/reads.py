"""The reads of each row by which a run's tiers are filled, as an estimate of the run counts them."""

from __future__ import annotations

from graphbraid.features import Score
from graphbraid.train.estimating.memory.sampled import may_be_tried
from graphbraid.train.estimating.seconds.run_seconds import seconds_of_steps
from graphbraid.train.estimating.trials.trial import Trial
from graphbraid.train.step.tiers import expected_reads

LOOKED_AHEAD_EPOCHS = 3
"""Epochs that an estimate counts at most of a run that looks ahead; whether one does is not up to this."""


def run_reads(trial: Trial, step_bytes: int) -> tuple[Score, float | None]:
    """Return the reads of each row in an epoch, by the score that the Trainer takes, and a run's seconds.

    Args:
        trial: the run, whose model was tried.
        step_bytes: that a step allocates. Where it is too much to be tried, the seconds are None, and nothing
            is looked ahead.
    """
    seconds = None
    if may_be_tried(step_bytes):
        seconds = seconds_of_steps(trial)
        trial.forget_gradients()
    return expected_reads(trial.graph, trial.config, seconds, most_epochs=LOOKED_AHEAD_EPOCHS), seconds
