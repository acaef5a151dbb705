"""EdgeModel: outputs for edges, from the rows that an encoder gives their ends."""

from __future__ import annotations

import itertools
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphbraid.arguments import MOST_WIDTH, as_count, as_number, check_choice, check_type
from graphbraid.errors import ConfigError, DataError
from graphbraid.nn import module_traits
from graphbraid.nn.graph_model import MOST_LAYERS
from graphbraid.nn.linear import Linear

Joined = Literal["concat", "product", "dot"]


class EdgeDecoder(nn.Module):
    """Linear layers, with ReLU between them, on the joined rows of both ends of an edge and its features.

    Args:
        channels: width of an end's row.
        out_channels: width of the output: classes, labels or targets.
        edge_channels: number of features of an edge. If 0, its features are not used.
        how: ``concat`` of both rows, which tells the ends apart; their ``product`` entry by entry; or its
            sum, ``dot``.
        hidden_channels: width between layers. If None, ``channels``.
        num_layers: number of linear layers.
        dropout: probability of dropping an element between layers.

    Raises:
        ConfigError: an argument is out of its bounds.
    """

    def __init__(
        self,
        channels: int,
        out_channels: int,
        *,
        edge_channels: int = 0,
        how: Joined = "concat",
        hidden_channels: int | None = None,
        num_layers: int = 2,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        hidden = channels if hidden_channels is None else hidden_channels
        sizes = {"channels": channels, "out_channels": out_channels, "hidden_channels": hidden}
        for name, size in sizes.items():
            as_count(size, name, least=1, most=MOST_WIDTH)
        as_count(edge_channels, "edge_channels", most=MOST_WIDTH)
        as_count(num_layers, "num_layers", least=1, most=MOST_LAYERS)
        check_choice(how, "how", ("concat", "product", "dot"))
        self.how, self.edge_channels = how, edge_channels
        self.dropout = as_number(dropout, "dropout", least=0, below=1)
        joined = {"concat": 2 * channels, "product": channels, "dot": 1}[how] + edge_channels
        widths = [joined, *[hidden] * (num_layers - 1), out_channels]
        self.layers = nn.ModuleList(Linear(*pair) for pair in itertools.pairwise(widths))

    def forward(self, src: Tensor, dst: Tensor, edge_attr: Tensor | None = None) -> Tensor:
        """Return the outputs, ``(num_edges, out_channels)``.

        Args:
            src: ``(num_edges, channels)`` rows of the sources.
            dst: ``(num_edges, channels)`` rows of the destinations.
            edge_attr: ``(num_edges, edge_channels)`` features of the edges.

        Raises:
            DataError: the edges have another number of features than ``edge_channels``.
        """
        x = torch.cat([src, dst], 1) if self.how == "concat" else src * dst
        x = x.sum(1, keepdim=True) if self.how == "dot" else x
        if self.edge_channels:
            width = 0 if edge_attr is None else edge_attr.shape[1]
            if edge_attr is None or width != self.edge_channels:
                raise DataError(f"edges have {width} features, and the decoder takes {self.edge_channels}")
            x = torch.cat([x, edge_attr.to(x.dtype)], 1)
        for layer in self.layers[:-1]:
            x = F.dropout(layer(x).relu(), self.dropout, self.training)
        found: Tensor = self.layers[-1](x)
        return found


class EdgeModel(nn.Module):
    """A model of edges: an encoder gives each node a row, and a decoder makes an edge's output of both ends.

    ``Trainer(model, graph, task="edge")`` trains it.

    Args:
        encoder: as that of :class:`LinkModel`.
        decoder: such as :class:`EdgeDecoder`, or any module called as ``decoder(src, dst)``, with the rows of
            both ends; where the edges have features, as ``decoder(src, dst, edge_attr)``.

    Raises:
        ConfigError: an argument is of another class.
    """

    def __init__(self, encoder: nn.Module, decoder: nn.Module) -> None:
        super().__init__()
        check_type(encoder, "encoder", nn.Module, "a torch.nn.Module", error=ConfigError)
        check_type(decoder, "decoder", nn.Module, "a torch.nn.Module", error=ConfigError)
        self.encoder, self.decoder = encoder, decoder

    @property
    def takes_blocks(self) -> bool:
        """Whether the encoder is called with one block per layer."""
        return module_traits.takes_blocks(self.encoder)

    @property
    def num_layers(self) -> int | None:
        """Number of the encoder's layers, one for each hop; None if it does not say, or has none."""
        return module_traits.num_layers(self.encoder) or None

    def forward(
        self, x: Any, edges: Any, pairs: Tensor, edge_attr: Tensor | None = None, **named: Any
    ) -> Tensor:
        """Return the outputs for edges, ``(num_edges, width)``.

        Args:
            x: features, as the encoder takes them.
            edges: edges that carry messages, as the encoder takes them.
            pairs: ``(2, num_edges)`` rows of both ends among the encoder's.
            edge_attr: ``(num_edges, edge_channels)`` features of these edges, for the decoder.
            **named: further arguments of the encoder.
        """
        rows = self.encoder(x, edges, **named)
        ends = rows[pairs[0]], rows[pairs[1]]
        found: Tensor = self.decoder(*ends) if edge_attr is None else self.decoder(*ends, edge_attr)
        return found
