"""The time of an epoch: the plan's where there is one, else a short trial on copies."""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from graphbraid.collective import Plan
from graphbraid.fullgraph import Engine
from graphbraid.fullgraph.measured.kept_rates import machine_rates
from graphbraid.machine.contention import OtherPrograms, is_disturbed
from graphbraid.sampling import MiniBatch
from graphbraid.train.estimating.links import link_evaluation_seconds
from graphbraid.train.estimating.sampled import are_mapped
from graphbraid.train.estimating.trial import Trial
from graphbraid.train.estimating.whole_passes import part_of
from graphbraid.train.inference.evaluate import EvalMode, score
from graphbraid.train.inference.infer import whole_bytes
from graphbraid.train.inference.layer_wise import widest_layer
from graphbraid.train.inference.metrics import metric_names
from graphbraid.train.step.batches import WholeGraph
from graphbraid.train.step.feed import make_loader
from graphbraid.train.step.link_runner import LinkRunner
from graphbraid.train.step.runner import ModelRunner
from graphbraid.train.step.whole import compile_for

SECONDS = 4.0
"""That a trial takes, about."""
FEWEST = 8
"""Steps of a trial, at least; an epoch of fewer is run as a whole."""
REPEATS = 12
"""Short epochs, or steps on the whole graph, of a trial at most."""
_LEAST_PART, _PART_OF_TRIAL = 1 << 12, 0.125
"""Nodes of the graph on which a step is tried in place of a long one, and its floor as a part of a trial."""


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
    others: float | None = None
    """Share of the cores that other programs used while steps were tried; None if it is not known."""

    @property
    def explained(self) -> str:
        """Where the times are from, and whether other programs made them longer."""
        if not is_disturbed(self.others):
            return self.how
        return f"{self.how}, while other programs used {self.others:.0%} of the cores; alone, a run is faster"

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

    def with_tiers(self, seconds: float, how: str) -> EpochSeconds:
        """Return the times of a run that trains ``seconds`` an epoch with its rows in tiers.

        Its validations are taken to slow down as its training does.
        """
        slower = max(seconds / self.train, 1.0) if self.train else 1.0
        evaluate = None if self.evaluate is None else self.evaluate * slower
        return replace(self, train=seconds, evaluate=evaluate, how=how)


class Pace(NamedTuple):
    """The seconds of an epoch's training, by its reads that a disk serves."""

    points: tuple[tuple[float, float], ...]
    """Reads of the disk and the seconds with so many, both ascending; the first with none."""
    how: str
    """How they are known."""

    def seconds(self, disk_reads: float) -> float:
        """Return the seconds of an epoch with ``disk_reads``."""
        reads, seconds = zip(*self.points, strict=True)
        return float(np.interp(disk_reads, reads, seconds))


class Tried(NamedTuple):
    """The time of an epoch's training, from a trial."""

    seconds: float
    how: str


def sampled_seconds(trial: Trial, plan: Plan | None) -> EpochSeconds:
    """Return the time of an epoch on mini-batches.

    Args:
        trial: the run.
        plan: its plan, whose simulated epoch counts. If None, some steps are tried.
    """
    others = OtherPrograms()
    if plan is not None:
        train, how = plan.predicted_seconds, "the plan's simulated epoch"
    else:
        train, how = tried_epoch(trial)
    evaluate = None
    if (nodes := trial.val_nodes) is not None:
        mode, links = trial.config.eval_mode, trial.runner if isinstance(trial.runner, LinkRunner) else None
        if mode == "sampled" or _is_cheap(trial.runner if links is None else links.encoder_runner(), trial):
            evaluate = (
                _evaluation(trial, nodes, mode)
                if links is None
                else link_evaluation_seconds(trial, links, nodes, most=SECONDS) / trial.config.eval_every
            )
    return EpochSeconds(train=train, evaluate=evaluate, how=how, others=others.share())


def full_seconds(trial: Trial, engine: Engine | None, *, fits: bool) -> EpochSeconds | None:
    """Return the time of an epoch on the whole graph; None where nothing is known.

    Args:
        trial: the run.
        engine: its compiled step. If None, the model runs as it is written.
        fits: whether a step may be tried, since its memory is free.
    """
    floor = None if engine is None else engine.floor().floor_seconds
    if not fits and floor is None:
        return None
    if floor is not None and (not fits or floor > SECONDS):
        return _by_a_part(trial, floor)
    assert trial.graph.y is not None
    labels = trial.graph.y.index_select(0, trial.nodes)
    batch = WholeGraph(nodes=trial.nodes.to(trial.device), seed_y=labels.to(trial.device))
    trial.runner.engine = engine
    others = OtherPrograms()
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
    how = f"the median of {count} steps tried"
    return EpochSeconds(train=train, evaluate=evaluate, floor=floor, how=how, others=others.share())


