"""The base class of all layers, the layers of one sum, mean or maximum, and the stacks of layers: GraphModel.

The base says how layers are called, and how their last steps are fused.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections import OrderedDict
from typing import Any, ClassVar, Self, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphbraid.arguments import MOST_WIDTH, as_count, as_number, check_tensor
from graphbraid.errors import ConfigError, DataError
from graphbraid.graph.csc import Csc
from graphbraid.graph.interop.convert import features_from_torch_sparse
from graphbraid.graph.scans import tracing
from graphbraid.graph.sparse_features import SparseFeatures
from graphbraid.nn import module_traits
from graphbraid.nn.adjacency import as_csc
from graphbraid.nn.linear import Linear
from graphbraid.nn.pyg_layers import activation, as_pyg, checked_copy, plain, pyg_layer, pyg_nn
from graphbraid.ops import (
    Aggregation,
    aggregate,
    aggregate_linear,
    bias_act_dropout,
    dense_linear,
    sparse_dropout,
    spmm,
)
from graphbraid.ops.epilogue import ACTIVATIONS
from graphbraid.signatures import typed

LayerInput = Tensor | SparseFeatures


def as_rows(x: LayerInput) -> LayerInput:
    """Return a floating-point matrix or sparse features; a sparse matrix of torch becomes sparse features.

    Raises:
        DataError: ``x`` is none of these, or is sparse and requires gradients.
    """
    if isinstance(x, SparseFeatures | torch.fx.Proxy):
        return x
    if isinstance(x, Tensor) and x.layout != torch.strided and not x.requires_grad:
        return features_from_torch_sparse(x)
    return check_tensor(x, "x", ndim=2, floating=True)


def check_takes_weights(kind: type[nn.Module], edge_weight: Tensor | None) -> None:
    """Raise ConfigError if edge weights are given to a layer or model that does not use them."""
    if edge_weight is not None and not module_traits.takes_weights(kind):
        raise ConfigError(
            f"{kind.__name__} takes no edge weights, which would change nothing; call it without edge_weight "
            "(GCNConv and GCN take them)"
        )


class Conv(nn.Module, ABC):
    """Base class of the layers; ``conv(x, edge_index)`` maps ``num_src`` rows to ``num_dst`` rows.

    A block's destinations are a prefix of its sources, so a layer computes only the rows that the next one
    reads. Subclasses implement :meth:`combine`; the bias is added after it, so that a model can fuse bias,
    activation and dropout.
    """

    keeps_result: ClassVar[bool] = True
    """Whether :meth:`combine`'s backward may read its result, which must then not be overwritten."""
    takes_weights: ClassVar[bool] = False
    """Whether the layer uses edge weights, so that it can be called with them."""
    bias: nn.Parameter | None
    in_channels: int
    out_channels: int

    def forward(self, x: LayerInput, edge_index: Csc | Tensor, edge_weight: Tensor | None = None) -> Tensor:
        """Apply the layer.

        Args:
            x: ``(num_src, in_channels)`` dense rows, or sparse features.
            edge_index: the whole graph or the layer's block, or PyG's ``(2, num_edges)`` integer tensor over
                the rows of ``x``.
            edge_weight: ``(num_edges,)`` constants for an ``edge_index`` tensor; a ``Csc`` holds its own.

        Raises:
            ConfigError: edge weights are given, and the layer takes none.
            DataError: ``x`` does not fit the graph or the layer, or the edges or weights are invalid.
        """
        x = as_rows(x)
        check_takes_weights(type(self), edge_weight)
        out = self.combine(x, as_csc(edge_index, x.shape[0], edge_weight))
        return out if self.bias is None else out + self.bias

    @abstractmethod
    def combine(self, x: LayerInput, csc: Csc) -> Tensor:
        """Compute the layer without its final bias."""

    def to_pyg(self) -> nn.Module:
        """Return PyG's layer of the same name with a copy of the weights.

        Raises:
            ConfigError: PyG has no such layer.
        """
        raise ConfigError(f"PyG has no layer that {type(self).__name__} stands for")

    def check(self, x: LayerInput, csc: Csc) -> None:
        """Raise DataError unless ``x`` is ``(num_src, in_channels)``."""
        if tuple(x.shape) != (csc.num_src, self.in_channels):
            raise DataError(
                f"{type(self).__name__} needs x of shape ({csc.num_src}, {self.in_channels}): a row "
                f"per source node, a column per input channel (in_channels={self.in_channels}); got "
                f"{tuple(x.shape)}"
            )

    def extra_repr(self) -> str:
        """Return the channels, as shown by ``print``."""
        return f"{self.in_channels}, {self.out_channels}"


def zero_bias(channels: int, *, bias: bool) -> nn.Parameter | None:
    """Return a bias of zeros, or None if ``bias`` is False."""
    return nn.Parameter(torch.zeros(channels)) if bias else None


def dense(x: LayerInput) -> Tensor:
    """Return ``x`` itself, or sparse features made dense for a layer that needs dense rows."""
    return x.to_dense() if isinstance(x, SparseFeatures) else x


REDUCTIONS = {"mean": "mean", "max": "max", "sum": "sum", "add": "sum"}


