"""Synthesis: a model with its recipe, made from a program or from a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn

from graphbraid import fullgraph
from graphbraid.datasets.memory import require_memory
from graphbraid.errors import ConfigError, DataError
from graphbraid.fullgraph import CompileOptions, Lowered
from graphbraid.fullgraph.device import HOST
from graphbraid.fullgraph.program import Program
from graphbraid.fullgraph.reading.calling import Given
from graphbraid.fullgraph.reading.modes import in_mode
from graphbraid.fullgraph.reading.read import read_model
from graphbraid.graph import Graph
from graphbraid.nn.graph_model import NORMS, GraphModel
from graphbraid.nn.linear import glorot, kaiming
from graphbraid.nn.module_traits import takes_weights
from graphbraid.nn.pyg_layers import ACTIVATIONS
from graphbraid.nn.registry import MODELS
from graphbraid.signatures import typed
from graphbraid.synth.language.syntax import Function, ProgramError
from graphbraid.synth.language.words import ATTENTION, LOSSES
from graphbraid.synth.own_layer import OwnConv
from graphbraid.synth.recipe import LayerRecipe, ModelRecipe, OptimizerRecipe, Recipe
from graphbraid.synth.running import Number
from graphbraid.synth.specializing import specialize

UNIFORM_BOUND = 0.05
"""Largest weight that the ``uniform`` initialiser draws."""


class LayerStack(nn.Module):
    """Layers of any kinds and widths, each with a normalisation, an activation and dropout of its own.

    Args:
        recipe: the layers.
    """

    def __init__(self, recipe: ModelRecipe) -> None:
        super().__init__()
        self.in_channels, self.out_channels = recipe.widths[0], recipe.widths[-1]
        sizes = list(zip(recipe.widths, recipe.widths[1:], strict=False))
        # Each is a layer of a model of its kind; the last one is such a model's last layer, which may differ.
        self.convs = nn.ModuleList(
            OwnConv(rows, columns, one.own)
            if one.own is not None
            else _model_of(one, (rows, columns), recipe.heads).convs[-1]
            if at == len(sizes)
            else _model_of(one, (rows, columns, 1), recipe.heads).convs[0]
            for at, (one, (rows, columns)) in enumerate(zip(recipe.layers, sizes, strict=True), 1)
        )
        self.behind = nn.ModuleList(
            _behind(one, width) for one, width in zip(recipe.layers[:-1], recipe.widths[1:-1], strict=True)
        )

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        """Run all layers over a graph; the weights of its edges go to the layers that take them."""
        for at, conv in enumerate(self.convs):
            x = conv(x, edge_index, edge_weight) if takes_weights(conv) else conv(x, edge_index)
            if at < len(self.behind):
                x = self.behind[at](x)
        return x


def _behind(layer: LayerRecipe, width: int) -> nn.Sequential:
    """Return the normalisation, activation and dropout of a hidden layer."""
    make_norm, activation = NORMS[layer.normalization], ACTIVATIONS[layer.activation]
    return nn.Sequential(
        *([] if make_norm is None else [make_norm(width)]),
        *([] if activation is None else [activation()]),
        *([nn.Dropout(layer.dropout)] if layer.dropout else []),
    )


def make_model(recipe: ModelRecipe, seed: int) -> nn.Module:
    """Make a model and draw its weights; torch's own random state does not change.

    Args:
        recipe: the model. Hidden layers that are alike make a model of their kind.
        seed: seed of the draws. Biases are drawn, or zero, as the model's class does.
    """
    kinds = {(one.kind, one.aggregation, one.own is None) for one in recipe.layers}
    hidden = set(recipe.layers[:-1]), set(recipe.widths[1:-1])
    is_alike = len(kinds) == 1 and recipe.layers[0].own is None and all(len(each) <= 1 for each in hidden)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        alone = _model_of(recipe.layers[0], recipe.widths, recipe.heads) if is_alike else None
        model = LayerStack(recipe) if alone is None else alone
        for parameter in model.parameters():
            if parameter.ndim >= 2:  # a matrix, or one for each attention head
                _INITIALISERS[recipe.initialiser](parameter)
    return model


def _model_of(layer: LayerRecipe, widths: Sequence[int], heads: int) -> GraphModel:
    """Make a model whose layers are all of one kind, and its hidden ones of one width."""
    options: dict[str, Any] = {"aggr": layer.aggregation} if layer.kind == "SAGE" else {}
    if layer.kind in ATTENTION:
        options["heads"] = heads
    return MODELS[layer.kind.lower()](
        widths[0],
        widths[1] if len(widths) > 2 else heads,  # without a hidden layer it is not used
        widths[-1],
        len(widths) - 1,
        dropout=layer.dropout,
        act=layer.activation,
        norm=layer.normalization,
        **options,
    )


_INITIALISERS: dict[str, Callable[[Tensor], object]] = {
    "xavier": glorot,
    "kaiming": kaiming,
    "uniform": lambda weight: nn.init.uniform_(weight, -UNIFORM_BOUND, UNIFORM_BOUND),
}


@dataclass(frozen=True, eq=False, slots=True)
class Synthesis:
    """A model and the recipe it is trained by."""

    model: nn.Module
    """The model, with its first weights."""
    recipe: Recipe

    def program(self, graph: Graph, *, training: bool = True, input_path: str | None = None) -> Program:
        """Read the model into the program that the full-graph engine lowers and runs.

        Args:
            graph: a graph with features.
            training: whether dropout is applied and batch statistics are used.
            input_path: how the first weights are to multiply the features, ``"dense"``, ``"sparse"`` or
                ``"binary"``. If None, lowering decides.

        Raises:
            NotLoweredError: part of the model has no lowered form.
            DataError: the graph does not fit the model.
        """
        check_fits(self, graph)
        assert graph.x is not None
        with in_mode(self.model, training=training):
            given = Given.of(graph)
            read = read_model(self.model, graph.x.shape[1], given)
        return read if input_path is None else read.rewritten(read.ops, input_path=input_path)

    def lower(
        self, graph: Graph, options: CompileOptions | None = None, *, input_path: str | None = None
    ) -> Lowered:
        """Lower the program over a graph, for the nodes of the training split, as the engine does.

        Args:
            graph: a graph with features.
            options: how to lower. If None, as :func:`graphbraid.compile` does.
            input_path: see :meth:`program`.

        Raises:
            NotLoweredError: part of the model has no lowered form.
            DataError: the graph does not fit the model, or has no such split.
            ResourceError: the steps that are planned would not fit the free memory.
        """
        program = self.program(graph, input_path=input_path)
        # The steps of training and of evaluation are both planned and allocated to be written. The features
        # are written to a file: a container's limit counts its pages until the disk has them.
        assert graph.x is not None
        needed = 2 * fullgraph.estimated_bytes(self.model, graph, HOST) + graph.x.nbytes
        advice = "Use a machine or container with more, or smaller layers"
        require_memory(needed, "planning the program's steps of training and of evaluation", advice)
        return fullgraph.lower(program, graph, self.recipe.train_split, options)


@typed
def from_program(
    program: Function, layers: Sequence[int], settings: Mapping[str, Any] | None = None
) -> Synthesis:
    """Run a program's loops over layers, and make the model that it trains.

    Args:
        program: as :func:`.parse_program` returns it.
        layers: the entries of its container: columns of the features, of each hidden layer and of the
            output.
        settings: values of ``totalEpoch`` and of the program's numbers among its parameters.

    Raises:
        ProgramError: the program asks for something impossible; the message names the place.
    """
    numbers: dict[str, Number] = dict(settings or {})
    try:
        model, recipe = specialize(program, layers, numbers)
    except ProgramError as error:
        raise error.within(program.source, program.text) from None
    return Synthesis(make_model(model, recipe.seed), recipe)


@typed
def from_model(model: nn.Module, recipe: Recipe | None = None) -> Synthesis:
    """Take a model as it is, with its weights.

    Args:
        model: a model that :func:`graphbraid.compile` lowers.
        recipe: how to train it. If None, 200 epochs of Adam with a learning rate of 0.01.
    """
    usual = Recipe(
        name=type(model).__name__, optimizer=OptimizerRecipe(kind="adam", learning_rate=0.01), epochs=200
    )
    return Synthesis(model, recipe or usual)


def check_fits(synthesis: Synthesis, graph: Graph) -> None:
    """Check that a graph has features, labels and the splits that a recipe names.

    Raises:
        DataError: the graph lacks one of them, or its features are not as wide as the first weights.
        ConfigError: the recipe has no epochs.
    """
    recipe, model = synthesis.recipe, synthesis.model
    if graph.x is None or graph.y is None:
        raise DataError(
            f"training needs features and labels; the graph has no {'x' if graph.x is None else 'y'}"
        )
    if recipe.epochs < 1:
        raise ConfigError(f"a recipe needs at least one epoch; got {recipe.epochs}")
    wanted = getattr(model, "in_channels", None)
    if isinstance(wanted, Integral) and wanted not in (-1, graph.x.shape[1]):
        raise DataError(
            f"the first layer takes {wanted} columns of features; the graph has {graph.x.shape[1]}"
        )
    width, y = getattr(model, "out_channels", None), targets_of(graph, recipe)
    if recipe.loss != LOSSES[0]:
        if isinstance(width, Integral) and y.shape[1] != width:
            raise DataError(f"the last layer has {width} columns; the graph has {y.shape[1]} targets a node")
    else:
        classes = int(y.max()) + 1 if y.numel() else 0
        if isinstance(width, Integral) and classes > width:
            raise DataError(f"the last layer has {width} columns; the graph has {classes} classes")
    named = {recipe.train_split, *recipe.steps.splits}
    for split in sorted(named):
        graph.split(split)


def targets_of(graph: Graph, recipe: Recipe) -> Tensor:
    """Return the labels that a recipe's loss compares with the outputs.

    Returns:
        ``(num_nodes,)`` int64 classes; ``(num_nodes, columns)`` float32 for other losses than cross entropy.

    Raises:
        DataError: the graph's labels are of another kind.
    """
    y = graph.y
    assert y is not None
    if recipe.loss == LOSSES[0]:
        if y.ndim != 1 or y.is_floating_point():
            raise DataError(
                "training needs one class per node; the graph's labels are not. A program of numbers calls "
                'gnn.minimize("binary cross entropy") or gnn.minimize("mean squared")'
            )
        return y
    if not y.is_floating_point():
        raise DataError(f"{recipe.loss} needs labels of floats; the graph's are {y.dtype}")
    targets = y.float().reshape(y.shape[0], -1)
    most = 1.0 if recipe.loss == "binary cross entropy" else torch.finfo(torch.float32).max
    if not bool(((targets >= (0.0 if most == 1.0 else -most)) & (targets <= most)).all()):
        what = "0 to 1" if most == 1.0 else "finite"
        raise DataError(f"{recipe.loss} needs labels that are {what}; leave out nodes without one")
    return targets
