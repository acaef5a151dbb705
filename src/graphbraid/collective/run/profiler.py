"""Profiler: measures each stage on this machine with this graph and model, and caches the result.

The caller's state does not change: batches are pure functions, and the training step that is measured works
on copies. Durations are wall-clock times after a warm-up, without outliers.
"""

import dataclasses
import json
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from pydantic import TypeAdapter
from torch import Tensor

from graphbraid import native
from graphbraid.collective.plan.simulator import epoch_bound
from graphbraid.collective.plan.times import ZERO, Duration, Profile, StageTimes
from graphbraid.collective.run.operators import Operators, can_look_ahead
from graphbraid.collective.run.stages import Context
from graphbraid.files.schema import checked
from graphbraid.machine.hardware import Hardware
from graphbraid.machine.measurements import Kept, OtherPrograms, is_disturbed
from graphbraid.sampling.minibatch.mini_batch import MiniBatch
from graphbraid.sampling.rows.by_id import tensor_bytes

VERSION = 5
"""Version of the measurement, part of the cache's key: raise it to discard earlier profiles."""

_log = logging.getLogger(__name__)

PAYS = 0.97
"""Look-ahead is used if it lowers the epoch's bound to less than this share, as it costs device memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Effort:
    """The amount of measuring."""

    warm_up: int = 2
    """Number of batches per stage before measuring starts."""
    samples: int = 10
    """Number of batches measured per stage."""
    seconds: float = 5.0
    """Seconds for all stages together; a stage stops after its share with the samples it has."""


def measure(
    context: Context,
    workers: Sequence[int],
    *,
    train: Callable[[MiniBatch], object] | None = None,
    before_training: Callable[[int], None] = lambda _: None,
    effort: Effort | None = None,
) -> Profile:
    """Measure the duration of every stage.

    Args:
        context: context of the loader; its ``workers`` is ignored.
        workers: numbers of CPU workers to measure with, in increasing order.
        train: a training step on copies of model and optimizer. If None, ``T_model`` is 0, and is found
            during training.
        before_training: function called with each number of workers before ``train`` is measured; on a
            machine without a device it sets the number of training threads.
        effort: number of batches and seconds. If None, the defaults of :class:`Effort`.
    """
    effort = effort or Effort()
    context = dataclasses.replace(context, lookahead=False)
    ahead = dataclasses.replace(context, lookahead=True) if can_look_ahead(context) else None
    clock = _StageTimer(effort, context.schedule.num_steps, effort.seconds / (3 * len(workers) + 3))
    found = []
    batch_bytes = kept_bytes = 0
    transfer = transfer_ahead = uva = gpu = None
    for count in workers:
        operators = Operators.of(dataclasses.replace(context, workers=count))
        cpu = _cpu(operators, clock, count)
        if transfer is None:
            transfer, batch_bytes = _transfer(operators, clock, context)
            uva = _uva(operators, clock, context)
            gpu = uva if operators.is_resident else None
        before_training(count)
        model = ZERO if train is None else _model(operators, clock, train, context)
        times = StageTimes(workers=count, cpu=cpu, dma=transfer, uva=uva, gpu=gpu, model=model)
        if ahead is not None:
            operators = Operators.of(dataclasses.replace(ahead, workers=count))
            cpu = _cpu(operators, clock, count)
            if transfer_ahead is None:
                transfer_ahead, _ = _transfer(operators, clock, context)
                assert operators.row_buffer is not None
                kept_bytes = operators.row_buffer.ring_bytes
            other = dataclasses.replace(times, cpu=cpu, dma=transfer_ahead, lookahead=True)
            seconds = [epoch_bound(t, context.schedule.num_steps).seconds for t in (times, other)]
            times = other if seconds[1] < PAYS * seconds[0] else times
        found.append(times)
    return Profile(
        times=tuple(found),
        host_batch_bytes=batch_bytes,
        device_batch_bytes=batch_bytes,
        lookahead_bytes=kept_bytes,
        source=f"{Hardware.detect().cpu_model}, {context.hardware}",
    )


def cached(key: Mapping[str, object], make: Callable[[], Profile]) -> Profile:
    """Return the profile cached for a key, or make a new one and cache it.

    A profile whose measurement was disturbed by other programs is returned but not cached. ``key`` has plain
    values of graph, model and config; machine and versions are added.
    """
    file = profile_file(key)
    kept = _KEPT.read(file)
    if kept is not None:
        return kept
    watched = OtherPrograms()
    profile = make()
    share = watched.share()
    if share is not None and is_disturbed(share):
        _log.warning(
            "other programs used %.0f %% of the cores while stages were measured. The plan fits that load; "
            "the next run measures again",
            100 * share,
        )
        return profile
    _KEPT.keep(file, profile, "the profile")
    return profile


def profile_file(key: Mapping[str, object]) -> Path:
    """Return the path of the file in which the profile of a key is cached."""
    hardware = Hardware.detect()
    machine = [hardware.cpu_model, hardware.planned_cores, [gpu.name for gpu in hardware.gpus]]
    software = [VERSION, torch.__version__, native.active().variant]
    text = json.dumps([machine, software, sorted(key.items())], default=str)
    return _KEPT.file(text)


_KEPT = Kept[Profile]("profiles", dataclasses.asdict, lambda content: checked(TypeAdapter(Profile), content))


def batch_bytes_of(batch: MiniBatch) -> int:
    """Return the bytes of a batch's arrays, including features."""
    part = batch.row_part  # if there is one, x is assembled on the device
    x = None if part else batch.x
    tensors: list[Tensor | None] = [batch.n_id, batch.input_id]
    for block in batch.blocks:
        tensors += [block.indptr, block.indices, block.weight]
    storages = {
        t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors if t is not None
    }
    x_bytes = 0 if x is None else tensor_bytes(x)
    return (
        x_bytes + sum(storages.values()) + (0 if part is None else part.slots.numel() * part.rows[:1].nbytes)
    )


