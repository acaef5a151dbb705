"""Renumbering: the arrays of a graph with its nodes in another order, whole or in ranges of nodes.

Follows Algorithm 2 of Min et al., "Graph Neural Network Training with Data Tiering": a prefix sum over the
list lengths gives the new ``indptr``, then each list is copied to its new place and its neighbours renamed on
the way. Only input and output take memory in proportion to the edges.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from graphbraid import native
from graphbraid.features.reordering import renumbering_reference
from graphbraid.graph.csc import Csc
from graphbraid.graph.orders import inverse_of
from graphbraid.graph.scans import unchanged
from graphbraid.ops.gather import gather_rows


@unchanged("order")
class Renumbering:
    """A new order of the nodes, and the arrays of a graph in that order."""

    def __init__(self, order: Tensor, *, ascending: bool = False) -> None:
        """Check and invert the order.

        Args:
            order: ``(num_nodes,)`` int32 or int64 permutation: the node that comes i-th.
            ascending: Whether to read the source arrays in ascending order for each range, at the cost of a
                second copy of that range; for arrays mapped from a disk.

        Raises:
            DataError: The order is not a permutation; names the first wrong entry.
        """
        self.inverse = inverse_of(order)
        """Position of each node, ``(num_nodes,)``; int32 where every id fits."""
        self.order = order.contiguous()
        self._ascending = ascending

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return self.order.numel()

    def indptr(self, indptr: Tensor) -> Tensor:
        """Return the new ``indptr``, ``(num_nodes + 1,)`` int64, of an old one."""
        return _counted(indptr, self.order)

    def sources(self, csc: Csc, indptr: Tensor, begin: int, end: int, *, rising: bool = False) -> Tensor:
        """Return the sources of the in-edges of new nodes ``[begin, end)``, in the dtype of ``csc.indices``.

        Args:
            csc: The adjacency before renumbering.
            indptr: The result of :meth:`indptr` for ``csc.indptr``.
            begin: First new node.
            end: One past the last new node.
            rising: Whether to sort each list by new id, instead of keeping the stored order.
        """

        def renamed(rows: Tensor, places: Tensor) -> Tensor:
            out = csc.indices.new_empty(int(places[-1]))
            backend = _backend(csc.indices)
            backend.rename_lists(csc.indptr, csc.indices, self.inverse, rows, places, out, rising)
            return out

        return self._listed(renamed, csc.indptr, indptr, begin, end)

    def lists(
        self,
        values: Tensor,
        before: Tensor,
        indptr: Tensor,
        begin: int,
        end: int,
        *,
        rising_in: Csc | None = None,
    ) -> Tensor:
        """Return the values of the list entries of new nodes ``[begin, end)``, such as edge weights (a copy).

        Args:
            values: ``(num_values, ...)`` of any dtype, one row for each entry of the lists.
            before: The lists' ``indptr`` before renumbering.
            indptr: The result of :meth:`indptr` for ``before``.
            begin: First new node.
            end: One past the last new node.
            rising_in: The adjacency whose lists were sorted by new id, in which case the values follow their
                edges. If None, the stored order is kept.
        """
        indices, rank = (None, None) if rising_in is None else (rising_in.indices, self.inverse)

        def moved(rows: Tensor, places: Tensor) -> Tensor:
            return _moved(before, values, rows, places, indices, rank)

        return self._listed(moved, before, indptr, begin, end)

    def rows(self, values: Tensor, begin: int, end: int) -> Tensor:
        """Return the rows of new nodes ``[begin, end)``, of any dtype and number of dimensions (a copy)."""
        nodes = self.order[begin:end].long()
        if not self._ascending:
            return _gathered(values, nodes)
        nodes, place = nodes.sort()
        return _gathered(_gathered(values, nodes), inverse_of(place).long())

    def ids(self, nodes: Tensor) -> Tensor:
        """Return the new ids of nodes, in the same dtype."""
        return self.inverse[nodes.long()].to(nodes.dtype)

    def _listed(self, made: Any, before: Tensor, indptr: Tensor, begin: int, end: int) -> Tensor:
        """Return ``made(rows, places)`` for new nodes ``[begin, end)``; ``places`` is their ``indptr``."""
        rows, places = self.order[begin:end], indptr[begin : end + 1]
        if begin:
            places = places - places[0]
        if not self._ascending:
            return made(rows, places)  # type: ignore[no-any-return]
        rows, place = rows.sort()
        read = _counted(before, rows)
        return _moved(read, made(rows, read), inverse_of(place), places, None, None)


def _counted(indptr: Tensor, rows: Tensor) -> Tensor:
    out = indptr.new_empty(rows.numel() + 1)
    _backend(indptr).count_lists(indptr, rows, out)
    return out


def _moved(  # noqa: PLR0917 - in the order of the kernel's
    indptr: Tensor, values: Tensor, rows: Tensor, places: Tensor, indices: Tensor | None, rank: Tensor | None
) -> Tensor:
    values = values.detach().contiguous()
    out = values.new_empty(int(places[-1]), *values.shape[1:])
    if out.numel():
        flat = values.reshape(values.shape[0], -1).view(torch.uint8)  # the kernel copies bytes
        to = out.view(out.shape[0], -1).view(torch.uint8)
        _backend(values).move_lists(indptr, flat, rows, places, to, indices, rank)
    return out


def _gathered(values: Tensor, nodes: Tensor) -> Tensor:
    if values.ndim == 2:
        return gather_rows(values, nodes, trusted=True)
    return values.detach().index_select(0, nodes)


def _backend(values: Tensor) -> Any:
    kernels = native.kernels() if values.device.type == "cpu" else None
    return renumbering_reference if kernels is None else kernels
