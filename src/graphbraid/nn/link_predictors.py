"""Predictors of links and decoders of edges, which read the rows of both ends; and models of these."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from typing import Any, Literal, Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphbraid.arguments import MOST_WIDTH, as_count, as_number, check_choice, check_tensor, check_type
from graphbraid.errors import ConfigError, DataError
from graphbraid.graph.scans import check_ids
from graphbraid.nn import module_traits
from graphbraid.nn.conv import MOST_LAYERS
from graphbraid.nn.linear import Linear
from graphbraid.nn.pyg_layers import as_pyg, checked_copy, plain, pyg_nn
from graphbraid.signatures import typed

Joined = Literal["concat", "product", "dot"]
_COMPARED = 8  # pairs that show whether a predictor scores both directions alike
_PAIRS = 1 << 16  # pairs whose hidden rows are held at a time while a node is scored with all others


class LinkPredictor(nn.Module, ABC):
    """Base class of the link predictors."""

    num_relations: int | None = None
    """Number of relations; each link names one. None if links are of one kind."""

    def forward(self, src: Tensor, dst: Tensor, relation: Tensor | None = None) -> Tensor:
        """Return the score of each pair, the higher the likelier.

        Args:
            src: ``(num_pairs, channels)`` rows of the sources.
            dst: ``(num_pairs, channels)`` rows of the destinations.
            relation: ``(num_pairs,)`` integers in ``[0, num_relations)``, for predictors of relations.

        Returns:
            ``(num_pairs,)``.

        Raises:
            DataError: rows or relations do not fit each other or the predictor.
        """
        check_tensor(src, "src", ndim=2, floating=True)
        if check_tensor(dst, "dst", ndim=2, floating=True).shape != src.shape:
            raise DataError(f"dst must have the shape of src, {tuple(src.shape)}; got {tuple(dst.shape)}")
        self._check(src, relation)
        return self._pairs(src, dst, relation)

    def with_all(self, src: Tensor, rows: Tensor, relation: Tensor | None = None) -> Tensor:
        """Return the scores of each source with every row, as :func:`graphbraid.train.rank_links` needs them.

        Args:
            src: ``(num_src, channels)`` rows of the sources.
            rows: ``(num_nodes, channels)`` rows of the destinations.
            relation: as in :meth:`forward`, for each source.

        Returns:
            ``(num_src, num_nodes)``.

        Raises:
            DataError: rows or relations do not fit each other or the predictor.
        """
        self._check_all(src, rows, relation)
        return self._all(src, rows, relation)

    def all_with(self, dst: Tensor, rows: Tensor, relation: Tensor | None = None) -> Tensor:
        """Return the scores of every row as a source with each destination, to rank sources.

        The predictors of this module score a pair the same in both directions, so this is :meth:`with_all`;
        a few pairs are compared to make sure. A predictor whose scores differ must override it.

        Args:
            dst: ``(num_dst, channels)`` rows of the destinations.
            rows: ``(num_nodes, channels)`` rows of the sources.
            relation: as in :meth:`forward`, for each destination.

        Returns:
            ``(num_dst, num_nodes)``.

        Raises:
            DataError: rows or relations do not fit each other or the predictor, or a pair's scores differ.
        """
        scores = self.with_all(dst, rows, relation)
        self._check_symmetry(dst, rows, relation)
        return scores

    @torch.no_grad()
    def _check_symmetry(self, dst: Tensor, rows: Tensor, relation: Tensor | None) -> None:
        some = min(_COMPARED, dst.shape[0], rows.shape[0])
        if type(self).all_with is not LinkPredictor.all_with or not some:
            return
        of_these = None if relation is None else relation[:some]
        training = [module for module in self.modules() if module.training]
        # Dropout would make the two directions differ.
        self.eval()
        dst, rows = dst[:some], rows[-some:]
        there, back = self._pairs(dst, rows, of_these), self._pairs(rows, dst, of_these)
        for module in training:
            module.training = True
        if bool(((there - back).abs() > 0.05 * there.abs().max()).any()):
            raise DataError(
                f"{type(self).__name__} scores a pair otherwise in the other direction, so ranking sources "
                "needs its own all_with(dst, rows, relation); define it"
            )

    @abstractmethod
    def _pairs(self, src: Tensor, dst: Tensor, relation: Tensor | None) -> Tensor:
        """Score pairs that have been checked."""

    @abstractmethod
    def _all(self, src: Tensor, rows: Tensor, relation: Tensor | None) -> Tensor:
        """Score sources with all rows, which have been checked."""

    def _check_all(self, src: Tensor, rows: Tensor, relation: Tensor | None) -> None:
        check_tensor(src, "src", ndim=2, floating=True)
        if check_tensor(rows, "rows", ndim=2, floating=True).shape[1] != src.shape[1]:
            raise DataError(f"rows must have {src.shape[1]} columns as src has; got {tuple(rows.shape)}")
        if rows.dtype != src.dtype:
            raise DataError(f"rows must be {src.dtype} as src is; got {rows.dtype}")
        self._check(src, relation)

    def _check(self, src: Tensor, relation: Tensor | None) -> None:
        """Check the relations, one for each source, and the rows by a subclass's rules."""
        name, count = type(self).__name__, self.num_relations
        if count is None:
            if relation is not None:
                raise DataError(f"{name} knows no relations; leave relation out")
            return
        if relation is None:
            raise DataError(f"{name} needs the relation of each link, in [0, {count})")
        check_ids(relation, count, "relation")
        if relation.shape[0] != src.shape[0]:
            raise DataError(f"relation must have {src.shape[0]} entries as src has; got {relation.shape[0]}")


