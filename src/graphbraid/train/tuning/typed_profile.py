"""Profile of the stages of a run whose batches no operator prepares: on a graph with types, or of links."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from graphbraid.collective import Profile
from graphbraid.collective.plan.times import ZERO, Duration, StageTimes
from graphbraid.collective.run.profiler import Effort
from graphbraid.machine.hardware import Hardware
from graphbraid.sampling.minibatch.mini_batch import MiniBatch

if TYPE_CHECKING:
    from graphbraid.loader.batches.batch_loader import BatchLoader
    from graphbraid.sampling.typed.minibatch import TypedMiniBatch


def measure_typed(
    loader: BatchLoader,
    workers: Sequence[int],
    *,
    train: Callable[[Any], object],
    before_training: Callable[[int], None],
    effort: Effort | None = None,
) -> Profile:
    """Measure how long sampling threads and the model take for a mini-batch.

    Args:
        loader: loader of the run's mini-batches; its threads are set up anew.
        workers: numbers of sampling threads to measure with, in increasing order.
        train: a training step on copies of model and optimizer.
        before_training: function called with each number of workers before ``train`` is measured.
        effort: number of batches and seconds. If None, the defaults of :class:`Effort`.
    """
    effort = effort or Effort()
    share = effort.seconds / (2 * len(workers))
    found, largest = [], 0
    for count in workers:
        loader.work_in_turns(count, 3 * count, 3 * count - 1)  # without rests
        cpu = Duration.typical(_intervals(loader, effort, share)).times(count)
        before_training(count)
        seconds: list[float] = []

        def step(batch: MiniBatch | TypedMiniBatch, seconds: list[float] = seconds) -> None:
            nonlocal largest
            largest = max(largest, _bytes_of(batch))
            started = time.perf_counter()
            train(batch)
            seconds.append(time.perf_counter() - started)

        kept = len(_intervals(loader, effort, share, step))
        model = Duration.typical(seconds[-kept:])
        found.append(StageTimes(workers=count, cpu=cpu, dma=ZERO, model=model))
    loader.close()
    return Profile(
        times=tuple(found),
        host_batch_bytes=largest,
        device_batch_bytes=largest,
        source=f"{Hardware.detect().cpu_model}, cpu",
    )


def _intervals(
    loader: BatchLoader, effort: Effort, seconds: float, use: Callable[[Any], None] | None = None
) -> list[float]:
    """Return the seconds from one batch to the next after the warm-up, at least one; ``use`` gets each."""
    found: list[float] = []
    until, count = time.perf_counter() + seconds, 0
    while count < effort.warm_up + effort.samples:
        started = time.perf_counter()
        for batch in loader.batches(0, 0, min(len(loader), effort.warm_up + effort.samples - count)):
            if use is not None:
                use(batch)
            ended = time.perf_counter()
            if count >= effort.warm_up or ended > until:
                found.append(ended - started)
            count += 1
            if ended > until:
                return found
            started = ended
    return found


def _bytes_of(batch: MiniBatch | TypedMiniBatch) -> int:
    """Return the bytes of a batch's ids, edges and feature rows."""
    if isinstance(batch, MiniBatch):
        tensors = [batch.n_id] + ([] if batch.x is None else [batch.x])
        lists = list(batch.sampled.edges)
    else:
        tensors = [*batch.sampled.n_id, *batch.x_dict.values()]
        lists = [one for edges in batch.sampled.edges for one in edges]
    for one in lists:
        tensors += [part for part in (one.indptr, one.indices, one.positions) if part is not None]
    return sum(tensor.nbytes for tensor in tensors)
