"""The time of an epoch on the whole graph: some steps tried on copies, or what is known of longer ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from graphbraid.estimates.trial import PartSeconds, Trial, of_tries, timed
from graphbraid.fullgraph import Engine
from graphbraid.machine.contention import OtherPrograms
from graphbraid.train.estimating.seconds.epoch_seconds import NOTHING, EpochSeconds
from graphbraid.train.estimating.seconds.evaluations import evaluation_seconds
from graphbraid.train.estimating.seconds.streamed import DiskSeconds, disk_seconds
from graphbraid.train.estimating.trials.whole_passes import part_of
from graphbraid.train.step.batches import WholeGraph
from graphbraid.train.step.whole import compile_for

SECONDS = 4.0
"""Seconds that a trial takes, about."""
REPEATS = 12
"""Steps of a trial at most."""
_LEAST_PART, _PART_OF_TRIAL = 1 << 12, 0.125
"""Nodes of the graph on which a step is tried in place of a long one, and its floor as a part of a trial."""
_MOST_PART_BYTES = 256 << 20
"""Most bytes of the features of that graph, where the whole graph's do not lie in memory."""


def full_seconds(
    trial: Trial, engine: Engine | None, *, fits: bool, bytes_per_second: float | None = None
) -> EpochSeconds | None:
    """Return the time of an epoch on the whole graph; None where nothing is known.

    Args:
        trial: the run.
        engine: its compiled step. If None, the model runs as it is written.
        fits: whether a step may be tried, since its memory is free.
        bytes_per_second: that the disk of features which are streamed gives. If None, it is measured.
    """
    floor = None if engine is None else engine.floor().floor_seconds
    if not fits and floor is None:
        return None
    disk = None if engine is None else disk_seconds(trial, engine, bytes_per_second)
    is_long = floor is not None and floor > SECONDS
    if floor is not None and (not fits or is_long or (disk is not None and disk.of_trial > SECONDS)):
        found = _by_a_part(trial, floor, is_streamed=disk is not None)
        return found if disk is None else _beside_the_disk(found, disk, trial)
    return _tried(trial, engine, floor)


def _tried(trial: Trial, engine: Engine | None, floor: float | None) -> EpochSeconds:
    """Return the time of steps that are made."""
    assert trial.graph.y is not None
    labels = trial.graph.y.index_select(0, trial.nodes)
    batch = WholeGraph(nodes=trial.nodes.to(trial.device), seed_y=labels.to(trial.device))
    trial.runner.engine = engine
    with trial.evaluating():  # as a run does before it begins
        trial.runner.outputs_of(batch)
    others, validation, test = OtherPrograms(), NOTHING, NOTHING
    try:
        cold = timed(lambda: trial.step(batch))
        tries = _warm_steps(lambda: timed(lambda: trial.step(batch)))
        train = of_tries(tries)
        if (nodes := trial.val_nodes) is not None:
            validation = evaluation_seconds(trial, nodes, "exact", most=SECONDS)
        if (nodes := trial.test_nodes) is not None:
            test = evaluation_seconds(trial, nodes, "exact", most=SECONDS)
    finally:
        trial.runner.engine = None
        trial.runner.forget_graph()
    share = validation.times(1 / max(trial.config.eval_every, 1))
    return EpochSeconds(
        train=train.known,
        evaluate=share.seconds,
        evaluate_how=share.how,
        first=max(0.0, cold - train.known),
        test=test.seconds,
        test_how=test.how,
        floor=floor,
        how=f"the median of {len(tries)} steps tried",
        others=others.share(),
        train_spread=train.spread,
        evaluate_spread=share.spread,
        test_spread=test.spread,
    )


def _warm_steps(step: Callable[[], float]) -> list[float]:
    """Return the seconds of steps behind the first one, whose own say little: it may read a whole file.

    Args:
        step: makes a step and returns its seconds.
    """
    taken = step()
    if taken > SECONDS / 2:
        return [taken]
    taken = min(taken, step())  # kernels' arguments are bound in the first steps
    return [step() for _ in range(max(1, min(REPEATS, int(SECONDS / max(taken, 1e-9)))))]


def _by_a_part(trial: Trial, floor: float, *, is_streamed: bool) -> EpochSeconds:
    """Return the time of a step that is not tried: its floor, times what a small one takes of its own floor.

    The small one is on a graph in memory of the same mean degree, feature rows and shares of the splits.
    """
    unknown = EpochSeconds(train=floor, floor=floor, how="the least that it can take; nothing was tried")
    graph = trial.graph
    count = max(_LEAST_PART, int(graph.num_nodes * _PART_OF_TRIAL * SECONDS / floor))
    if is_streamed:  # however short it is, since its features are read
        count = min(count, graph.num_nodes // 2, _MOST_PART_BYTES // (4 * graph.num_features))
    if count < 1 or count > graph.num_nodes // 2:
        return unknown
    small = _small_trial(trial, count)
    engine, _ = compile_for(small.runner, small.config, small.nodes)
    found = None if engine is None else _tried(small, engine, engine.floor().floor_seconds)
    if found is None or not found.floor:
        return unknown
    times, larger = max(found.train / found.floor, 1.0), graph.num_nodes / count
    how = f"as on {count:,} nodes of the same degree"
    step = PartSeconds(found.train, how, found.train_spread).times(floor / found.floor)
    validation = PartSeconds(found.evaluate, how * bool(found.evaluate_how), found.evaluate_spread)
    validation = validation.times(larger)
    test = PartSeconds(found.test, how * bool(found.test_how), found.test_spread).times(larger)
    return EpochSeconds(
        train=floor * times,
        evaluate=validation.seconds,
        evaluate_how=validation.how,
        test=test.seconds,
        test_how=test.how,
        floor=floor,
        how=f"{times:.2g} times its floor, {how}",
        train_spread=step.spread,
        evaluate_spread=validation.spread,
        test_spread=test.spread,
    )


def _small_trial(trial: Trial, count: int) -> Trial:
    graph, ids = trial.graph, torch.arange(count)
    evaluated = {"train": trial.nodes, "val": trial.val_nodes, "test": trial.test_nodes}
    splits = {
        name: ids[: max(1, count * nodes.numel() // graph.num_nodes)]
        for name, nodes in evaluated.items()
        if nodes is not None
    }
    config = trial.config.updated(patience=None, host=None, out_dir=None)
    return Trial(trial.runner.model, part_of(graph, count).replace(splits=splits), config)


def _beside_the_disk(found: EpochSeconds, disk: DiskSeconds, trial: Trial) -> EpochSeconds:
    """Return the times of a run that reads its features from a disk, ahead of their use."""
    evaluate, test = found.evaluate, found.test
    if evaluate is not None:
        evaluate = max(evaluate, disk.evaluation / trial.config.eval_every)
    if test is not None:
        test = max(test, disk.evaluation)
    how = f"the slower of the steps, {found.how}, and {disk.how}"
    train = max(found.train, disk.epoch)
    return replace(found, train=train, evaluate=evaluate, test=test, first=disk.first, how=how)
