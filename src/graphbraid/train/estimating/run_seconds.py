"""How long a run's training will take, by a few steps on copies: what looking ahead is weighed against."""

from __future__ import annotations

import itertools
import math
import time
from statistics import median

from torch import nn

from graphbraid.errors import GraphbraidError
from graphbraid.graph import Graph
from graphbraid.train import runtime
from graphbraid.train.config import TrainConfig
from graphbraid.train.estimating.trial import Trial
from graphbraid.train.step.feed import make_loader

STEPS = 4
"""That are tried; the first one, in which torch finds its kernels, does not count."""
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
    """Return the seconds of all training steps of a run whose model was tried."""
    with make_loader(trial.runner, trial.config.updated(plan=None), trial.nodes) as loader:
        steps, taken = len(loader), list[float]()
        for batch in itertools.islice(loader.batches(0), min(STEPS, steps)):
            trial.runner.features_of(batch)  # sparse rows are gathered at this first use
            started = time.perf_counter()
            trial.step(batch)
            taken.append(time.perf_counter() - started)
            if math.fsum(taken) > SECONDS:
                break
    return median(taken[1:] or taken) * steps * trial.config.epochs
