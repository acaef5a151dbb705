"""TrainStep: one optimizer step, for training and for profiling, with its optimizer and its learning rate."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer, lr_scheduler

from graphbraid.errors import ConfigError, TrainingError, did_you_mean
from graphbraid.ops.dropout import given_seeds
from graphbraid.sampling import rng
from graphbraid.train.callbacks import Progress, StepRecord
from graphbraid.train.config import TrainConfig
from graphbraid.train.step.feed import BatchShare
from graphbraid.train.step.preflight import split_nodes
from graphbraid.train.step.runner import Batch, ModelRunner, WholeGraph
from graphbraid.train.task import Task

if TYPE_CHECKING:
    from graphbraid.train.run.ranks import RunRanks

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
        sums: adds up gradients and losses over the ranks; each takes its share of every batch. If None, this
            one takes all.
        seed: seed of dropout's masks on mini-batches.
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
        sums: RunRanks | None = None,
        seed: int = 0,
    ) -> None:
        self._runner, self._task = runner, task
        self._optimizer, self._schedule = optimizer, schedule
        self._clip, self._clock = clip or math.inf, clock
        self._must_be_finite, self._sums, self._seed = must_be_finite, sums, seed

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
        learned = self._runner.learned
        if learned is not None:
            learned.forget()
        where = f"epoch {progress.epoch}, step {progress.step} (global step {progress.global_step})"
        loss_sum = 0.0
        for left in reversed(range(num_batches)):
            key = rng.batch_key(self._seed, progress.epoch, progress.step) ^ rng.mix(left)
            loss_sum += self._accumulate(batches, num_seeds, where, key, is_last=left == 0)
        with self._clock.measure("backward"):
            if self._sums is not None:  # a loss that is not finite ends the run on every rank
                loss_sum = self._sums.add_up(loss_sum, meanwhile)
                self._check_loss(loss_sum / num_seeds, where)
            learning_rate = self._schedule.learning_rate
            grad_norm = self._clip_gradients(where)
            if learned is not None:
                learned.update(self._optimizer.param_groups[0])
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
        self, batches: Iterator[BatchShare], num_seeds: int, where: str, key: int, *, is_last: bool
    ) -> float:
        """Add the next batch's share of the step's gradient; return the sum of its seeds' losses.

        A mask of dropout is a function of ``key``, the layer and the node, so that all ranks draw the same.
        """
        with self._clock.measure("wait"):
            share = next(batches)
        norms = self._runner.norms
        if norms is not None:
            norms.begin()
        if share.batch is None:
            if self._runner.learned is not None:
                self._runner.learned.take_none(self._runner.device)
            if norms is not None:
                with self._clock.measure("forward"), self._lone_row(where):
                    norms.take_part()
            return 0.0
        with self._clock.measure("forward"):
            with self._mask_seeds(share.batch, key):
                loss = self._loss(share.batch, where)
            loss = loss if norms is None else norms.joined(loss)
            mean = float(loss.detach())
        if self._sums is None:
            self._check_loss(mean, where)
        elif is_last:
            self._sums.before_last_backward()
        with self._clock.measure("backward"):
            part = share.weight * (share.num_seeds / num_seeds)
            self._runner.backward(loss if part == 1.0 else loss * part)
        return mean * share.weight * share.num_seeds

    def _mask_seeds(self, batch: Batch, key: int) -> AbstractContextManager[None]:
        """Return the context of the seeds of a mini-batch's masks; torch draws those of the whole graph."""
        if isinstance(batch, WholeGraph):
            return contextlib.nullcontext()
        return given_seeds(rng.mix(key + layer) >> 1 for layer in itertools.count())

    def _loss(self, batch: Batch, where: str) -> Tensor:
        """Return the mean loss over the batch's seeds, a scalar; 0 if this rank has none."""
        with self._lone_row(where):
            outputs = self._runner.outputs_of(batch)
        if batch.batch_size == 0:
            return outputs.sum()
        labels = self._runner.labels_of(batch).to(outputs.device)
        with self._runner.autocast():
            return self._task.loss(outputs, labels)

    @contextlib.contextmanager
    def _lone_row(self, where: str) -> Iterator[None]:
        """Tell how to avoid a single row where batch normalisation refuses it."""
        try:
            yield
        except ValueError as error:
            if self._must_be_finite and _LONE_ROW in str(error):
                count = split_nodes(self._runner.labels, "train").numel()
                raise TrainingError(
                    f"batch normalisation met a single node at {where}, which has no variance; choose a "
                    f"batch_size that leaves no lone seed of {count} training nodes, or a model without it."
                ) from error
            raise

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
        if (learned := self._runner.learned) is None:
            norm = float(nn.utils.clip_grad_norm_(params, self._clip))
        else:
            total = nn.utils.get_total_norm([p.grad for p in params if p.grad is not None])
            norm = math.sqrt(float(total) ** 2 + learned.collect())
            if math.isfinite(norm):
                nn.utils.clip_grads_with_norm_(params, self._clip, total.new_tensor(norm))
                learned.scale(min(1.0, self._clip / (norm + 1e-6)))  # as torch does with the others
        if self._must_be_finite and not math.isfinite(norm):
            raise TrainingError(
                f"the gradients' norm is {norm} at {where} though the loss is finite; no step was "
                f"made with them. Lower lr ({self._schedule.learning_rate:g}) or look for square roots and "
                "divisions at zero in the model."
            )
        return norm


