"""Seconds of a run on mini-batches: a handful of its steps, evaluations and checkpoints, made on copies."""

from __future__ import annotations

import contextlib
import itertools
import math
import tempfile
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from graphbraid.errors import GraphbraidError
from graphbraid.estimates.machine import may_be_tried
from graphbraid.estimates.memory import are_mapped, link_evaluation_seconds
from graphbraid.estimates.records import EpochSeconds, PartSeconds
from graphbraid.estimates.trial import Trial, repeated, timed
from graphbraid.files.writing import format_bytes
from graphbraid.graph import Graph, SparseFeatures
from graphbraid.machine.measurements import OtherPrograms
from graphbraid.nn import module_traits
from graphbraid.sampling import MiniBatch
from graphbraid.train.inference.evaluate import EvalMode, score
from graphbraid.train.inference.infer import by_level, whole_bytes
from graphbraid.train.inference.metrics import Scores, metric_kinds
from graphbraid.train.run_folder import checkpoint
from graphbraid.train.step.links.runner import EdgeRunner, LinkRunner
from graphbraid.train.step.reach import depth
from graphbraid.train.step.runner import ModelRunner
from graphbraid.train.step.step import ALONE, Share, make_loader
from graphbraid.train.step.tiers import share_of

if TYPE_CHECKING:
    from graphbraid.fullgraph.batches.layer_wise import LayerWise, LevelPass

SECONDS = 1.0
"""Seconds that trials of a run's steps take, about; those of an evaluation take half as long."""
FEWEST = 8
"""Fewest steps that are tried; an epoch of fewer is run as a whole."""
_LONGEST_PASS = 4.0
"""Longest pass over the whole graph, by the machine's rates, that is tried."""
_CHUNK_NODES = 64
"""Nodes with all their neighbours that exact inference of any module begins with."""
_MOST_LAYER_BYTES = 1 << 30
"""Most bytes of a layer's rows for exact inference by layers to be tried."""
_CPU = torch.device("cpu")


def sampled_seconds(trial: Trial, planned: float | None = None) -> EpochSeconds:
    """Return the time of an epoch on mini-batches, and of the run's evaluations and checkpoints.

    ``planned`` has the seconds of the plan's simulated epoch. If None, some steps are tried.
    """
    others, first = OtherPrograms(), 0.0
    if planned is None:
        train, first = tried_epoch(trial)
    else:
        train = PartSeconds(planned, "the plan's simulated epoch")
    validation, test = evaluations(trial, trial.config.eval_mode)
    return EpochSeconds(train=train, validation=validation, test=test, first=first, others=others.share())


def evaluations(trial: Trial, mode: EvalMode) -> tuple[PartSeconds | None, PartSeconds | None]:
    """Return the time of an epoch's share of a validation, and of the test; None for one that is not made."""
    validation = test = None
    if trial.val_nodes is not None:
        validation = evaluation_seconds(trial, trial.val_nodes, mode).times(1 / trial.config.eval_every)
    if trial.test_nodes is not None:
        test = evaluation_seconds(trial, trial.test_nodes, "exact")
    return validation, test


# ---- steps


def tried_epoch(
    trial: Trial, share: Share = ALONE, *, seconds: float = SECONDS, steps_seconds: list[float] | None = None
) -> tuple[PartSeconds, float]:
    """Return the time of an epoch's training, and how much longer a run's first epoch takes.

    Steps are made on mini-batches that are prepared as a run's are. A short epoch is run to its end, and
    again while there is time. A longer one is left when the time is up, its threads having prepared what
    comes next until then. A trial takes about ``seconds``. Those of each step but an epoch's first are added
    to ``steps_seconds``.
    """
    config = trial.config.updated(plan=None)
    with make_loader(trial.runner, config, trial.nodes, share=share) as loader:
        steps = most = len(loader)
        ahead = 0 if trial.runner.rows is not None else loader.ahead
        # Threads allocate their buffers, which later batches reuse, and torch finds its kernels.
        cold = _marks(trial, loader.batches(0, 0, min(ahead + 2, steps)))
        if trial.runner.rows is None and are_mapped(trial.graph):
            # As after a run's first epoch, the system has the pages of the file that are read.
            cold = _marks(trial, loader.batches(1), seconds=seconds / 2)
            most = len(cold)
        epochs: list[float] = []
        while not epochs or sum(epochs) + epochs[-1] <= seconds:
            limit = math.inf if epochs else seconds
            marks = _marks(trial, loader.batches(1 + len(epochs)), seconds=limit, most=most)
            if steps_seconds is not None:
                steps_seconds += (end - begin for begin, end in itertools.pairwise(marks))
            count = min(len(cold), len(marks))
            first = max(0.0, cold[count - 1] - marks[count - 1])
            if len(marks) < steps:
                return whole_epoch(marks, steps, ahead), first
            epochs.append(marks[-1])
    times = "once" if len(epochs) == 1 else f"{len(epochs)} times"
    return PartSeconds(median(epochs), f"all {steps} steps tried {times}"), first


