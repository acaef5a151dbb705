"""Synthesis: a model and the recipe that trains it, made from a program's text or from a PyTorch model.

An own layer of a program becomes an :class:`OwnConv`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn

from graphbraid import fullgraph
from graphbraid.datasets.npy import require_memory
from graphbraid.errors import ConfigError, DataError
from graphbraid.fullgraph import CompileOptions, Lowered
from graphbraid.fullgraph.device import HOST
from graphbraid.fullgraph.program import Aggregate, DestinationRows, Messages, Program, ReadRows
from graphbraid.fullgraph.reading.calling import Given
from graphbraid.fullgraph.reading.exact import Known, anything, count
from graphbraid.fullgraph.reading.fused_messages import plain_sum
from graphbraid.fullgraph.reading.read import read_model
from graphbraid.fullgraph.reading.reader import LayerCall, as_linear, reads
from graphbraid.graph import Graph
from graphbraid.graph.csc import Csc
from graphbraid.nn.adjacency import as_csc
from graphbraid.nn.conv import NORMS, GraphModel
from graphbraid.nn.linear import Linear, glorot, kaiming
from graphbraid.nn.models import MODELS
from graphbraid.nn.module_traits import in_mode, takes_weights
from graphbraid.nn.pyg_layers import ACTIVATIONS
from graphbraid.ops.message_steps import MessageOp
from graphbraid.ops.messages import aggregate_messages
from graphbraid.ops.reference.aggregate import COMPUTED
from graphbraid.signatures import typed
from graphbraid.synth.language.aggregating import OwnAggregation
from graphbraid.synth.language.syntax import ATTENTION, LOSSES, Function, ProgramError
from graphbraid.synth.recipe import LayerRecipe, ModelRecipe, OptimizerRecipe, Recipe
from graphbraid.synth.running import Number
from graphbraid.synth.specializing import specialize

_WEIGHT = "weight"
"""The message's argument with the weights of edges. As in PyG, names of source rows end in ``_j``, names of
destination rows in ``_i``."""


class OwnConv(nn.Module):
    """The layer of an own aggregation. Properties that the message reads are linear maps of node rows."""

    def __init__(self, in_channels: int, out_channels: int, form: OwnAggregation) -> None:
        super().__init__()
        self.in_channels, self.out_channels, self.form = in_channels, out_channels, form
        self.maps = nn.ModuleDict({f"{name}_": Linear(in_channels, out_channels) for name in form.properties})

    @property
    def takes_weights(self) -> bool:
        """Whether the message reads the weights of edges."""
        return self.form.reads_weights

    def forward(self, x: Tensor, edge_index: Csc | Tensor, edge_weight: Tensor | None = None) -> Tensor:
        """Run the layer, with its messages as PyTorch's functions; ConfigError if it lacks weights."""
        csc = as_csc(edge_index, x.shape[0], edge_weight)
        if self.takes_weights and csc.weight is None:
            raise ConfigError(f"{self.form.name} reads the weights of edges; the edges have none")
        rows = {name: self.maps[f"{name}_"](x) for name in self.form.properties}
        names = [name for name, _, _ in self.reads]
        out = aggregate_messages(
            csc,
            lambda *given: self.message(**dict(zip(names, given, strict=True))),
            sources=[rows[name] for name in self.form.sources],
            destinations=[rows[name] for name in self.form.destinations],
            edges=[csc.weight] if csc.weight is not None and self.takes_weights else [],
            reduction=self.form.reduction,
            shape=(self.out_channels,),
        )
        for name in self.form.added:
            out = out + rows[name][: csc.num_dst]
        return out

    @property
    def reads(self) -> list[tuple[str, ReadRows, str]]:
        """The arguments of the message: name, end of the edge and property of each."""
        sources, destinations = self.form.sources, self.form.destinations
        return [
            *((f"{name}_j", ReadRows.SOURCE, name) for name in sources),
            *((f"{name}_i", ReadRows.DESTINATION, name) for name in destinations),
            *([(_WEIGHT, ReadRows.WEIGHT, "")] if self.takes_weights else []),
        ]

    def message(self, **rows: Tensor) -> Tensor:
        """Return the messages of some edges, ``(num_edges, out_channels)``."""
        made: list[Tensor] = []
        like = next(iter(rows.values()))
        for step in self.form.steps:
            if step.op is MessageOp.SOURCE:
                made.append(rows[f"{self.form.sources[step.first]}_j"])
            elif step.op is MessageOp.DESTINATION:
                made.append(rows[f"{self.form.destinations[step.first]}_i"])
            elif step.op is MessageOp.WEIGHT:
                made.append(rows[_WEIGHT].view(-1, 1))
            elif step.op is MessageOp.NUMBER:
                made.append(like.new_full((), step.number))
            else:
                compute = COMPUTED[step.op - MessageOp.ADD]
                made.append(compute(made[step.first], made[step.second], step.number))
        return made[-1].expand(len(like), self.out_channels)

    def extra_repr(self) -> str:
        """Return the channels and the program's name of it."""
        return f"{self.in_channels}, {self.out_channels}, {self.form.name}"


