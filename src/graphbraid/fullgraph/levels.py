"""Levels: the nodes each value of a program has rows for, and the edges between one level and the next."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from graphbraid.fullgraph.program import Adjacency
from graphbraid.ops.aggregation import Aggregation
from graphbraid.topology import Csc, index_dtype


@dataclass(frozen=True, eq=False, slots=True)
class Step:
    """The way from one level to the next."""

    csc: Csc
    """Edges from the level's rows to the next level's rows."""
    sources: Tensor | None
    """``(num_src,)`` int64 node of each source row; None where row v is node v."""
    destinations: Tensor | None
    """``(num_dst,)`` int64 node of each destination row; None where row v is node v."""
    edges: Tensor | None
    """``(num_edges,)`` int64 position of each edge in the graph; None where no weight needs it."""

    def bind(self, whole: Aggregation) -> Aggregation:
        """``whole``, an aggregation over the graph, between these two levels: the rows' own coefficients."""
        if self.destinations is None and self.sources is None:
            return whole
        return replace(
            whole,
            csc=self.csc,
            weight=_take(whole.weight, self.edges),
            src_scale=_take(whole.src_scale, self.sources),
            dst_scale=_take(whole.dst_scale, self.destinations),
            loop=_take(whole.loop, self.destinations),
        )


def whole_graph(csc: Csc, num_steps: int) -> list[Step]:
    """Every level holds all nodes."""
    return [Step(csc, None, None, None)] * num_steps


def towards(csc: Csc, seeds: Tensor, num_steps: int) -> list[Step]:
    """Only the nodes that the outputs of ``seeds`` depend on; each level is the start of the one before it.

    Args:
        csc: the graph.
        seeds: ``(num_seeds,)`` int64, each once: the last level, in this order.
        num_steps: number of aggregations on the way.

    Returns:
        The steps, from level 0 to the last.
    """
    steps: list[Step] = []
    destinations = seeds
    for _ in range(num_steps):
        steps.append(_step_to(csc, destinations))
        sources = steps[-1].sources
        assert sources is not None
        destinations = sources
    return steps[::-1]


def _step_to(csc: Csc, destinations: Tensor) -> Step:
    """All in-edges of ``destinations``; sources are these first, then the others in rising order."""
    degrees = csc.degrees()[destinations]
    indptr = torch.zeros(destinations.numel() + 1, dtype=torch.int64)
    torch.cumsum(degrees, 0, out=indptr[1:])
    edges = torch.repeat_interleave(csc.indptr[destinations] - indptr[:-1], degrees)
    edges += torch.arange(edges.numel())
    nodes = csc.indices[edges].long()
    row_of = torch.full((csc.num_src,), -1, dtype=torch.int64)
    row_of[nodes] = 0
    row_of[destinations] = -1
    sources = torch.cat((destinations, (row_of == 0).nonzero().squeeze(1)))
    row_of[sources] = torch.arange(sources.numel())
    indices = row_of[nodes].to(index_dtype(sources.numel()))
    kept = edges if csc.weight is not None else None
    return Step(Csc(indptr, indices, sources.numel()), sources, destinations, kept)


def aggregation(adjacency: Adjacency, csc: Csc) -> Aggregation:
    """The linear map that an adjacency is on a graph.

    Raises:
        ValueError: the adjacency is of an unknown kind.
    """
    weight = csc.weight if adjacency.weighted else None
    if adjacency.kind == "gcn":
        from graphbraid.nn.gcn import gcn_norm

        plain = csc if csc.weight is weight else Csc(csc.indptr, csc.indices, csc.num_src)
        whole = gcn_norm(
            plain, add_self_loops=adjacency.loop_scale != 0, improved=adjacency.loop_scale == 2.0
        )
        return replace(whole, csc=csc)
    if adjacency.kind not in ("sum", "mean"):
        raise ValueError(f"no aggregation is called {adjacency.kind!r}")
    return Aggregation(csc=csc, weight=weight, mean=adjacency.kind == "mean", loop_scale=adjacency.loop_scale)


def _take(values: Tensor | None, ids: Tensor | None) -> Tensor | None:
    return values if values is None or ids is None else values[ids]
