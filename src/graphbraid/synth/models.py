"""Models of :mod:`graphbraid.nn` made of recipes, with their first weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from graphbraid.nn import GAT, GCN, GIN, GraphSAGE
from graphbraid.nn.graph_model import GraphModel
from graphbraid.nn.linear import glorot, kaiming
from graphbraid.synth.recipe import ModelRecipe

UNIFORM_BOUND = 0.05
"""Largest weight that the ``uniform`` initialiser draws."""


def make_model(recipe: ModelRecipe, seed: int) -> GraphModel:
    """Make a model and draw its weights; torch's own random state does not change.

    Args:
        recipe: the model.
        seed: seed of the draws. Biases are drawn, or zero, as the model's class does.
    """
    classes: dict[str, type[GraphModel]] = {"GCN": GCN, "SAGE": GraphSAGE, "GIN": GIN, "GAT": GAT}
    options: dict[str, Any] = {}
    if recipe.kind == "SAGE":
        options["aggr"] = recipe.aggregation
    if recipe.kind == "GAT":
        options["heads"] = recipe.heads
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = classes[recipe.kind](
            recipe.widths[0],
            recipe.widths[1],
            recipe.widths[-1],
            recipe.num_layers,
            dropout=recipe.dropout,
            act=recipe.activation,
            **options,
        )
        for parameter in _weights_of(model):
            _INITIALISERS[recipe.initialiser](parameter)
    return model


def _weights_of(model: nn.Module) -> list[Tensor]:
    """Return the parameters that are matrices, or one for each attention head."""
    return [parameter for parameter in model.parameters() if parameter.ndim >= 2]


def _uniform(weight: Tensor) -> None:
    with torch.no_grad():
        weight.uniform_(-UNIFORM_BOUND, UNIFORM_BOUND)


_INITIALISERS: dict[str, Callable[[Tensor], None]] = {
    "xavier": glorot,
    "kaiming": kaiming,
    "uniform": _uniform,
}


__all__ = ["UNIFORM_BOUND", "make_model"]
