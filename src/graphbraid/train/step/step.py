"""TrainStep: one optimizer step, used both by training and by profiling."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

from graphbraid.errors import TrainingError
from graphbraid.train.step.feed import BatchShare
from graphbraid.train.step.optimizers import LearningRateSchedule
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


class Failures:
    """A factory of the errors of one run.

    Args:
        runner: runner of the model.
        num_train_nodes: number of training nodes.
        where: function that names the current step.
    """

    def __init__(self, runner: ModelRunner, num_train_nodes: int, where: Callable[[], str]) -> None:
        self._runner, self._num_train_nodes, self._where = runner, num_train_nodes, where

    def of_loss(self, loss: float, learning_rate: float) -> TrainingError:
        """Return the error for a loss that is not finite."""
        engine = self._runner.engine
        return TrainingError(
            f"the loss is {loss} at {self._where()}; no step was made with it. Lower lr "
            f"({learning_rate:g}), set clip, or look for extreme features."
            + (f" In the model, {engine.first_not_finite()}." if engine is not None else "")
        )

    def of_gradients(self, norm: float, learning_rate: float) -> TrainingError:
        """Return the error for gradients that are not finite although the loss is."""
        return TrainingError(
            f"the gradients' norm is {norm} at {self._where()} though the loss is finite; no step was "
            f"made with them. Lower lr ({learning_rate:g}) or look for square roots and "
            "divisions at zero in the model."
        )

    def of_forward(self, error: ValueError) -> TrainingError | None:
        """Return the error that explains a ``ValueError`` of the model, or None if it is not a known one."""
        if _LONE_ROW not in str(error):
            return None
        return TrainingError(
            f"batch normalisation met a single node at {self._where()}, which has no variance; choose a "
            f"batch_size that leaves no lone seed of {self._num_train_nodes} training nodes, or a "
            "model without it."
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class StepResult:
    """The result of a step."""

    loss_sum: float
    """Sum of the losses of the step's seeds."""
    num_seeds: int
    """Number of seeds of the step."""
    learning_rate: float
    """Learning rate of the step (first parameter group)."""
    grad_norm: float
    """L2 norm of all gradients together, before clipping."""

    @property
    def loss(self) -> float:
        """Mean loss over the step's seeds."""
        return self.loss_sum / self.num_seeds


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
        failures: factory of the errors for a loss or gradients that are not finite. If None, steps continue.
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
        failures: Failures | None,
        sums: StepSums | None = None,
    ) -> None:
        self._sums = sums
        self._runner, self._task = runner, task
        self._optimizer, self._schedule = optimizer, schedule
        self._clip, self._clock, self._failures = clip or math.inf, clock, failures

    def __call__(
        self,
        batches: Iterator[Batch | BatchShare],
        num_batches: int,
        num_seeds: int,
        *,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> StepResult:
        """Make one step.

        Args:
            batches: iterator from which the step's batches are taken.
            num_batches: number of batches, whose gradients are averaged over all seeds.
            num_seeds: number of seeds of these batches together.
            meanwhile: called while sums over the ranks are on their way, if there are several.

        Raises:
            TrainingError: the loss or the gradients are not finite; the parameters are unchanged.
        """
        self._optimizer.zero_grad(set_to_none=True)
        loss_sum = 0.0
        for left in reversed(range(num_batches)):
            loss_sum += self._accumulate(batches, num_seeds, is_last=left == 0)
        with self._clock.measure("backward"):
            loss_sum = self._over_ranks(loss_sum, num_seeds, meanwhile)
            learning_rate = self._schedule.learning_rate
            grad_norm = self._clip_gradients()
            self._optimizer.step()
            self._schedule.after_step()
        return StepResult(
            loss_sum=loss_sum, num_seeds=num_seeds, learning_rate=learning_rate, grad_norm=grad_norm
        )

    def _accumulate(self, batches: Iterator[Batch | BatchShare], num_seeds: int, *, is_last: bool) -> float:
        """Add the next batch's share of the step's gradient; return the sum of its seeds' losses."""
        with self._clock.measure("wait"):
            taken = next(batches)
        share = (
            taken
            if isinstance(taken, BatchShare)
            else BatchShare(batch=taken, weight=1.0, num_seeds=taken.batch_size)
        )
        if share.batch is None:
            return 0.0
        with self._clock.measure("forward"):
            loss = self._loss(share.batch)
            mean = float(loss.detach())
        if self._sums is None:
            self._check_loss(mean)
        elif is_last:
            self._sums.before_last_backward()
        with self._clock.measure("backward"):
            part = share.weight * (share.num_seeds / num_seeds)
            self._runner.backward(loss if part == 1.0 else loss * part)
        return mean * share.weight * share.num_seeds

    def _over_ranks(self, loss_sum: float, num_seeds: int, meanwhile: Callable[[], None]) -> float:
        """Add up gradients and losses of all ranks; one that is not finite ends the run on each."""
        if self._sums is None:
            return loss_sum
        loss_sum = self._sums.add_up(loss_sum, meanwhile)
        self._check_loss(loss_sum / num_seeds)
        return loss_sum

    def _check_loss(self, mean: float) -> None:
        if self._failures is not None and not math.isfinite(mean):
            raise self._failures.of_loss(mean, self._schedule.learning_rate)

    def _loss(self, batch: Batch) -> Tensor:
        """Return the mean loss over the batch's seeds, a scalar; 0 if this rank has none."""
        outputs = self._outputs(batch)
        if batch.batch_size == 0:
            return outputs.sum()
        labels = self._runner.labels_of(batch).to(outputs.device)
        with self._runner.autocast():
            return self._task.loss(outputs, labels)

    def _outputs(self, batch: Batch) -> Tensor:
        try:
            return self._runner.outputs_of(batch)
        except ValueError as error:
            known = None if self._failures is None else self._failures.of_forward(error)
            if known is None:
                raise
            raise known from error

    def _clip_gradients(self) -> float:
        """Scale the gradients down to the norm ``clip`` if they exceed it; return their L2 norm before."""
        params = [p for group in self._optimizer.param_groups for p in group["params"]]
        norm = float(nn.utils.clip_grad_norm_(params, self._clip))
        if self._failures is not None and not math.isfinite(norm):
            raise self._failures.of_gradients(norm, self._schedule.learning_rate)
        return norm
