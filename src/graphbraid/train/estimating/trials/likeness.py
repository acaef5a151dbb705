"""A smaller graph that is read as a large one is: with its lists, its hubs and the order of its nodes."""

from __future__ import annotations

import torch
from torch import Tensor

from graphbraid.graph import Graph
from graphbraid.graph.csc import Csc
from graphbraid.train.estimating.trials.whole_passes import rows_of


def likeness_of(graph: Graph, count: int) -> Graph:
    """Return a graph of ``count`` nodes whose chunks reach as large a part of it as those of ``graph`` do.

    Nodes that are read about as often, neighbours by id among them, become one, which has one of their
    lists, rows and labels. A list of uniform draws would reach far more nodes than one of a graph with hubs.

    Args:
        graph: of one type.
        count: of nodes, fewer than those of the graph.
    """
    csc, num_nodes = graph.csc, graph.num_nodes
    reads = torch.bincount(csc.indices, minlength=num_nodes)
    order = torch.argsort(reads, stable=True)
    group = torch.empty(num_nodes, dtype=torch.int64)
    group[order] = torch.arange(num_nodes) * count // num_nodes
    middle = (2 * torch.arange(count) + 1) * num_nodes // (2 * count)
    chosen, by_id = order[middle].sort()  # one of each group; nodes keep their order
    name_of = torch.empty(count, dtype=torch.int64)
    name_of[by_id] = torch.arange(count)
    indptr, edges = _lists_of(csc, chosen)
    return Graph(
        csc=Csc(
            indptr,
            name_of[group[csc.indices[edges].long()]].to(csc.indices.dtype),
            count,
            None if csc.weight is None else csc.weight[edges],
            trusted=True,
        ),
        edge_attr=None if graph.edge_attr is None else graph.edge_attr[edges],
        x=rows_of(graph.x, chosen),
        y=None if graph.y is None else graph.y[chosen],
        splits={"train": torch.arange(count)},
        trusted=True,
    )


def places_of(nodes: Tensor, num_nodes: int, count: int) -> Tensor:
    """Return which of ``count`` nodes stand for some of a graph's: a like share, spread and ordered alike.

    Args:
        nodes: ``(n,)`` int64 distinct ids in ``[0, num_nodes)``, one at least.
        num_nodes: of the graph.
        count: of nodes that stand for all.

    Returns:
        ``(m,)`` int64 distinct ids in ``[0, count)``, m is n in proportion.
    """
    some = max(1, nodes.numel() * count // num_nodes)
    chosen, order = nodes[torch.arange(some) * nodes.numel() // some].sort()
    rank = torch.arange(some)
    free = (chosen * count // num_nodes - rank).cummax(0).values  # none stands for two of them
    places = torch.empty(some, dtype=torch.int64)
    places[order] = torch.minimum(free, torch.tensor(count - some)) + rank
    return places


def _lists_of(csc: Csc, nodes: Tensor) -> tuple[Tensor, Tensor]:
    """Return where the lists of nodes begin, put behind each other, and the positions of their edges."""
    first, counts = csc.indptr[nodes], csc.indptr[nodes + 1] - csc.indptr[nodes]
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    edges = torch.arange(int(indptr[-1])) + (first - indptr[:-1]).repeat_interleave(counts)
    return indptr, edges


__all__ = ["likeness_of", "places_of"]