def whole_epoch(marks: Sequence[float], steps: int, ahead: int) -> PartSeconds:
    """Return the time of an epoch by its first steps.

    ``marks`` are seconds from its start to the end of each of these, two at least. Batches prepared ``ahead``
    come faster than later ones.
    """
    even = max(1, min(ahead + 1, len(marks) // 2))
    each = (marks[-1] - marks[even - 1]) / (len(marks) - even)
    seconds = marks[even - 1] + (steps - even) * each
    return PartSeconds(seconds, f"{len(marks)} of {steps} steps tried")


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


def training_seconds(trial: Trial, share: Share = ALONE) -> float:
    """Return the seconds of all training steps of a run with its rows at hand.

    A store's file is not read for it: its rows are made up.
    """
    share = share_of(share, trial.config, trial.nodes)
    with rows_made_up(trial):
        return tried_epoch(trial, share, seconds=SECONDS / 2)[0].known * trial.config.epochs


@contextlib.contextmanager
def rows_made_up(trial: Trial) -> Iterator[None]:
    """Let a trial read made-up rows where a store's file holds the graph's, within the ``with`` block.

    Even a few rows would map many pages of the file into memory.
    """
    runner, kept = trial.runner, trial.runner.rows
    if kept is None and are_mapped(trial.graph):
        runner.rows = _MadeUpRows(trial.graph)
    try:
        yield
    finally:
        runner.rows = kept


class _MadeUpRows:
    """Random numbers in place of a graph's dense features, which are not read."""

    lookahead = 0
    hot = in_memory = None

    def __init__(self, graph: Graph) -> None:
        x = graph.x
        assert not isinstance(x, SparseFeatures | None), "a store's file holds dense rows"
        self.shape, self.dtype = torch.Size((graph.num_nodes, graph.num_features)), x.dtype

    def announce(self, ids: Tensor) -> int:
        """Take no notice; gives -1."""
        return -1

    def gather(self, ids: Tensor, out: Tensor | None = None, *, batch: int = -1) -> Tensor:
        """``(num_ids, F)`` numbers in [0, 1)."""
        rows = torch.rand(len(ids), self.shape[1]).to(self.dtype)
        return rows if out is None else out.copy_(rows)

    def forget(self) -> None:
        """Do nothing: nothing was announced."""


# ---- evaluations


def evaluation_seconds(
    trial: Trial, nodes: Tensor, mode: EvalMode, *, most: float = SECONDS / 2
) -> PartSeconds:
    """Return the time of an evaluation of ``nodes``, tried for about ``most`` seconds.

    Some batches of a sampled one are tried, spread over the split. An exact one is made where a pass over the
    graph is cheap. Else some chunks of its layers are tried, or some of its nodes.
    """
    runner = trial.runner
    if isinstance(runner, LinkRunner):
        if mode == "exact" and _pass_seconds(trial, runner.encoder_runner()) > _LONGEST_PASS:
            return PartSeconds(None, "an exact pass takes longer than a trial may, and was not tried")
        taken = link_evaluation_seconds(trial, runner, nodes, mode, most=most)
        return PartSeconds(taken, "some rows and ranks tried")
    if isinstance(runner, EdgeRunner) and mode == "exact":
        if _pass_seconds(trial, runner.encoder_runner()) > _LONGEST_PASS:
            return PartSeconds(None, "an exact pass takes longer than a trial may, and was not tried")
        return PartSeconds(repeated(lambda: _scoring(trial, nodes, mode), most=most), "exact, tried")
    if mode == "sampled" or trial.graphs is not None:
        return _of_some(trial, nodes, "sampled", trial.config.eval_batch_size, most)
    return _exact_seconds(trial, nodes, most)


def _exact_seconds(trial: Trial, nodes: Tensor, most: float) -> PartSeconds:
    runner = trial.runner
    if runner.engine is None and whole_bytes(runner) > trial.config.memory_budget_bytes:
        with trial.evaluating():
            walk = by_level(runner, trial.config)
        if isinstance(walk, Exception):
            return _of_some(trial, nodes, "exact", _CHUNK_NODES, most)
        if 4 * trial.graph.num_nodes * runner.widest > _MOST_LAYER_BYTES:
            return PartSeconds(None, "its layers are too large to be tried")
        return _of_chunks(trial, walk, nodes, most)
    seconds = 0.0 if runner.engine is not None else _pass_seconds(trial, runner)
    if seconds > _LONGEST_PASS:
        return PartSeconds(None if math.isinf(seconds) else seconds, "by the machine's rates, not tried")
    return PartSeconds(repeated(lambda: _scoring(trial, nodes, "exact"), most=most), "exact, tried")


def _of_some(trial: Trial, nodes: Tensor, mode: EvalMode, size: int, most: float) -> PartSeconds:
    part = some_batches(nodes, size, 4)
    taken = _scoring(trial, part, mode)  # also a warm-up
    if taken < most / 2:
        part = some_batches(nodes, size, max(1, int(most / 4 / taken * part.numel() / size)))
        taken = repeated(lambda: _scoring(trial, part, mode), most=most)
    how = f"{part.numel():,} of {nodes.numel():,} nodes tried"
    return PartSeconds(taken * nodes.numel() / part.numel(), how)


def some_batches(nodes: Tensor, size: int, count: int) -> Tensor:
    """Return the nodes of at most ``count`` batches of ``size``, spread evenly over all of them.

    Ids often go by degree or by community, so that the first batches are no example of the others.
    """
    batches = torch.split(nodes, size)
    count = min(count, len(batches))
    return torch.cat([batches[len(batches) * place // count] for place in range(count)])


def _scoring(trial: Trial, nodes: Tensor, mode: EvalMode) -> float:
    metrics = metric_kinds(trial.task, trial.config.metrics)
    return timed(lambda: score(trial.runner, trial.config, nodes, mode, task=trial.task, metrics=metrics))


def _pass_seconds(trial: Trial, runner: ModelRunner) -> float:
    """Return the seconds of a pass over the graph by the machine's rates; infinite if it may not fit."""
    graph, needed = trial.graph, whole_bytes(runner)
    if needed > trial.config.memory_budget_bytes or not may_be_tried(needed):
        return math.inf
    from graphbraid.fullgraph.rates import machine_rates  # here: runs measure none

    layers = module_traits.num_layers(runner.model)
    layers = depth(runner.model, trial.config) if layers is None else layers
    width = max(graph.num_features, runner.widest)
    return layers * machine_rates().aggregate_seconds(graph.num_edges, width)


def _of_chunks(trial: Trial, walk: LayerWise, nodes: Tensor, most: float) -> PartSeconds:
    """Return the time of exact inference by layers: some chunks of each pass are computed and scored.

    Which nodes a pass is over, and how they are cut, is found as the evaluation itself finds it. Rows that a
    later pass reads are written all, as zeros.
    """
    task, labels = trial.task.to(_CPU), trial.runner.labels.y
    assert labels is not None, "the task is that of labels"
    tried = count = 0
    total = 0.0
    with trial.evaluating():
        started = time.perf_counter()
        passes = walk.passes(nodes)
        scores = Scores(task, metric_kinds(task, trial.config.metrics), _CPU)
        total += time.perf_counter() - started
        for one in passes:
            cuts, is_last = walk.cut(one), one is passes[-1]
            times = list[float]()
            for start, end in _spread(cuts, times, most / len(passes)):
                began = time.perf_counter()
                rows = walk.rows(one, one.nodes[start:end])
                if is_last:
                    outputs = rows[walk.program.output].float()
                    scores.update(outputs, labels.index_select(0, nodes[start:end]))
                times.append(time.perf_counter() - began)
            total += len(cuts) * fmean(times[1:] or times)  # the first one is a warm-up
            tried, count = tried + len(times), count + len(cuts)
            if not is_last:
                total += timed(lambda one=one, cuts=cuts, rows=rows: _keep_zeros(walk, one, cuts, rows))  # type: ignore[misc]
        total += timed(scores.compute)
    return PartSeconds(total, f"exact, {tried:,} of {count:,} chunks tried")


def _keep_zeros(
    walk: LayerWise, one: LevelPass, cuts: Sequence[tuple[int, int]], like: Mapping[str, Tensor]
) -> None:
    walk.begin(one)
    for start, end in cuts:
        walk.keep(
            one, start, {value: rows.new_zeros(end - start, rows.shape[1]) for value, rows in like.items()}
        )


def _spread(
    cuts: Sequence[tuple[int, int]], times: Sequence[float], most: float
) -> Iterator[tuple[int, int]]:
    """Yield the first chunk, and as many spread over all as take ``most`` seconds, by what it took."""
    yield cuts[0]
    count = min(len(cuts), int(most / max(times[0], 1e-9)))
    if count > 1:
        yield from (cuts[len(cuts) * place // count] for place in range(count))


# ---- checkpoints


def checkpoint_seconds(trial: Trial, num_steps: int) -> PartSeconds | None:
    """Return the time of an epoch's checkpoints: one is written and removed. None without a folder."""
    folder, every = trial.config.out_dir, trial.config.checkpoint_every_steps
    if folder is None:
        return None
    place = folder.absolute()
    while not place.is_dir() and place != place.parent:
        place = place.parent
    count = 1 + ((num_steps - 1) // every if every else 0)
    contents = dict.fromkeys(checkpoint.KEYS, 0) | trial.learned()  # the other parts are small
    try:
        with tempfile.TemporaryDirectory(prefix=".graphbraid-estimate-", dir=place) as made:
            path = Path(made) / "checkpoint.pt"
            seconds = timed(lambda: checkpoint.write(path, contents))
            nbytes = path.stat().st_size
    except (OSError, GraphbraidError) as error:
        return PartSeconds(None, f"none could be written: {error}")
    how = f"{count} of {format_bytes(nbytes)}, written to that disk; as much again where it is the best epoch"
    return PartSeconds(count * seconds, how)
