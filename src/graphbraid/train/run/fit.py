"""FitRun: one call of ``Trainer.fit``, from the initial checks to the result; Saving writes its files."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from graphbraid.features import TieredFeatures, TieredTopology
from graphbraid.machine.hardware import own_peak_bytes
from graphbraid.sampling.rows.by_id import TierCounts
from graphbraid.train import runtime
from graphbraid.train.callbacks import Callback, EarlyStopping, EpochRecord, Resources, RunResult, StepRecord
from graphbraid.train.inference.evaluate import EvalMode, score
from graphbraid.train.inference.metrics import LOSS, THRESHOLD, Kinds
from graphbraid.train.run.setup import RunParts, set_up
from graphbraid.train.run_folder import checkpoint
from graphbraid.train.run_folder.checkpoint import check_optimizer, load_rows
from graphbraid.train.run_folder.contract import check_same, model_identity
from graphbraid.train.run_folder.folder import (
    CONFIG,
    ENVIRONMENT,
    RESULT,
    TENSORBOARD,
    RunFolder,
    environment,
    keep,
)
from graphbraid.train.run_folder.loggers import RunLog, TensorBoard
from graphbraid.train.runtime import StopRequested
from graphbraid.train.step.runner import divided_graph
from graphbraid.train.step.step import STAGES, BatchShare, Clock, Progress, TrainStep
from graphbraid.train.task import has_split, split_nodes

if TYPE_CHECKING:
    from graphbraid.train.run.ranks import RunRanks
    from graphbraid.train.trainer import Trainer

T = TypeVar("T")


def of_first(ranks: RunRanks | None, make: Callable[[], T]) -> T:
    """Return the first rank's result of ``make``, a plain value, on every rank."""
    return make() if ranks is None else ranks.of_first(make)


class Listeners:
    """The callbacks of one run of a Trainer, called in order."""

    def __init__(self, trainer: Trainer, callbacks: Iterable[Callback]) -> None:
        self._trainer, self._callbacks = trainer, list(callbacks)

    def add(self, callback: Callback) -> None:
        """Add a callback after the others."""
        self._callbacks.append(callback)

    def call(self, method: Callable[..., None], *args: Any) -> None:
        """Call a method of :class:`Callback`, such as ``Callback.on_step_end``, of every callback."""
        for callback in self._callbacks:
            getattr(callback, method.__name__)(self._trainer, *args)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of each callback that has one, by position and class."""
        return {_key(i, c): state for i, c in enumerate(self._callbacks) if (state := c.state_dict())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of each callback; one without a saved state stays as it is."""
        for i, callback in enumerate(self._callbacks):
            if (key := _key(i, callback)) in state:
                callback.load_state_dict(state[key])


def _key(position: int, callback: Callback) -> str:
    return f"{position}:{type(callback).__qualname__}"


def _row(record: EpochRecord) -> dict[str, Any]:
    first = {name: getattr(record, name) for name in ("epoch", "global_step", "train_loss")}
    last = {name: getattr(record, name) for name in ("learning_rate", "is_best")}
    val = {f"val_{name}": value for name, value in record.val.items()}
    return first | val | last | {f"{name}_seconds": value for name, value in record.seconds.items()}


