"""Csc: the adjacency that every kernel takes, of a whole graph or of one layer's block."""

from __future__ import annotations

from dataclasses import InitVar, dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from graphbraid.arguments import as_count, as_flag, check_tensor
from graphbraid.errors import DataError, ResourceError
from graphbraid.graph.scans import (
    Versioned,
    check_columns,
    check_csc,
    check_ids,
    check_weight,
    first_fall,
    first_out_of_range,
    native_for,
    unchanged,
)

_EDGES_AT_A_TIME = 1 << 20
"""Edges, and nodes, that :func:`degrees_and_loops` counts at a time."""
MOST_NODES = 1 << 40
"""Largest number of nodes of a graph: their ``indptr`` alone takes 8 TiB."""


@unchanged("indptr", "indices", "weight")
@dataclass(eq=False, slots=True, weakref_slot=True)
class Csc(Versioned):
    """In-edges by destination: the sources of node ``v`` are ``indices[indptr[v]:indptr[v + 1]]``.

    A whole graph has ``num_src == num_dst``; a block of a mini-batch is bipartite, its destinations a prefix
    of its sources. It is immutable, since :meth:`transpose` is computed once and kept.

    The arrays that kernels read by index are scanned once, in parallel, when an instance is made. An array
    that was changed in place afterwards cannot be read any more: the attribute gives a DataError.

    Raises:
        DataError: names the array that does not fit, or the first value that is wrong and where it stands.
    """

    indptr: Tensor
    """``(num_dst + 1,)`` int64, starting at 0 and never decreasing."""
    indices: Tensor
    """``(num_edges,)`` int32 or int64, source of each in-edge, in ``[0, num_src)``."""
    num_src: int
    weight: Tensor | None = None
    """``(num_edges,)`` float32 edge weights, or None."""
    src_degree: Tensor | None = None
    """``(num_src,)`` float32 in-degrees (sums of weights) in the graph a block was drawn from, not counting
    self-loops; layers that normalise by degree use them, not the block's own. None on a whole graph."""
    src_loop: Tensor | None = None
    """``(num_src,)`` float32 weight of each source's last self-loop in that graph; without weights, how many
    it has; NaN for a source without one. Given with ``src_degree``. None if no source has one, or if this is
    not known."""
    trusted: InitVar[bool] = False
    """Skip the checks. Only for arrays known to be valid: kernels index with them and do not check again."""
    _kept_indptr: ClassVar[Tensor]  # the instance's arrays without the check for changes, for their sizes
    _kept_indices: ClassVar[Tensor]
    _transposed: tuple[Csc, Tensor] | None = field(default=None, repr=False)
    _reversed: Csc | None = field(default=None, repr=False)

    def __post_init__(self, trusted: bool) -> None:
        if as_flag(trusted, "trusted"):
            return
        self.num_src = as_count(self.num_src, "num_src", most=MOST_NODES, error=DataError)
        check_csc(self.indptr, self.indices, num_src=self.num_src)
        check_columns(self.indptr, self.indices, self.num_src, "")
        if self.weight is not None:
            check_weight(self.weight, self.num_edges)
        for name in ("src_degree", "src_loop"):
            values = getattr(self, name)
            if values is not None and check_tensor(values, name).shape != (self.num_src,):
                raise DataError(f"{name} must have shape ({self.num_src},); got {tuple(values.shape)}")

    @property
    def num_dst(self) -> int:
        """Number of destination nodes."""
        return self._kept_indptr.numel() - 1

    @property
    def num_edges(self) -> int:
        """Number of edges."""
        return self._kept_indices.numel()

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays, without the cached transpose."""
        tensors = [self.indptr, self.indices] + ([] if self.weight is None else [self.weight])
        return sum(t.numel() * t.element_size() for t in tensors)

    def degrees(self) -> Tensor:
        """Return the ``(num_dst,)`` int64 in-degrees."""
        return self.indptr.diff()

    def destinations(self) -> Tensor:
        """Return the ``(num_edges,)`` destination of each edge, in the dtype of ``indices``."""
        kernels = native_for(self.indices)
        if kernels is not None:
            rows = torch.empty_like(self.indices)
            kernels.fill_rows(self.indptr, rows)
            return rows
        nodes = torch.arange(self.num_dst, dtype=self.indices.dtype, device=self.indices.device)
        return torch.repeat_interleave(nodes, self.degrees())

    def transpose(self) -> tuple[Csc, Tensor]:
        """Return the edges reversed and grouped by source, and the edge that each one came from.

        Returns:
            The transposed :class:`Csc` (its rows are this one's sources, each sorted by destination) and
            ``perm``, ``(num_edges,)`` int64: edge ``e`` of the transpose is edge ``perm[e]`` here.
        """
        if self._transposed is None:
            indptr, destinations, perm = transpose_of(self)
            assert perm is not None
            weight = None if self.weight is None else self.weight[perm]
            self._transposed = Csc(indptr, destinations, self.num_dst, weight, trusted=True), perm
        return self._transposed

    def reversed(self) -> Csc:
        """Return the reversed edges without weights; keeps 8 bytes per edge less than :meth:`transpose`."""
        if self._transposed is not None:
            return self._transposed[0]
        if self._reversed is None:
            indptr, destinations, _ = transpose_of(self, keep_perm=False)
            self._reversed = Csc(indptr, destinations, self.num_dst, trusted=True)
        return self._reversed

    @property
    def is_own_reverse(self) -> bool:
        """Whether it is known that reversing the edges changes nothing; see :meth:`keep_as_own_reverse`."""
        return self._reversed is self

    @property
    def has_transpose(self) -> bool:
        """Whether :meth:`transpose` has its result already."""
        return self._transposed is not None

    @property
    def has_reverse(self) -> bool:
        """Whether :meth:`reversed` has its result already."""
        return self.has_transpose or self._reversed is not None

    def keep_as_own_reverse(self) -> None:
        """Let :meth:`reversed` return this adjacency itself, which must be equal to its reverse."""
        self._reversed = self

    def keep_transpose(self, transpose: Csc, perm: Tensor) -> None:
        """Keep a transpose that was made elsewhere, for :meth:`transpose` to return."""
        self._transposed = transpose, perm

    def sort_rows(self) -> tuple[Csc, Tensor | None]:
        """Return this adjacency with each row sorted by source; equal edges keep their order.

        Returns:
            Itself and None if it is sorted already, else a new :class:`Csc` and ``perm``, ``(num_edges,)``
            int64: its edge ``e`` is edge ``perm[e]`` here.
        """
        if _first_unsorted_row(self) < 0:
            return self, None
        sorted_csc, perm = coo_to_csc(self.indices, self.destinations(), self.num_src, self.num_dst)
        if perm is not None and self.weight is not None:
            sorted_csc.weight = self.weight[perm]
        return sorted_csc, perm


def coo_to_csc(
    src: Tensor,
    dst: Tensor,
    num_src: int,
    num_dst: int,
    *,
    keep_perm: bool = True,
    keeps_rows: bool = False,
) -> tuple[Csc, Tensor | None]:
    """Make the adjacency of an edge list. Edges are ordered by destination, then source, then as given.

    With the compiled kernels on a CPU this needs, beside the list and the result, 8 bytes per edge (4 without
    ``perm``) and at most one more for counters: at its peak less than 2.5 times an int64 edge list.

    Args:
        src: ``(num_edges,)`` int32 or int64 sources in ``[0, num_src)``.
        dst: ``(num_edges,)`` destinations in ``[0, num_dst)``, same dtype.
        num_src: Number of source nodes.
        num_dst: Number of destination nodes.
        keep_perm: Also return the position that each edge had in the list.
        keeps_rows: Leave a list that is ordered by destination as it is, whatever the order of its sources.

    Returns:
        The :class:`Csc` (int32 indices if every id fits) and ``perm``, ``(num_edges,)`` int64: edge ``e`` is
        edge ``perm[e]`` of the list; None if the list was in that order already or ``keep_perm`` is False.

    Raises:
        DataError: names the first id that is out of range, or the array that does not fit.
    """
    num_src = as_count(num_src, "the number of sources", most=MOST_NODES, error=DataError)
    num_dst = as_count(num_dst, "the number of destinations", most=MOST_NODES, error=DataError)
    check_ids(src, num_src, "sources")
    check_ids(dst, num_dst, "destinations")
    if src.dtype != dst.dtype or src.shape != dst.shape:
        raise DataError(
            f"sources and destinations must have one dtype and length; got {src.dtype} of {src.numel()} "
            f"and {dst.dtype} of {dst.numel()}"
        )
    src, dst = src.contiguous(), dst.contiguous()
    dtype = index_dtype(max(num_src, num_dst))
    if first_out_of_order(dst if keeps_rows else src, dst) < 0:
        return Csc(_rising_to_indptr(dst, num_dst), src.to(dtype), num_src, trusted=True), None
    kernels = native_for(src)
    if kernels is None:
        indptr, indices, perm = _reference_coo_to_csc(src, dst, num_dst)
        return Csc(indptr, indices.to(dtype), num_src, trusted=True), perm if keep_perm else None
    indptr = _new_indptr(num_dst)
    indices = torch.empty(src.numel(), dtype=dtype)
    kept = torch.empty(src.numel(), dtype=torch.int64) if keep_perm else None
    kernels.coo_to_csc(src, dst, num_src, indptr, indices, kept, _needs_wide_counts(src.numel()))
    return Csc(indptr, indices, num_src, trusted=True), kept


def first_out_of_order(src: Tensor, dst: Tensor) -> int:
    """Return the position of the first edge that is not in (destination, source) order, or -1."""
    kernels = native_for(src)
    if kernels is not None:
        return int(kernels.first_out_of_order(src, dst))
    falls = (dst[1:] < dst[:-1]) | ((dst[1:] == dst[:-1]) & (src[1:] < src[:-1]))
    return int(falls.int().argmax()) + 1 if bool(falls.any()) else -1


def transpose_of(
    csc: Csc, *, keep_perm: bool = True, narrow_perm: bool = False
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the arrays of the transpose of ``csc``, which :meth:`Csc.transpose` wraps and keeps.

    They are ``indptr`` ``(num_src + 1,)`` int64; ``destinations`` ``(num_edges,)`` in the dtype of
    ``indices``, sorted within each source; ``perm`` ``(num_edges,)`` int64 or, if narrow and every position
    fits, int32; or None without ``keep_perm``.
    """
    num_edges = csc.num_edges
    perm_dtype = index_dtype(num_edges) if narrow_perm else torch.int64
    kernels = native_for(csc.indices)
    if kernels is None:
        order = torch.argsort(csc.indices, stable=True)
        destinations = csc.destinations()[order]
        return (
            indptr_of_rows(csc.indices, csc.num_src),
            destinations,
            order.to(perm_dtype) if keep_perm else None,
        )
    # The kernel writes by the ids, and memory may have been changed in a way that torch does not count.
    if first_fall(csc.indptr) >= 0 or first_out_of_range(csc.indices, csc.num_src) >= 0:
        raise DataError(
            "the graph's arrays were changed after they were checked: indptr falls, or indices name no "
            "source. Give a copy (clone()) of memory that something else writes."
        )
    indptr = torch.empty(csc.num_src + 1, dtype=torch.int64)
    destinations = torch.empty_like(csc.indices)
    perm = torch.empty(num_edges, dtype=perm_dtype) if keep_perm else None
    kernels.transpose_csc(csc.indptr, csc.indices, indptr, destinations, perm, _needs_wide_counts(num_edges))
    return indptr, destinations, perm


def _first_unsorted_row(csc: Csc) -> int:
    """Return the first node whose sources are not sorted, or -1."""
    kernels = native_for(csc.indices)
    if kernels is not None:
        return int(kernels.first_unsorted_row(csc.indptr, csc.indices))
    destinations = csc.destinations()
    position = first_out_of_order(csc.indices, destinations)
    return position if position < 0 else int(destinations[position])


def _reference_coo_to_csc(src: Tensor, dst: Tensor, num_dst: int) -> tuple[Tensor, Tensor, Tensor]:
    by_source = torch.argsort(src, stable=True)  # the next sort, also stable, keeps this order among equals
    perm = by_source[torch.argsort(dst[by_source], stable=True)]
    return indptr_of_rows(dst, num_dst), src[perm], perm


def _needs_wide_counts(num_edges: int) -> bool:
    """Return whether edge positions need more than the kernels' 32-bit counters."""
    return num_edges >= 2**32


def indptr_of(counts: Tensor) -> Tensor:
    """Return the ``(num_rows + 1,)`` int64 ends of rows that have these numbers of elements, from 0 on."""
    indptr = torch.zeros(counts.numel() + 1, dtype=torch.int64, device=counts.device)
    torch.cumsum(counts, 0, out=indptr[1:])
    return indptr


def ranges(begins: Tensor, counts: Tensor) -> Tensor:
    """Return the int64 numbers ``[begin, begin + count)`` of each row, one row after the other."""
    places = (begins - (counts.cumsum(0) - counts)).repeat_interleave(counts)  # less the elements before
    return places.add_(torch.arange(places.numel(), device=places.device))


def indptr_of_rows(rows: Tensor, num_rows: int) -> Tensor:
    """Return the ``(num_rows + 1,)`` int64 ends of rows, by the row of each element."""
    return indptr_of(torch.bincount(rows, minlength=num_rows))


def _new_indptr(num_rows: int) -> Tensor:
    try:
        return torch.empty(num_rows + 1, dtype=torch.int64)
    except RuntimeError as error:
        raise ResourceError(
            f"the system does not give the {8 * (num_rows + 1) / 2**40:.2g} TiB of an indptr for "
            f"{num_rows:,} nodes; are ids numbered from 0 without gaps?"
        ) from error


def _rising_to_indptr(rows: Tensor, num_rows: int) -> Tensor:
    kernels = native_for(rows)
    if kernels is None:
        return indptr_of_rows(rows, num_rows)
    indptr = _new_indptr(num_rows)
    kernels.rows_to_indptr(rows, indptr)
    return indptr


def narrowed(csc: Csc) -> Csc:
    """Return a whole graph with its ids in the dtype of :func:`index_dtype`; itself if they have it."""
    dtype = index_dtype(max(csc.num_src, csc.num_dst))
    if csc.indices.dtype == dtype:
        return csc
    return Csc(csc.indptr, csc.indices.to(dtype), csc.num_src, csc.weight, trusted=True)


def index_dtype(num_nodes: int) -> torch.dtype:
    """Return the dtype to store node ids in: int32 if every id fits, which halves the bytes to read."""
    return torch.int32 if num_nodes <= torch.iinfo(torch.int32).max else torch.int64


def degrees_and_loops(csc: Csc) -> tuple[Tensor, Tensor | None]:
    """Compute :attr:`Csc.src_degree` and :attr:`Csc.src_loop` for all nodes of a whole graph."""
    degree, loop = torch.empty(csc.num_dst), None
    start = 0
    while start < csc.num_dst:  # nodes by their edges, so that no temporary is as large as these
        end = int(torch.searchsorted(csc.indptr, csc.indptr[start] + _EDGES_AT_A_TIME, right=True)) - 1
        end = min(max(end, start + 1), start + _EDGES_AT_A_TIME, csc.num_dst)
        low, high = int(csc.indptr[start]), int(csc.indptr[end])
        owner = torch.arange(end - start).repeat_interleave(csc.indptr[start : end + 1].diff())
        weight = torch.ones(high - low) if csc.weight is None else csc.weight[low:high].clone()
        at = (csc.indices[low:high] == owner + start).nonzero().squeeze(1)
        if at.numel():
            loop = torch.full((csc.num_dst,), torch.nan) if loop is None else loop
            # Self-loops of one node follow each other: its last one is at the end of its count.
            nodes, count = owner[at].unique_consecutive(return_counts=True)  # type: ignore[no-untyped-call]
            loop[nodes + start] = count.float() if csc.weight is None else weight[at[count.cumsum(0) - 1]]
        weight[at] = 0
        degree[start:end] = torch.zeros(end - start).index_add_(0, owner, weight)
        start = end
    return degree, loop


class KeyLookup:
    """The places of each key in a list of integers, in any order, repeated or not."""

    def __init__(self, keys: Tensor) -> None:
        self._keys, self._order = keys.sort(stable=True)

    def places(self, wanted: Tensor) -> tuple[Tensor, Tensor]:
        """Return for each pair of a wanted key and an equal one of the list the place of each, int64.

        Pairs are in the order of ``wanted``, then in that of the list.
        """
        starts = torch.searchsorted(self._keys, wanted)
        counts = torch.searchsorted(self._keys, wanted, right=True) - starts
        row = torch.arange(wanted.numel(), device=wanted.device).repeat_interleave(counts)
        return row, self._order[ranges(starts, counts)]
