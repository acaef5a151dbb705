"""Reordering: a graph and all its data with the nodes in another order.

Orders are computed from the topology, or by a score of how often each row is read. Renumbering follows
Algorithm 2 of Min et al., "Graph Neural Network Training with Data Tiering": a prefix sum over the list
lengths gives the new ``indptr``, then each list is copied to its new place and its neighbours renamed on the
way. Only input and output take memory in proportion to the edges.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from graphbraid.errors import ConfigError, DataError, did_you_mean
from graphbraid.features import reference
from graphbraid.features.scores.score import score
from graphbraid.graph import Graph, ScaledFeatures, SparseFeatures
from graphbraid.graph.csc import Csc
from graphbraid.graph.orders import ORDERS, inverse_of, order_by
from graphbraid.graph.scaled_features import Features
from graphbraid.graph.scans import check_ids, native_for, unchanged
from graphbraid.ops.gather import gather_rows
from graphbraid.sampling.config import SamplerConfig, SeedSchedule
from graphbraid.signatures import typed

OF_GRAPH = (*ORDERS, "reverse_pagerank", "weighted_reverse_pagerank")
"""Orders that need only the graph; the last one also needs its training nodes."""
OF_SAMPLER = ("inclusion", "presampled", "auto")
"""Scores that need a sampler and its seeds."""


def named_order(
    graph: Graph, name: str, *, sampler: SamplerConfig | None = None, schedule: SeedSchedule | None = None
) -> Tensor:
    """Return the order with this name, ``(num_nodes,)`` int64.

    Those of :data:`OF_SAMPLER` need a sampler and a schedule. ConfigError: it lacks them, or has no such
    name. DataError: the graph lacks the training nodes or edge weights that the score needs.
    """
    check_order_name(name, sampled=True)
    if name in ORDERS:
        return ORDERS[name](graph.csc)
    return order_by(score(graph, name, sampler=sampler, schedule=schedule).values)


def check_order_name(name: str, option: str = "order", *, sampled: bool) -> None:
    """Raise ConfigError, for the argument ``option``, unless an order has this name.

    ``sampled`` is whether :data:`OF_SAMPLER` are allowed.
    """
    known = OF_GRAPH + OF_SAMPLER if sampled else OF_GRAPH
    if name == "lookahead" and sampled:
        raise ConfigError(
            f"{option}={name}: once nodes are renumbered, the coming epochs draw other neighbours, so their "
            "reads cannot be counted before; choose presampled, which counts the reads of other epochs"
        )
    if name not in known:
        hint = (
            _with_sampler(name, option) if name in (*OF_SAMPLER, "lookahead") else did_you_mean(name, known)
        )
        raise ConfigError(f"{option} must be one of {', '.join(known)}; got {name!r}.{hint}")


def _with_sampler(name: str, option: str) -> str:
    if option.startswith("--"):
        return f" This one follows a sampler, whose options `graphbraid reorder --by {name}` takes."
    return f" This one follows a sampler: pass order_by(score(graph, {name!r}, ...).values)."


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

        ``indptr`` is the result of :meth:`indptr` for that of ``csc``, the adjacency before. ``rising`` sorts
        each list by new id, instead of keeping the stored order.
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

        ``before`` is the lists' ``indptr`` and ``indptr`` the result of :meth:`indptr` for it. The lists of
        ``rising_in`` were sorted by new id, and the values follow; with None, the stored order is kept.
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
    return native_for(values) or reference


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Reordered:
    """A graph with renumbered nodes, and the mapping between original and new ids."""

    graph: Graph
    order: Tensor
    """Original id of each node, ``(num_nodes,)`` int32 or int64."""
    inverse: Tensor
    """New id of each original id, ``(num_nodes,)`` int32, or int64 from 2³¹ nodes on."""

    @typed
    def originals(self, nodes: Tensor) -> Tensor:
        """Return the original ids, int64, of nodes of :attr:`graph`.

        Raises:
            DataError: A node does not exist.
        """
        check_ids(nodes, self.graph.num_nodes, "nodes")
        return self.order[nodes.long()].long()

    @typed
    def nodes_of(self, originals: Tensor) -> Tensor:
        """Return the nodes of :attr:`graph`, int64, with the given original ids.

        Raises:
            DataError: An id does not exist.
        """
        check_ids(originals, self.graph.num_nodes, "original ids")
        return self.inverse[originals.long()].long()


@typed
def reorder(graph: Graph, order: Tensor | str, *, sort_neighbors: bool = False) -> Reordered:
    """Renumber a graph's nodes; topology, weights, edge ids, features, labels and splits follow (a copy).

    Reordering the result by :attr:`Reordered.inverse` restores the original graph to the bit. With the
    compiled kernels on a CPU, memory peaks at both graphs plus 4 bytes per node.

    Args:
        graph: The graph, which is not changed.
        order: ``(num_nodes,)`` int32 or int64 permutation: the node that comes i-th, for example from
            :func:`order_by`; or a name: ``"degree"`` (read most often first), ``"rcm"`` (reverse
            Cuthill-McKee), ``"communities"``, ``"reverse_pagerank"`` or ``"weighted_reverse_pagerank"``.
        sort_neighbors: Whether to sort the in-edges of each node by their new sources. By default they keep
            their stored order. Weights, ids and features of edges follow.

    Raises:
        ConfigError: There is no order of that name.
        DataError: The order has the wrong length or is not a permutation; names the first wrong entry.
    """
    graph.check_one_type("renumbering")
    if isinstance(order, str):
        check_order_name(order, sampled=False)
        order = named_order(graph, order)
    order = order.to(graph.csc.indptr.device)
    check_length(order, graph.num_nodes)
    renumbering = Renumbering(order)
    csc, last = graph.csc, graph.num_nodes
    indptr = renumbering.indptr(csc.indptr)
    sorted_as = csc if sort_neighbors else None

    def beside(values: Tensor | None) -> Tensor | None:
        if values is None:
            return None
        return renumbering.lists(values, csc.indptr, indptr, 0, last, rising_in=sorted_as)

    def rows(values: Tensor | None) -> Tensor | None:
        return None if values is None else renumbering.rows(values, 0, last)

    sources = renumbering.sources(csc, indptr, 0, last, rising=sort_neighbors)
    moved = graph.replace(
        csc=Csc(indptr, sources, last, beside(csc.weight), trusted=True),
        edge_id=beside(graph.edge_id),
        edge_attr=beside(graph.edge_attr),
        x=_feature_rows(graph.x, renumbering),
        y=rows(graph.y),
        splits={name: renumbering.ids(nodes) for name, nodes in graph.splits.items()},
        schema=graph.schema,
        trusted=True,
    )
    return Reordered(graph=moved, order=renumbering.order, inverse=renumbering.inverse)


def check_length(order: Tensor, num_nodes: int) -> None:
    """Raise DataError unless an order has one entry per node."""
    if order.ndim == 1 and order.numel() != num_nodes:
        raise DataError(f"order must name each of the {num_nodes} nodes once; it has {order.numel()} entries")


def _feature_rows(x: Features | None, renumbering: Renumbering) -> Features | None:
    if isinstance(x, SparseFeatures):
        return _sparse_rows(x, renumbering)
    last = renumbering.num_nodes
    if isinstance(x, ScaledFeatures):
        values, scale = renumbering.rows(x.values, 0, last), renumbering.rows(x.scale, 0, last)
        return ScaledFeatures(values=values, scale=scale, trusted=True)
    return None if x is None else renumbering.rows(x, 0, last)


def _sparse_rows(x: SparseFeatures, renumbering: Renumbering) -> SparseFeatures:
    indptr, last = renumbering.indptr(x.indptr), renumbering.num_nodes

    def listed(values: Tensor) -> Tensor:
        return renumbering.lists(values, x.indptr, indptr, 0, last)

    return SparseFeatures(
        indptr=indptr,
        indices=listed(x.indices),
        values=listed(x.values),
        num_cols=x.num_cols,
        trusted=True,
    )
