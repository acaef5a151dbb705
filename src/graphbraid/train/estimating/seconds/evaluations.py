"""How long a validation and the test take: the evaluation itself, or some of it, on the trial's copies."""

from __future__ import annotations

import torch
from torch import Tensor

from graphbraid.estimates.allocation import may_be_tried
from graphbraid.estimates.trial import REPEATS, PartSeconds, Trial, of_tries, repeated, timed
from graphbraid.fullgraph.measured.rates import machine_rates
from graphbraid.nn import told
from graphbraid.train.estimating.memory.links import link_evaluation_seconds
from graphbraid.train.estimating.seconds.layer_chunks import are_chunks_tried, chunk_seconds
from graphbraid.train.estimating.trials.likeness import likeness_of, places_of
from graphbraid.train.inference.evaluate import EvalMode, score
from graphbraid.train.inference.infer import depth, whole_bytes
from graphbraid.train.inference.metrics import metric_names
from graphbraid.train.step.links.runner import LinkRunner
from graphbraid.train.step.runner import ModelRunner

_LEAST_PART, _LEAST_BUDGET = 1 << 12, 1 << 16
"""Nodes of the first graph on which an exact evaluation is tried in place of a long one; a budget's least."""


def evaluation_seconds(trial: Trial, nodes: Tensor, mode: EvalMode, *, most: float) -> PartSeconds:
    """Return the time of an evaluation of ``nodes``, tried for about ``most`` seconds.

    A sampled one is some of its batches, spread over the split. An exact one is run as it is where one pass
    over the graph is cheap, else some chunks of its layers are, or it is run on two smaller graphs.
    """
    runner = trial.runner
    is_link = isinstance(runner, LinkRunner)
    passes = runner.encoder_runner() if isinstance(runner, LinkRunner) else runner
    is_tried = mode == "sampled" or runner.engine is not None or _is_cheap(passes, trial, most)
    if isinstance(runner, LinkRunner) and is_tried:
        seconds = link_evaluation_seconds(trial, runner, nodes, mode, most=most)
        return PartSeconds(seconds, "some rows and ranks tried")
    if is_tried:
        return _some_batches(trial, nodes, most) if mode == "sampled" else as_it_is(trial, nodes, most)
    if is_link or trial.graph.is_typed:
        return PartSeconds(None, "an exact pass takes longer than a trial may, and was not tried")
    if are_chunks_tried(trial):
        return chunk_seconds(trial, nodes, most=most / 2)
    return _by_parts(trial, nodes, most)


def _some_batches(trial: Trial, nodes: Tensor, most: float) -> PartSeconds:
    size = trial.config.eval_batch_size
    part = some_batches(nodes, size, 4)
    taken = _scoring(trial, trial.runner, part, "sampled")  # also a warm-up
    found = of_tries([taken])
    if taken < most / 4:
        part = some_batches(nodes, size, max(1, int(most / 8 / taken * part.numel() / size)))
        found = repeated(lambda: _scoring(trial, trial.runner, part, "sampled"), most=most / 2)
    how = f"{part.numel():,} of {nodes.numel():,} nodes tried"
    return PartSeconds(found.seconds, how, found.spread).times(nodes.numel() / part.numel())


def as_it_is(trial: Trial, nodes: Tensor, most: float) -> PartSeconds:
    """Return the time of an exact evaluation of ``nodes``, made for about ``most / 2`` seconds."""
    found = repeated(lambda: _scoring(trial, trial.runner, nodes, "exact"), most=most / 2)
    return PartSeconds(found.seconds, "exact, tried", found.spread)


def _by_parts(trial: Trial, nodes: Tensor, most: float) -> PartSeconds:
    """Return the time of an exact evaluation by those of two graphs, one twice the size of the other.

    Both are read as the graph is, and have a budget of memory in proportion: chunks, and layers that go to
    a file, are as many as in the evaluation itself.
    """
    graph, count = trial.graph, _LEAST_PART
    if 2 * count > graph.num_nodes:
        return as_it_is(trial, nodes, most)

    def seconds_on(count: int) -> float:
        share = count / graph.num_nodes
        ids = places_of(nodes, graph.num_nodes, count)
        runner = trial.runner_on(likeness_of(graph, count))
        return _scoring(trial, runner, ids, "exact", share)

    seconds_on(count)  # a warm-up
    taken = seconds_on(count)
    while taken < most / 8 and 8 * count <= graph.num_nodes:
        count *= 4
        taken = seconds_on(count)
    pairs = [(taken, seconds_on(2 * count))]
    if sum(pairs[0]) < most / 2:  # in turn, so that a load beside them makes both longer
        pairs += [(seconds_on(count), seconds_on(2 * count)) for _ in range(REPEATS - 1)]
    more = graph.num_nodes / count - 2
    found = of_tries([twice + max(0.0, twice - once) * more for once, twice in pairs])
    how = f"exact, as on {count:,} and {2 * count:,} nodes that stand for all"
    return PartSeconds(found.seconds, how, found.spread)


def _scoring(trial: Trial, runner: ModelRunner, nodes: Tensor, mode: EvalMode, share: float = 1.0) -> float:
    """Return the seconds of an evaluation, with a share of the budget of memory."""
    config, metrics = trial.config, metric_names(trial.task, trial.config.metrics)
    if share < 1.0:
        budget = max(_LEAST_BUDGET, int(config.memory_budget_bytes * share))
        config = config.updated(memory_budget_bytes=budget, out_dir=None)
    return timed(lambda: score(runner, config, nodes, mode, task=trial.task, metrics=metrics))


def some_batches(nodes: Tensor, size: int, count: int) -> Tensor:
    """Return the nodes of at most ``count`` batches of ``size``, spread evenly over all of them.

    Ids often go by degree or by community, so that the first batches are no example of the others.
    """
    batches = torch.split(nodes, size)
    count = min(count, len(batches))
    return torch.cat([batches[len(batches) * place // count] for place in range(count)])


def _is_cheap(runner: ModelRunner, trial: Trial, most: float) -> bool:
    """Return whether one pass over the whole graph, by the machine's rates, takes less than ``most``."""
    graph, needed = trial.graph, whole_bytes(runner)
    if needed > trial.config.memory_budget_bytes or not may_be_tried(needed):
        return False
    layers = told.num_layers(runner.model)
    layers = depth(runner.model, trial.config) if layers is None else layers
    width = max(graph.num_features, runner.widest)
    return layers * machine_rates().aggregate_seconds(graph.num_edges, width) < most
