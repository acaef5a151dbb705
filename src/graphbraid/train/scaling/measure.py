"""Measurement of a rank's times: its shares are sampled, prepared and trained on here, on copies.

What is measured is what a rank runs (:class:`.Trial`), so nothing is fitted between numbers of ranks or
extended beyond them. Of what depends on other ranks, their sums are not in it; the wait for the latest one
is, by how much the steps of one differ.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from contextlib import closing
from statistics import fmean, median
from typing import NamedTuple

import torch
from torch import Tensor, nn

from graphbraid.distributed.ranks.communicator import Communicator
from graphbraid.distributed.ranks.gradients import GradientSum, bytes_of, in_buckets, tail_bytes
from graphbraid.distributed.ranks.transport import Alone
from graphbraid.estimates.trial import Trial
from graphbraid.loader.batches.batch_loader import BatchLoader
from graphbraid.sampling import MiniBatch
from graphbraid.train.run.ranks import NUM_EXTRA
from graphbraid.train.scaling.lateness import late_seconds
from graphbraid.train.scaling.sizes import ShareSizes, share_at, shares_of
from graphbraid.train.scaling.times import Bucket, ShareTimes

SECONDS = 2.0
"""Seconds that measuring one number of ranks takes, about, beside sampling the sizes."""
FEWEST = 4
"""Steps beside the preparation of later shares, at least."""
_COPIES = 5
STARVED = 0.1
"""Part of the time that training waits for batches above which preparing is what it goes by."""


class PartTimes(NamedTuple):
    """The times of one step that nothing else runs beside."""

    seconds: float
    """Forward and backward."""
    update_seconds: float
    ready: tuple[float, ...]
    """Part of the pass after which each bucket's gradients and those before them are there."""


class StepMeans(NamedTuple):
    """Means of steps beside the preparation of later shares."""

    step_seconds: float
    wait_seconds: float
    first_seconds: float
    """Time until the first batch of an epoch."""
    late_seconds: float = 0.0
    """How much longer a step takes on the latest of the ranks."""


def measured(trial: Trial, loader: BatchLoader, sizes: ShareSizes, *, seconds: float = SECONDS) -> ShareTimes:
    """Measure how long a rank takes for its share.

    Args:
        trial: the run, on copies.
        loader: its loader.
        sizes: the shares for the number of ranks.
        seconds: that this may take, about; a few steps are made in any case.
    """
    groups = in_buckets(trial.runner.model.parameters())
    typical, slowest = _alone(trial, loader, sizes, groups, seconds=seconds / 4)
    rank = sizes.num_ranks // 2
    prepare = _prepare_seconds(loader, rank, sizes.num_ranks, seconds=seconds / 4)
    beside = beside_preparing(trial, loader, rank, sizes.num_ranks, seconds=seconds / 2)
    busy, prepare = apart(beside, prepare)
    slowest_pass, typical_pass = (median(parts.seconds for parts in found) for found in (slowest, typical))
    undisturbed, update = within(busy, typical_pass, median(parts.update_seconds for parts in typical))
    # Steps differ by their shares, too: of the two ways in which a rank is the last one, the longer counts.
    excess = max(beside.late_seconds, slowest_pass - typical_pass) if sizes.num_ranks > 1 else 0.0
    ready = [fmean(place) for place in zip(*(parts.ready for parts in typical), strict=True)]
    return ShareTimes(
        num_ranks=sizes.num_ranks,
        prepare_seconds=prepare,
        first_seconds=beside.first_seconds,
        pass_seconds=undisturbed,
        slowest_seconds=undisturbed + excess,
        hindered_seconds=max(0.0, busy - update - undisturbed),
        update_seconds=update + _summing_seconds(trial, groups, sizes.num_ranks),
        buckets=tuple(
            Bucket(nbytes=bytes_of(group), ready=place) for group, place in zip(groups, ready, strict=True)
        ),
        tail_bytes=tail_bytes(sum(map(len, groups)), NUM_EXTRA),
    )


def apart(beside: StepMeans, prepare_seconds: float) -> tuple[float, float]:
    """Return the seconds of a step and those of preparing a share, of which the longer ones count.

    Where training waits for batches that take longer than a step, the time between two of them is that of
    preparing, which on shared cores is longer than with nothing beside it. Else all of the time between two
    is the step's: threads that share its core prepare a batch as soon as one is taken, and it waits for them.

    Args:
        beside: steps beside preparing.
        prepare_seconds: of preparing with nothing beside it.
    """
    cycle = beside.step_seconds + beside.wait_seconds
    if beside.wait_seconds > STARVED * cycle and prepare_seconds > beside.step_seconds:
        return beside.step_seconds, cycle
    return cycle, min(prepare_seconds, cycle)


def within(busy: float, pass_seconds: float, update_seconds: float) -> tuple[float, float]:
    """Return the seconds of a pass and of an update, less of both where they are longer than the whole step.

    They are those of other steps, of which something may have slowed down any.
    """
    share = min(1.0, busy / (pass_seconds + update_seconds))
    return share * pass_seconds, share * update_seconds


