"""Shadow: training steps on copies, to measure and compare them without changing anything of the caller's."""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING

from torch import Tensor, nn
from torch.optim import Optimizer

from graphbraid.train.config import TrainConfig
from graphbraid.train.step.optimizers import make_optimizer
from graphbraid.train.step.runner import ModelRunner
from graphbraid.train.task import Task

if TYPE_CHECKING:
    from graphbraid.sampling import MiniBatch


class Shadow:
    """A copy of a model with an optimizer of its own; called with a mini-batch it makes a whole step."""

    def __init__(self, runner: ModelRunner, task: Task, config: TrainConfig) -> None:
        self._runner = copy.copy(runner)
        self._runner.model = copy.deepcopy(runner.model).train()
        ready = isinstance(config.optimizer, Optimizer)  # holds the real parameters; another takes as long
        self._optimizer = make_optimizer(
            config.updated(optimizer="adamw") if ready else config, self._runner.model
        )
        self._task, self._clip = task, config.clip or math.inf

    def __call__(self, batch: MiniBatch) -> list[Tensor]:
        """The step's loss and the norm of its gradients."""
        outputs, labels = self._runner.on_batch(batch), batch.seed_y
        assert labels is not None
        with self._runner.autocast():
            loss = self._task.loss(outputs, labels.to(outputs.device))
        self._optimizer.zero_grad(set_to_none=True)
        self._runner.backward(loss)
        norm = nn.utils.clip_grad_norm_(self.parameters(), self._clip)
        self._optimizer.step()
        return [loss.detach(), norm]

    def parameters(self) -> list[nn.Parameter]:
        """Of the copy."""
        return list(self._runner.model.parameters())
