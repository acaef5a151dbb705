"""The time of an epoch: the plan's where there is one, else a short trial on copies."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace

from torch import Tensor

from graphbraid.collective import Plan
from graphbraid.fullgraph import Engine
from graphbraid.fullgraph.measured.kept_rates import machine_rates
from graphbraid.sampling import MiniBatch
from graphbraid.train.estimating.trial import Trial
from graphbraid.train.inference.evaluate import EvalMode, score
from graphbraid.train.inference.infer import whole_bytes, widest_layer
from graphbraid.train.inference.metrics import metric_names
from graphbraid.train.step.batches import WholeGraph
from graphbraid.train.step.feed import make_loader

SECONDS = 4.0
"""That a trial takes, about."""
STEPS, FEWEST = 48, 6
"""Steps of a trial, at most and at least; an epoch of fewer is run as a whole."""
REPEATS = 12
"""Steps on the whole graph, at most."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochSeconds:
    """How long an epoch takes."""

    train: float
    """Seconds of its training steps."""
    evaluate: float | None = None
    """Seconds of its share of a validation (``eval_every``); None if it is not known."""
    floor: float | None = None
    """Least seconds of its compiled step by the machine's rates; None for mini-batches."""
    how: str = ""
    """Where the times are from."""

    @property
    def total(self) -> float:
        """Seconds of an epoch."""
        return self.train + (self.evaluate or 0.0)

    def scaled(self, factor: float, why: str) -> EpochSeconds:
        """Return the times on hardware where they are ``factor`` times as long."""
        return replace(
            self,
            train=self.train * factor,
            evaluate=None if self.evaluate is None else self.evaluate * factor,
            floor=None if self.floor is None else self.floor * factor,
            how=f"{self.how}; {why}",
        )

    def reading(self, seconds: float) -> EpochSeconds:
        """Return the times where rows are read from a disk beside training, which takes ``seconds``."""
        if seconds <= self.train:
            return self
        return replace(self, train=seconds, how=f"{self.how}; the disk is slower")


def sampled_seconds(trial: Trial, plan: Plan | None) -> EpochSeconds:
    """Return the time of an epoch on mini-batches.

    Args:
        trial: the run.
        plan: its plan, whose simulated epoch counts. If None, some steps are tried.
    """
    if plan is not None:
        train, how = plan.predicted_seconds, "the plan's simulated epoch"
    else:
        train, how = _tried_epoch(trial)
    evaluate = None
    if (nodes := trial.val_nodes) is not None:
        mode = trial.config.eval_mode
        if mode == "sampled" or _is_cheap(trial):
            evaluate = _evaluation(trial, nodes, mode)
    return EpochSeconds(train=train, evaluate=evaluate, how=how)


def full_seconds(trial: Trial, engine: Engine | None, *, fits: bool) -> EpochSeconds | None:
    """Return the time of an epoch on the whole graph; None where nothing is known.

    Args:
        trial: the run.
        engine: its compiled step. If None, the model runs as it is written.
        fits: whether a step may be tried, since its memory is free.
    """
    floor = None if engine is None else engine.floor().floor_seconds
    if not fits or (floor or 0.0) > SECONDS:
        if floor is None:
            return None
        return EpochSeconds(train=floor, floor=floor, how="the least that it can take; nothing was tried")
    assert trial.graph.y is not None
    labels = trial.graph.y.index_select(0, trial.nodes)
    batch = WholeGraph(nodes=trial.nodes.to(trial.device), seed_y=labels.to(trial.device))
    trial.runner.engine = engine
    try:
        first = _seconds(lambda: trial.step(batch))
        warm = min(2, int(SECONDS / max(first, 1e-9)))
        for _ in range(warm):  # kernels' arguments are bound in the first steps
            first = min(first, _seconds(lambda: trial.step(batch)))
        count = max(1, min(REPEATS, int(SECONDS / max(first, 1e-9))))
        train = statistics.median(_seconds(lambda: trial.step(batch)) for _ in range(count))
        evaluate = None
        if (nodes := trial.val_nodes) is not None:
            evaluate = _evaluation(trial, nodes, "exact")
    finally:
        trial.runner.engine = None
        trial.runner.forget_graph()
    return EpochSeconds(train=train, evaluate=evaluate, floor=floor, how=f"the median of {count} steps tried")


def _tried_epoch(trial: Trial) -> tuple[float, str]:
    config = trial.config.updated(plan=None)
    with make_loader(trial.runner, config, trial.nodes) as loader:
        # Threads allocate their buffers, which later batches reuse, and torch finds its kernels.
        warm, steps = min(loader.ahead + 2, len(loader)), len(loader)
        seconds = _run(trial, loader.batches(0, 0, warm)) / warm
        count = min(steps, max(FEWEST, min(STEPS, int(SECONDS / max(seconds, 1e-9)))))
        taken = _run(trial, loader.batches(1, 0, count))
    return taken / count * steps, f"{count} of {steps} steps tried"


def _run(trial: Trial, batches: Generator[MiniBatch]) -> float:
    started = time.perf_counter()
    with contextlib.closing(batches) as opened:
        for batch in opened:
            trial.step(batch)
            del batch  # so that the threads can reuse its buffer
    return time.perf_counter() - started


def _evaluation(trial: Trial, nodes: Tensor, mode: EvalMode) -> float:
    """Return an epoch's share of a validation; of a sampled one some batches are tried."""
    config, size = trial.config, trial.config.eval_batch_size
    metrics = metric_names(trial.task, config.metrics)

    def seconds_of(part: Tensor) -> float:
        return _seconds(lambda: score(trial.runner, config, part, mode, task=trial.task, metrics=metrics))

    share = nodes.numel() if mode == "exact" else min(nodes.numel(), 4 * size)
    taken = seconds_of(nodes[:share])  # also a warm-up
    if taken < SECONDS / 4:
        if mode == "sampled":
            more = max(1, int(SECONDS / 2 / taken * share / size)) * size
            share = min(nodes.numel(), more)
        taken = seconds_of(nodes[:share])
    return taken * nodes.numel() / share / config.eval_every


def _is_cheap(trial: Trial) -> bool:
    """Return whether one pass over the whole graph, by the machine's rates, takes less than a trial may."""
    runner, graph = trial.runner, trial.graph
    if whole_bytes(runner) > trial.config.memory_budget_bytes:
        return False
    layers = int(getattr(runner.model, "num_layers", 3))
    width = max(graph.num_features, widest_layer(runner.model))
    return layers * machine_rates().aggregate_seconds(graph.num_edges, width) < SECONDS


def _seconds(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started
