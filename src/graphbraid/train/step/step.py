"""One step of training: its batches, sampled or of the whole graph, and the optimizer's update by their loss.

With several ranks, the epoch's mini-batches are those of one rank: a function of seed, epoch and step. Each
rank takes a contiguous part of a batch's seeds, and of the whole batch's sample what these read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor, nn
from torch.optim import Optimizer

from graphbraid.errors import TrainingError
from graphbraid.graph import Graph, NodeSet
from graphbraid.ops import rng
from graphbraid.ops.rng import given_seeds
from graphbraid.sampling.config import part_of
from graphbraid.train.callbacks import StepRecord
from graphbraid.train.config import TrainConfig
from graphbraid.train.runtime import LearningRateSchedule
from graphbraid.train.step.runner import Batch, ModelRunner, WholeGraph
from graphbraid.train.task import Task, split_nodes

if TYPE_CHECKING:
    from graphbraid.collective import Plan
    from graphbraid.collective.run.stages import Accelerator
    from graphbraid.distributed import Communicator
    from graphbraid.loader.batch_loader import BatchLoader
    from graphbraid.loader.planned import CoreSharing
    from graphbraid.sampling.minibatch.mini_batch import MiniBatch
    from graphbraid.train.run.ranks import RunRanks


# ---- the batches


class Share(NamedTuple):
    """Which share of each mini-batch a rank trains on."""

    rank: int
    num_ranks: int

    @classmethod
    def of(cls, comm: Communicator | None) -> Share:
        """Return the share of a rank among those that train together; None for one that is alone."""
        return ALONE if comm is None else cls(comm.rank, comm.size)


ALONE = Share(0, 1)
"""The share of a rank that is alone: all of each batch."""


def make_loader(
    runner: ModelRunner,
    config: TrainConfig,
    nodes: Tensor,
    plan: Plan | None = None,
    accelerator: Accelerator | None = None,
    *,
    share: Share = ALONE,
    **changed: Any,
) -> BatchLoader:
    """Make the loader of a run's shuffled mini-batches, or of a rank's share of each.

    Without a device, a plan only determines how many threads sample, which the loader's own pipeline does
    best; if a trace is requested, the executor runs the plan. ``changed`` are settings in place of those of
    ``config``.
    """
    from graphbraid.loader import LoaderSettings

    device = accelerator or runner.device
    has_device = accelerator is not None or runner.device.type != "cpu"
    follows_plan = plan is not None and (has_device or config.trace is not None)
    settings = LoaderSettings(
        num_neighbors=config.fanouts,
        batch_size=config.batch_size,
        input_nodes=nodes,
        shuffle=True,
        replace=config.replace,
        layout=config.layout,
        seed=config.seed,
        return_edge_id=False,
        src_degree=runner.uses_degrees,
        num_workers=config.workers if plan is None else plan.workers,
        device=device if follows_plan else "cpu",
        plan=plan if follows_plan else None,
        part=share.rank,
        num_parts=share.num_ranks,
        reach=None if share.num_ranks == 1 else runner.reach(config),
    )
    return runner.loader(dataclasses.replace(settings, **changed) if changed else settings)


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class BatchShare:
    """A batch, or one rank's part of it."""

    batch: Batch | None
    """The batch of this rank's seeds; None if it has none, as of a last batch with few seeds."""
    weight: float
    """Part of the whole batch's loss that this rank's mean loss makes up; 1 over all ranks together."""
    num_seeds: int
    """Number of seeds of the whole batch."""

    @classmethod
    def whole(cls, batch: Batch) -> BatchShare:
        """Return the share of a rank that is alone."""
        return cls(batch=batch, weight=1.0, num_seeds=batch.batch_size)