@reads(
    "graphbraid.synth.synthesis.OwnConv",
    known=Known({"in_channels": count, "out_channels": count, "form": anything}, children=("maps",)),
    takes=("x", "csc", "edge_weight"),
)
def _read_own_layer(call: LayerCall) -> str:
    conv, writer = call.layer, call.writer
    form: OwnAggregation = conv.form
    if form.reads_weights and not call.edges.weighted:
        raise call.refuse(f"{form.name} reads the weights of edges; the graph has none")
    if call.several:
        raise call.refuse("of a pair of matrices has no lowered form", "one matrix of node rows")

    def mapped(x: str, name: str) -> str:
        linear = as_linear(f"{call.name}.maps.{name}_", conv.maps[f"{name}_"])
        if linear is None:
            raise call.refuse(f"has no linear map for {name}")
        return writer.linear(x, linear)

    rows = {name: mapped(call.x, name) for name in dict.fromkeys((*form.sources, *form.destinations))}
    values, order = list(rows.values()), list(rows)
    reads = [(name, role, order.index(of) if of else 0) for name, role, of in conv.reads]
    shapes: dict[str, tuple[int, ...]] = {
        name: () if role is ReadRows.WEIGHT else (conv.out_channels,) for name, role, _ in reads
    }
    plain = plain_sum(form.steps, reads, shapes, None, form.reduction, dtype=None)
    if plain is not None:
        matrix, source = plain
        out = writer.add(Aggregate, values[source], adjacency=matrix)
    else:
        out = writer.add(
            Messages,
            *values,
            layer=conv,
            reads=tuple(reads),
            shapes=tuple(shapes.values()),
            constants=(),
            takes=(tuple(shapes), ()),
            used=(),
            reduction=form.reduction,
            ties="shared",
            width_out=conv.out_channels,
            edge_width=conv.out_channels,
            steps=form.steps,
        )
    for name in form.added:
        known, below = rows.get(name), writer.add(DestinationRows, rows.get(name, call.x))
        out = writer.sum(below if known else mapped(below, name), out)
    return out


UNIFORM_BOUND = 0.05
"""Largest weight that the ``uniform`` initialiser draws."""


class LayerStack(nn.Module):
    """Layers of any kinds and widths, each with a normalisation, an activation and dropout of its own."""

    def __init__(self, recipe: ModelRecipe) -> None:
        super().__init__()
        self.in_channels, self.out_channels = recipe.widths[0], recipe.widths[-1]
        sizes = list(zip(recipe.widths, recipe.widths[1:], strict=False))
        # Each layer is taken out of a model of its kind: a hidden layer is that model's first one, the last
        # layer is that model's last one. These may differ: GAT's last layer takes the mean of its heads.
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
    make_norm, activation = NORMS[layer.normalization], ACTIVATIONS[layer.activation]
    return nn.Sequential(
        *([] if make_norm is None else [make_norm(width)]),
        *([] if activation is None else [activation()]),
        *([nn.Dropout(layer.dropout)] if layer.dropout else []),
    )


def make_model(recipe: ModelRecipe, seed: int) -> nn.Module:
    """Make a model and draw its weights; torch's own random state does not change.

    Args:
        recipe: the model. Where all layers are of one kind and the hidden ones are alike, it is that model of
            :mod:`graphbraid.nn`; else it is a :class:`LayerStack`.
        seed: seed of the draws. The recipe's initialiser draws matrices; the model's class sets the biases.
    """
    kinds = {(one.kind, one.aggregation, one.own is None) for one in recipe.layers}
    hidden = set(recipe.layers[:-1]), set(recipe.widths[1:-1])
    is_alike = len(kinds) == 1 and recipe.layers[0].own is None and all(len(each) <= 1 for each in hidden)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        alone = _model_of(recipe.layers[0], recipe.widths, recipe.heads) if is_alike else None
        model = LayerStack(recipe) if alone is None else alone
        for parameter in model.parameters():
            if parameter.ndim >= 2:  # a matrix, or a matrix for each attention head
                _INITIALISERS[recipe.initialiser](parameter)
    return model


def _model_of(layer: LayerRecipe, widths: Sequence[int], heads: int) -> GraphModel:
    """Make a model whose layers are all of one kind, and its hidden ones of one width."""
    options: dict[str, Any] = {"aggr": layer.aggregation} if layer.kind == "SAGE" else {}
    if layer.kind in ATTENTION:
        options["heads"] = heads
    return MODELS[layer.kind.lower()](
        widths[0],
        widths[1] if len(widths) > 2 else heads,  # hidden width; without a hidden layer it is not used
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
            read = read_model(self.model, graph.x.shape[1], Given.of(graph))
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
        # Both steps, training and evaluation, are planned and allocated before they are written. The features
        # go to a file: a container's memory limit counts the file's pages until they are on the disk.
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
        settings: values of ``totalEpoch`` and of those parameters that are numbers or truth values.

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
        DataError: the graph lacks one of them, or has another number of features than the first layer takes.
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
    width, targets = getattr(model, "out_channels", None), targets_of(graph, recipe)
    if isinstance(width, Integral):
        check_width(int(width), targets)
    for split in sorted({recipe.train_split, *recipe.steps.splits}):
        graph.split(split)


def check_width(width: int, targets: Tensor) -> None:
    """Refuse targets that outputs cannot be compared with."""
    if targets.ndim == 2:
        wrong = f"{targets.shape[1]} targets a node" if targets.shape[1] != width else ""
    else:
        classes = int(targets.max()) + 1 if targets.numel() else 0
        wrong = f"{classes} classes" if classes > width else ""
    if wrong:
        raise DataError(f"the last layer has {width} columns; the graph has {wrong}")


def targets_of(graph: Graph, recipe: Recipe) -> Tensor:
    """Return the labels that a recipe's loss compares with the outputs; DataError if it cannot.

    Returns:
        ``(num_nodes,)`` int64 classes; ``(num_nodes, columns)`` float32 for other losses than cross entropy.
    """
    y = graph.y
    assert y is not None
    if recipe.loss == LOSSES[0]:
        if y.ndim != 1 or y.is_floating_point():
            raise DataError(
                "training needs one class per node; the graph's labels are something else. To learn numbers, "
                'call gnn.minimize("binary cross entropy") or gnn.minimize("mean squared")'
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
