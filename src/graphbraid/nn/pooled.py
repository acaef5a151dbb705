"""PooledModel: one row per graph, from the rows that an encoder gives its nodes."""

from __future__ import annotations

import inspect
from typing import Any, Literal

import torch
from torch import Tensor, nn

from graphbraid.arguments import check_choice, check_tensor, check_type
from graphbraid.errors import ConfigError, DataError
from graphbraid.graph.csc import Csc, indptr_of
from graphbraid.nn.pyg_layers import as_pyg, checked_copy, plain, pyg_nn
from graphbraid.ops import spmm

Readout = Literal["sum", "mean", "max"]


class PooledModel(nn.Module):
    """A model of graphs: an encoder gives each node a row, and a readout makes one of those of each graph.

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
    """Return the sum, mean or largest entries of the rows of each graph, ``(num_graphs, width)``.

    Args:
        rows: ``(num_nodes, width)`` rows, those of a graph one after the other.
        ptr: ``(num_graphs + 1,)`` int64: where those of each graph begin.
        readout: ``sum``, ``mean`` or ``max``.

    Raises:
        DataError: ``ptr`` does not end at the number of rows.
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
