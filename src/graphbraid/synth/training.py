"""Training by a recipe in this process, by the full-graph engine. A synthesised program does the same."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from graphbraid.fullgraph import CompileOptions, Engine
from graphbraid.graph import Graph
from graphbraid.signatures import typed
from graphbraid.synth.language.syntax import TOTAL_EPOCHS, Call, Node, Place, ProgramError, Train
from graphbraid.synth.recipe import EarlyStop, OptimizerRecipe, Recipe, split_of
from graphbraid.synth.running import Interpreter
from graphbraid.synth.synthesis import Synthesis, check_fits, check_width, targets_of


@dataclass(frozen=True, slots=True)
class Trained:
    """The results of a training run."""

    losses: tuple[float, ...]
    """Loss of each epoch, before its update."""
    accuracies: tuple[dict[str, float], ...]
    """Accuracy of each split that the recipe evaluates, after each epoch."""
    said: tuple[str, ...] = ()
    """The lines of the program's ``print``. This process collects them and does not print them."""


@typed
def train(synthesis: Synthesis, graph: Graph, options: CompileOptions | None = None) -> Trained:
    """Train a model by its recipe; its parameters change, torch's own random state does not.

    Args:
        synthesis: the model, in any mode, and its recipe.
        graph: a graph with features, labels and the splits that the recipe names.
        options: how the model is lowered. If None, the defaults.

    Raises:
        NotLoweredError: part of the model has no lowered form.
        DataError: the graph does not fit the model or the recipe.
        ProgramError: a loss or a learning rate is not finite; or the program divides by zero, computes too
            large an integer, or loops too long without training.
    """
    check_fits(synthesis, graph)
    model, recipe = synthesis.model.train(), synthesis.recipe
    engine = Engine(model, graph, recipe.train_split, options)
    optimizer = make_optimizer(recipe.optimizer, list(model.parameters()))
    labels = targets_of(graph, recipe)[graph.split(recipe.train_split)]
    check_width(engine.program.width(engine.program.output), labels)
    host = _EngineHost(recipe, graph, engine, optimizer, labels)
    script = recipe.steps
    values = {**script.values, TOTAL_EPOCHS: recipe.epochs}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        with suppress(_StoppedEarly):
            Interpreter(host, script.helpers, values, limit=None).block(script.statements)
    return Trained(tuple(host.losses), tuple(host.accuracies), tuple(host.said))


_LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cross entropy": F.cross_entropy,
    "binary cross entropy": F.binary_cross_entropy_with_logits,
    "mean squared": F.mse_loss,
}
_SCORES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cross entropy": lambda out, y: out.argmax(1) == y,
    "binary cross entropy": lambda out, y: (out > 0) == (y > 0.5),
    "mean squared": lambda out, y: (out - y).square(),
}
"""Losses -> scores whose mean over the nodes of a split, and over columns, is its evaluation."""


class _StoppedEarly(Exception):  # noqa: N818 - it is no error
    """The recipe's early stop ends the training."""


class _EngineHost:
    """The host of a program's statements: an engine and its optimizer."""

    def __init__(
        self, recipe: Recipe, graph: Graph, engine: Engine, optimizer: torch.optim.Optimizer, labels: Tensor
    ) -> None:
        self._recipe, self._graph, self._engine, self._optimizer = recipe, graph, engine, optimizer
        self._labels = labels
        self._loss: Tensor | None = None
        self._scores: Tensor | None = None  # scores of all nodes, until the next update
        self.losses: list[float] = []
        self.accuracies: list[dict[str, float]] = []
        self.said: list[str] = []

    def train(self, step: Train, rate: float) -> None:
        if step.what == "forward":
            self._optimizer.zero_grad()
            self._loss = _LOSSES[self._recipe.loss](self._engine(), self._labels)
            if not math.isfinite(self._loss.item()):
                message = f"the loss of epoch {len(self.losses)} is {self._loss.item():g}"
                hint = "the features or the weights are not finite, or the learning rate is too large"
                raise ProgramError(self._place(step), message, hint)
            return
        assert self._loss is not None
        if step.what == "backward":
            self._loss.backward()  # type: ignore[no-untyped-call]
            return
        if not 0 <= rate < math.inf:
            message = f"the learning rate of epoch {len(self.losses)} is {rate:g}"
            raise ProgramError(self._place(step), message)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        self.losses.append(self._loss.item())
        self.accuracies.append({})
        self._scores = None

    def call(self, call: Call, arguments: tuple[Any, ...]) -> float:
        if call.method.name == "loss":
            if self._loss is None:
                raise ProgramError(self._place(call), "the loss is asked for before the first forward pass")
            return self._loss.item()
        if not self.losses:
            raise ProgramError(self._place(call), "an accuracy is asked for before the first epoch")
        if self._scores is None:
            self._scores = _SCORES[self._recipe.loss](
                self._engine.predict(), targets_of(self._graph, self._recipe)
            )
        split, stop = split_of(call), self._recipe.early_stop
        found = self._scores[self._graph.split(split)].double().mean().item()
        self.accuracies[-1][split] = found
        if stop is not None and stop.split == split and is_over(stop, self.accuracies):
            raise _StoppedEarly
        return found

    def _place(self, node: Node) -> Place | None:
        """Return where a node is written; None for the statements of a recipe without a program."""
        return node.place if self._recipe.steps.is_written else None

    def say(self, text: str) -> None:
        self.said.append(text)


def make_optimizer(recipe: OptimizerRecipe, parameters: list[Tensor]) -> torch.optim.Optimizer:
    """Make PyTorch's optimizer of a recipe."""
    usual: dict[str, Any] = {"lr": recipe.learning_rate, "weight_decay": recipe.weight_decay, "fused": True}
    if recipe.kind == "sgd":
        return torch.optim.SGD(parameters, momentum=recipe.momentum, **usual)
    make = torch.optim.AdamW if recipe.kind == "adamw" else torch.optim.Adam
    return make(parameters, betas=recipe.betas, eps=recipe.eps, **usual)


def is_over(stop: EarlyStop, accuracies: list[dict[str, float]]) -> bool:
    """Return whether the last ``patience`` evaluations of a split brought no better accuracy."""
    found = [epoch[stop.split] for epoch in accuracies if stop.split in epoch]
    if len(found) <= stop.patience or stop.split not in accuracies[-1]:
        return False
    return max(found[-stop.patience :]) <= max(found[: -stop.patience])