def _by_a_part(trial: Trial, floor: float) -> EpochSeconds:
    """Return the time of a step that is not tried: its floor, times what a small one takes of its own floor.

    The small one is on a graph of the same mean degree, feature rows and share of training nodes.
    """
    unknown = EpochSeconds(train=floor, floor=floor, how="the least that it can take; nothing was tried")
    graph = trial.graph
    count = max(_LEAST_PART, int(graph.num_nodes * _PART_OF_TRIAL * SECONDS / floor))
    if count > graph.num_nodes // 2:
        return unknown
    train = torch.arange(max(1, count * trial.nodes.numel() // graph.num_nodes))
    part = part_of(graph, count).replace(splits={"train": train})
    small = Trial(trial.runner.model, part, trial.config.updated(eval_every=0, patience=None))
    engine, _ = compile_for(small.runner, small.config, small.nodes)
    found = None if engine is None else full_seconds(small, engine, fits=True)
    if found is None or not found.floor:
        return unknown
    times = max(found.train / found.floor, 1.0)
    how = f"{times:.2g} times its floor, as on {count:,} nodes of the same degree"
    return EpochSeconds(train=floor * times, floor=floor, how=how)


def tried_epoch(trial: Trial) -> Tried:
    """Return the time of an epoch's training, by steps on mini-batches that are prepared as a run's are.

    A short epoch is run to its end, several times. A longer one is left when the time is up, its threads
    having gone on with what comes next until then.
    """
    with make_loader(trial.runner, trial.config.updated(plan=None), trial.nodes) as loader:
        steps = most = len(loader)
        ahead = 0 if trial.runner.rows is not None else loader.ahead
        # Threads allocate their buffers, which later batches reuse, and torch finds its kernels.
        _marks(trial, loader.batches(0, 0, min(ahead + 2, steps)))
        if trial.runner.rows is None and are_mapped(trial.graph):
            # As after a run's first epoch, the system has the pages of the file that are read.
            most = len(_marks(trial, loader.batches(1), seconds=SECONDS / 2))
        epochs: list[float] = []
        while not epochs or (len(epochs) < REPEATS and sum(epochs) + epochs[-1] <= SECONDS):
            seconds = math.inf if epochs else SECONDS
            marks = _marks(trial, loader.batches(1 + len(epochs)), seconds=seconds, most=most)
            if len(marks) < steps:
                return Tried(whole_epoch(marks, steps, ahead), f"{len(marks)} of {steps} steps tried")
            epochs.append(marks[-1])
    times = "once" if len(epochs) == 1 else f"{len(epochs)} times"
    return Tried(statistics.median(epochs), f"all {steps} steps tried {times}")


def whole_epoch(marks: Sequence[float], steps: int, ahead: int) -> float:
    """Return the seconds of an epoch, by its first steps.

    Args:
        marks: seconds from its start to the end of each of these, two at least.
        steps: of the whole epoch.
        ahead: batches prepared ahead. Once as many have been taken, later ones come as fast as they will.
    """
    even = max(1, min(ahead + 1, len(marks) // 2))
    each = (marks[-1] - marks[even - 1]) / (len(marks) - even)
    return marks[even - 1] + (steps - even) * each


def _marks(
    trial: Trial, batches: Generator[MiniBatch], *, seconds: float = math.inf, most: int | None = None
) -> list[float]:
    """Make steps until the time is up, and return the seconds from the start to the end of each."""
    marks: list[float] = []
    started = time.perf_counter()
    with contextlib.closing(batches) as opened:
        for batch in opened:
            trial.step(batch)
            del batch  # so that the threads can reuse its buffer
            marks.append(time.perf_counter() - started)
            if len(marks) == most or (len(marks) >= FEWEST and marks[-1] >= seconds):
                break
    return marks


def _evaluation(trial: Trial, nodes: Tensor, mode: EvalMode) -> float:
    """Return an epoch's share of a validation; of a sampled one some batches are tried, spread over it."""
    config, size = trial.config, trial.config.eval_batch_size
    metrics = metric_names(trial.task, config.metrics)

    def seconds_of(part: Tensor) -> float:
        return _seconds(lambda: score(trial.runner, config, part, mode, task=trial.task, metrics=metrics))

    part = nodes if mode == "exact" else some_batches(nodes, size, 4)
    taken = seconds_of(part)  # also a warm-up
    if taken < SECONDS / 4:
        if mode == "sampled":
            part = some_batches(nodes, size, max(1, int(SECONDS / 2 / taken * part.numel() / size)))
        taken = seconds_of(part)
    return taken * nodes.numel() / part.numel() / config.eval_every


def some_batches(nodes: Tensor, size: int, count: int) -> Tensor:
    """Return the nodes of at most ``count`` batches of ``size``, spread evenly over all of them.

    Ids often go by degree or by community, so that the first batches are no example of the others.
    """
    batches = torch.split(nodes, size)
    count = min(count, len(batches))
    return torch.cat([batches[len(batches) * place // count] for place in range(count)])


def _is_cheap(runner: ModelRunner, trial: Trial) -> bool:
    """Return whether one pass over the whole graph, by the machine's rates, takes less than a trial may."""
    graph = trial.graph
    if whole_bytes(runner) > trial.config.memory_budget_bytes:
        return False
    layers = int(getattr(runner.model, "num_layers", 3))
    width = max(graph.num_features, widest_layer(runner.model))
    return layers * machine_rates().aggregate_seconds(graph.num_edges, width) < SECONDS


def _seconds(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started