def timed_parts(trial: Trial, batch: MiniBatch, groups: Sequence[Sequence[nn.Parameter]]) -> PartTimes:
    """Make a step and return when its parts were over.

    Args:
        trial: the run.
        batch: what to train on.
        groups: parameters of the trial's model by bucket, in the order in which these go off.
    """
    seen: dict[int, float] = {}

    def note(parameter: Tensor) -> None:
        seen[id(parameter)] = time.perf_counter()

    hooks = [p.register_post_accumulate_grad_hook(note) for group in groups for p in group]  # type: ignore[no-untyped-call]
    try:
        began = time.perf_counter()
        trial.step(batch)
        ended = time.perf_counter()
    finally:
        for hook in hooks:
            hook.remove()
    last = max(seen.values(), default=ended)  # what got no gradient goes off when the others have
    full = itertools.accumulate((max(seen.get(id(p), last) for p in group) for group in groups), max)
    return PartTimes(last - began, ended - last, tuple((at - began) / (last - began) for at in full))


def copying_seconds(trial: Trial) -> float:
    """Return the time of copying the gradients of the last step for the sums, and these back, by one rank."""
    sums = GradientSum(Communicator(Alone()), trial.runner.model.parameters(), num_extra=NUM_EXTRA)
    seconds = []
    try:
        for _ in range(1 + _COPIES):
            began = time.perf_counter()
            sums.finish([0.0] * NUM_EXTRA)
            seconds.append(time.perf_counter() - began)
    finally:
        sums.close()
    return median(seconds[1:])


def adding_seconds(groups: Sequence[Sequence[nn.Parameter]], num_ranks: int) -> float:
    """Return the time of a rank's own additions in the sums of its gradients, by a ring.

    Each adds what comes from before it to its own, part by part, but for the part of which it is the first.

    Args:
        groups: parameters by bucket.
        num_ranks: number of ranks.
    """
    sums = [torch.zeros(sum(p.numel() for p in group)) for group in groups]
    seconds = []
    for _ in range(1 + _COPIES):
        began = time.perf_counter()
        for total in sums:
            total.add_(total)
        seconds.append(time.perf_counter() - began)
    return median(seconds[1:]) * (num_ranks - 1) / num_ranks


def _summing_seconds(trial: Trial, groups: Sequence[Sequence[nn.Parameter]], num_ranks: int) -> float:
    """Return what sums of gradients take of a rank's cores beside moving them; one rank makes none."""
    return copying_seconds(trial) + adding_seconds(groups, num_ranks) if num_ranks > 1 else 0.0


def beside_preparing(
    trial: Trial, loader: BatchLoader, rank: int, num_ranks: int, *, seconds: float
) -> StepMeans:
    """Train on a rank's shares of whole batches as its loader's threads have them, epoch by epoch."""
    firsts: list[float] = []
    waits: list[float] = []
    steps: list[float] = []
    until = time.perf_counter() + seconds
    for epoch in itertools.count(1):
        asked = time.perf_counter()
        with closing(loader.batches_of(shares_of(loader, rank, num_ranks, epoch), epoch)) as batches:
            for number, batch in enumerate(batches):
                began = time.perf_counter()
                (waits if number else firsts).append(began - asked)
                trial.step(batch)
                del batch  # so that the threads can reuse its buffer
                asked = time.perf_counter()
                steps.append(asked - began)
                if asked > until and len(steps) >= FEWEST:
                    late = late_seconds(steps, num_ranks, trial.config.accumulate)
                    return StepMeans(fmean(steps), fmean(waits) if waits else 0.0, fmean(firsts), late)
    raise AssertionError("epochs never end")


def _alone(
    trial: Trial,
    loader: BatchLoader,
    sizes: ShareSizes,
    groups: Sequence[Sequence[nn.Parameter]],
    *,
    seconds: float,
) -> tuple[list[PartTimes], list[PartTimes]]:
    """Time steps on the median and on the largest share of each sampled batch, with nothing beside them."""
    places = [(sizes.steps[i], sizes.middle(i), sizes.heaviest(i)) for i in range(len(sizes.steps))]
    found: tuple[list[PartTimes], list[PartTimes]] = ([], [])
    trial.step(share_at(loader, places[0][0], places[0][1], sizes.num_ranks))  # a warm-up
    until = time.perf_counter() + seconds
    while not found[0] or time.perf_counter() < until:
        for step, *ranks in places:
            for rank, times in zip(ranks, found, strict=True):
                batch = share_at(loader, step, rank, sizes.num_ranks)
                times.append(timed_parts(trial, batch, groups))
                del batch
    return found


def _prepare_seconds(loader: BatchLoader, rank: int, num_ranks: int, *, seconds: float) -> float:
    """Return the time between two shares that nothing is done with, once the threads have begun."""
    until, count, took = time.perf_counter() + seconds, 0, 0.0
    for epoch in itertools.count(1):
        with closing(loader.batches_of(shares_of(loader, rank, num_ranks, epoch), epoch)) as batches:
            began = time.perf_counter()
            for batch in batches:
                del batch
                count += 1
                now = time.perf_counter()
                if now > until and count >= FEWEST:
                    return (took + now - began) / count
            took += time.perf_counter() - began
    raise AssertionError("epochs never end")


__all__ = [
    "SECONDS",
    "PartTimes",
    "StepMeans",
    "adding_seconds",
    "apart",
    "beside_preparing",
    "copying_seconds",
    "measured",
    "timed_parts",
]
