"""RowSplit: rows whose in-neighbours are all here, computed while the halo's travel, and the others.

For maxima and attention, of which a row cannot be computed in two parts without other bits. The inner rows
are computed by a map of all rows in which the others have no edges; then the others by themselves, in rows of
their own that are copied to their places.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from graphbraid.fullgraph.program import INPUT, Attention, Exchange, Maximum
from graphbraid.fullgraph.step.calls.rows import FirstRows
from graphbraid.fullgraph.step.step_plan import StepPlan
from graphbraid.graph.csc import Csc

LEAST_SHARE = 1 / 16
"""Least share of the edges that must end in inner rows; for fewer, rows wait for the halo as they are."""


def waits_late(plan: StepPlan, op: Exchange) -> bool:
    """Return whether an exchange's rows are read by one maximum or attention that begins without them."""
    readers = plan.program.consumers(op.out)
    only = readers[0] if len(readers) == 1 else None
    if isinstance(only, Attention):
        return not only.reads_edges and split_for(plan, only) is not None
    return isinstance(only, Maximum) and split_for(plan, only) is not None


def split_for(plan: StepPlan, op: Attention | Maximum) -> RowSplit | None:
    """Return the split of the rows that an operation computes; None if too few could be computed early.

    All ranks need not decide alike: what travels, and in which order, is the same either way.
    """
    if op.out in plan.divided.row_splits:
        return plan.divided.row_splits[op.out]
    level = plan.program.level(op.inputs[0])
    csc, found = plan.blocks[level].of(op.walks).csc, None
    maker = plan.program.producer(op.inputs[0])
    if plan.begins_early and plan.copies is None and isinstance(maker, Exchange) and maker.inputs[0] != INPUT:
        num_own = plan.num_rows(plan.program.level(maker.inputs[0]))
        key = (id(csc), isinstance(op, Attention) and op.self_loops)
        if key not in plan.divided.splits_of_blocks:
            plan.divided.splits_of_blocks[key] = _split(csc, num_own, with_loops=key[1])
            made = plan.divided.splits_of_blocks[key]
            plan.divided.nbytes += 0 if made is None else made.nbytes
        found = plan.divided.splits_of_blocks[key]
    plan.divided.row_splits[op.out] = found
    return found


class RowSplit:
    """The two parts of a block's destinations.

    Args:
        inner: ``(num_dst, num_src)`` edges of the inner rows; the others have none.
        outer: ``(num_outer, num_src)`` edges of the others; with self-loops, the last edge of each.
        rows: ``(num_outer,)`` int64, the others' rows.
        num_own: number of source rows that are here from the start.
    """

    def __init__(self, inner: Csc, outer: Csc, rows: Tensor, num_own: int) -> None:
        self.inner, self.outer, self.rows, self.num_own = inner, outer, rows, num_own

    @property
    def nbytes(self) -> int:
        """Bytes of both parts."""
        return self.inner.nbytes + self.outer.nbytes + self.rows.nbytes

    def scratch_like(self, plan: StepPlan, name: str, whole: Sequence[FirstRows]) -> tuple[FirstRows, ...]:
        """Return memory for the outer rows of each of ``whole``."""
        return tuple(
            plan.scratch(
                f"{name}: outer {rows.buffer.name}",
                self.rows.numel(),
                *rows.buffer.shape[1:],
                dtype=rows.buffer.dtype,
            )
            for rows in whole
        )

    def put(self, outer: Sequence[FirstRows], whole: Sequence[FirstRows]) -> None:
        """Copy outer rows to their places."""
        for source, target in zip(outer, whole, strict=True):
            target.tensor.index_copy_(0, self.rows, source.tensor)


def plan_wait(plan: StepPlan, values: Sequence[str]) -> None:
    """Plan to wait for the exchanges among the makers of these values that have departed."""
    for value in dict.fromkeys(values):
        wait = plan.waits.pop(value, None)
        if wait is not None:
            run, touches = wait
            plan.do(f"{value}: wait", run, *touches)


def _split(csc: Csc, num_own: int, *, with_loops: bool) -> RowSplit | None:
    """Return the split, unless few edges end in inner rows or, with loops to add, some are stored."""
    destinations = csc.destinations().long()
    if with_loops and bool((csc.indices == destinations).any()):
        return None  # the kernels pass over these, which an explicit loop cannot
    is_outer = torch.zeros(csc.num_dst, dtype=torch.bool)
    is_outer[destinations[csc.indices >= num_own]] = True
    of_outer = is_outer[destinations]
    num_inner = csc.num_edges - int(of_outer.sum())
    if num_inner < LEAST_SHARE * csc.num_edges or num_inner == csc.num_edges:
        return None
    degrees, rows = csc.degrees(), is_outer.nonzero().squeeze(1)
    inner = Csc(_ends(degrees * ~is_outer), csc.indices[~of_outer], csc.num_src, trusted=True)
    indptr = _ends(degrees[rows] + with_loops)
    indices = csc.indices.new_empty(int(indptr[-1]))
    if with_loops:
        indices[indptr[1:] - 1] = rows.to(indices.dtype)
    place = torch.ones(indices.numel(), dtype=torch.bool)
    if with_loops:
        place[indptr[1:] - 1] = False
    indices[place] = csc.indices[of_outer]
    return RowSplit(inner, Csc(indptr, indices, csc.num_src, trusted=True), rows, num_own)


def _ends(counts: Tensor) -> Tensor:
    indptr = torch.zeros(counts.numel() + 1, dtype=torch.int64)
    torch.cumsum(counts, 0, out=indptr[1:])
    return indptr


__all__ = ["RowSplit", "plan_wait", "split_for", "waits_late"]
