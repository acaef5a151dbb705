"""Models: stacks of layers that run on a whole graph or on the blocks of a mini-batch."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from graphbraid.errors import ConfigError, DataError
from graphbraid.graph.csc import Csc
from graphbraid.graph.sparse_features import SparseFeatures
from graphbraid.nn.adjacency import as_csc
from graphbraid.nn.conv import LayerInput, as_rows, check_takes_weights
from graphbraid.nn.gat import AttentionConv, GATConv, GATv2Conv
from graphbraid.nn.gcn import GCNConv
from graphbraid.nn.gin import GINConv
from graphbraid.nn.graph_model import Adjacency, GraphModel, check_probabilities, check_sizes
from graphbraid.nn.linear import Linear
from graphbraid.nn.pyg_layers import activation, as_pyg, checked_copy, plain, pyg_nn
from graphbraid.nn.sage import SAGEConv
from graphbraid.ops import dense_linear, sparse_linear


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