class FitRun:
    """A training run. The constructor checks everything; :meth:`run` trains.

    The callbacks that the config requests are added to ``listeners``. Without ``folder`` no files are
    written.

    Raises:
        ConfigError, DataError, ResourceError: the errors that ``Trainer.fit`` raises before the first step.
    """

    def __init__(
        self,
        trainer: Trainer,
        listeners: Listeners,
        folder: RunFolder | None,
        guard: runtime.SignalGuard,
        ranks: RunRanks | None,
    ) -> None:
        self._trainer, self._listeners, self._folder = trainer, listeners, folder
        self._guard, self._ranks = guard, ranks
        self._config, self._runner = trainer.config, trainer.runner
        # Only the rank with the run's folder can say so.
        self._resumes = of_first(
            ranks, lambda: folder is not None and folder.decide(self._config.resume, self._config.overwrite)
        )
        every = self._config.checkpoint_every_steps  # others write with it if ranks divide learned rows
        self._save_every = of_first(ranks, lambda: every) if self._runner.learned else every
        self._monitor, self._maximize = trainer.monitored
        if self._config.patience is not None:
            listeners.add(EarlyStopping(self._config.patience))
        if self._config.tensorboard and folder is not None:
            listeners.add(TensorBoard(folder.path / TENSORBOARD))
        former = folder.path if folder is not None and self._resumes else None
        self._parts = set_up(trainer, former, ranks)
        if (divided := divided_graph(trainer.graph)) is not None:
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
            sums=ranks,
            seed=self._config.seed,
        )
        self._saving = Saving(trainer, self._parts, listeners, folder, self._ranks)

    def run(self) -> RunResult:
        """Train until all epochs are done or a stop is requested, and return the result.

        Raises:
            TrainingError: the loss or the gradients are not finite; the message names epoch and step.
        """
        started = time.perf_counter()
        with contextlib.ExitStack() as stack:
            for part in (self._parts.feed, self._saving, self._ranks):  # the last one is closed first
                if part is not None:
                    stack.callback(part.close)
            self._start()
            self._listeners.call(Callback.on_fit_start)
            self._train()
            result = self._end(started)
        self._listeners.call(Callback.on_fit_end, result)
        return result

    def _start(self) -> None:
        runtime.seed_everything(self._config.seed)
        self._trainer.progress = Progress()
        if self._resumes:
            self._saving.go_on()
        else:
            self._saving.begin()
            self._save(is_best=False)
        if self._ranks is not None:
            self._ranks.prepare_steps(self._runner.model)

    # ---- training

    def _train(self) -> None:
        trainer = self._trainer
        try:
            while trainer.progress.epoch < self._config.epochs and not self._must_stop(between=True):
                self._listeners.call(Callback.on_epoch_start, trainer.progress.epoch)
                self._clock.restart("checkpoint")  # of the one that ended the epoch before
                if not self._train_epoch():
                    break
                self._finish_epoch()
        except StopRequested:  # raised during an evaluation, which a resumed run repeats
            trainer.request_stop("interrupted")
        if trainer.progress.epoch < self._config.epochs:
            self._save(is_best=False)

    def _must_stop(self, *, between: bool = False) -> bool:
        """Return whether to stop after the step just made, or ``between`` epochs; each rank says the same."""
        if self._ranks is not None:
            return self._ranks.must_stop_between() if between else self._ranks.must_stop()
        if self._guard.signal is not None:
            self._trainer.request_stop("interrupted")
        return self._trainer.stop_status is not None

    def _train_epoch(self) -> bool:
        """Train the remaining steps of an epoch; return False if a stop was requested on the way."""
        progress, every = self._trainer.progress, self._save_every
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
        with contextlib.closing(feed.batches(progress.epoch, first, then)) as given:
            batches = given if self._ranks is None else self._ranks.ahead(given)
            while progress.step < num_steps:
                record = self._make_step(batches)
                if self._saving.log is not None:
                    self._saving.log.step(record)
                self._listeners.call(Callback.on_step_end, record)
                if self._must_stop():
                    return False
                if every and progress.global_step % every == 0 and progress.step < num_steps:
                    self._save(is_best=False)
            self._trainer.placement = feed.explain()
        if self._ranks is not None:
            self._trainer.traffic = self._ranks.traffic()
        for tier, counts in zip(tiers, before, strict=True):
            tier.note_epoch(counts)  # of a whole epoch, which was trained to its end
        return True

    def _make_step(self, batches: Iterator[BatchShare]) -> StepRecord:
        progress, feed, accumulate = self._trainer.progress, self._parts.feed, self._config.accumulate
        first = progress.step * accumulate
        count = min(accumulate, feed.num_batches - first)
        if self._ranks is not None:
            self._ranks.begin_step()
        return self._step(progress, batches, count, feed.num_seeds(first, count))

    # ---- the end of an epoch

    def _finish_epoch(self) -> None:
        progress, schedule = self._trainer.progress, self._parts.schedule
        if self._ranks is not None:
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
        progress.history.append(_row(record))
        if self._saving.log is not None:
            self._saving.log.epoch(progress.history[-1])
        self._listeners.call(Callback.on_epoch_end, record)
        progress.start_next_epoch()
        self._save(is_best=is_best)

    def _evaluate_if_due(self) -> dict[str, float]:
        nodes, num_epochs = self._parts.val_nodes, self._trainer.progress.epoch + 1
        is_last = num_epochs == self._config.epochs
        if nodes is None or not (is_last or num_epochs % self._config.eval_every == 0):
            return {}
        self._listeners.call(Callback.on_evaluate_start, "val")
        # A model that draws random numbers while evaluating must not change those that training draws next.
        with self._clock.measure("evaluate"), runtime.random_state_kept():
            return self._score(nodes, self._config.eval_mode)

    def _score(self, nodes: Tensor, mode: EvalMode, metrics: Kinds | None = None) -> dict[str, float]:
        """Return the loss, with the run's class weights, and metrics of labelled ``nodes``, on every rank.

        Raises:
            StopRequested: a signal came meanwhile and there is one rank; several ranks stop after it.
        """
        task, metrics = self._parts.task, metrics or self._trainer.metric_kinds
        if self._ranks is not None:
            return self._ranks.score(nodes, mode, task, metrics)
        before, self._runner.check = self._runner.check, self._guard.check
        try:
            return score(self._runner, self._config, nodes, mode, task=task, metrics=metrics)
        finally:
            self._runner.check = before

    def _save(self, *, is_best: bool) -> None:
        with self._clock.measure("checkpoint"):
            self._saving.save(is_best=is_best)

    # ---- the end of the run

    def _end(self, started: float) -> RunResult:
        status, progress = self._trainer.stop_status or "finished", self._trainer.progress
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
            resources=self._resources(),
        )
        if self._folder is not None:
            self._folder.write_json(RESULT, result.to_json())
        return result

    def _resources(self) -> Resources:
        device, counts = self._runner.device, getattr(self._runner.rows, "counts", None)
        return Resources(
            host_peak_bytes=own_peak_bytes(),
            device_peak_bytes=torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None,
            placement=self._trainer.explain(),
            reads=counts._asdict() if isinstance(counts, TierCounts) else {},
            plan=self._trainer.plan,
        )

    def _threshold(self) -> float:
        self._listeners.call(Callback.on_evaluate_start, "val")
        nodes = split_nodes(self._runner.labels, "val")
        return self._score(nodes, "exact", THRESHOLD)["threshold"]

    def _test(self) -> dict[str, float]:
        if not (self._config.test_at_end and has_split(self._runner.labels, "test")):
            return {}
        self._listeners.call(Callback.on_evaluate_start, "test")
        with torch.no_grad():
            return self._score(split_nodes(self._runner.labels, "test"), "exact")


