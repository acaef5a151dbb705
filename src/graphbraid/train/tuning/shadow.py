"""Shadow: training steps on copies, for measurements that leave the caller's model unchanged."""

from __future__ import annotations

import copy

from torch import nn
from torch.optim import Optimizer

from graphbraid.sampling.minibatch.mini_batch import MiniBatch
from graphbraid.train.config import TrainConfig
from graphbraid.train.step.clock import Clock
from graphbraid.train.step.learning_rate import LearningRateSchedule
from graphbraid.train.step.optimizers import make_optimizer
from graphbraid.train.step.runner import ModelRunner
from graphbraid.train.step.step import StepResult, TrainStep
from graphbraid.train.task import Task


class Shadow:
    """A copy of a model with its own optimizer that makes a training step when called with a mini-batch.

    Its learning rate is constant, since a scheduler's function may be meant for a single run. Its steps
    continue if the loss is not finite: without a warm-up copies may diverge, and their steps take as long.
    """

    def __init__(self, runner: ModelRunner, task: Task, config: TrainConfig) -> None:
        self._runner = copy.copy(runner)
        self._runner.model = copy.deepcopy(runner.model).train()
        config = config.updated(scheduler=None)
        if isinstance(config.optimizer, Optimizer):  # it holds the real parameters; another one takes as long
            config = config.updated(optimizer="adamw")
        optimizer = make_optimizer(config, self._runner.model)
        self._step = TrainStep(
            self._runner,
            task,
            optimizer,
            LearningRateSchedule(config, optimizer, total_steps=1, maximize=True),
            clip=config.clip,
            clock=Clock(),
            failures=None,
        )

    def __call__(self, batch: MiniBatch) -> StepResult:
        """Make a step with one mini-batch."""
        return self._step(iter((batch,)), 1, batch.batch_size)

    def parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the copy."""
        return list(self._runner.model.parameters())