@typed
class SAGEConv(Conv):
    r"""GraphSAGE layer of "Inductive Representation Learning on Large Graphs".

    .. math:: x'_v = W_1 \cdot \mathrm{reduce}_{u \in N(v)} x_u + b + W_2 x_v

    Equal to PyTorch Geometric's layer of the same name, with the same parameters (``lin_l``, ``lin_r``,
    ``lin``), except for one gradient: where a maximum is exactly 0, PyG gives a share of its gradient to an
    initial zero.

    Args:
        in_channels: width of the input.
        out_channels: width of the output.
        aggr: ``"mean"``, ``"max"`` or ``"sum"`` over the in-neighbours.
        normalize: scale each output row to unit Euclidean norm.
        root_weight: whether to add the node's own transformed row.
        project: pass neighbours through a linear layer and ReLU before they are aggregated.
        bias: whether to learn an additive bias.

    Raises:
        ConfigError: ``aggr`` is unknown.
    """

    keeps_result = False

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        aggr: str = "mean",
        normalize: bool = False,
        root_weight: bool = True,
        project: bool = False,
        bias: bool = True,
    ):
        super().__init__()
        if aggr not in REDUCTIONS:
            raise ConfigError(f"aggr must be one of {', '.join(map(repr, REDUCTIONS))}; got {aggr!r}")
        self.in_channels, self.out_channels = in_channels, out_channels
        self.aggr, self.normalize, self.root_weight = REDUCTIONS[aggr], normalize, root_weight
        self.lin = Linear(in_channels, in_channels) if project else None
        self.lin_l = Linear(in_channels, out_channels, bias=bias)
        self.lin_r = Linear(in_channels, out_channels, bias=False) if root_weight else None

    @property
    def bias(self) -> nn.Parameter | None:  # type: ignore[override]
        """Bias of ``lin_l``, which is added last; None if rows are normalised after it."""
        return None if self.normalize else cast("nn.Parameter | None", self.lin_l.bias)

    def reset_parameters(self) -> None:
        """Draw all parameters anew."""
        for part in (self.lin, self.lin_l, self.lin_r):
            if part is not None:
                part.reset_parameters()

    def to_pyg(self) -> nn.Module:
        """Return PyG's layer of the same name with a copy of the weights."""
        same = ("in_channels", "out_channels", "aggr", "normalize", "root_weight")
        return pyg_layer(self, *same, project=self.lin is not None, bias=self.lin_l.bias is not None)

    def combine(self, x: LayerInput, csc: Csc) -> Tensor:
        """Compute the layer without its bias; with ``normalize``, the whole layer."""
        self.check(x, csc)
        root = None if self.lin_r is None else self.lin_r.weight
        if self.aggr == "max" or self.lin is not None:
            out = self._stepwise(x, csc, root)
        else:
            how = Aggregation(csc=csc, mean=self.aggr == "mean")
            out = aggregate_linear(how, x, self.lin_l.weight, root)
        if not self.normalize:
            return out
        return F.normalize(out if self.lin_l.bias is None else out + self.lin_l.bias, p=2.0, dim=-1)

    def _stepwise(self, x: LayerInput, csc: Csc, root: Tensor | None) -> Tensor:
        rows = dense(x)
        neighbours = rows if self.lin is None else self.lin(rows).relu()
        if self.aggr == "max":
            out = dense_linear(spmm(csc, neighbours, "max").to(self.lin_l.weight.dtype), self.lin_l.weight)
        else:
            out = aggregate_linear(
                Aggregation(csc=csc, mean=self.aggr == "mean"), neighbours, self.lin_l.weight
            )
        return out if root is None else out + dense_linear(rows[: csc.num_dst].to(root.dtype), root)


_MOST = torch.finfo(torch.float32).max


@typed
class GINConv(Conv):
    r"""Graph isomorphism layer of "How Powerful are Graph Neural Networks?" (Xu et al.).

    .. math:: x'_v = h\left((1 + \epsilon) x_v + \sum_{u \in N(v)} x_u\right)

    Equal to PyTorch Geometric's layer of the same name, with the same parameters (``nn``, ``eps``).

    Args:
        module: the network h, from ``(rows, in_channels)`` to ``(rows, out_channels)``; stored as ``nn``.
        eps: initial value of ε.
        train_eps: whether ε is learned.
    """

    eps: Tensor

    def __init__(self, module: nn.Module, *, eps: float = 0.0, train_eps: bool = False):
        super().__init__()
        self.nn = module
        self.bias = None
        self.initial_eps = as_number(eps, "eps", least=-_MOST, most=_MOST)
        value = torch.full((1,), self.initial_eps)
        if train_eps:
            self.eps = nn.Parameter(value)
        else:
            self.register_buffer("eps", value)

    def reset_parameters(self) -> None:
        """Draw the network's parameters anew; set ε to its initial value."""
        for child in self.nn.modules():
            if callable(reset := getattr(child, "reset_parameters", None)):
                reset()
        with torch.no_grad():
            self.eps.fill_(self.initial_eps)

    def to_pyg(self) -> nn.Module:
        """Return PyG's layer of the same name with a copy of the weights."""
        return pyg_layer(self, nn=plain(self.nn), train_eps=isinstance(self.eps, nn.Parameter))

    def combine(self, x: LayerInput, csc: Csc) -> Tensor:
        """Compute the whole layer, which has no bias of its own."""
        if x.shape[0] != csc.num_src:
            raise DataError(f"GINConv needs x with {csc.num_src} rows, one per source node; got {x.shape[0]}")
        rows = dense(x)
        if self.eps.requires_grad or tracing():  # while torch traces, its value is not known
            total = aggregate(Aggregation(csc=csc), rows, wide=True) + (1 + self.eps) * rows[: csc.num_dst]
        else:
            total = aggregate(Aggregation(csc=csc, loop_scale=1.0 + float(self.eps)), rows, wide=True)
        out: Tensor = self.nn(total)
        return out

    def extra_repr(self) -> str:
        """Return nothing, since the network shows the channels."""
        return ""


# ---- stacks of layers

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
    """Return a model without its last layer, sharing the others and hooks; ConfigError if it has one."""
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
