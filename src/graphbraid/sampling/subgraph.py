"""Subgraph types: the edges of a mini-batch beside those that were drawn, as in PyG's loaders.

``directional`` edges are those drawn. ``bidirectional`` ones are these and their reverses, each pair of nodes
once. ``induced`` ones are all edges of the graph between the nodes of the batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor

from graphbraid import native
from graphbraid.graph.csc import Csc
from graphbraid.sampling.batch_seeds import Constraints, EdgeTimes
from graphbraid.sampling.config import BIDIRECTIONAL, DIRECTIONAL, EGO
from graphbraid.sampling.sample import Sampled, SampledEdges


def with_edges(
    sampled: Sampled,
    subgraph_type: str,
    csc: Csc,
    constraints: Constraints | None = None,
    edge_times: EdgeTimes | None = None,
) -> Sampled:
    """Return a sample with the edges of a subgraph type.

    Args:
        sampled: a sample in layout ``subgraph``, on the CPU.
        subgraph_type: one of :data:`graphbraid.sampling.config.SUBGRAPH_TYPES`, or :data:`EGO`, which takes
            disjoint trees.
        csc: the graph that it was drawn from.
        constraints: what its draws kept to; other edges keep to it too.
        edge_times: when each edge arose, where constraints have times.
    """
    if subgraph_type == DIRECTIONAL:
        return sampled
    if subgraph_type == EGO:
        sampled = _tree_by_tree(sampled)
    if subgraph_type == BIDIRECTIONAL:
        edges = both_ways(sampled.edges[0], sampled.n_id.numel())
    else:
        edges = induced_edges(csc, sampled.n_id, sampled.n_id, sampled.trees, sampled.trees)
        if constraints is not None:
            edges = _allowed(edges, sampled.trees, constraints, edge_times)
        if not sampled.positions_are_kept:
            edges = dataclasses.replace(edges, positions=None)
    return dataclasses.replace(
        sampled, edges_by_relation=[[edges]], counts_by_relation=[[edges.indices.numel()]], by_hop=False
    )


def _tree_by_tree(sampled: Sampled) -> Sampled:
    """Return the nodes of a sample in the order of their trees, each tree's seed first."""
    assert sampled.trees is not None, "ego networks are disjoint trees"
    trees, order = torch.sort(sampled.trees, stable=True)
    return dataclasses.replace(sampled, n_id_by_type=[sampled.n_id[order]], trees_by_type=[trees])


def induced_edges(
    csc: Csc,
    rows: Tensor,
    sources: Tensor,
    row_trees: Tensor | None = None,
    source_trees: Tensor | None = None,
) -> SampledEdges:
    """Return the edges of some rows of a graph that come from given sources.

    Args:
        csc: the graph.
        rows: ``(num_dst,)`` int64 rows of it, one for each destination.
        sources: ``(num_src,)`` int64 ids among its sources; of equal ones in a tree, edges name the first.
        row_trees: ``(num_dst,)`` int64 disjoint tree of each destination. If None, there is one tree.
        source_trees: ``(num_src,)`` int64 tree of each source. Edges stay within a tree.

    Returns:
        Edges from positions in ``sources`` to those in ``rows``, in the order of the graph's lists.
    """
    kernels = native.kernels()
    find: Callable[..., tuple[Tensor, Tensor, Tensor]] = (
        _induced_reference if kernels is None else kernels.induced_edges
    )
    indptr, indices, positions = find(csc.indptr, csc.indices, rows, row_trees, sources, source_trees)
    return SampledEdges(indptr=indptr, indices=indices, positions=positions)


def _induced_reference(  # noqa: PLR0917  (the native function's arguments)
    indptr: Tensor,
    indices: Tensor,
    rows: Tensor,
    row_trees: Tensor | None,
    sources: Tensor,
    source_trees: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The twin of ``csrc/sampling/induced.cpp``."""
    begin = indptr[rows]
    degree = indptr[rows + 1] - begin
    first = torch.cumsum(degree, 0) - degree
    owner = torch.repeat_interleave(torch.arange(rows.numel()), degree)
    places = torch.arange(owner.numel()) + (begin - first)[owner]
    wanted = indices[places].long()
    known = sources
    if row_trees is not None and source_trees is not None:
        stride = (
            max(int(sources.max()) if sources.numel() else 0, int(wanted.max()) if wanted.numel() else 0) + 1
        )
        known, wanted = source_trees * stride + sources, row_trees[owner] * stride + wanted
    ordered, order = torch.sort(known, stable=True)
    if not order.numel():
        return torch.zeros(rows.numel() + 1, dtype=torch.int64), order.int(), order
    at = torch.searchsorted(ordered, wanted).clamp_(max=order.numel() - 1)
    hit = ordered[at] == wanted
    ends = torch.zeros(rows.numel() + 1, dtype=torch.int64)
    torch.cumsum(torch.bincount(owner[hit], minlength=rows.numel()), 0, out=ends[1:])
    return ends, order[at[hit]].int(), places[hit]


def both_ways(edges: SampledEdges, num_nodes: int) -> SampledEdges:
    """Return edges and their reverses, each pair of nodes once, by destination and then by source.

    Of several edges between two nodes in one direction, the first drawn stays; a reverse has the position of
    the edge that it reverses.

    Args:
        edges: edges between the first of ``num_nodes`` nodes.
        num_nodes: number of nodes; each has a row in what is returned.
    """
    dst = torch.repeat_interleave(torch.arange(edges.indptr.numel() - 1), edges.indptr.diff())
    src = edges.indices.long()
    return _once(
        torch.cat([src, dst]),
        torch.cat([dst, src]),
        None if edges.positions is None else torch.cat([edges.positions, edges.positions]),
        num_nodes,
        num_nodes,
    )


def _once(src: Tensor, dst: Tensor, positions: Tensor | None, num_src: int, num_dst: int) -> SampledEdges:
    """Return the first edge of each pair of nodes, by destination and then by source."""
    key, order = torch.sort(dst * max(num_src, 1) + src, stable=True)
    is_first = torch.ones_like(key, dtype=torch.bool)
    torch.ne(key[1:], key[:-1], out=is_first[1:])
    kept = order[is_first]
    ends = torch.zeros(num_dst + 1, dtype=torch.int64)
    torch.cumsum(torch.bincount(dst[kept], minlength=num_dst), 0, out=ends[1:])
    return SampledEdges(
        indptr=ends, indices=src[kept].int(), positions=None if positions is None else positions[kept]
    )


def _allowed(
    edges: SampledEdges, trees: Tensor | None, constraints: Constraints, edge_times: EdgeTimes | None
) -> SampledEdges:
    """Return the edges that are not excluded, nor later than the seed of the tree that they are in."""
    positions = edges.positions
    assert positions is not None
    rows = torch.repeat_interleave(torch.arange(edges.indptr.numel() - 1), edges.indptr.diff())
    keep = torch.ones(positions.numel(), dtype=torch.bool)
    if constraints.excluded is not None:
        keep &= ~torch.isin(positions, constraints.excluded)
    if constraints.times is not None and edge_times is not None:
        assert trees is not None, "seeds with times have trees of their own"
        keep &= edge_times.time[positions] <= constraints.times[trees[rows]]
    ends = torch.zeros_like(edges.indptr)
    torch.cumsum(torch.bincount(rows[keep], minlength=ends.numel() - 1), 0, out=ends[1:])
    return SampledEdges(indptr=ends, indices=edges.indices[keep], positions=positions[keep])
