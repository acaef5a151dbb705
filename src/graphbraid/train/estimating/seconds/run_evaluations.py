"""How long all evaluations of a run take, by as little as can be tried before it begins."""

from __future__ import annotations

import math

from torch import Tensor

from graphbraid.errors import GraphbraidError
from graphbraid.estimates.trial import PartSeconds, Trial
from graphbraid.train.estimating.memory.sampled import are_mapped
from graphbraid.train.estimating.seconds.evaluations import as_it_is, evaluation_seconds
from graphbraid.train.inference.evaluate import EvalMode
from graphbraid.train.inference.infer import whole_bytes

SECONDS = 1.0
"""Seconds for which an evaluation is tried, about."""
MOST_BYTES = 1 << 30
"""Bytes of an exact evaluation's messages, or of its rows, with which it is tried: about a second's work."""


def run_evaluations(trial: Trial, num_ranks: int = 1) -> list[PartSeconds]:
    """Return the times of a run's validations and of its test; those that it does not have are left out.

    Rows of a store's file are not read for it: an exact evaluation, which reads all of them, is then not
    tried, and a sampled one is on the rows that the trial's runner has.

    Args:
        trial: the run, whose model was tried.
        num_ranks: which divide the batches of a sampled evaluation. An exact one, if it is tried, is a pass
            over the whole graph, which each makes.
    """
    config, found = trial.config, list[PartSeconds]()
    if trial.val_nodes is not None:
        count = math.ceil(config.epochs / config.eval_every)  # the last epoch is always followed by one
        part = _evaluation(trial, trial.val_nodes, config.eval_mode).times(count)
        part = part.times(1 / num_ranks) if config.eval_mode == "sampled" else part
        found.append(part._replace(how=f"{count:,} validation{'s' * (count != 1)}, {part.how}"))
    if trial.test_nodes is not None:
        part = _evaluation(trial, trial.test_nodes, "exact")
        found.append(part._replace(how=f"the test, {part.how}"))
    return found


def _evaluation(trial: Trial, nodes: Tensor, mode: EvalMode) -> PartSeconds:
    if mode == "exact":
        if are_mapped(trial.graph):
            return PartSeconds(None, "reading all of a file's rows")
        if max(_message_bytes(trial), whole_bytes(trial.runner)) > MOST_BYTES:
            return PartSeconds(None, "too long to be tried")
    try:
        if mode == "exact":
            return as_it_is(trial, nodes, SECONDS)
        return evaluation_seconds(trial, nodes, mode, most=SECONDS)
    except (GraphbraidError, RuntimeError, MemoryError) as error:  # as the run will say when it comes there
        return PartSeconds(None, f"failing with {type(error).__name__}")


def _message_bytes(trial: Trial) -> int:
    """Return the bytes of the rows that all edges carry in one pass over the whole graph."""
    graph = trial.graph
    width = max(graph.num_features, trial.runner.widest)
    return 4 * graph.num_edges * width * len(trial.config.fanouts)