class SampledFeed:
    """A feed of shuffled mini-batches of sampled neighbourhoods, prepared ahead by the loader's threads.

    With a plan, the timeline of the first epoch is written to ``config.trace``. ``sharing`` sets the number
    of the model's threads. If the loader's seeds stand for edges, ``inputs`` has these, ``(num,)`` int64.
    """

    def __init__(
        self,
        runner: ModelRunner,
        config: TrainConfig,
        task: Task,
        loader: BatchLoader,
        sharing: CoreSharing | None = None,
        *,
        inputs: Tensor | None = None,
    ) -> None:
        self._inputs = inputs
        self._runner, self._task, self._loader, self._sharing = runner, task, loader, sharing
        self._trace = config.trace if loader.plan is not None else None
        self._whole = loader.schedule.whole
        self._late_gather_seconds = 0.0
        self._begun: dict[int, Generator[MiniBatch]] = {}  # the next epoch's batches, if ranks begin it early
        self.num_batches = self._whole.num_steps

    def batches(self, epoch: int, start: int, then: int = 0) -> Generator[BatchShare]:
        """Yield the epoch's mini-batches, or this rank's share of each, from ``start`` on.

        So many epochs as ``then`` follow without an evaluation. Ranks that draw from parts begin the next one
        meanwhile; it stays open until it is trained or the feed is closed.
        """
        schedule = self._loader.schedule
        has_all = min(schedule.batch_size, schedule.seeds.numel()) >= schedule.num_parts
        then = then if has_all and start == 0 and not self._runner.graph.is_whole else 0
        own = self._begun.pop(epoch, None)
        own = own or self._loader.batches(epoch, min(start, len(self._loader)), then=then)
        if start >= len(self._loader):
            next(own, None)  # where batches are drawn by all ranks together, others need this one's answers
        try:
            for step in range(start, self.num_batches):
                share = self._next_share(own, epoch, step)
                if self._sharing is not None:
                    self._sharing.before_batch()
                yield share
                del share  # so that the threads can reuse its buffer before the next batch
            if then:
                self._begun[epoch + 1] = own
        finally:
            if self._begun.get(epoch + 1) is not own:
                own.close()
            if self._sharing is not None:
                self._sharing.after_epoch()
            self._write_trace()

    def _next_share(self, own: Iterator[MiniBatch], epoch: int, step: int) -> BatchShare:
        part, num_parts = self._loader.schedule.part, self._loader.schedule.num_parts
        if num_parts == 1:
            return BatchShare.whole(self._gathered(next(own)))
        whole = self._whole.seeds_of(epoch, step)
        whole = whole if self._inputs is None else self._inputs[whole]
        begin, end = part_of(whole.numel(), part, num_parts)
        return BatchShare(
            batch=self._gathered(next(own)) if begin < end else None,
            weight=share_weight(self._runner.labels, self._task, whole[begin:end], whole),
            num_seeds=whole.numel(),
        )

    def _gathered(self, batch: MiniBatch) -> MiniBatch:
        """Return a batch with its features; sparse rows are gathered at this first use."""
        started = time.perf_counter()
        self._runner.features_of(batch)
        self._late_gather_seconds += time.perf_counter() - started
        return batch

    def _write_trace(self) -> None:
        """Write the timeline of the epoch that ended, or of its part that was run, unless one was written."""
        executor = self._loader.executor
        if self._trace is not None and executor is not None:
            from graphbraid.collective.run.trace import write_trace

            write_trace(self._trace, executor.ops, executor.plan, num_batches=self.num_batches)
            self._trace = None

    def num_seeds(self, start: int, count: int) -> int:
        """Return the number of seeds in ``count`` whole mini-batches from ``start`` on (fewer at the end)."""
        batch_size = self._whole.batch_size
        return min(count * batch_size, self._whole.seeds.numel() - start * batch_size)

    def stage_seconds(self) -> dict[str, float]:
        """Return the seconds of sampling and gathering since the start, summed over threads."""
        seconds = dict(self._loader.stage_seconds)
        return seconds | {"gather": seconds["gather"] + self._late_gather_seconds}

    def explain(self) -> str:
        """Say from where a sampling device reads, and how much it has read; empty without one."""
        return self._loader.explain()

    def close(self) -> None:
        """Stop the threads."""
        self._loader.close()


def share_weight(nodes: Graph | NodeSet, task: Task, own: Tensor, whole: Tensor) -> float:
    """Return the part of the loss of ``whole`` seeds that the mean over a rank's ``own`` makes up."""
    if task.class_weights is None and not task.misses_cells:
        return own.numel() / whole.numel()
    labels = nodes.y
    assert labels is not None
    # The mean over a rank's own rows counts by its divisor: weights of classes, or cells that are known.
    weights = task.to(labels.device)
    mass = weights.mass(labels.index_select(0, own)) if own.numel() else 0.0
    return mass / weights.mass(labels.index_select(0, whole))


# ---- the step


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


@dataclass(kw_only=True, slots=True)
class Progress:
    """The position of a run and its results so far, kept in every checkpoint."""

    epoch: int = 0
    """Index of the current epoch, from 0."""
    step: int = 0
    """Number of steps done in this epoch."""
    global_step: int = 0
    """Number of steps done in the whole run."""
    loss_sum: float = 0.0
    """Sum of the losses of this epoch's seeds so far."""
    num_seeds: int = 0
    """Number of seeds of this epoch so far."""
    best_value: float | None = None
    best_epoch: int | None = None
    evaluations_since_best: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)
    """One entry per finished epoch, with the columns of ``metrics.csv``."""

    def add_step(self, loss_sum: float, num_seeds: int) -> None:
        """Advance to the next step, after one over ``num_seeds`` seeds whose losses sum to ``loss_sum``."""
        self.step += 1
        self.global_step += 1
        self.loss_sum += loss_sum
        self.num_seeds += num_seeds

    def start_next_epoch(self) -> None:
        """Advance to the first step of the next epoch."""
        self.epoch += 1
        self.step, self.loss_sum, self.num_seeds = 0, 0.0, 0

    def note(self, value: float, maximize: bool) -> bool:
        """Record this epoch's monitored value; return whether it is the best so far (NaN never is)."""
        better = not math.isnan(value) and (
            self.best_value is None or (value > self.best_value if maximize else value < self.best_value)
        )
        if better:
            self.best_value, self.best_epoch, self.evaluations_since_best = value, self.epoch, 0
        else:
            self.evaluations_since_best += 1
        return better


_LONE_ROW = ("more than 1 value per channel", "more than one row")
"""Parts of the messages with which batch normalisation refuses a single row, PyTorch's and that of ranks."""


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
    ) -> StepRecord:
        """Make one step; TrainingError if the loss or the gradients are not finite.

        It advances ``progress``. The gradients of ``num_batches`` are averaged over their ``num_seeds``
        seeds.
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
                loss_sum = self._sums.add_up(loss_sum)
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
                self._runner.learned.take_batch({}, learns=True)
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
            (loss if part == 1.0 else loss * part).backward()  # type: ignore[no-untyped-call]
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
            if self._must_be_finite and any(one in str(error) for one in _LONE_ROW):
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
