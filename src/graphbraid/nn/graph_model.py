"""GraphModel: the base of the models, a stack of layers and the steps between them."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections import OrderedDict
from typing import Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor, nn

from graphbraid.arguments import MOST_WIDTH, as_count, as_number
from graphbraid.errors import ConfigError, DataError
from graphbraid.graph.csc import Csc
from graphbraid.graph.sparse_features import SparseFeatures
from graphbraid.nn import module_traits
from graphbraid.nn.adjacency import as_csc
from graphbraid.nn.conv import Conv, LayerInput, as_rows, check_takes_weights
from graphbraid.nn.pyg_layers import activation, as_pyg, checked_copy, plain, pyg_nn
from graphbraid.ops import bias_act_dropout, sparse_dropout
from graphbraid.ops.epilogue import ACTIVATIONS

Adjacency = Csc | list[Csc] | tuple[Csc, ...] | Tensor
"""The edges that a model accepts: the whole graph, one block per layer, or PyG's ``edge_index``."""
MOST_LAYERS = 4096
NORMS = {None: None, "none": None, "batch": nn.BatchNorm1d, "layer": nn.LayerNorm}


class GraphModel(nn.Module, ABC):
    """Base class of the models: a stack of layers with normalisation, activation and dropout between them.

    Args:
        in_channels: width of the input.
        hidden_channels: width between layers.
        out_channels: width of the output, such as the number of classes.
        num_layers: number of layers; a sampled mini-batch needs one block per layer.
        dropout: probability of dropping an element between layers.
        input_dropout: probability of dropping an input element; for sparse features, only stored values are
            drawn.
        act: activation between layers: ``relu``, ``elu``, ``leaky_relu``, ``gelu`` or ``none``.
        norm: normalisation before the activation: ``"batch"``, ``"layer"`` or None.
        **options: passed to each layer.

    Raises:
        ConfigError: the value of an option is invalid.
    """

    layer: ClassVar[type[nn.Module] | None] = None
    """The layer class whose options the model takes in addition to its own."""
    takes_blocks = True
    """Tells :class:`graphbraid.Trainer` to call ``model(x, adjs)`` instead of PyG's ``model(x,
    edge_index)``."""
    ends_hidden = False
    """Whether activation and normalisation follow the last layer, too, as in :meth:`hidden`."""

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        num_layers: int = 2,
        *,
        dropout: float = 0.5,
        input_dropout: float = 0.0,
        act: str = "relu",
        norm: str | None = None,
        **options: Any,
    ):
        super().__init__()
        check_sizes(
            in_channels=in_channels,
            hidden_channels=hidden_channels,
            out_channels=out_channels,
        )
        as_count(num_layers, "num_layers", least=1, most=MOST_LAYERS)
        check_probabilities(dropout=dropout, input_dropout=input_dropout)
        _check_choice("act", act, ACTIVATIONS)
        _check_choice("norm", norm, NORMS)
        self.in_channels, self.hidden_channels, self.out_channels = in_channels, hidden_channels, out_channels
        self.num_layers, self.dropout, self.input_dropout, self.act = num_layers, dropout, input_dropout, act
        widths = [in_channels] + [hidden_channels] * (num_layers - 1) + [out_channels]
        self.convs = nn.ModuleList(
            self.make_layer(widths[i], widths[i + 1], **options) for i in range(num_layers - 1)
        )
        self.convs.append(self.make_last_layer(widths[-2], widths[-1], **options))
        make_norm = NORMS[norm]
        self.norms = None if make_norm is None else nn.ModuleList(make_norm(w) for w in widths[1:-1])

    @abstractmethod
    def make_layer(self, in_channels: int, out_channels: int, **options: Any) -> nn.Module:
        """Make one layer of the stack."""

    def make_last_layer(self, in_channels: int, out_channels: int, **options: Any) -> nn.Module:
        """Make the layer that computes the model's output."""
        return self.make_layer(in_channels, out_channels, **options)

    @property
    def widest(self) -> int:
        """Largest number of columns that a layer holds for a node: rows of a layer's weight are columns."""
        return max(weight.shape[0] for weight in self.parameters() if weight.ndim >= 2)

    def reset_parameters(self) -> None:
        """Draw all parameters anew."""
        for module in (*self.convs, *(self.norms or ())):
            module.reset_parameters()

    def forward(self, x: LayerInput, edge_index: Adjacency, edge_weight: Tensor | None = None) -> Tensor:
        """Run all layers.

        Args:
            x: ``(num_src, in_channels)`` features of the first block's sources, or of all nodes.
            edge_index: one :class:`~graphbraid.graph.csc.Csc` of the whole graph; or ``num_layers`` blocks,
                outermost first; or PyG's ``(2, num_edges)`` integer tensor over the rows of ``x``.
            edge_weight: ``(num_edges,)`` constants, only with an ``edge_index`` tensor and layers that take
                weights.

        Returns:
            ``(num_dst, out_channels)``: one row per node, or per destination of the last block.

        Raises:
            ConfigError: edge weights are given, and the layers take none.
            DataError: ``x``, an id, the weights or the number of blocks does not fit.
        """
        x = as_rows(x)
        check_takes_weights(self.layer or type(self), edge_weight)
        blocks = self._blocks(edge_index, x.shape[0], edge_weight)
        x = self.drop_input(x)
        for i, csc in enumerate(blocks):
            x = self.forward_layer(i, x, csc)
        assert isinstance(x, Tensor)
        return x

    def drop_input(self, x: LayerInput) -> LayerInput:
        """Apply input dropout while training."""
        if not self.training or self.input_dropout == 0:
            return x
        if isinstance(x, SparseFeatures):
            return sparse_dropout(x, self.input_dropout, training=True)
        return bias_act_dropout(x, None, "none", self.input_dropout)

    def hidden(self) -> Self:
        """Return the model of the rows that the last layer reads, with the same parameters and modules.

        Raises:
            ConfigError: there is one layer, which reads the features.
        """
        made = without_last_layer(self)
        made.out_channels, made.ends_hidden = self.hidden_channels, True
        return made

    def to_pyg(self) -> nn.Module:
        """Return PyG's model of the same name with a copy of the weights, which runs PyG's and torch's code.

        It is called as ``model(x, edge_index)``, a :class:`GCN` also with ``edge_weight``.

        Raises:
            ConfigError: the class is a user's, there are hooks, or PyG has no layer for an option.
            MissingPackageError: PyTorch Geometric is not installed.
        """
        name = type(self).__name__
        kind, acts = getattr(pyg_nn(self), "GAT" if name == "GATv2" else name), activation(self.act)
        with torch.random.fork_rng([]):
            made = kind(
                self.in_channels,
                self.hidden_channels,
                self.num_layers,
                self.out_channels,
                dropout=self.dropout,
                act=acts[0] if acts else None,
            ).train(self.training)
        convs = [as_pyg(conv) for conv in self.convs]
        if self.input_dropout:
            takes = "x, edge_index" + ", edge_weight" * made.supports_edge_weight
            takes += ", edge_attr" * made.supports_edge_attr
            first = nn.Dropout(self.input_dropout).train(self.training)
            parts = [(first, "x -> x"), (convs[0], f"{takes} -> x")]
            convs[0] = pyg_nn(self).Sequential(takes, parts)
        made.convs = nn.ModuleList(convs)
        made.norms = nn.ModuleList([*map(plain, self.norms or ()), nn.Identity()])
        if self.norms is None:
            made.norms = nn.ModuleList(nn.Identity() for _ in convs)
        return checked_copy(made, self)

    def forward_layer(self, i: int, x: LayerInput, csc: Csc) -> Tensor:
        """Run layer ``i`` and the steps after it, as layer-wise inference does."""
        conv = self.convs[i]
        assert isinstance(conv, Conv)
        return self.finish_layer(i, conv.combine(x, csc), conv.bias)

    def finish_layer(self, i: int, out: Tensor, bias: Tensor | None) -> Tensor:
        """Add the bias and, between layers, apply normalisation, activation and dropout."""
        inplace = not module_traits.keeps_result(self.convs[i])
        if i == self.num_layers - 1 and not self.ends_hidden:
            return bias_act_dropout(out, bias, "none", inplace=inplace)
        if self.norms is not None:
            out, bias, inplace = self.norms[i](out if bias is None else out + bias), None, True
        return bias_act_dropout(out, bias, self.act, self.dropout if self.training else 0.0, inplace=inplace)

    def _blocks(self, adjs: Adjacency, num_nodes: int, edge_weight: Tensor | None) -> list[Csc]:
        if not isinstance(adjs, list | tuple):
            return [as_csc(adjs, num_nodes, edge_weight)] * self.num_layers
        if edge_weight is not None:
            raise DataError("edge_weight goes with an edge_index; blocks have their own, block.weight")
        if len(adjs) != self.num_layers or not all(isinstance(adj, Csc) for adj in adjs):
            raise DataError(
                f"a model of {self.num_layers} layers needs {self.num_layers} blocks, outermost first; "
                f"got {len(adjs)} of {sorted({type(adj).__name__ for adj in adjs})}. Sample as many hops as "
                "the model has layers."
            )
        return list(adjs)


