"""Models: stacks of layers that run on a whole graph or on the blocks of a mini-batch, also by their names.

The command line and configuration files use the names. PooledModel joins the rows that a model gives the
nodes of a graph into one row.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from graphbraid.arguments import check_choice, check_tensor, check_type
from graphbraid.errors import ConfigError, DataError, did_you_mean
from graphbraid.graph import Graph
from graphbraid.graph.csc import Csc, indptr_of
from graphbraid.graph.sparse_features import SparseFeatures
from graphbraid.nn.adjacency import as_csc
from graphbraid.nn.conv import (
    Adjacency,
    GINConv,
    GraphModel,
    LayerInput,
    SAGEConv,
    as_rows,
    check_probabilities,
    check_sizes,
    check_takes_weights,
)
from graphbraid.nn.gat import AttentionConv, GATConv, GATv2Conv
from graphbraid.nn.gcn import GCNConv
from graphbraid.nn.linear import Linear
from graphbraid.nn.pyg_layers import activation, as_pyg, checked_copy, plain, pyg_nn
from graphbraid.nn.typed_models import RGCN
from graphbraid.ops import dense_linear, sparse_linear, spmm
from graphbraid.signatures import typed


class GCN(GraphModel):
    """Stack of :class:`GCNConv`.

    ``options``: ``improved``, ``add_self_loops``, ``normalize``, ``bias``.
    """

    layer = GCNConv

    def make_layer(self, in_channels: int, out_channels: int, **options: Any) -> nn.Module:
        """Make a graph convolution."""
        return GCNConv(in_channels, out_channels, **options)


class GraphSAGE(GraphModel):
    """Stack of :class:`SAGEConv`.

    ``options``: ``aggr``, ``normalize``, ``root_weight``, ``project``, ``bias``.
    """

    layer = SAGEConv

    def make_layer(self, in_channels: int, out_channels: int, **options: Any) -> nn.Module:
        """Make a GraphSAGE layer."""
        return SAGEConv(in_channels, out_channels, **options)


class GIN(GraphModel):
    """Stack of :class:`GINConv`, each around a two-layer network with batch normalisation, as in PyG.

    ``options``: ``eps``, ``train_eps``.
    """

    layer = GINConv

    def make_layer(self, in_channels: int, out_channels: int, **options: Any) -> nn.Module:
        """Make a graph isomorphism layer."""
        network = nn.Sequential(
            Linear(in_channels, out_channels),
            nn.BatchNorm1d(out_channels),
            nn.ReLU(),
            Linear(out_channels, out_channels),
        )
        return GINConv(network, **options)


class AttentionModel(GraphModel):
    """Base class of GAT and GATv2: hidden layers concatenate their heads, the last one takes their mean.

    ``options``: those of the layer, ``heads`` (of hidden layers; must divide ``hidden_channels``),
    ``out_heads`` (of the last layer) and ``attention_dropout``.
    """

    layer: ClassVar[type[AttentionConv]]

    def make_layer(
        self,
        in_channels: int,
        out_channels: int,
        *,
        heads: int = 8,
        out_heads: int = 1,
        attention_dropout: float = 0.0,
        **options: Any,
    ) -> nn.Module:
        """Make a hidden layer."""
        check_sizes(heads=heads, out_heads=out_heads)
        check_probabilities(attention_dropout=attention_dropout)
        if out_channels % heads:
            raise ConfigError(f"hidden_channels must be a multiple of heads ({heads}); got {out_channels}")
        return self.layer(
            in_channels, out_channels // heads, heads=heads, dropout=attention_dropout, **options
        )

    def make_last_layer(
        self,
        in_channels: int,
        out_channels: int,
        *,
        heads: int = 8,
        out_heads: int = 1,
        attention_dropout: float = 0.0,
        **options: Any,
    ) -> nn.Module:
        """Make the layer that computes the model's output."""
        check_sizes(heads=heads, out_heads=out_heads)
        check_probabilities(attention_dropout=attention_dropout)
        return self.layer(
            in_channels, out_channels, heads=out_heads, concat=False, dropout=attention_dropout, **options
        )


class GAT(AttentionModel):
    """Stack of :class:`GATConv`; options as in :class:`AttentionModel`, and ``row_dropout``."""

    layer = GATConv


class GATv2(AttentionModel):
    """Stack of :class:`GATv2Conv`; options as in :class:`AttentionModel`, and ``share_weights``."""

    layer = GATv2Conv


