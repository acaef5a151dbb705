"""LinkModel: an encoder of nodes and a predictor of links, trained together."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from graphbraid.arguments import check_type
from graphbraid.errors import ConfigError
from graphbraid.nn import told
from graphbraid.nn.link_predictors import LinkPredictor


class LinkModel(nn.Module):
    """A model of links: an encoder gives each node a row, and a predictor scores pairs of rows.

    ``Trainer(model, graph, task="link")`` trains it.

    Args:
        encoder: a model of :mod:`graphbraid.nn`, such as :class:`GraphSAGE` or :class:`NodeEmbedding`, or any
            module called as ``encoder(x, edge_index)``; it also gets ``n_id``, the ids of the rows,
            ``edge_type``, the relation of each edge, ``edge_weight`` and ``edge_attr``, if its ``forward``
            has arguments of these names. It returns ``(num_nodes, channels)``. For a graph of several node
            types it is called by type, as :class:`RGCN` or PyG's ``to_hetero`` models are, and returns
            rows by node type.
        predictor: scores of pairs of such rows.

    Raises:
        ConfigError: an argument is of another class.
    """

    def __init__(self, encoder: nn.Module, predictor: LinkPredictor) -> None:
        super().__init__()
        check_type(encoder, "encoder", nn.Module, "a torch.nn.Module", error=ConfigError)
        check_type(predictor, "predictor", LinkPredictor, "a graphbraid.nn.LinkPredictor", error=ConfigError)
        self.encoder, self.predictor = encoder, predictor

    @property
    def takes_blocks(self) -> bool:
        """Whether the encoder is called with one block per layer."""
        return told.takes_blocks(self.encoder)

    @property
    def num_layers(self) -> int | None:
        """Number of the encoder's layers, one for each hop; None if it does not say, or has none."""
        return told.num_layers(self.encoder) or None

    def forward(
        self, x: Any, edges: Any, pairs: Tensor, relation: Tensor | None = None, **named: Any
    ) -> Tensor:
        """Return the scores of pairs of nodes, ``(num_pairs,)``.

        Args:
            x: features, as the encoder takes them.
            edges: edges, as the encoder takes them.
            pairs: ``(2, num_pairs)`` rows of the sources and of the destinations among the encoder's.
            relation: ``(num_pairs,)`` relation of each pair, for predictors of relations.
            **named: further arguments of the encoder.
        """
        rows = self.encoder(x, edges, **named)
        scores: Tensor = self.predictor(rows[pairs[0]], rows[pairs[1]], relation)
        return scores