Model = TypeVar("Model", bound=nn.Module)


def without_last_layer(model: Model) -> Model:
    """Return a model without the last of its ``convs``; it shares the others, and hooks of inputs.

    Raises:
        ConfigError: it has one layer.
    """
    layers: Any = model.convs
    if len(layers) < 2:
        raise ConfigError(
            f"{type(model).__name__} has one layer, so no hidden rows lie between layers; give it two"
        )
    made = copy.copy(model)
    made._modules = model._modules | {"convs": layers[:-1]}
    made._forward_hooks = OrderedDict()  # they may change the outputs, which these are not
    made.num_layers = len(layers) - 1  # type: ignore[assignment]
    return made


def check_sizes(**sizes: int) -> None:
    """Refuse widths and numbers of heads that cannot be."""
    for name, value in sizes.items():
        as_count(value, name, least=1, most=MOST_WIDTH)


def check_probabilities(**values: float) -> None:
    """Refuse probabilities outside [0, 1)."""
    for name, value in values.items():
        as_number(value, name, least=0, below=1)


def _check_choice(name: str, value: object, choices: Any) -> None:
    if not isinstance(value, str | None) or value not in choices:
        raise ConfigError(f"{name} must be one of {', '.join(str(c) for c in choices)}; got {value!r}")