class DotProduct(LinkPredictor):
    """The dot product of both rows, without parameters."""

    def _pairs(self, src: Tensor, dst: Tensor, _relation: Tensor | None) -> Tensor:
        return (src * dst).sum(-1)

    def _all(self, src: Tensor, rows: Tensor, _relation: Tensor | None) -> Tensor:
        return src @ rows.t()


@typed
class MLPPredictor(LinkPredictor):
    """Linear layers with ReLU over the product of both rows, element by element.

    Args:
        channels: width of the rows.
        hidden_channels: width between the layers.
        num_layers: number of layers; the last has one output.
        dropout: probability of dropping an element between the layers.

    Raises:
        ConfigError: an option is invalid.
    """

    def __init__(
        self, channels: int, hidden_channels: int, num_layers: int = 2, *, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.dropout = as_number(dropout, "dropout", least=0, below=1)
        as_count(num_layers, "num_layers", least=1, most=MOST_LAYERS)
        widths = [channels] + [hidden_channels] * (num_layers - 1) + [1]
        self.layers = nn.ModuleList(Linear(widths[i], widths[i + 1]) for i in range(num_layers))

    def reset_parameters(self) -> None:
        """Draw all parameters anew."""
        for layer in self.layers:
            assert isinstance(layer, Linear)
            layer.reset_parameters()

    def _check(self, src: Tensor, relation: Tensor | None) -> None:
        super()._check(src, relation)
        first = self.layers[0]
        assert isinstance(first, nn.Linear)
        if src.shape[1] != first.in_features:
            raise DataError(f"src must have {first.in_features} columns (channels); got {tuple(src.shape)}")

    def _pairs(self, src: Tensor, dst: Tensor, _relation: Tensor | None) -> Tensor:
        x = src * dst
        for layer in self.layers[:-1]:
            x = F.dropout(layer(x).relu(), self.dropout, self.training)
        scores: Tensor = self.layers[-1](x)
        return scores.squeeze(-1)

    def _all(self, src: Tensor, rows: Tensor, relation: Tensor | None) -> Tensor:
        parts = torch.split(rows, max(1, _PAIRS // max(1, src.shape[0])))
        scores = []
        for part in parts:
            pairs = src.repeat_interleave(part.shape[0], 0), part.repeat(src.shape[0], 1)
            scores.append(self._pairs(*pairs, relation).view(src.shape[0], part.shape[0]))
        return torch.cat(scores, 1) if scores else src.new_empty(src.shape[0], 0)


class EndsModel(nn.Module):
    """Base of models of links and edges: an encoder gives nodes rows, and a head reads those of both ends."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        check_type(encoder, "encoder", nn.Module, "a torch.nn.Module", error=ConfigError)
        self.encoder = encoder

    @property
    def takes_blocks(self) -> bool:
        """Whether the encoder is called with one block per layer."""
        return module_traits.takes_blocks(self.encoder)

    @property
    def num_layers(self) -> int | None:
        """Number of the encoder's layers, one for each hop; None if it does not say, or has none."""
        return module_traits.num_layers(self.encoder) or None

    def to_pyg(self) -> Self:
        """Return a model of the encoder's ``to_pyg()`` and of the head with PyTorch's own linear layers.

        Raises:
            ConfigError: the class is a user's, there are hooks, or the encoder has no such form.
            MissingPackageError: PyTorch Geometric is not installed.
        """
        pyg_nn(self)
        [head] = (one for name, one in self.named_children() if name != "encoder")
        made: Self = cast("Any", type(self))(as_pyg(self.encoder), plain(head))
        checked_copy(made, self)
        return made


class LinkModel(EndsModel):
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
        super().__init__(encoder)
        check_type(predictor, "predictor", LinkPredictor, "a graphbraid.nn.LinkPredictor", error=ConfigError)
        self.predictor = predictor

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


class EdgeModel(EndsModel):
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
        super().__init__(encoder)
        check_type(decoder, "decoder", nn.Module, "a torch.nn.Module", error=ConfigError)
        self.decoder = decoder

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