# ---- the optimizer and its learning rate

PER_STEP = frozenset({"cosine", "linear", "onecycle"})
"""Schedulers that advance with every step; the others advance with every epoch."""
SCHEDULERS = (*sorted(PER_STEP), "plateau")


class LearningRateSchedule:
    """An optimizer's learning rate over a run, advanced every step, every epoch, or by the monitored metric.

    Args:
        config: options of the run; ``scheduler``, ``warmup_steps`` and ``eval_every`` matter.
        optimizer: optimizer whose parameter groups hold the rate.
        total_steps: number of steps of the whole run, which a named curve spans.
        maximize: whether a larger monitored metric is better.

    Raises:
        ConfigError: the name is unknown, or the function does not return a scheduler.
    """

    def __init__(
        self, config: TrainConfig, optimizer: Optimizer, *, total_steps: int, maximize: bool
    ) -> None:
        self._optimizer = optimizer
        self._kind = config.scheduler
        self._scheduler = _make_scheduler(config, optimizer, total_steps, maximize)

    @property
    def learning_rate(self) -> float:
        """Current learning rate of the first parameter group."""
        return float(self._optimizer.param_groups[0]["lr"])

    def after_step(self) -> None:
        """Advance a scheduler that goes by steps."""
        if self._scheduler is not None and self._kind in PER_STEP:
            self._scheduler.step()

    def after_epoch(self, monitored: float | None) -> None:
        """Advance a scheduler that goes by epochs, with the validation metric if there was one."""
        if self._scheduler is None or self._kind in PER_STEP:
            return
        if isinstance(self._scheduler, lr_scheduler.ReduceLROnPlateau):
            if monitored is not None:
                self._scheduler.step(monitored)
        else:
            self._scheduler.step()

    def state_dict(self) -> dict[str, Any]:
        """Return the state to keep in a checkpoint."""
        return {} if self._scheduler is None else self._scheduler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state from a checkpoint."""
        if self._scheduler is not None:
            self._scheduler.load_state_dict(state)


def _make_scheduler(config: TrainConfig, optimizer: Optimizer, total_steps: int, maximize: bool) -> Any:
    choice = config.scheduler
    if choice is None:
        return None
    if not isinstance(choice, str):
        made = choice(optimizer)
        if not callable(getattr(made, "step", None)):
            raise ConfigError(
                f"scheduler as a function must return a scheduler with step(); got {type(made).__name__}."
            )
        return made
    if choice == "onecycle":
        highest = [group["lr"] for group in optimizer.param_groups]
        return lr_scheduler.OneCycleLR(optimizer, max_lr=highest, total_steps=total_steps + 1)
    if choice == "plateau":
        if config.eval_every == 0:
            raise ConfigError(
                "scheduler='plateau' follows the validation metric, but eval_every=0 never evaluates."
            )
        return lr_scheduler.ReduceLROnPlateau(
            optimizer, mode="max" if maximize else "min", factor=0.5, patience=5
        )
    if choice in ("cosine", "linear"):
        return lr_scheduler.LambdaLR(optimizer, _ramp(choice, config.warmup_steps, total_steps))
    raise ConfigError(
        f"scheduler must be one of {', '.join(SCHEDULERS)}, a function or None; got {choice!r}."
        + did_you_mean(choice, SCHEDULERS)
    )


def _ramp(shape: str, warmup: int, total: int) -> Callable[[int], float]:
    """Return the learning rate's factor by step, which rises over ``warmup`` steps and then falls to zero."""

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / (warmup + 1)
        done = min(1.0, (step - warmup) / max(1, total - warmup))
        return 0.5 * (1.0 + math.cos(math.pi * done)) if shape == "cosine" else 1.0 - done

    return factor