class MLP(GraphModel):
    """Baseline that ignores edges: linear layers on each node's own features; ``options``: ``bias``."""

    def make_layer(self, in_channels: int, out_channels: int, *, bias: bool = True) -> nn.Module:  # type: ignore[override]
        """Make a linear layer."""
        return Linear(in_channels, out_channels, bias=bias)

    def to_pyg(self) -> nn.Module:
        """Return PyG's model of the same name with a copy of the weights, called as ``model(x)``.

        Raises:
            ConfigError: the class is a user's, or there are hooks.
            MissingPackageError: PyTorch Geometric is not installed.
        """
        acts, linears = activation(self.act), [as_pyg(conv) for conv in self.convs]
        widths = [self.in_channels, *[self.hidden_channels] * (self.num_layers - 1), self.out_channels]
        act, p = acts[0] if acts else None, float(self.dropout)
        with torch.random.fork_rng([]):
            made = pyg_nn(self).MLP(widths, dropout=p, act=act, norm=None).train(self.training)
        if self.input_dropout:
            linears[0] = nn.Sequential(nn.Dropout(self.input_dropout).train(self.training), linears[0])
        made.lins = nn.ModuleList(linears)
        if self.norms is not None:
            made.norms = plain(self.norms)
        return checked_copy(made, self)

    def forward(
        self, x: LayerInput, edge_index: Adjacency | None = None, edge_weight: Tensor | None = None
    ) -> Tensor:
        """Run all layers on the rows of the last block's destinations, or on all rows without blocks."""
        x = as_rows(x)
        check_takes_weights(type(self), edge_weight)
        if isinstance(edge_index, Tensor):
            as_csc(edge_index, x.shape[0])  # checked as in the other models, although the edges are not used
        elif isinstance(edge_index, list | tuple) and not isinstance(x, SparseFeatures):
            if not edge_index:
                raise DataError("a model on blocks needs at least one; got none")
            x = x[: edge_index[-1].num_dst]
        x = self.drop_input(x)
        for i in range(self.num_layers):
            x = self.forward_layer(i, x, None)
        assert isinstance(x, Tensor)
        return x

    def forward_layer(self, i: int, x: LayerInput, csc: Csc | None) -> Tensor:
        """Run layer ``i`` and the steps after it on each row of ``x``."""
        conv = self.convs[i]
        assert isinstance(conv, Linear)
        if isinstance(x, SparseFeatures):
            return self.finish_layer(i, sparse_linear(x, conv.weight), conv.bias)
        rows = x if csc is None else x[: csc.num_dst]
        return self.finish_layer(i, dense_linear(rows.to(conv.weight.dtype), conv.weight), conv.bias)


MODELS: dict[str, type[GraphModel]] = {
    "gcn": GCN,
    "sage": GraphSAGE,
    "gin": GIN,
    "gat": GAT,
    "gatv2": GATv2,
    "mlp": MLP,
}
TYPED_MODELS: dict[str, type[RGCN]] = {"rgcn": RGCN}
"""Likewise of several node types."""
_FROM_GRAPH = ("self", "in_channels", "out_channels", "edge_types", "num_nodes")


@typed
def make_model(name: str, in_channels: int, out_channels: int, **options: Any) -> GraphModel:
    """Make a model by name.

    Args:
        name: a key of :data:`MODELS`.
        in_channels: width of the input features.
        out_channels: number of classes, labels or target columns.
        **options: options of the model and its layers; ``hidden_channels`` defaults to 64 and ``num_layers``
            to 2.

    Raises:
        ConfigError: the name or an option is unknown (the message names the nearest known one), or a value is
            invalid.
    """
    if name not in MODELS:
        raise ConfigError(
            f"no model is called {name!r}; choose one of {', '.join(MODELS)}.{did_you_mean(name, MODELS)}"
        )
    model = MODELS[name]
    _check_options(name, options, model_options(name))
    hidden_channels = options.pop("hidden_channels", 64)
    return model(in_channels, hidden_channels, out_channels, **options)


@typed
def model_options(name: str) -> list[str]:
    """Return the names of all options of a model: its own and its layers'.

    Raises:
        ConfigError: the name is unknown; the message names the nearest known one.
    """
    check_choice(name, "a model's name", MODELS)
    model = MODELS[name]
    ignored = {"self", "in_channels", "out_channels", "options", "module", "concat"}
    sources = [inspect.signature(GraphModel.__init__), inspect.signature(model.make_layer)]
    if model.layer is not None:
        sources.append(inspect.signature(model.layer.__init__))
    names = dict.fromkeys(parameter for source in sources for parameter in source.parameters)
    return [option for option in names if option not in ignored]


@typed
def make_typed_model(name: str, graph: Graph, out_channels: int | None = None, **options: Any) -> RGCN:
    """Make a model of several node types by name.

    Args:
        name: a key of :data:`TYPED_MODELS`.
        graph: a graph with types, for which the model is made (:meth:`RGCN.of`).
        out_channels: width of the output. If None, the number of classes.
        **options: options of the model.

    Raises:
        ConfigError: the name or an option is unknown (the message names the nearest known one), or a value is
            invalid.
    """
    check_choice(name, "a model's name", TYPED_MODELS)
    own = inspect.signature(TYPED_MODELS[name].__init__).parameters
    known = [option for option in own if option not in _FROM_GRAPH]
    _check_options(name, options, known)
    return TYPED_MODELS[name].of(graph, out_channels=out_channels, **options)


def _check_options(name: str, options: Iterable[str], known: Sequence[str]) -> None:
    for option in options:
        if option not in known:
            raise ConfigError(
                f"model {name!r} has no option {option!r}.{did_you_mean(option, known)} It takes "
                f"{', '.join(known)}."
            )


