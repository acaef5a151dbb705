"""Cores of a machine without a device: arrangements tried on copies."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from graphbraid.collective.plan.arrangement import Arrangement, Trial
from graphbraid.collective.plan.cores import ahead_of, arrangements, expected_seconds
from graphbraid.machine.hardware import Hardware
from graphbraid.train import runtime
from graphbraid.train.config import TrainConfig
from graphbraid.train.step.runner import ModelRunner
from graphbraid.train.step.sharing import CoreSharing, follow
from graphbraid.train.task import Task
from graphbraid.train.tuning.shadow import Shadow

if TYPE_CHECKING:
    from graphbraid.collective import Limits, Profile
    from graphbraid.loader.batches import BatchLoader
    from graphbraid.sampling import MiniBatch

TRIAL_STEPS, TRIAL_ROUNDS = 24, 3
"""Steps of a trial, and how often each arrangement is tried, where there is time for it."""
LEAST_STEPS = 12
"""Fewer do not show an arrangement whose threads take turns."""
MOST_TRIED = 6
"""Arrangements tried, at most."""


def try_arrangements(
    runner: ModelRunner,
    task: Task,
    config: TrainConfig,
    loader: BatchLoader,
    *,
    profile: Profile,
    limits: Limits,
) -> tuple[Trial, ...]:
    """Seconds per step of each arrangement that can win, from short runs on copies in turn.

    Args:
        runner: the model.
        task: its loss.
        config: the run's.
        loader: of the run's mini-batches; its threads are set up anew.
        profile: stage times, which bound the trials' time and leave out what cannot win.
        limits: memory for batches prepared ahead.
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
    train = Shadow(runner, task, config)
    for round_ in range(rounds):
        for cores in tried:
            sharing = follow(loader, cores, ahead_of(cores, profile, limits))
            _fill_pool(loader, round_)
            seconds[cores].append(_seconds_per_step(loader, sharing, train, round_, steps))
    # The best round, since what other programs take for a while must not decide for all runs to come.
    return tuple(Trial(cores=cores, seconds=min(took)) for cores, took in seconds.items())


def _affordable(
    found: list[Arrangement], step_seconds: float, budget: float
) -> tuple[list[Arrangement], int, int]:
    """Fewer rounds, then fewer steps, then fewer arrangements, until the trials fit the time for them."""
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
    """Let the threads' buffers get their memory, which later batches use again."""
    list(loader.batches(epoch, 0, min(loader.ahead + 2, len(loader))))


def _seconds_per_step(
    loader: BatchLoader, sharing: CoreSharing, train: Callable[[MiniBatch], object], epoch: int, steps: int
) -> float:
    steps = min(steps, len(loader))
    started = time.perf_counter()
    for batch in loader.batches(epoch, 0, steps):
        sharing.before_batch()
        train(batch)
        del batch  # its buffer goes back to the threads
    return (time.perf_counter() - started) / steps


def _bits_depend_on_threads(
    runner: ModelRunner, task: Task, config: TrainConfig, loader: BatchLoader, cores: int
) -> bool:
    """Whether a step with one thread differs in any bit from one with all: then threads must not change."""
    loader.work_in_turns(1, 2, None)
    batches = list(loader.batches(0, 0, min(2, len(loader))))
    one, all_ = (_after_steps(runner, task, config, batches, threads) for threads in (1, cores))
    return any(not torch.equal(a, b) for a, b in zip(one, all_, strict=True))


def _after_steps(
    runner: ModelRunner, task: Task, config: TrainConfig, batches: Sequence[MiniBatch], threads: int
) -> list[Tensor]:
    """Losses, norms of gradients, and the parameters after a step per batch."""
    torch.set_num_threads(threads)
    runtime.seed_everything(config.seed)
    shadow = Shadow(runner, task, config)
    steps = [shadow(batch) for batch in batches]
    found = torch.tensor([(step.loss_sum, step.grad_norm) for step in steps], dtype=torch.float64)
    return [found, *(p.detach() for p in shadow.parameters())]