# These need a closure, sparse gradients or other care that the trainer does not provide.
_UNFIT = frozenset({"optimizer", "lbfgs", "sparseadam"})
# Optimizers with a fused kernel in PyTorch, and the devices that have it.
_FUSED = {"adam": ("cpu", "cuda"), "adamw": ("cpu", "cuda"), "sgd": ("cpu", "cuda"), "adagrad": ("cpu",)}

_WRAPPED = ("add_param_group", "load_state_dict", "state_dict", "zero_grad")


def make_optimizer(config: TrainConfig, model: nn.Module) -> Optimizer:
    """Make the optimizer that ``config`` describes, over the model's parameters that require gradients.

    Raises:
        ConfigError: the name is unknown, the function does not return an optimizer, or an optimizer that was
            given does not hold the model's parameters.
    """
    params = [p for p in model.parameters() if p.requires_grad]
    if not params:
        raise ConfigError("the model has no parameter that requires gradients; there is nothing to train.")
    choice = config.optimizer
    if isinstance(choice, Optimizer):
        return _checked_ready(choice, params)
    if isinstance(choice, str):
        return _named_optimizer(choice, params, config)
    made = choice(params)
    if not isinstance(made, Optimizer):
        raise ConfigError(
            f"optimizer as a function must return a torch.optim.Optimizer; got {type(made).__name__}."
        )
    return made


def _named_optimizer(name: str, params: list[nn.Parameter], config: TrainConfig) -> Optimizer:
    known = {
        key.lower(): kind
        for key, kind in vars(torch.optim).items()
        if inspect.isclass(kind) and issubclass(kind, Optimizer) and key.lower() not in _UNFIT
    }
    if name.lower() not in known:
        raise ConfigError(
            f"optimizer must be one of {', '.join(sorted(known))}, a function or an optimizer; got {name!r}."
            + did_you_mean(name, known)
        )
    kind = known[name.lower()]
    takes = inspect.signature(kind).parameters
    options: dict[str, Any] = {"lr": config.lr, "weight_decay": config.weight_decay}
    if config.weight_decay and "weight_decay" not in takes:
        raise ConfigError(f"optimizer={name!r} has no weight_decay; got weight_decay={config.weight_decay}.")
    if "fused" in takes and _can_fuse(name.lower(), params):
        options["fused"] = True
    return _without_compiler(kind)(params, **{key: value for key, value in options.items() if key in takes})


def _without_compiler(kind: type[Optimizer]) -> type[Optimizer]:
    """Return the same class of optimizers, whose methods do not import torch's compiler.

    PyTorch wraps them so that ``torch.compile`` passes them over, and the first call of one imports the
    compiler, which takes longer than many a run. A run's optimizer is not compiled.
    """
    unwrapped = {name: inspect.unwrap(getattr(kind, name)) for name in _WRAPPED}
    step = torch.no_grad()(inspect.unwrap(kind.step))  # PyTorch's own wrapper does this beside the import
    return type(kind.__name__, (kind,), {**unwrapped, "step": step})


def _can_fuse(name: str, params: Iterable[nn.Parameter]) -> bool:
    """Return whether PyTorch's fused kernel supports all of these parameters."""
    devices = _FUSED.get(name, ())
    return all(p.is_floating_point() and p.device.type in devices for p in params)


def _checked_ready(optimizer: Optimizer, params: Iterable[nn.Parameter]) -> Optimizer:
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    if not any(id(p) in held for p in params):
        raise ConfigError(
            "the optimizer holds none of the model's parameters; make it from model.parameters() of the "
            "model given to the Trainer, after moving it to its device."
        )
    return optimizer
