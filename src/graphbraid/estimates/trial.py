"""Trial: a run's model and optimizer, copied, on which steps are made and timed before the run."""

from __future__ import annotations

import contextlib
import copy
import statistics
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from graphbraid.estimates.machine import allocation_of
from graphbraid.features import HostTiers
from graphbraid.graph import Graph
from graphbraid.nn.module_traits import copy_of
from graphbraid.train import runtime
from graphbraid.train.callbacks import StepRecord
from graphbraid.train.config import TrainConfig
from graphbraid.train.run.setup import dry_run
from graphbraid.train.runtime import LearningRateSchedule, make_optimizer
from graphbraid.train.step.links.runner import runner_of
from graphbraid.train.step.runner import Batch, ModelRunner
from graphbraid.train.step.step import BatchShare, Clock, Progress, TrainStep
from graphbraid.train.task import Task, has_split, split_nodes, with_class_weights, with_own_loss

if TYPE_CHECKING:
    from graphbraid.graph.graph_set import GraphSet

REPEATS = 3


def timed(run: Callable[[], object]) -> float:
    """Return the seconds that a call takes."""
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def repeated(run: Callable[[], float], *, most: float) -> float:
    """Return the median of several tries of something that gives its seconds, for about ``most`` seconds.

    The first try is a warm-up. A long one counts itself, since another would cost as much again.
    """
    first = run()
    if first >= most / 2:
        return first
    tries = [run()]
    while len(tries) < REPEATS and sum(tries) + tries[-1] <= most:
        tries.append(run())
    return statistics.median(tries)


class TrialStep:
    """Training steps of a runner's model with an optimizer of their own, for measurements.

    The learning rate is constant, since a scheduler's function may be meant for a single run. Steps continue
    if the loss is not finite: without a warm-up copies may diverge, and their steps take as long.
    """

    def __init__(self, runner: ModelRunner, task: Task, config: TrainConfig) -> None:
        self._runner, config = runner, without_ready_optimizer(config).updated(scheduler=None)
        optimizer = make_optimizer(config, runner.model)
        self._step = TrainStep(
            runner,
            task,
            optimizer,
            LearningRateSchedule(config, optimizer, total_steps=1, maximize=True),
            clip=config.clip,
            clock=Clock(),
            must_be_finite=False,
        )
        self._progress = Progress()

    @classmethod
    def on_copy(cls, runner: ModelRunner, task: Task, config: TrainConfig) -> TrialStep:
        """Return the steps of a copy of the runner's model, which itself does not change."""
        copied = copy.copy(runner)
        copied.model, copied.norms = copy_of(runner.model).train(), None  # no other rank takes part
        return cls(copied, task, config)

    def __call__(self, batch: Batch) -> StepRecord:
        """Make a step with one batch."""
        return self._step(self._progress, iter((BatchShare.whole(batch),)), 1, batch.batch_size)

    def parameters(self) -> list[nn.Parameter]:
        """Return the parameters that the steps change."""
        return list(self._runner.model.parameters())


def without_ready_optimizer(config: TrainConfig) -> TrainConfig:
    """Return options whose optimizer is made by name: a ready one holds the real parameters."""
    return config.updated(optimizer="adamw") if isinstance(config.optimizer, Optimizer) else config


class Trial:
    """Makes the steps of a run on copies; neither the model nor its optimizer changes.

    Of a run on links or edges, ``nodes`` and the other splits are their positions; of many graphs, these. The
    graph is used in place. ``tiers`` hold rows and lists of mini-batches, else the graph does.
    """

    def __init__(
        self, model: nn.Module, graph: Graph | GraphSet, config: TrainConfig, tiers: HostTiers | None = None
    ) -> None:
        self.graphs: GraphSet | None = None if isinstance(graph, Graph) else graph
        self.graph = graph = graph if isinstance(graph, Graph) else graph.graph
        self.config = without_ready_optimizer(config).updated(scheduler=None, trace=None)
        copied, place = copy_of(model).train(), runtime.place_of(config)
        rows, lists = (None, None) if tiers is None else (tiers.features, tiers.topology)
        of = graph if self.graphs is None else self.graphs
        self.runner = runner_of(copied, of, place, config, rows=rows, lists=lists)
        task, labels = with_own_loss(self.runner.task(), config.loss), self.runner.labels
        self.nodes = split_nodes(labels, "train")
        assert labels.y is not None, "the task is that of labels"
        task = with_class_weights(task, config.class_weights, labels.y[self.nodes])
        self.task = task.to(self.runner.device)
        self._step: TrialStep | None = None

    def try_model(self) -> None:
        """Run the copy on a mini-batch of few seeds, which also initialises lazy modules.

        Raises:
            ConfigError: the model fails on the graph's data, or its output has the wrong width.
        """
        dry_run(self.runner, self.task, self.config.updated(mode="sampled", plan=None), self.nodes)

    def model_on(self, graph: Graph) -> nn.Module:
        """Return the copied model for a graph of the first nodes: of learned rows of nodes, it has theirs."""
        model, count = self.runner.model, graph.num_nodes
        if count == self.graph.num_nodes:
            return model
        held = [t for t in (*model.parameters(), *model.buffers()) if not is_lazy(t)]
        of_nodes = [t for t in held if t.shape[:1] == (self.graph.num_nodes,)]
        return copy_of(model, {id(t): _first_rows(t, count) for t in of_nodes})

    def step(self, batch: Batch) -> None:
        """Make one training step."""
        if self._step is None:
            self._step = TrialStep(self.runner, self.task, self.config)
        self._step(batch)

    def forget_gradients(self) -> None:
        """Free the gradients, as the next step does first."""
        self.runner.model.zero_grad(set_to_none=True)

    def state_bytes(self) -> int:
        """Return the bytes of the optimizer's state, made by a step on gradients of zero."""
        model = copy_of(self.runner.model)
        kept: list[Optimizer] = []
        made = allocation_of(lambda: kept.append(self._optimizer_of(model)), self.device)
        return max(made.kept, 0)

    def learned(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of model and optimizer, of the size that it has after a step."""
        model = copy_of(self.runner.model)
        return {"optimizer": self._optimizer_of(model).state_dict(), "model": model.state_dict()}

    def _optimizer_of(self, model: nn.Module) -> Optimizer:
        """Return a new optimizer of a copy, after a step on gradients of zero."""
        optimizer = make_optimizer(self.config, model)
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return optimizer

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        return self.runner.device

    @property
    def val_nodes(self) -> Tensor | None:
        """Labelled nodes of the split ``val``; None if the run does not evaluate."""
        evaluates = self.config.eval_every > 0 and has_split(self.runner.labels, "val")
        return split_nodes(self.runner.labels, "val") if evaluates else None

    @property
    def test_nodes(self) -> Tensor | None:
        """Labelled nodes of the split ``test``; None if the run does not test."""
        tests = self.config.test_at_end and has_split(self.runner.labels, "test")
        return split_nodes(self.runner.labels, "test") if tests else None

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Put the copy into evaluation mode, without gradients, within the ``with`` block."""
        self.runner.model.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            self.runner.model.train()


def _first_rows(tensor: Tensor, count: int) -> Tensor:
    rows = tensor.detach()[:count].clone()
    return nn.Parameter(rows, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else rows


def parameter_bytes(model: nn.Module) -> int:
    """Return the bytes of a model's parameters and buffers."""
    return sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
