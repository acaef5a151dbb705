"""The time of an epoch on mini-batches: the plan's where there is one, else a short trial on copies."""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Generator, Sequence
from typing import NamedTuple

from graphbraid.collective import Plan
from graphbraid.estimates.trial import Trial, of_tries
from graphbraid.machine.contention import OtherPrograms
from graphbraid.sampling import MiniBatch
from graphbraid.train.estimating.memory.sampled import are_mapped
from graphbraid.train.estimating.seconds.epoch_seconds import NOTHING, EpochSeconds
from graphbraid.train.estimating.seconds.evaluations import evaluation_seconds
from graphbraid.train.step.feed import make_loader

SECONDS = 4.0
"""Seconds that a trial takes, about."""
FEWEST = 8
"""Steps of a trial, at least; an epoch of fewer is run as a whole."""
REPEATS = 12
"""Short epochs of a trial at most."""
PARTS = 4
"""Parts of the even steps of a longer one, which are compared."""


class Tried(NamedTuple):
    """The time of an epoch's training, from a trial."""

    seconds: float
    how: str
    first: float = 0.0
    """Seconds that a run's first epoch takes longer."""
    spread: float | None = None
    """Seconds by which another try lies off at most; None if there was but one."""


def sampled_seconds(trial: Trial, plan: Plan | None) -> EpochSeconds:
    """Return the time of an epoch on mini-batches.

    Args:
        trial: the run.
        plan: its plan, whose simulated epoch counts. If None, some steps are tried.
    """
    others = OtherPrograms()
    tried = (
        tried_epoch(trial) if plan is None else Tried(plan.predicted_seconds, "the plan's simulated epoch")
    )
    validation = test = NOTHING
    if trial.val_nodes is not None:
        found = evaluation_seconds(trial, trial.val_nodes, trial.config.eval_mode, most=SECONDS)
        validation = found.times(1 / trial.config.eval_every)
    if trial.test_nodes is not None:
        test = evaluation_seconds(trial, trial.test_nodes, "exact", most=SECONDS)
    return EpochSeconds(
        train=tried.seconds,
        evaluate=validation.seconds,
        evaluate_how=validation.how,
        first=tried.first,
        test=test.seconds,
        test_how=test.how,
        how=tried.how,
        train_spread=tried.spread,
        evaluate_spread=validation.spread,
        test_spread=test.spread,
        others=others.share(),
    )


def tried_epoch(trial: Trial) -> Tried:
    """Return the time of an epoch's training, by steps on mini-batches that are prepared as a run's are.

    A short epoch is run to its end, several times. A longer one is left when the time is up, its threads
    having gone on with what comes next until then.
    """
    with make_loader(trial.runner, trial.config.updated(plan=None), trial.nodes) as loader:
        steps = most = len(loader)
        ahead = 0 if trial.runner.rows is not None else loader.ahead
        # Threads allocate their buffers, which later batches reuse, and torch finds its kernels.
        cold = _marks(trial, loader.batches(0, 0, min(ahead + 2, steps)))
        if trial.runner.rows is None and are_mapped(trial.graph):
            # As after a run's first epoch, the system has the pages of the file that are read.
            cold = _marks(trial, loader.batches(1), seconds=SECONDS / 2)
            most = len(cold)
        epochs: list[float] = []
        while not epochs or (len(epochs) < REPEATS and sum(epochs) + epochs[-1] <= SECONDS):
            seconds = math.inf if epochs else SECONDS
            marks = _marks(trial, loader.batches(1 + len(epochs)), seconds=seconds, most=most)
            first = longer(cold, marks)
            if len(marks) < steps:
                how = f"{len(marks)} of {steps} steps tried"
                return Tried(whole_epoch(marks, steps, ahead), how, first, spread_of(marks, steps, ahead))
            epochs.append(marks[-1])
    times = "once" if len(epochs) == 1 else f"{len(epochs)} times"
    found = of_tries(epochs)
    return Tried(found.known, f"all {steps} steps tried {times}", first, found.spread)


def longer(cold: Sequence[float], warm: Sequence[float]) -> float:
    """Return how many seconds the first steps took longer than the same number of later ones."""
    count = min(len(cold), len(warm))
    return max(0.0, cold[count - 1] - warm[count - 1])


def whole_epoch(marks: Sequence[float], steps: int, ahead: int) -> float:
    """Return the seconds of an epoch, by its first steps.

    Args:
        marks: seconds from its start to the end of each of these, two at least.
        steps: of the whole epoch.
        ahead: batches prepared ahead. Once as many have been taken, later ones come as fast as they will.
    """
    even = _first_even(marks, ahead)
    each = (marks[-1] - marks[even - 1]) / (len(marks) - even)
    return marks[even - 1] + (steps - even) * each


def spread_of(marks: Sequence[float], steps: int, ahead: int) -> float | None:
    """Return by how many seconds :func:`whole_epoch` may lie off, as parts of the even steps differ.

    The even steps are cut into two to four parts of the same number of steps; None where they are too few.
    """
    even = _first_even(marks, ahead)
    size = max(1, (len(marks) - even) // PARTS)
    ends = marks[even - 1 :: size]
    if len(ends) < 3:
        return None
    each = [(last - first) / size for first, last in itertools.pairwise(ends)]
    return (steps - even) * (of_tries(each).spread or 0.0)


def _first_even(marks: Sequence[float], ahead: int) -> int:
    """Return the number of steps before those that come evenly."""
    return max(1, min(ahead + 1, len(marks) // 2))


def _marks(
    trial: Trial, batches: Generator[MiniBatch], *, seconds: float = math.inf, most: int | None = None
) -> list[float]:
    """Make steps until the time is up, and return the seconds from the start to the end of each."""
    marks: list[float] = []
    started = time.perf_counter()
    with contextlib.closing(batches) as opened:
        for batch in opened:
            trial.step(batch)
            del batch  # so that the threads can reuse its buffer
            marks.append(time.perf_counter() - started)
            if len(marks) == most or (len(marks) >= FEWEST and marks[-1] >= seconds):
                break
    return marks
