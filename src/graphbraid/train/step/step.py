"""TrainStep: one optimizer step, used both by training and by profiling."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

from graphbraid.errors import TrainingError
from graphbraid.train.callbacks import Progress, StepRecord
from graphbraid.train.step.feed import BatchShare
from graphbraid.train.step.optimizers import LearningRateSchedule
from graphbraid.train.step.preflight import split_nodes
from graphbraid.train.step.runner import Batch, ModelRunner
from graphbraid.train.task import Task

STAGES = ("wait", "sample", "gather", "forward", "backward", "evaluate", "checkpoint", "epoch")
"""Names of the stages. ``wait`` is the time in which the trainer waited for a batch. ``sample`` and
``gather`` are the work of the sampling threads, which runs beside the model (so they may add up to more than
the epoch). ``forward`` includes the loss, ``backward`` the optimizer's step. ``checkpoint`` is the writing of
checkpoints since the end of the epoch before, with the one that ended it. ``epoch`` is wall-clock time from
start to end, without that one."""


class Clock:
    """A clock that adds up the seconds per stage; :meth:`lap` reads and resets them."""

    def __init__(self) -> None:
        self._seconds = dict.fromkeys(STAGES, 0.0)
        self._started = time.perf_counter()

    @contextlib.contextmanager
    def measure(self, stage: str) -> Iterator[None]:
        """Add the duration of the ``with`` block to a stage."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[stage] += time.perf_counter() - start

    def add(self, seconds: Mapping[str, float]) -> None:
        """Add seconds measured elsewhere, such as by a loader."""
        for stage, value in seconds.items():
            if stage in self._seconds:
                self._seconds[stage] += value

    def lap(self) -> dict[str, float]:
        """Return the seconds per stage since the last lap, and start a new one."""
        now = time.perf_counter()
        self._seconds["epoch"] = now - self._started
        lap, self._seconds = self._seconds, dict.fromkeys(STAGES, 0.0)
        self._started = now
        return lap

    def restart(self, *kept: str) -> None:
        """Start a new lap, into which the seconds of the stages ``kept`` since the last one go along."""
        lap = self.lap()
        self.add({stage: lap[stage] for stage in kept})


_LONE_ROW = "more than 1 value per channel"
"""Part of the message with which PyTorch's batch normalisation refuses a single row."""


class StepSums(Protocol):
    """The sums over all ranks that a step needs."""

    def before_last_backward(self) -> None:
        """Prepare for the backward pass that completes this rank's gradients."""
        ...

    def add_up(self, loss_sum: float, meanwhile: Callable[[], None]) -> float:
        """Replace the gradients by their sums over the ranks, and return the sum of ``loss_sum``.

        ``meanwhile`` is called while the sums are on their way.
        """
        ...


