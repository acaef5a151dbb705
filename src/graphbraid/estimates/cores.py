"""Trials of core arrangements on a machine without a device, on copies of model and optimizer."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from graphbraid.collective.plan.scheduler import ahead_of, arrangements, expected_seconds
from graphbraid.collective.plan.times import Arrangement, TimedArrangement
from graphbraid.estimates.trial import TrialStep
from graphbraid.machine.hardware import Hardware
from graphbraid.train import runtime
from graphbraid.train.config import TrainConfig
from graphbraid.train.step.feed import CoreSharing, follow
from graphbraid.train.step.runner import ModelRunner
from graphbraid.train.task import Task

if TYPE_CHECKING:
    from graphbraid.collective import Limits, Profile
    from graphbraid.loader.batch_loader import BatchLoader
    from graphbraid.sampling import MiniBatch

TRIAL_STEPS, TRIAL_ROUNDS = 24, 3
"""Number of steps of a trial, and of trials per arrangement, if time permits."""
LEAST_STEPS = 12
"""Smallest number of steps of a trial; fewer do not represent an arrangement whose threads take turns."""
MOST_TRIED = 6
"""Largest number of arrangements tried."""


def try_arrangements(
    runner: ModelRunner,
    task: Task,
    config: TrainConfig,
    loader: BatchLoader,
    *,
    profile: Profile,
    limits: Limits,
) -> tuple[TimedArrangement, ...]:
    """Measure the seconds per step of each arrangement that can win, by short runs in turn on copies.

    Args:
        runner: runner of the model.
        task: the loss.
        config: options of the run.
        loader: loader of the run's mini-batches; its threads are set up anew.
        profile: stage times, which limit the time of the trials and exclude arrangements that cannot win.
        limits: limits on the memory of batches prepared ahead.
    """
    num_cores = Hardware.detect().planned_cores
    if num_cores < 2 or config.threads is not None:
        return ()
    may = runner.native and not _bits_depend_on_threads(runner, task, config, loader, num_cores)
    found = arrangements(num_cores, [times.workers for times in profile.times], may_take_turns=may)
    found.sort(key=lambda cores: expected_seconds(cores, profile.times, num_cores))
    slowest = max(t.cpu.seconds for t in profile.times) + max(t.model.seconds for t in profile.times)
    planned = 0.02 * config.epochs * len(loader) * slowest
    tried, rounds, steps = _affordable(found[:MOST_TRIED], slowest, max(5.0, planned))
    seconds: dict[Arrangement, list[float]] = {cores: [] for cores in tried}
    train = TrialStep.on_copy(runner, task, config)
    for round_ in range(rounds):
        for cores in tried:
            sharing = follow(loader, cores, ahead_of(cores, profile, limits))
            _fill_pool(loader, round_)
            seconds[cores].append(_seconds_per_step(loader, sharing, train, round_, steps))
    # The best round counts, so that a passing load by other programs does not decide all later runs.
    return tuple(TimedArrangement(cores=cores, seconds=min(took)) for cores, took in seconds.items())


def _affordable(
    found: list[Arrangement], step_seconds: float, budget: float
) -> tuple[list[Arrangement], int, int]:
    """Reduce the rounds, then the steps, then the arrangements until the trials fit in the time for them."""
    rounds, steps = TRIAL_ROUNDS, TRIAL_STEPS
    while len(found) * rounds * steps * step_seconds > budget:
        if rounds > 2:
            rounds -= 1
        elif steps > LEAST_STEPS:
            steps -= 4
        elif len(found) > 3:
            found = found[:-1]
        else:
            break
    return found, rounds, steps


def _fill_pool(loader: BatchLoader, epoch: int) -> None:
    """Let the threads allocate their buffers, which later batches reuse."""
    list(loader.batches(epoch, 0, min(loader.ahead + 2, len(loader))))


def _seconds_per_step(
    loader: BatchLoader, sharing: CoreSharing, train: Callable[[MiniBatch], object], epoch: int, steps: int
) -> float:
    steps = min(steps, len(loader))
    started = time.perf_counter()
    for batch in loader.batches(epoch, 0, steps):
        sharing.before_batch()
        train(batch)
        del batch  # so that the threads can reuse its buffer
    return (time.perf_counter() - started) / steps


def _bits_depend_on_threads(
    runner: ModelRunner, task: Task, config: TrainConfig, loader: BatchLoader, cores: int
) -> bool:
    """Return whether steps with one thread and with all differ in any bit; if so, threads must not vary."""
    loader.work_in_turns(1, 2, None)
    batches = list(loader.batches(0, 0, min(2, len(loader))))
    one, all_ = (_after_steps(runner, task, config, batches, threads) for threads in (1, cores))
    return any(not torch.equal(a, b) for a, b in zip(one, all_, strict=True))


def _after_steps(
    runner: ModelRunner, task: Task, config: TrainConfig, batches: Sequence[MiniBatch], threads: int
) -> list[Tensor]:
    """Return losses and gradient norms of one step per batch, and the parameters afterwards."""
    torch.set_num_threads(threads)
    runtime.seed_everything(config.seed)
    shadow = TrialStep.on_copy(runner, task, config)
    steps = [shadow(batch) for batch in batches]
    found = torch.tensor([(step.loss_sum, step.grad_norm) for step in steps], dtype=torch.float64)
    return [found, *(p.detach() for p in shadow.parameters())]