class _StageTimer:
    """A clock that runs a stage on successive steps and records its durations."""

    def __init__(self, effort: Effort, num_steps: int, seconds: float) -> None:
        self._effort, self._num_steps, self._seconds = effort, num_steps, seconds

    def durations(self, run: Callable[[int], object], first: int = 0) -> list[float]:
        """Return the seconds of each ``run(step)`` after the warm-up, at least one."""
        effort, found = self._effort, list[float]()
        until = time.perf_counter() + self._seconds
        for i in range(effort.warm_up + effort.samples):
            started = time.perf_counter()
            run((first + i) % self._num_steps)
            ended = time.perf_counter()
            if i >= effort.warm_up or ended > until:
                found.append(ended - started)
            if ended > until:
                break
        return found

    def concurrently(self, workers: int, run: Callable[[int], object]) -> Duration:
        """Return the duration of one worker's ``run(step)`` while ``workers`` run at the same time."""
        found: list[float] = []
        errors: list[BaseException] = []

        def work(index: int) -> None:
            try:
                found.extend(self.durations(run, first=index * self._effort.samples))
            except BaseException as error:  # raised on the caller's thread
                errors.append(error)

        threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return Duration.typical(found)


def _cpu(operators: Operators, clock: _StageTimer, workers: int) -> Duration:
    return clock.concurrently(workers, lambda step: _prepared(operators, step))


def _prepared(operators: Operators, step: int) -> MiniBatch:
    operators.claim(0, step)
    return operators.prepare(0, step)


def _transfer(operators: Operators, clock: _StageTimer, context: Context) -> tuple[Duration, int]:
    """Measure T_dma; return it and the bytes of the largest batch seen."""
    largest, seconds = 0, list[float]()

    def run(step: int) -> None:
        nonlocal largest
        batch = _prepared(operators, step)
        largest = max(largest, batch_bytes_of(batch))
        started = time.perf_counter()
        moved = operators.transfer(batch)
        _wait_for(context)
        seconds.append(time.perf_counter() - started)
        operators.transfer.free(moved)

    timed = len(clock.durations(run))
    return Duration.typical(seconds[-timed:]), largest


def _uva(operators: Operators, clock: _StageTimer, context: Context) -> Duration | None:
    prepare = operators.device_batching
    if prepare is None:
        return None

    def run(step: int) -> None:
        batch = prepare(0, step)
        _wait_for(context)
        operators.transfer.free(batch)

    return Duration.typical(clock.durations(run))


def _model(
    operators: Operators, clock: _StageTimer, train: Callable[[MiniBatch], object], context: Context
) -> Duration:
    seconds: list[float] = []

    def run(step: int) -> None:
        batch = operators.transfer(_prepared(operators, step))
        _wait_for(context)
        started = time.perf_counter()
        ready = operators.model.begin(batch)
        train(ready)
        operators.model.end(batch)
        _wait_for(context)
        seconds.append(time.perf_counter() - started)
        operators.transfer.free(batch)

    timed = len(clock.durations(run))
    return Duration.typical(seconds[-timed:])


def _wait_for(context: Context) -> None:
    """Wait for a CUDA device's queued work; operators of other devices return only when they are done."""
    if isinstance(context.device, torch.device) and context.device.type == "cuda":
        torch.cuda.synchronize(context.device)
