"""Training by a recipe in this process, through the full-graph engine: what a synthesised program repeats."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from graphbraid.errors import DataError
from graphbraid.fullgraph import CompileOptions, Engine
from graphbraid.graph import Graph
from graphbraid.signatures import typed
from graphbraid.synth.recipe import EarlyStop, OptimizerRecipe
from graphbraid.synth.synthesis import Synthesis, check_fits


@dataclass(frozen=True, slots=True)
class Trained:
    """What came of a training run."""

    losses: tuple[float, ...]
    """Loss of each epoch, before its update."""
    accuracies: tuple[dict[str, float], ...]
    """Accuracy of each split that the recipe evaluates, after each epoch."""


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
    """
    check_fits(synthesis, graph)
    model, recipe = synthesis.model.train(), synthesis.recipe
    engine = Engine(model, graph, recipe.train_split, options)
    optimizer = make_optimizer(recipe.optimizer, list(model.parameters()))
    assert graph.y is not None
    labels = graph.y[graph.split(recipe.train_split)]
    width = engine.program.width(engine.program.output)
    if labels.numel() and int(labels.max()) >= width:
        raise DataError(f"the model's output has {width} columns; a label is {int(labels.max())}")
    losses: list[float] = []
    accuracies: list[dict[str, float]] = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        for epoch in range(recipe.epochs):
            optimizer.zero_grad()
            loss = F.cross_entropy(engine(), labels)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(loss.item())
            splits = recipe.evaluations[epoch] if epoch < len(recipe.evaluations) else ()
            accuracies.append(_evaluated(engine, graph, splits))
            if recipe.early_stop is not None and is_over(recipe.early_stop, accuracies):
                break
    return Trained(tuple(losses), tuple(accuracies))


def make_optimizer(recipe: OptimizerRecipe, parameters: list[Tensor]) -> torch.optim.Optimizer:
    """Make PyTorch's optimizer of a recipe."""
    if recipe.kind == "sgd":
        return torch.optim.SGD(
            parameters,
            lr=recipe.learning_rate,
            momentum=recipe.momentum,
            weight_decay=recipe.weight_decay,
            fused=True,
        )
    make = torch.optim.AdamW if recipe.kind == "adamw" else torch.optim.Adam
    return make(
        parameters,
        lr=recipe.learning_rate,
        betas=recipe.betas,
        eps=recipe.eps,
        weight_decay=recipe.weight_decay,
        fused=True,
    )


def is_over(stop: EarlyStop, accuracies: list[dict[str, float]]) -> bool:
    """Return whether the last ``patience`` evaluations of a split brought no better accuracy."""
    found = [epoch[stop.split] for epoch in accuracies if stop.split in epoch]
    if len(found) <= stop.patience or stop.split not in accuracies[-1]:
        return False
    return max(found[-stop.patience :]) <= max(found[: -stop.patience])


def _evaluated(engine: Engine, graph: Graph, splits: tuple[str, ...]) -> dict[str, float]:
    if not splits:
        return {}
    assert graph.y is not None
    is_right = engine.predict().argmax(1) == graph.y
    return {split: is_right[graph.split(split)].double().mean().item() for split in splits}


__all__ = ["Trained", "is_over", "make_optimizer", "train"]
