"""FitRun: one call of ``Trainer.fit``, from the initial checks to the result."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Generic, TypeVar

import torch
from torch import Tensor

from graphbraid.features import TieredFeatures, TieredTopology
from graphbraid.train import runtime
from graphbraid.train.callbacks import (
    Callback,
    EarlyStopping,
    EpochRecord,
    Listeners,
    Progress,
    RunResult,
    StepRecord,
)
from graphbraid.train.inference.evaluate import EvalMode
from graphbraid.train.inference.metrics import THRESHOLD
from graphbraid.train.run.ranks import RunRanks
from graphbraid.train.run.saving import Saving
from graphbraid.train.run.setup import RunState, SignalGuard, StopRequested, set_up
from graphbraid.train.run_folder.folder import TENSORBOARD, RunFolder
from graphbraid.train.run_folder.loggers import TensorBoard
from graphbraid.train.step.feed import BatchShare
from graphbraid.train.step.preflight import has_split, split_nodes
from graphbraid.train.step.runner import divided_graph
from graphbraid.train.step.step import Clock, TrainStep

if TYPE_CHECKING:
    from graphbraid.train.run.hot_sharing import HotSharing

T = TypeVar("T")


class PrefetchIterator(Iterator[T], Generic[T]):
    """An iterator of batches. The next batch can be taken before it is asked for.

    The threads that prepare batches begin another one as soon as one is taken. Where they share the core of
    training, they would do so while the next step computes; taken early, they do while it waits.

    Args:
        batches: where they come from, which is closed with this one.
    """

    def __init__(self, batches: Generator[T]) -> None:
        self._batches = batches
        self._taken: list[T | BaseException] = []

    def take(self) -> None:
        """Take the next batch if none is taken; its error is raised when it is used."""
        if self._taken:
            return
        try:
            self._taken.append(next(self._batches))
        except Exception as error:  # StopIteration, too
            self._taken.append(error)

    def __next__(self) -> T:
        """Return the next batch."""
        if not self._taken:
            return next(self._batches)
        taken = self._taken.pop()
        if isinstance(taken, BaseException):
            raise taken
        return taken

    def close(self) -> None:
        """Let go of a batch that nobody asked for, and close the iterator behind."""
        self._taken.clear()
        self._batches.close()


class FitRun:
    """A training run. The constructor checks everything; :meth:`run` trains.

    Args:
        state: state of the run, which shows its position to others.
        listeners: callbacks of the run, to which those that the config requests are added.
        folder: folder for the run's files. If None, none are written.
        guard: guard that records signals.
        sharing: sharing of the ranks' hot rows, which is opened here and closed by the caller. If None, rows
            are not shared.

    Raises:
        ConfigError, DataError, ResourceError: the errors that ``Trainer.fit`` raises before the first step.
    """

    def __init__(
        self,
        state: RunState,
        listeners: Listeners,
        folder: RunFolder | None,
        guard: SignalGuard,
        sharing: HotSharing | None,
    ) -> None:
        self._state, self._listeners, self._folder, self._guard = state, listeners, folder, guard
        self._config, self._runner = state.config, state.runner
        self._ranks = RunRanks(state.comm, state, guard)
        self._ranks.check_same_run()
        if sharing is not None:
            sharing.open()
        self._resumes = self._ranks.of_first(self._decide)
        every = self._config.checkpoint_every_steps  # others write with it if ranks divide learned rows
        self._save_every = self._ranks.of_first(lambda: every) if self._runner.learned else every
        self._monitor, self._maximize = state.monitored
        if self._config.patience is not None:
            listeners.add(EarlyStopping(self._config.patience))
        if self._config.tensorboard and folder is not None:
            listeners.add(TensorBoard(folder.path / TENSORBOARD))
        self._parts = set_up(state, folder.path if folder is not None and self._resumes else None)
        if (divided := divided_graph(state.graph)) is not None:
            divided.shards.keep(self._config.remote or 0)  # only now: trials' reads do not count
        self._clock = Clock()
        self._feed_seconds: dict[str, float] = {}
        self._step = TrainStep(
            self._runner,
            self._parts.task,
            self._parts.optimizer,
            self._parts.schedule,
            clip=self._config.clip,
            clock=self._clock,
            sums=None if state.comm is None else self._ranks,
            seed=self._config.seed,
        )
        self._saving = Saving(state, self._parts, listeners, folder, self._ranks)

    def run(self) -> RunResult:
        """Train until all epochs are done or a stop is requested, and return the result.

        Raises:
            TrainingError: the loss or the gradients are not finite; the message names epoch and step.
        """
        started = time.perf_counter()
        closing = contextlib.closing
        with closing(self._parts.feed), closing(self._saving), closing(self._ranks):
            self._start()
            self._listeners.call(Callback.on_fit_start)
            self._train()
            result = self._end(started)
        self._listeners.call(Callback.on_fit_end, result)
        return result

    def _decide(self) -> bool:
        """Return whether to resume, which only the rank with the run's folder can say."""
        folder, config = self._folder, self._config
        return folder is not None and folder.decide(config.resume, config.overwrite)

    def _start(self) -> None:
        runtime.seed_everything(self._config.seed)
        self._state.progress = Progress()
        if self._resumes:
            self._saving.go_on()
        else:
            self._saving.begin()
            self._save(is_best=False)
        self._ranks.prepare_steps(self._runner.model)

    # ---- training

    def _train(self) -> None:
        state = self._state
        try:
            while state.progress.epoch < self._config.epochs and not self._ranks.must_stop_between():
                self._listeners.call(Callback.on_epoch_start, state.progress.epoch)
                self._clock.restart("checkpoint")  # of the one that ended the epoch before
                if not self._train_epoch():
                    break
                self._finish_epoch()
        except StopRequested:  # raised during an evaluation, which a resumed run repeats
            state.request_stop("interrupted")
        if state.progress.epoch < self._config.epochs:
            self._save(is_best=False)

    def _train_epoch(self) -> bool:
        """Train the remaining steps of an epoch; return False if a stop was requested on the way."""
        progress, every = self._state.progress, self._save_every
        num_steps = self._parts.steps_per_epoch
        self._runner.model.train()
        first = progress.step * self._config.accumulate
        feed = self._parts.feed
        sources = (self._runner.rows, self._runner.lists) if progress.step == 0 else ()
        tiers = [one for one in sources if isinstance(one, TieredFeatures | TieredTopology)]
        before = [tier.counts for tier in tiers]
        end, every_epochs = self._config.epochs, self._config.eval_every
        if self._parts.val_nodes is not None:
            end = min(end, progress.epoch - progress.epoch % every_epochs + every_epochs)
        then = end - 1 - progress.epoch  # epochs that follow without an evaluation between
        with contextlib.closing(PrefetchIterator(feed.batches(progress.epoch, first, then))) as batches:
            while progress.step < num_steps:
                record = self._make_step(batches)
                if self._saving.log is not None:
                    self._saving.log.step(record)
                self._listeners.call(Callback.on_step_end, record)
                if self._ranks.must_stop():
                    return False
                if every and progress.global_step % every == 0 and progress.step < num_steps:
                    self._save(is_best=False)
            self._state.placement = feed.explain()
        self._state.traffic = self._ranks.traffic()
        for tier, counts in zip(tiers, before, strict=True):
            tier.note_epoch(counts)  # of a whole epoch, which was trained to its end
        return True

    def _make_step(self, batches: PrefetchIterator[BatchShare]) -> StepRecord:
        """Make a step over ``accumulate`` batches, or those left in the epoch, and update the progress."""
        progress, feed, accumulate = self._state.progress, self._parts.feed, self._config.accumulate
        first = progress.step * accumulate
        count = min(accumulate, feed.num_batches - first)
        self._ranks.begin_step()
        return self._step(progress, batches, count, feed.num_seeds(first, count), meanwhile=batches.take)

    # ---- the end of an epoch

    def _finish_epoch(self) -> None:
        progress, schedule = self._state.progress, self._parts.schedule
        self._ranks.check_replicas()
        val = self._evaluate_if_due()
        is_best = bool(val) and progress.note(val[self._monitor], self._maximize)
        schedule.after_epoch(val.get(self._monitor))
        before, self._feed_seconds = self._feed_seconds, self._parts.feed.stage_seconds()
        self._clock.add({one: now - before.get(one, 0.0) for one, now in self._feed_seconds.items()})
        record = EpochRecord(
            epoch=progress.epoch,
            global_step=progress.global_step,
            train_loss=progress.loss_sum / progress.num_seeds,
            learning_rate=schedule.learning_rate,
            val=val,
            seconds=self._clock.lap(),
            is_best=is_best,
        )
        progress.history.append(record.row())
        if self._saving.log is not None:
            self._saving.log.epoch(record)
        self._listeners.call(Callback.on_epoch_end, record)
        progress.start_next_epoch()
        self._save(is_best=is_best)

    def _evaluate_if_due(self) -> dict[str, float]:
        nodes, num_epochs = self._parts.val_nodes, self._state.progress.epoch + 1
        is_last = num_epochs == self._config.epochs
        if nodes is None or not (is_last or num_epochs % self._config.eval_every == 0):
            return {}
        self._listeners.call(Callback.on_evaluate_start, "val")
        # A model that draws random numbers while evaluating must not change those that training draws next.
        with self._clock.measure("evaluate"), runtime.random_state_kept():
            return self._score(nodes, self._config.eval_mode)

    def _score(self, nodes: Tensor, mode: EvalMode) -> dict[str, float]:
        """Return the loss, with the run's class weights, and the metrics of labelled ``nodes``."""
        return self._ranks.score(nodes, mode, self._parts.task, self._state.metrics)

    def _save(self, *, is_best: bool) -> None:
        with self._clock.measure("checkpoint"):
            self._saving.save(is_best=is_best)

    # ---- the end of the run

    def _end(self, started: float) -> RunResult:
        status, progress = self._state.stop_status or "finished", self._state.progress
        last_checkpoint_seconds = self._clock.lap()["checkpoint"]
        test: dict[str, float] = {}
        given = self._config.threshold
        threshold = None if given == "f1" else given
        if status != "interrupted":
            self._saving.restore_best()
            try:
                if given == "f1":
                    threshold = self._threshold()
                test = self._test()
            except StopRequested:
                status = "interrupted"
        result = RunResult(
            status=status,
            num_epochs=progress.epoch,
            global_step=progress.global_step,
            monitor=self._monitor,
            best_epoch=progress.best_epoch,
            best_value=progress.best_value,
            test=test,
            threshold=threshold,
            history=list(progress.history),
            seconds=time.perf_counter() - started,
            last_checkpoint_seconds=last_checkpoint_seconds,
            out_dir=None if self._folder is None else self._folder.path,
            resources=self._state.resources(),
        )
        self._saving.write_result(result)
        return result

    def _threshold(self) -> float:
        """Return the threshold of the largest F1 score on the validation split."""
        self._listeners.call(Callback.on_evaluate_start, "val")
        nodes = split_nodes(self._runner.labels, "val")
        return self._ranks.score(nodes, "exact", self._parts.task, THRESHOLD)["threshold"]

    def _test(self) -> dict[str, float]:
        if not (self._config.test_at_end and has_split(self._runner.labels, "test")):
            return {}
        self._listeners.call(Callback.on_evaluate_start, "test")
        with torch.no_grad():
            return self._score(split_nodes(self._runner.labels, "test"), "exact")
