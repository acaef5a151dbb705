"""ShardedEmbedding: learned rows of nodes that are divided among ranks; a batch has those of its nodes."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphbraid.arguments import MOST_WIDTH, as_count, check_tensor, check_type
from graphbraid.errors import ConfigError, DataError


class ShardedEmbedding(nn.Module):
    """A learned row for each node of a graph, as ``torch.nn.Embedding`` has, divided among ranks.

    The module itself holds no row, and no parameter. :class:`graphbraid.Trainer` gives each rank the rows of
    the nodes that it owns. Before a mini-batch is computed, the owners send the rows of its nodes; after the
    step's backward pass their gradients go to the owners, which update these rows alone.

    Call it with ids of nodes of the mini-batch, such as ``n_id``::

        class Model(nn.Module):
            def __init__(self, num_nodes: int) -> None:
                super().__init__()
                self.rows = ShardedEmbedding(num_nodes, 64)
                self.layer = SAGEConv(64, 7)

            def forward(self, x, edge_index, n_id):
                return self.layer(self.rows(n_id), edge_index)

    Initial values are a function of the run's seed, the node and the column: uniform numbers with the
    variance ``1 / channels``, so that a row's length is about 1.

    In a graph with types the rows are those of one type, called with its entry of ``n_id_dict``.

    Args:
        num_nodes: number of nodes of the graph, or of the type.
        channels: width of the rows.
        node_type: type of the nodes; None in a graph without types.

    Raises:
        ConfigError: an option is invalid.
    """

    def __init__(self, num_nodes: int, channels: int, node_type: str | None = None) -> None:
        super().__init__()
        if node_type is not None:
            check_type(node_type, "node_type", str, "the name of a node type, or None", error=ConfigError)
        self.node_type = node_type
        self.num_nodes = as_count(num_nodes, "num_nodes", least=1)
        self.channels = as_count(channels, "channels", least=1, most=MOST_WIDTH)
        self.held: Any = None
        """Rows of the nodes that this rank owns, and their state; None before a Trainer has made them."""
        self._ids, self._rows = torch.empty(0, dtype=torch.int64), torch.empty(0, self.channels)
        self._is_read = torch.empty(0, dtype=torch.bool)

    def extra_repr(self) -> str:
        """Return the sizes and the type."""
        of_type = "" if self.node_type is None else f", node_type={self.node_type!r}"
        return f"{self.num_nodes}, {self.channels}{of_type}"

    def __deepcopy__(self, memo: Any) -> NoReturn:
        """Refuse a copy, which would learn rows of its own."""
        raise ConfigError(
            "a model with a ShardedEmbedding is not copied: its rows are divided among ranks. Make another "
            "model, and load a run's checkpoint with Trainer.load_weights"
        )

    def __getstate__(self) -> NoReturn:
        """Refuse pickling, which would lose the rows."""
        raise ConfigError(
            "a model with a ShardedEmbedding is not pickled: its rows are divided among ranks. A Trainer "
            "with out_dir saves them (checkpoints/last.pt and the folder beside it)"
        )

    def requires_grad_(self, requires_grad: bool = True) -> ShardedEmbedding:
        """Refuse to freeze the rows, which are no parameter of the module."""
        if not requires_grad:
            raise ConfigError(
                "the rows of a ShardedEmbedding are no parameter that could be frozen; call .detach() on the "
                "rows that it returns"
            )
        return self

    def take_batch(self, ids: Tensor, rows: Tensor) -> Tensor:
        """Take the rows of a batch's nodes, before the model is called.

        Args:
            ids: ``(num_ids,)`` int64 distinct ids on the model's device.
            rows: ``(num_ids, channels)`` float32 on that device; gradients are added up there.

        Returns:
            Which rows the model reads, ``(num_ids,)`` bool; its calls fill it in.
        """
        self._ids, self._rows = ids, rows
        self._is_read = torch.zeros(ids.numel(), dtype=torch.bool, device=ids.device)
        return self._is_read

    def forward(self, n_id: Tensor) -> Tensor:
        """Return the rows of nodes of the mini-batch, ``(*n_id.shape, channels)`` float32.

        Args:
            n_id: integer ids in the whole graph, or within the type, of any shape, possibly repeated.

        Raises:
            ConfigError: no Trainer has brought a mini-batch.
            DataError: a node is not in the mini-batch.
        """
        check_tensor(n_id, "n_id")
        if self.held is None:
            raise ConfigError(
                "a ShardedEmbedding has rows only while a graphbraid.Trainer runs the model on mini-batches; "
                "in a loop of your own use torch.nn.Embedding"
            )
        ids = n_id.long()
        if ids.shape == self._ids.shape and torch.equal(ids, self._ids):
            self._is_read.fill_(True)
            return self._rows
        order = self._ids.argsort()
        places = torch.searchsorted(self._ids, ids, sorter=order).clamp(max=max(self._ids.numel() - 1, 0))
        if ids.numel() and not (self._ids.numel() and torch.equal(self._ids[order[places]], ids)):
            raise DataError(
                "a ShardedEmbedding has the rows of a mini-batch's nodes alone, and was asked for another "
                "node; call it with n_id, or with ids taken from n_id"
            )
        places = order[places]
        self._is_read[places.flatten()] = True
        return F.embedding(places, self._rows)