class Saving:
    """The logs and checkpoints of one run; without a folder, the best weights are kept in memory.

    Of several ranks, the first has the folder, if there is one; the others get what it reads.
    """

    def __init__(
        self,
        trainer: Trainer,
        parts: RunParts,
        listeners: Listeners,
        folder: RunFolder | None,
        ranks: RunRanks | None,
    ) -> None:
        self._ranks = ranks
        self._trainer, self._parts, self._listeners, self._folder = trainer, parts, listeners, folder
        self._best_weights: dict[str, Tensor] | None = None
        self._best_rows: dict[str, Tensor] = {}
        self._rows_of: dict[Path, str] = {}
        """Folder of the learned rows of each checkpoint."""
        self.log: RunLog | None = None
        """Log files, once the run begins; None without a folder."""

    # ---- the start

    def begin(self) -> None:
        """Prepare the folder of a new run."""
        if self._folder is None:
            return
        self._folder.clear()
        self._describe(self._folder)
        keep(self._folder.path, self._trainer.runner.engine, self._trainer.plan)
        self.log = RunLog(self._folder.path, self._columns())

    def go_on(self) -> None:
        """Continue the run from the folder's last checkpoint."""
        self._load(self._folder)
        if self._folder is not None:
            self._describe(self._folder)

    def _describe(self, folder: RunFolder) -> None:
        config = {"train": self._trainer.config.to_json(), "info": dict(self._trainer.info)}
        folder.write_json(CONFIG, config | {"contract": self._trainer.identity["contract"]})
        folder.write_json(ENVIRONMENT, environment() | {"ranks": self._ranks.size if self._ranks else 1})

    def _columns(self) -> list[str]:
        evaluated = () if self._parts.val_nodes is None else (LOSS, *self._trainer.metric_kinds)
        val = [f"val_{name}" for name in evaluated]
        seconds = [f"{stage}_seconds" for stage in STAGES]
        return ["epoch", "global_step", "train_loss", *val, "learning_rate", "is_best", *seconds]

    # ---- on the way

    def save(self, *, is_best: bool) -> None:
        """Write a checkpoint, also as the best one if it is; without a folder, keep the best weights.

        Raises:
            ResourceError: the disk is full; the former checkpoints are intact.
        """
        learned, record = self._trainer.runner.learned, None
        if learned is not None and self._has_folder:
            from graphbraid.distributed.shards.learned_files import write  # here: few runs have such rows

            beside = None if self._folder is None else self._folder.checkpoints
            record = write(learned, beside, self._trainer.progress.global_step)
        if self._folder is None or self.log is None:
            if is_best:
                weights = self._trainer.runner.model.state_dict()
                self._best_weights = {name: v.detach().cpu().clone() for name, v in weights.items()}
                if learned is not None and record is None:
                    self._best_rows = learned.copied()
            return
        contents = self._contents(self.log) | {"learned_rows": record}
        # The best one first: otherwise a kill between the two would leave a finished epoch without it.
        for path in (self._folder.best, self._folder.last) if is_best else (self._folder.last,):
            checkpoint.write(path, contents)
            if record is not None:
                self._rows_of[path] = record["folder"]
            self._listeners.call(Callback.on_checkpoint, path)
        self._folder.remove_rows(keep=set(self._rows_of.values()))

    @cached_property
    def _has_folder(self) -> bool:
        """Whether the first rank writes checkpoints; all ranks ask together the first time."""
        return of_first(self._ranks, lambda: self._folder is not None)

    def _contents(self, log: RunLog) -> dict[str, Any]:
        return {
            "model": self._trainer.runner.model.state_dict(),
            "optimizer": self._parts.optimizer.state_dict(),
            "scheduler": self._parts.schedule.state_dict(),
            "callbacks": self._listeners.state_dict(),
            "random": runtime.random_state(),
            "progress": dataclasses.asdict(self._trainer.progress),
            "log_position": log.position(),
            "config": self._trainer.config.to_json(),
            "model_identity": model_identity(self._trainer.runner.model),
            "graph_identity": self._trainer.identity,
            "info": dict(self._trainer.info),
        }

    def _load(self, folder: RunFolder | None) -> None:
        trainer, parts, model = self._trainer, self._parts, self._trainer.runner.model
        path = None if folder is None else folder.last
        if self._ranks is None:
            assert path is not None, "only a run with a folder goes on"
            contents = self._read(path)
        else:
            contents = self._ranks.read_file(path, self._read)
        where = path or Path("the checkpoint of rank 0")
        check_same(contents, model, trainer.identity, trainer.config, where)
        check_optimizer(contents["optimizer"], parts.optimizer, where)
        model.load_state_dict(contents["model"])
        parts.optimizer.load_state_dict(contents["optimizer"])
        parts.schedule.load_state_dict(contents["scheduler"])
        self._listeners.load_state_dict(contents["callbacks"])
        trainer.progress = Progress(**contents["progress"])
        self._load_rows(contents, states=True)
        if folder is not None:
            held = {folder.last: contents}
            if folder.best.is_file():
                held[folder.best] = self._read(folder.best)
            self._rows_of = {
                at: one["learned_rows"]["folder"] for at, one in held.items() if one["learned_rows"]
            }
            self.log = RunLog(folder.path, self._columns(), position=contents["log_position"])
        runtime.set_random_state(contents["random"])

    def _load_rows(self, contents: Mapping[str, Any], *, states: bool) -> None:
        beside = of_first(self._ranks, lambda: str(self._folder.checkpoints) if self._folder else "")
        load_rows(self._trainer.runner, contents, Path(beside), states=states)

    def _read(self, path: Path) -> dict[str, Any]:
        return checkpoint.read(path, trust=self._trainer.config.trust_checkpoint)

    # ---- the end

    def restore_best(self) -> None:
        """Load the best epoch's weights into the model, if the config requests it and there was one."""
        if not self._trainer.config.restore_best or self._trainer.progress.best_epoch is None:
            return
        weights: dict[str, Tensor] | None = self._best_weights
        best: dict[str, Any] = {} if self._folder is None else self._read(self._folder.best)
        weights = best.get("model", weights)
        if weights is not None:
            self._trainer.runner.model.load_state_dict(weights)
        if self._ranks is not None:
            self._ranks.spread_weights(self._trainer.runner.model)
        if (learned := self._trainer.runner.learned) is None:
            return
        if self._has_folder:
            self._load_rows(
                of_first(self._ranks, lambda: {"learned_rows": best["learned_rows"]}), states=False
            )
        else:
            learned.put_back(self._best_rows)

    def close(self) -> None:
        """Close the log files."""
        if self.log is not None:
            self.log.close()
