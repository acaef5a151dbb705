"""FitRun: one call of ``Trainer.fit``, from the early checks to the result."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from graphbraid.errors import TrainingError
from graphbraid.train import runtime
from graphbraid.train.callbacks import Callback, CallbackList, EarlyStopping
from graphbraid.train.inference.metrics import LOSS
from graphbraid.train.interrupt import SignalGuard, StopRequested
from graphbraid.train.preflight import check_fanouts, check_needs_no_val, dry_run, has_split, split_nodes
from graphbraid.train.run_folder import checkpoint
from graphbraid.train.run_folder.environment import environment
from graphbraid.train.run_folder.folder import CONFIG, ENVIRONMENT, RESULT, RunFolder
from graphbraid.train.run_folder.identity import check_same, graph_identity, model_identity
from graphbraid.train.run_folder.loggers import RunLog, TensorBoard
from graphbraid.train.run_folder.measured import keep, kept_evidence, kept_plan
from graphbraid.train.run_folder.restore import check_fits
from graphbraid.train.state import EpochRecord, Progress, RunResult, StepRecord
from graphbraid.train.step.clock import STAGES, Clock
from graphbraid.train.step.optimizers import Schedule, make_optimizer
from graphbraid.train.step.sources import Work, make_source
from graphbraid.train.step.whole import compile_for, require_sampled, require_whole
from graphbraid.train.task import with_class_weights
from graphbraid.train.tuning.planning import plan_run, set_training_threads

if TYPE_CHECKING:
    from graphbraid.train.trainer import Trainer


class FitRun:
    """A run under way. Made with everything checked; :meth:`run` trains."""

    def __init__(self, trainer: Trainer, folder: RunFolder | None, guard: SignalGuard) -> None:
        self._trainer, self._folder, self._guard = trainer, folder, guard
        self._config, self._runner, self._graph = trainer.config, trainer.runner, trainer.graph
        config = self._config
        self._resumes = folder is not None and folder.decide(config.resume, config.overwrite)
        self._metrics, (self._monitor, self._maximize) = trainer.metrics, trainer.monitored
        self._train_nodes = split_nodes(self._graph, "train")
        self._val_nodes = split_nodes(self._graph, "val") if self._evaluates() else None
        if self._val_nodes is None and config.eval_every:
            check_needs_no_val(config)
        assert self._graph.y is not None
        task = with_class_weights(trainer.task, config.class_weights, self._graph.y[self._train_nodes])
        self._task, self._task_on_cpu = task.to(self._runner.device), task
        self._callbacks = self._make_callbacks()
        check_fanouts(self._runner.model, config)
        self._evidence = kept_evidence(folder.path) if folder is not None and self._resumes else None
        self._dry_run()
        accelerator = trainer.accelerator
        kept = kept_plan(folder.path, config) if folder is not None and self._resumes else None
        plan = kept or plan_run(self._runner, self._task, config, self._train_nodes, accelerator)
        trainer.plan = plan
        if plan is not None and accelerator is None and self._runner.device.type == "cpu":
            set_training_threads(config, plan.workers)
        self._source = make_source(self._runner, config, self._train_nodes, plan, accelerator)
        self._steps_per_epoch = math.ceil(self._source.num_batches / config.accumulate)
        self._optimizer = make_optimizer(config, self._runner.model)
        total = self._steps_per_epoch * config.epochs
        self._schedule = Schedule(config, self._optimizer, total_steps=total, maximize=self._maximize)
        self._clock = Clock()
        self._source_seconds: dict[str, float] = {}
        self._graph_identity = graph_identity(self._graph)
        self._best_weights: dict[str, Tensor] | None = None
        self._labels: Tensor | None = None
        self._log: RunLog | None = None

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of an epoch."""
        return self._steps_per_epoch

    @property
    def callbacks(self) -> Callback:
        """All listeners as one."""
        return self._callbacks

    def run(self) -> RunResult:
        """Train until all epochs are done or something asks to stop."""
        started = time.perf_counter()
        with contextlib.closing(self._source):
            try:
                self._start()
                self._callbacks.on_fit_start(self._trainer)
                self._train()
                result = self._end(started)
            finally:
                if self._log is not None:
                    self._log.close()
        self._callbacks.on_fit_end(self._trainer, result)
        return result

    # ---- before the first step

    def _evaluates(self) -> bool:
        return self._config.eval_every > 0 and has_split(self._graph, "val")

    def _make_callbacks(self) -> CallbackList:
        callbacks = list(self._trainer.callbacks)
        if self._config.patience is not None:
            callbacks.append(EarlyStopping(self._config.patience))
        if self._config.tensorboard and self._folder is not None:
            callbacks.append(TensorBoard(self._folder.path / "tensorboard"))
        return CallbackList(callbacks)

    def _dry_run(self) -> None:
        runtime.seed_everything(self._config.seed)  # a lazily built model draws its weights here
        if self._config.mode == "full":
            require_whole(self._runner.model, self._graph, self._config)
            self._compile()
            forward = self._runner.engine or self._runner.on_graph
            dry_run(self._runner, self._task, forward, "the whole graph")
            if self._runner.engine is None:
                self._compile()  # the run has made what a lazily built model lacked
            return
        if why := self._trainer.mode_reason:
            require_sampled(self._runner.model, self._graph, self._config, self._train_nodes, why)
        with contextlib.closing(make_source(self._runner, self._config, self._train_nodes[:2])) as source:
            _, forward = next(source.batches(0, 0))
            dry_run(
                self._runner,
                self._task,
                forward,
                f"a mini-batch of {min(2, self._train_nodes.numel())} seed nodes",
            )

    def _compile(self) -> None:
        self._runner.engine, self._trainer.uncompiled_reason = compile_for(
            self._runner, self._config, self._train_nodes, self._evidence
        )

    def _start(self) -> None:
        """Load the checkpoint, or lay out a fresh run with a checkpoint of its very start."""
        runtime.seed_everything(self._config.seed)
        self._trainer.progress = Progress()
        if self._folder is None:
            return
        if self._resumes:
            self._load(self._folder)
            self._folder.note_changes()
        else:
            self._folder.clear()
        self._folder.write_json(CONFIG, {"train": self._config.to_json(), "info": dict(self._trainer.info)})
        self._folder.write_json(ENVIRONMENT, environment())
        if not self._resumes:
            keep(self._folder.path, self._runner.engine, self._trainer.plan)
            self._log = RunLog(self._folder.path, self._columns())
            self._save(is_best=False)

    def _columns(self) -> list[str]:
        val = [f"val_{name}" for name in (LOSS, *self._metrics)] if self._val_nodes is not None else []
        seconds = [f"{stage}_seconds" for stage in STAGES]
        return ["epoch", "global_step", "train_loss", *val, "learning_rate", "is_best", *seconds]

    # ---- training

    def _train(self) -> None:
        trainer = self._trainer
        try:
            while trainer.progress.epoch < self._config.epochs and not self._must_stop():
                self._callbacks.on_epoch_start(trainer, trainer.progress.epoch)
                self._clock.lap()
                if not self._train_steps():
                    break
                self._finish_epoch()
        except StopRequested:  # raised inside an evaluation, which a resumed run repeats
            trainer.request_stop("interrupted")
        if trainer.progress.epoch < self._config.epochs:
            self._save(is_best=False)

    def _must_stop(self) -> bool:
        if self._guard.signal is not None:
            self._trainer.request_stop("interrupted")
        return self._trainer.stop_status is not None

    def _train_steps(self) -> bool:
        """Train the rest of an epoch's steps; False if told to stop on the way."""
        progress, every = self._trainer.progress, self._config.checkpoint_every_steps
        self._runner.model.train()
        first = progress.step * self._config.accumulate
        with contextlib.closing(self._source.batches(progress.epoch, first)) as batches:
            while progress.step < self._steps_per_epoch:
                record = self._step(batches)
                if self._log is not None:
                    self._log.step(record)
                self._callbacks.on_step_end(self._trainer, record)
                if self._must_stop():
                    return False
                if every and progress.global_step % every == 0 and progress.step < self._steps_per_epoch:
                    self._save(is_best=False)
        return True

    def _step(self, batches: Iterator[Work]) -> StepRecord:
        """One optimizer step, over ``accumulate`` mini-batches or what is left of the epoch."""
        progress, accumulate = self._trainer.progress, self._config.accumulate
        rest = self._source.num_batches - progress.step * accumulate
        self._optimizer.zero_grad(set_to_none=True)
        loss_sum, num_seeds = 0.0, 0
        for _ in range(min(accumulate, rest)):
            mean, count = self._accumulate(batches, self._seeds_of_step())
            loss_sum, num_seeds = loss_sum + mean * count, num_seeds + count
        with self._clock.measure("backward"):
            learning_rate = self._schedule.learning_rate
            grad_norm = self._check_gradients()
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
        progress.step += 1
        progress.global_step += 1
        progress.loss_sum += loss_sum
        progress.num_seeds += num_seeds
        return record

    def _seeds_of_step(self) -> int:
        """Seed nodes of the step under way, over all its mini-batches."""
        if self._config.mode == "full":
            return self._train_nodes.numel()
        per_step = self._config.batch_size * self._config.accumulate
        return min(per_step, self._train_nodes.numel() - self._trainer.progress.step * per_step)

    def _accumulate(self, batches: Iterator[Work], seeds_of_step: int) -> tuple[float, int]:
        """Add one mini-batch's share of the step's gradient; returns its mean loss and seed count."""
        with self._clock.measure("wait"):
            seeds, forward = next(batches)
        with self._clock.measure("forward"):
            labels = self._labels_of(seeds)
            outputs = self._forward(forward)
            with self._runner.autocast():
                loss = self._task.loss(outputs, labels)
            mean = float(loss.detach())
        self._check_loss(mean)
        with self._clock.measure("backward"):
            share = seeds.numel() / seeds_of_step
            self._runner.backward(loss if share == 1.0 else loss * share)
        return mean, seeds.numel()

    def _labels_of(self, seeds: Tensor) -> Tensor:
        """The labels of a mini-batch's seeds on the model's device; of the whole graph's taken there once."""
        assert self._graph.y is not None
        if self._labels is not None:
            return self._labels
        labels = self._graph.y.index_select(0, seeds).to(self._runner.device)
        if self._config.mode == "full":
            self._labels = labels
        return labels

    def _forward(self, forward: Callable[[], Tensor]) -> Tensor:
        try:
            return forward()
        except ValueError as error:
            if "more than 1 value per channel" not in str(error):
                raise
            raise TrainingError(
                f"batch normalisation met a single node at {self._here()}, which has no variance; choose a "
                f"batch_size that leaves no lone seed of {self._train_nodes.numel()} training nodes, or a "
                "model without it."
            ) from error

    def _check_loss(self, loss: float) -> None:
        if not math.isfinite(loss):
            engine = self._runner.engine
            raise TrainingError(
                f"the loss is {loss} at {self._here()}; no step was made with it. Lower lr "
                f"({self._schedule.learning_rate:g}), set clip, or look for extreme features."
                + (f" In the model, {engine.first_not_finite()}." if engine is not None else "")
            )

    def _check_gradients(self) -> float:
        """L2 norm of all gradients, which are scaled down to ``clip`` where they exceed it."""
        params = [p for group in self._optimizer.param_groups for p in group["params"]]
        norm = float(nn.utils.clip_grad_norm_(params, self._config.clip or math.inf))
        if not math.isfinite(norm):
            raise TrainingError(
                f"the gradients' norm is {norm} at {self._here()} though the loss is finite; no step was "
                f"made with them. Lower lr ({self._schedule.learning_rate:g}) or look for square roots and "
                "divisions at zero in the model."
            )
        return norm

    def _here(self) -> str:
        progress = self._trainer.progress
        return f"epoch {progress.epoch}, step {progress.step} (global step {progress.global_step})"

    # ---- the end of an epoch

    def _finish_epoch(self) -> None:
        progress = self._trainer.progress
        val = self._evaluate_if_due()
        is_best = bool(val) and progress.note(val[self._monitor], self._maximize)
        self._schedule.after_epoch(val.get(self._monitor))
        self._clock.add(self._new_source_seconds())
        record = EpochRecord(
            epoch=progress.epoch,
            global_step=progress.global_step,
            train_loss=progress.loss_sum / progress.num_seeds,
            learning_rate=self._schedule.learning_rate,
            val=val,
            seconds=self._clock.lap(),
            is_best=is_best,
        )
        progress.history.append(record.row())
        if self._log is not None:
            self._log.epoch(record)
        self._callbacks.on_epoch_end(self._trainer, record)
        progress.start_next_epoch()
        self._save(is_best=is_best)

    def _evaluate_if_due(self) -> dict[str, float]:
        epoch, config = self._trainer.progress.epoch, self._config
        last = epoch + 1 == config.epochs
        if self._val_nodes is None or not (last or (epoch + 1) % config.eval_every == 0):
            return {}
        self._callbacks.on_evaluate_start(self._trainer, "val")
        # A model that draws while evaluating must not shift what training draws next.
        random_state = runtime.random_state()
        with self._clock.measure("evaluate"):
            scores = self._trainer.score(
                self._val_nodes, config.eval_mode, self._task_on_cpu, self._guard.check
            )
        runtime.set_random_state(random_state)
        return scores

    def _new_source_seconds(self) -> dict[str, float]:
        now, before = self._source.stage_seconds(), self._source_seconds
        self._source_seconds = now
        return {stage: seconds - before.get(stage, 0.0) for stage, seconds in now.items()}

    # ---- checkpoints

    def _save(self, *, is_best: bool) -> None:
        if self._folder is None or self._log is None:
            if is_best:
                self._best_weights = {
                    k: v.detach().cpu().clone() for k, v in self._runner.model.state_dict().items()
                }
            return
        with self._clock.measure("checkpoint"):
            contents = self._contents(self._log)
            # The best first: were it last, a kill between the two would leave a finished epoch without it.
            for path in (self._folder.best, self._folder.last) if is_best else (self._folder.last,):
                checkpoint.write(path, contents)
                self._callbacks.on_checkpoint(self._trainer, path)

    def _contents(self, log: RunLog) -> dict[str, Any]:
        return {
            "model": self._runner.model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "scheduler": self._schedule.state_dict(),
            "callbacks": self._callbacks.state_dict(),
            "random": runtime.random_state(),
            "progress": self._trainer.progress.to_dict(),
            "log_position": log.position(),
            "config": self._config.to_json(),
            "model_identity": model_identity(self._runner.model),
            "graph_identity": self._graph_identity,
            "info": dict(self._trainer.info),
        }

    def _load(self, folder: RunFolder) -> None:
        contents = checkpoint.read(folder.last, trust=self._config.trust_checkpoint)
        check_same(contents, self._runner.model, self._graph_identity, self._config, folder.last)
        check_fits(contents, self._runner.model, self._optimizer, self._steps_per_epoch, folder.last)
        self._runner.model.load_state_dict(contents["model"])
        self._optimizer.load_state_dict(contents["optimizer"])
        self._schedule.load_state_dict(contents["scheduler"])
        self._callbacks.load_state_dict(contents["callbacks"])
        self._trainer.progress = Progress(**contents["progress"])
        self._log = RunLog(folder.path, self._columns(), position=contents["log_position"])
        runtime.set_random_state(contents["random"])

    # ---- the end of the run

    def _end(self, started: float) -> RunResult:
        status, progress = self._trainer.stop_status or "finished", self._trainer.progress
        test: dict[str, float] = {}
        if status != "interrupted":
            self._restore_best()
            try:
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
            history=list(progress.history),
            seconds=time.perf_counter() - started,
            out_dir=None if self._folder is None else self._folder.path,
        )
        if self._folder is not None:
            self._folder.write_json(RESULT, result.to_json())
        return result

    def _restore_best(self) -> None:
        if not self._config.restore_best or self._trainer.progress.best_epoch is None:
            return
        weights: dict[str, Tensor] | None = self._best_weights
        if self._folder is not None:
            path: Path = self._folder.best
            weights = checkpoint.read(path, trust=self._config.trust_checkpoint)["model"]
        if weights is not None:
            self._runner.model.load_state_dict(weights)

    def _test(self) -> dict[str, float]:
        if not (self._config.test_at_end and has_split(self._graph, "test")):
            return {}
        self._callbacks.on_evaluate_start(self._trainer, "test")
        nodes = split_nodes(self._graph, "test")
        with torch.no_grad():
            return self._trainer.score(nodes, "exact", self._task_on_cpu, self._guard.check)
