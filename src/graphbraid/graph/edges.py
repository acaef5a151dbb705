"""Edits of an adjacency: symmetrise, remove duplicates, add and remove self-loops.

Each takes an adjacency with ``edge_id`` and returns new ones, with rows sorted by source. Only
symmetrising holds more than input and result: the transpose, 8 bytes per edge, 4 without ids and weights.
Peak memory is below 2.5 times the larger of input and result as an int64 edge list (16 bytes per edge).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from graphbraid.arguments import as_number, check_choice
from graphbraid.graph.csc import Csc, coo_to_csc, indptr_of_rows, transpose_of
from graphbraid.graph.scans import native_for
from graphbraid.signatures import typed

_COMBINE = ("sum", "mean", "max", "first")  # in the order of the kernel's enum Reduce


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Edited:
    """The result of an edit."""

    csc: Csc
    edge_id: Tensor | None
    """``(num_edges,)`` int64 id of the edge that each one came from, -1 for a new one; None if not kept."""


@typed
def symmetrize(
    csc: Csc, edge_id: Tensor | None = None, *, weights: str = "max", keep_edge_id: bool = True
) -> Edited:
    """Add v -> u for each edge u -> v and remove duplicates, so that applying it again changes nothing.

    Args:
        csc: Adjacency with ``num_src`` equal to ``num_dst``.
        edge_id: ``(num_edges,)`` int64 ids. If None, positions in ``csc``.
        weights: How the weights of all edges between u and v, in both directions, are combined into the one
            that both directions get: "max", "mean" or "sum" (only the first two leave a symmetric graph as
            it is).
        keep_edge_id: Return ids: that of the first edge u -> v or, if there was none, of the first v -> u.

    Raises:
        ConfigError: ``weights`` is none of these.
    """
    check_choice(weights, "weights", _COMBINE[:3])
    return _merge(csc, edge_id, weights, keep_edge_id, both_ways=True)


@typed
def remove_duplicates(
    csc: Csc, edge_id: Tensor | None = None, *, weights: str = "sum", keep_edge_id: bool = True
) -> Edited:
    """Keep only the first of several equal edges u -> v, with its id.

    Args:
        csc: Any adjacency.
        edge_id: ``(num_edges,)`` int64 ids. If None, positions in ``csc``.
        weights: How the weights of equal edges are combined: "sum", "mean", "max", or "first" to keep that of
            the first edge.
        keep_edge_id: Return ids.

    Raises:
        ConfigError: ``weights`` is none of these.
    """
    check_choice(weights, "weights", _COMBINE)
    return _merge(csc, edge_id, weights, keep_edge_id, both_ways=False)


@typed
def remove_self_loops(csc: Csc, edge_id: Tensor | None = None, *, keep_edge_id: bool = True) -> Edited:
    """Remove the edges from a node to itself; the others keep their order."""
    kernels = native_for(csc.indices)
    if kernels is not None:
        arrays = (csc.indptr, csc.indices, csc.weight, edge_id)
        return _rewritten(csc, keep_edge_id, lambda *out: kernels.drop_loops(*arrays, *out))
    destinations = csc.destinations()
    origin = (csc.indices != destinations).nonzero().flatten()
    weight = None if csc.weight is None else csc.weight[origin]
    kept = _from_sorted_list(csc, csc.indices[origin], destinations[origin], weight)
    return Edited(csc=kept, edge_id=ids_of(origin, edge_id) if keep_edge_id else None)


@typed
def add_self_loops(
    csc: Csc, edge_id: Tensor | None = None, *, weight: float = 1.0, keep_edge_id: bool = True
) -> Edited:
    """Add a self-loop to each node without one, with id -1 and the given weight (if edges have weights).

    Raises:
        ConfigError: the weight is not finite, or negative.
    """
    weight = as_number(weight, "weight", least=0)
    csc, edge_id = _sorted(csc, edge_id)
    kernels = native_for(csc.indices)
    if kernels is not None:
        arrays = (csc.indptr, csc.indices, csc.weight, edge_id, weight)
        return _rewritten(csc, keep_edge_id, lambda *out: kernels.add_loops(*arrays, *out))
    destinations = csc.destinations()
    has_loop = csc.indptr.new_zeros(csc.num_dst, dtype=torch.bool)
    has_loop[destinations[csc.indices == destinations]] = True
    new = (~has_loop).nonzero().flatten()
    src = torch.cat([csc.indices.long(), new])
    dst = torch.cat([destinations.long(), new])
    edited, perm = coo_to_csc(src, dst, csc.num_src, csc.num_dst)
    perm = torch.arange(src.numel(), device=src.device) if perm is None else perm
    origin = torch.where(perm < csc.num_edges, perm, -1)
    indices, weights = edited.indices.to(csc.indices.dtype), None
    if csc.weight is not None:
        weights = torch.cat([csc.weight, csc.weight.new_full((new.numel(),), weight)])[perm]
    edited = Csc(edited.indptr, indices, csc.num_src, weights, trusted=True)
    return Edited(csc=edited, edge_id=ids_of(origin, edge_id) if keep_edge_id else None)


def _merge(csc: Csc, edge_id: Tensor | None, weights: str, keep_edge_id: bool, *, both_ways: bool) -> Edited:
    csc, edge_id = _sorted(csc, edge_id)
    kernels = native_for(csc.indices)
    if kernels is None:
        return _reference_merge(csc, edge_id, weights, keep_edge_id, both_ways=both_ways)
    back: tuple[Tensor | None, ...] = (None, None, None)
    if both_ways:
        back = transpose_of(csc, keep_perm=keep_edge_id or csc.weight is not None, narrow_perm=True)
    arrays = (csc.indptr, csc.indices, csc.weight, edge_id, *back, _COMBINE.index(weights))
    return _rewritten(csc, keep_edge_id, lambda *out: kernels.merge_rows(*arrays, *out))


def _rewritten(csc: Csc, keep_edge_id: bool, rewrite: Any) -> Edited:
    """Run a kernel that rewrites rows twice: first to count the edges, then to write them."""
    indptr = torch.empty_like(csc.indptr)
    rewrite(indptr, None, None, None)
    num_edges = int(indptr[-1])
    indices = csc.indices.new_empty(num_edges)
    weight = None if csc.weight is None else csc.weight.new_empty(num_edges)
    ids = torch.empty(num_edges, dtype=torch.int64) if keep_edge_id else None
    rewrite(indptr, indices, weight, ids)
    return Edited(csc=Csc(indptr, indices, csc.num_src, weight, trusted=True), edge_id=ids)


def ids_of(origin: Tensor, edge_id: Tensor | None) -> Tensor:
    """Return the ids of the edges at the positions ``origin``; -1 stays -1."""
    if edge_id is None or not edge_id.numel():
        return origin
    return torch.where(origin < 0, -1, edge_id[origin.clamp(min=0)])


def rows_of(origin: Tensor, rows: Tensor) -> Tensor:
    """Return the ``(num_edges, width)`` rows of the edges at the positions ``origin``; zeros for -1."""
    if not rows.shape[0]:
        return rows.new_zeros(origin.numel(), rows.shape[1])
    found = rows.index_select(0, origin.clamp(min=0))
    return found.masked_fill_((origin < 0)[:, None], 0)


def _sorted(csc: Csc, edge_id: Tensor | None) -> tuple[Csc, Tensor | None]:
    """Return the adjacency with its rows sorted by source, and the ids in the same order."""
    ordered, perm = csc.sort_rows()
    if perm is None:
        return csc, edge_id
    return ordered, perm if edge_id is None else edge_id[perm]


def _reference_merge(
    csc: Csc, edge_id: Tensor | None, weights: str, keep_edge_id: bool, *, both_ways: bool
) -> Edited:
    src, dst = csc.indices.long(), csc.destinations().long()
    origin = torch.arange(csc.num_edges, device=src.device)
    if both_ways:
        crossing = (src != dst).nonzero().flatten()
        src, dst = torch.cat([src, dst[crossing]]), torch.cat([dst, src[crossing]])
        origin = torch.cat([origin, crossing])
    _, perm = coo_to_csc(src, dst, csc.num_src, csc.num_dst)
    if perm is not None:
        src, dst, origin = src[perm], dst[perm], origin[perm]
    first = torch.ones_like(src, dtype=torch.bool)
    first[1:] = (src[1:] != src[:-1]) | (dst[1:] != dst[:-1])
    weight = None
    if csc.weight is not None:
        group = first.cumsum(0) - 1  # each edge's run of equal edges, by number
        weight = _reference_combine(csc.weight[origin], group, int(first.sum()), weights)
    ids = ids_of(origin[first], edge_id) if keep_edge_id else None
    return Edited(csc=_from_sorted_list(csc, src[first], dst[first], weight), edge_id=ids)


def _reference_combine(weight: Tensor, group: Tensor, num_groups: int, how: str) -> Tensor:
    """Combine the weights of each group; groups are runs of consecutive edges."""
    if how == "first":
        starts = torch.ones_like(group, dtype=torch.bool)
        starts[1:] = group[1:] != group[:-1]
        return weight[starts]
    reduce = {"sum": "sum", "mean": "mean", "max": "amax"}[how]
    out = weight.new_zeros(num_groups, dtype=torch.float64)
    return out.scatter_reduce(0, group, weight.double(), reduce, include_self=False).float()


def _from_sorted_list(csc: Csc, src: Tensor, dst: Tensor, weight: Tensor | None) -> Csc:
    indptr = indptr_of_rows(dst, csc.num_dst)
    return Csc(indptr, src.to(csc.indices.dtype), csc.num_src, weight, trusted=True)