class TrainStep:
    """An optimizer step: forward, loss, backward, clipping, and the updates of optimizer and learning rate.

    ``Trainer.fit`` uses it with the user's model and :class:`graphbraid.estimates.trial.TrialStep` with
    copies, so that what is profiled is what runs.

    Args:
        runner: the model, its device and its precision.
        task: the loss, on the model's device.
        optimizer: optimizer of the model's parameters.
        schedule: schedule of the optimizer's learning rate.
        clip: largest L2 norm of all gradients together. If None, gradients are not clipped.
        clock: clock for the stages ``wait``, ``forward`` and ``backward``.
        must_be_finite: whether a loss or gradients that are not finite are an error.
        sums: sums over the ranks; each takes its share of every batch. If None, this one takes all.
    """

    def __init__(
        self,
        runner: ModelRunner,
        task: Task,
        optimizer: Optimizer,
        schedule: LearningRateSchedule,
        *,
        clip: float | None,
        clock: Clock,
        must_be_finite: bool = True,
        sums: StepSums | None = None,
    ) -> None:
        self._runner, self._task = runner, task
        self._optimizer, self._schedule = optimizer, schedule
        self._clip, self._clock = clip or math.inf, clock
        self._must_be_finite, self._sums = must_be_finite, sums

    def __call__(
        self,
        progress: Progress,
        batches: Iterator[BatchShare],
        num_batches: int,
        num_seeds: int,
        *,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> StepRecord:
        """Make one step.

        Args:
            progress: position of the run, which the step advances.
            batches: iterator from which the step's batches are taken.
            num_batches: number of batches, whose gradients are averaged over all seeds.
            num_seeds: number of seeds of these batches together.
            meanwhile: called while sums over the ranks are on their way, if there are several.

        Raises:
            TrainingError: the loss or the gradients are not finite; the parameters are unchanged.
        """
        self._optimizer.zero_grad(set_to_none=True)
        where = f"epoch {progress.epoch}, step {progress.step} (global step {progress.global_step})"
        loss_sum = 0.0
        for left in reversed(range(num_batches)):
            loss_sum += self._accumulate(batches, num_seeds, where, is_last=left == 0)
        with self._clock.measure("backward"):
            if self._sums is not None:  # a loss that is not finite ends the run on every rank
                loss_sum = self._sums.add_up(loss_sum, meanwhile)
                self._check_loss(loss_sum / num_seeds, where)
            learning_rate = self._schedule.learning_rate
            grad_norm = self._clip_gradients(where)
            self._optimizer.step()
            self._schedule.after_step()
        record = StepRecord(
            epoch=progress.epoch,
            step=progress.step,
            global_step=progress.global_step,
            loss=loss_sum / num_seeds,
            num_seeds=num_seeds,
            learning_rate=learning_rate,
            grad_norm=grad_norm,
        )
        progress.add_step(loss_sum, num_seeds)
        return record

    def _accumulate(
        self, batches: Iterator[BatchShare], num_seeds: int, where: str, *, is_last: bool
    ) -> float:
        """Add the next batch's share of the step's gradient; return the sum of its seeds' losses."""
        with self._clock.measure("wait"):
            share = next(batches)
        if share.batch is None:
            return 0.0
        with self._clock.measure("forward"):
            loss = self._loss(share.batch, where)
            mean = float(loss.detach())
        if self._sums is None:
            self._check_loss(mean, where)
        elif is_last:
            self._sums.before_last_backward()
        with self._clock.measure("backward"):
            part = share.weight * (share.num_seeds / num_seeds)
            self._runner.backward(loss if part == 1.0 else loss * part)
        return mean * share.weight * share.num_seeds

    def _loss(self, batch: Batch, where: str) -> Tensor:
        """Return the mean loss over the batch's seeds, a scalar; 0 if this rank has none."""
        try:
            outputs = self._runner.outputs_of(batch)
        except ValueError as error:
            if self._must_be_finite and _LONE_ROW in str(error):
                count = split_nodes(self._runner.labels, "train").numel()
                raise TrainingError(
                    f"batch normalisation met a single node at {where}, which has no variance; choose a "
                    f"batch_size that leaves no lone seed of {count} training nodes, or a model without it."
                ) from error
            raise
        if batch.batch_size == 0:
            return outputs.sum()
        labels = self._runner.labels_of(batch).to(outputs.device)
        with self._runner.autocast():
            return self._task.loss(outputs, labels)

    def _check_loss(self, loss: float, where: str) -> None:
        if self._must_be_finite and not math.isfinite(loss):
            engine = self._runner.engine
            raise TrainingError(
                f"the loss is {loss} at {where}; no step was made with it. Lower lr "
                f"({self._schedule.learning_rate:g}), set clip, or look for extreme features."
                + (f" In the model, {engine.first_not_finite()}." if engine is not None else "")
            )

    def _clip_gradients(self, where: str) -> float:
        """Scale the gradients down to the norm ``clip`` if they exceed it; return their L2 norm before."""
        params = [p for group in self._optimizer.param_groups for p in group["params"]]
        norm = float(nn.utils.clip_grad_norm_(params, self._clip))
        if self._must_be_finite and not math.isfinite(norm):
            raise TrainingError(
                f"the gradients' norm is {norm} at {where} though the loss is finite; no step was "
                f"made with them. Lower lr ({self._schedule.learning_rate:g}) or look for square roots and "
                "divisions at zero in the model."
            )
        return norm
