"""How long a run's training will take, by a few steps on copies: what looking ahead is weighed against."""

from __future__ import annotations

import itertools
import math
import time
from statistics import median

import torch
from torch import Tensor, nn

from graphbraid.errors import GraphbraidError
from graphbraid.graph import Graph, SparseFeatures
from graphbraid.train import runtime
from graphbraid.train.config import TrainConfig
from graphbraid.train.estimating.memory.sampled import are_mapped
from graphbraid.train.estimating.trials.trial import Trial
from graphbraid.train.step.feed import make_loader

STEPS = 4
"""Steps that are tried; the first one, in which torch finds its kernels, does not count."""
SECONDS = 2.0
"""After which no further step is tried."""


def run_seconds(model: nn.Module, graph: Graph, config: TrainConfig) -> float | None:
    """Return the seconds of a run's training steps; None if a step cannot be made, as the run will say.

    Steps are timed on batches at hand. What a run waits for batches and for a disk, and its evaluations, do
    not count: it takes as long or longer. Nothing of the model and of torch's random state changes.

    Args:
        model: to train.
        graph: to train on.
        config: options of the run on mini-batches.
    """
    config = config.updated(mode="sampled", plan=None, host=None, hot=None, tiers=None)
    with runtime.torch_settings(config), runtime.random_state_kept():
        try:
            trial = Trial(model, graph, config)
            trial.try_model()
            return seconds_of_steps(trial)
        except GraphbraidError:
            return None


def seconds_of_steps(trial: Trial) -> float:
    """Return the seconds of all training steps of a run whose model was tried.

    Rows of a store's file are made up, since the disk that would be read is no part of a step.
    """
    runner, config, taken = trial.runner, trial.config.updated(plan=None), list[float]()
    kept = runner.rows
    if kept is None and are_mapped(trial.graph):
        runner.rows = MadeUpRows(trial.graph)
    try:
        with make_loader(runner, config, trial.nodes) as loader:
            steps = len(loader)
            for batch in itertools.islice(loader.batches(0), min(STEPS, steps)):
                runner.features_of(batch)  # sparse rows are gathered at this first use
                started = time.perf_counter()
                trial.step(batch)
                taken.append(time.perf_counter() - started)
                if math.fsum(taken) > SECONDS:
                    break
    finally:
        runner.rows = kept
    return median(taken[1:] or taken) * steps * config.epochs


class MadeUpRows:
    """Rows of random numbers in place of a graph's dense features, which are not read.

    Args:
        graph: whose rows these have the width and the dtype of.
    """

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
