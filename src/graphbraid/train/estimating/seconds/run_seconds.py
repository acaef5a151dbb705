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
from graphbraid.loader.batches.batch_loader import BatchLoader
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
    """Return the least seconds of a run's training; None if a step cannot be made, as the run will say.

    See :func:`seconds_of_steps`. Nothing of the model and of torch's random state changes.

    Args:
        model: to train.
        graph: to train on.
        config: options of the run on mini-batches.
    """
    config = config.updated(mode="sampled", host=None, hot=None, tiers=None)
    with runtime.torch_settings(config), runtime.random_state_kept():
        try:
            trial = Trial(model, graph, config)
            trial.try_model()
            return seconds_of_steps(trial)
        except GraphbraidError:
            return None


def seconds_of_steps(trial: Trial) -> float:
    """Return the least seconds of the training of a run whose model was tried.

    A step takes as long as it does on a batch at hand, or, where the CPU prepares batches by no plan, as long
    as its threads take for the next one, if that is longer. What a run waits for a disk, and its evaluations,
    do not count: which rows a disk is asked for is what is to be chosen by this. Rows of a store's file are
    made up.
    """
    runner, config, taken = trial.runner, trial.config.updated(plan=None, trace=None), list[float]()
    kept, prepared = runner.rows, 0.0
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
                if len(taken) == 1:
                    loader.reset_stage_seconds()  # threads have their buffers now
                if math.fsum(taken) > SECONDS:
                    break
            if trial.config.plan is None:
                prepared = _preparing(loader, with_rows=kept is runner.rows)
    finally:
        runner.rows = kept
    return max(median(taken[1:] or taken), prepared) * steps * config.epochs


def _preparing(loader: BatchLoader, *, with_rows: bool) -> float:
    """Return the seconds in which a loader's threads prepare a batch together; 0 if that is not known.

    Args:
        loader: which has prepared some.
        with_rows: whether its rows are those of a run, and their gathers count.
    """
    seconds = loader.stage_seconds
    if not seconds["batches"]:
        return 0.0
    own = seconds["sample"] + (seconds["gather"] if with_rows else 0.0)
    return own / seconds["batches"] / loader.num_workers


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
