"""SourceSplit: a block's edges by source, those of the halo apart from those of own rows, for gradients.

The gradient of a source's row is a sum over its own edges alone. So the halo's gradients, which others wait
for, are computed first and depart, and those of own rows while they travel, to the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from graphbraid.fullgraph.program import Exchange
from graphbraid.fullgraph.step.arena import Rows
from graphbraid.fullgraph.step.operations.row_exchange import depart_back
from graphbraid.fullgraph.step.plan import StepPlan
from graphbraid.graph.csc import Csc, indptr_of


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class SourcePart:
    """The edges of some sources, as a block of their own for kernels that go back by source."""

    rows: slice
    """The sources."""
    indptr: Tensor
    """``(num_rows + 1,)`` int64, by source."""
    indices: Tensor
    """``(num_edges,)`` destinations."""
    perm: Tensor
    """``(num_edges,)`` int64: an edge's position in its whole row, behind ``forward_indptr`` of that row."""
    forward_indptr: Tensor
    """``(num_dst + 1,)`` int64: the part's edges by destination."""


class SourceSplit:
    """The two parts of a block's sources, made when they are first read.

    Args:
        csc: the block.
        num_own: number of source rows that this rank owns; the halo's are behind them.
    """

    def __init__(self, csc: Csc, num_own: int) -> None:
        self._csc, self._num_own = csc, num_own
        self._parts: tuple[SourcePart, SourcePart] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes that the parts take beside the block's transpose."""
        csc = self._csc
        return 8 * (csc.num_src + 2 + csc.num_edges + 2 * (csc.num_dst + 1))

    @property
    def halo(self) -> SourcePart:
        """The part of the halo's rows."""
        return self._made()[1]

    @property
    def own(self) -> SourcePart:
        """The part of own rows."""
        return self._made()[0]

    def _made(self) -> tuple[SourcePart, SourcePart]:
        if self._parts is None:
            num_src = self._csc.num_src
            own, halo = slice(0, self._num_own), slice(self._num_own, num_src)
            self._parts = self._part(own), self._part(halo)
        return self._parts

    def _part(self, rows: slice) -> SourcePart:
        csc = self._csc
        reverse, perm = csc.transpose()
        ends = reverse.indptr[rows.start : rows.stop + 1]
        edges = slice(int(ends[0]), int(ends[-1]))
        to = reverse.indices[edges].long()
        forward = indptr_of(torch.bincount(to, minlength=csc.num_dst))
        return SourcePart(
            rows=rows,
            indptr=ends - ends[0],
            indices=reverse.indices[edges],
            perm=perm[edges] - csc.indptr[to] + forward[to],
            forward_indptr=forward,
        )


def exchange_before(plan: StepPlan, value: str) -> Exchange | None:
    """Return what brings rows of ``value`` from others in each step, if they are read once; all ranks alike.

    None, too, where something has been added to the gradient of ``value`` already.
    """
    maker, program = plan.program.producer(value), plan.program
    if not isinstance(maker, Exchange) or not plan.request.begins_early or plan.copies is not None:
        return None
    is_first = value not in plan.grads and len(program.consumers(value)) == 1
    return maker if is_first and program.learns(maker.inputs[0]) else None


def source_split(plan: StepPlan, csc: Csc, maker: Exchange) -> SourceSplit:
    """Return the split of a block whose sources' rows ``maker`` brings, made once for all layers over it."""
    if id(csc) not in plan.exchanges.source_splits:
        num_own = plan.num_rows(plan.program.level(maker.inputs[0]))
        split = plan.exchanges.source_splits[id(csc)] = SourceSplit(csc, num_own)
        plan.exchanges.nbytes += split.nbytes
    return plan.exchanges.source_splits[id(csc)]


def plan_by_source(
    plan: StepPlan,
    maker: Exchange,
    split: SourceSplit,
    run: Callable[[SourcePart], None],
    *touches: Rows,
) -> None:
    """Plan a gradient of exchanged rows: the halo's part, which departs, then own rows' while it travels.

    Args:
        plan: the step's plan.
        maker: the exchange.
        split: the sources' parts.
        run: computes the gradient of a part's rows.
        touches: what it reads and writes in the arena.
    """
    plan.do(f"gradient of {maker.out}: halo", lambda: run(split.halo), *touches)
    depart_back(plan, maker)
    plan.do(f"gradient of {maker.out}: own", lambda: run(split.own), *touches)


def whole_part(csc: Csc) -> SourcePart:
    """Return all sources of a block as one part, in the memory of its transpose."""
    reverse, perm = csc.transpose()
    return SourcePart(
        rows=slice(0, csc.num_src),
        indptr=reverse.indptr,
        indices=reverse.indices,
        perm=perm,
        forward_indptr=csc.indptr,
    )