Readout = Literal["sum", "mean", "max"]


class PooledModel(nn.Module):
    """A model of graphs: an encoder gives each node a row, and a readout joins the rows of each graph.

    ``Trainer(model, graphs, task="graph")`` trains it, as it does any module that returns a row per graph.

    Args:
        encoder: a model of :mod:`graphbraid.nn`, such as :class:`GIN`, or any module called as
            ``encoder(x, edge_index)``; it also gets ``edge_weight`` and ``edge_attr`` if graphs have them and
            its ``forward`` takes them.
        head: makes the outputs of a graph's row, such as ``torch.nn.Linear``. If None, the row is returned.
        readout: ``sum``, ``mean`` or ``max`` of the rows of a graph's nodes; zeros for a graph without nodes.

    Raises:
        ConfigError: an argument is of another class, or there is no such readout.
    """

    def __init__(
        self, encoder: nn.Module, head: nn.Module | None = None, *, readout: Readout = "mean"
    ) -> None:
        super().__init__()
        check_type(encoder, "encoder", nn.Module, "a torch.nn.Module", error=ConfigError)
        if head is not None:
            check_type(head, "head", nn.Module, "a torch.nn.Module", error=ConfigError)
        check_choice(readout, "readout", ("sum", "mean", "max"))
        self.encoder, self.head, self.readout = encoder, head, readout
        self.aggregation: nn.Module | None = None
        """PyG's aggregation, which reads out after :meth:`to_pyg`. If None, graphbraid's operator does."""
        self._taken = frozenset(inspect.signature(encoder.forward).parameters)

    def to_pyg(self) -> PooledModel:
        """Return a model of the encoder's ``to_pyg()``, PyG's aggregation and the head.

        Raises:
            ConfigError: the class is a user's, there are hooks, or the encoder has no such form.
            MissingPackageError: PyTorch Geometric is not installed.
        """
        aggregations, head = pyg_nn(self).aggr, None if self.head is None else plain(self.head)
        made = PooledModel(as_pyg(self.encoder), head, readout=self.readout)
        made.aggregation = getattr(aggregations, f"{self.readout.capitalize()}Aggregation")()
        made._taken = self._taken  # PyG's form of the encoder may take more
        checked_copy(made, self)
        return made

    def forward(
        self,
        x: Any,
        edge_index: Any,
        batch: Tensor | None = None,
        *,
        ptr: Tensor | None = None,
        edge_weight: Tensor | None = None,
        edge_attr: Tensor | None = None,
        graph_x: Tensor | None = None,
    ) -> Tensor:
        """Return one row per graph, ``(num_graphs, width)``.

        Args:
            x: features, as the encoder takes them.
            edge_index: edges, as the encoder takes them.
            batch: ``(num_nodes,)`` number of each node's graph, ascending. If None, all are of one graph.
            ptr: ``(num_graphs + 1,)`` where the nodes of each graph begin, in place of ``batch``.
            edge_weight: weights of edges, for encoders that take them.
            edge_attr: features of edges, for encoders that take them.
            graph_x: ``(num_graphs, num_graph_features)`` the graphs' own features, which follow the row that
                the readout makes.

        Raises:
            DataError: the numbers of graphs do not rise, or nodes and numbers differ.
        """
        given = {"edge_weight": edge_weight, "edge_attr": edge_attr}
        named = {name: one for name, one in given.items() if one is not None and name in self._taken}
        rows = self.encoder(x, edge_index, **named)
        ptr = _starts(batch, rows.shape[0]) if ptr is None else ptr
        if self.aggregation is None:
            pooled = pool(rows, ptr, self.readout)
        else:
            pooled = self.aggregation(rows, ptr=ptr)
        if graph_x is not None:
            pooled = torch.cat([pooled, graph_x.to(pooled.dtype)], 1)
        found: Tensor = pooled if self.head is None else self.head(pooled)
        return found


def pool(rows: Tensor, ptr: Tensor, readout: Readout) -> Tensor:
    """Return the sum, mean or max of the rows of each graph, ``(num_graphs, width)``.

    The rows of nodes stand graph by graph, and ``ptr``, int64, says where each begins; else DataError.
    """
    check_tensor(ptr, "ptr", ndim=1)
    if not ptr.numel() or int(ptr[-1]) != rows.shape[0]:
        raise DataError(f"ptr must end at the number of rows, {rows.shape[0]}; got {ptr[-1:].tolist()}")
    ids = torch.arange(rows.shape[0], dtype=torch.int32, device=rows.device)
    return spmm(Csc(ptr.long(), ids, rows.shape[0]), rows, readout)


def _starts(batch: Tensor | None, num_nodes: int) -> Tensor:
    if batch is None:
        return torch.tensor([0, num_nodes])
    check_tensor(batch, "batch", ndim=1)
    if batch.numel() != num_nodes or bool((batch.diff() < 0).any()):
        raise DataError(f"batch must have a rising number for each of the {num_nodes} nodes")
    return indptr_of(torch.bincount(batch))
