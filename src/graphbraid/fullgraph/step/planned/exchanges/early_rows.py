"""EarlyRows: the rows that other ranks wait for, computed and sent before the rest of their value.

A value that is exchanged often ends a chain of operations that work row by row, as a layer's linear map does.
Only the rows to send are taken through the chain first, and depart; then the whole value is computed, these
rows once more, while they travel. That needs no order of rows, and few rows are sent by a good partition.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from graphbraid.fullgraph.program import Epilogue, Exchange, Linear
from graphbraid.fullgraph.program.chains import Chain, chains_before
from graphbraid.fullgraph.step.calls import kernels
from graphbraid.fullgraph.step.calls.repeated import MaskSeed
from graphbraid.fullgraph.step.calls.rows import FirstRows, Read, copy
from graphbraid.fullgraph.step.planned.epilogues import early_mask_of, seed_of
from graphbraid.fullgraph.step.planned.exchanges.routes import route_of
from graphbraid.fullgraph.step.step_plan import StepPlan
from graphbraid.ops.linear import tall_product

MOST_SHARE = 0.5
"""Largest share of a rank's rows that is computed twice; for more, rows depart when all are there."""


def early_chains(plan: StepPlan) -> dict[str, tuple[Exchange, Chain]]:
    """Return the exchanges whose rows depart early on this rank, by the value of their chain's first map."""
    if plan.comm is None or not plan.begins_early or plan.copies is not None:
        return {}
    return {
        head: (op, chain)
        for head, (op, chain) in chains_before(plan.program).items()
        if torch.unique(route_of(plan, op).send).numel()
        <= MOST_SHARE * plan.num_rows(plan.program.level(op.inputs[0]))
    }


def plan_early_rows(plan: StepPlan, op: Exchange, chain: Chain) -> FirstRows:
    """Plan to compute the rows that ``op`` sends; return them, in the order in which they are sent."""
    route = route_of(plan, op)
    distinct, places = torch.unique(route.send, return_inverse=True)
    is_packed = distinct.numel() == route.num_sent
    early = _EarlyRows(plan, route.send if is_packed else distinct)
    for link in chain:
        found = early.plan(link)
    if is_packed:
        return found
    packed = plan.scratch(f"{op.out}: rows to send", route.num_sent, plan.program.width(op.out))

    def pack() -> None:
        torch.index_select(found.tensor, 0, places, out=packed.tensor)

    plan.do(f"{op.out}: pack", pack, found, packed)
    return packed


class _EarlyRows:
    """Some rows of the values of a chain.

    Args:
        plan: the step's plan.
        ids: ``(num_rows,)`` int64 rows that are computed.
    """

    def __init__(self, plan: StepPlan, ids: Tensor) -> None:
        self._plan, self._ids = plan, ids
        self._found: dict[str, FirstRows] = {}

    def plan(self, link: Linear | Epilogue) -> FirstRows:
        """Plan to compute these rows of the chain's next operation, and return them."""
        plan, ids = self._plan, self._ids
        out = plan.scratch(f"{link.out}: early rows", ids.numel(), plan.program.width(link.out))
        for addend in link.inputs[1:]:
            self._plan_addend(addend, out)
        run, touches, seed = self._call(link, out)
        plan.repeat(f"{link.out}: early rows", run, out, *touches, seed=seed)
        self._found[link.out] = out
        return out

    def _plan_addend(self, value: str, out: FirstRows) -> None:
        if (found := self._found.get(value)) is not None:
            self._plan.do(f"{value}: early copy", lambda: copy(found.tensor, out.tensor), found, out)
            return
        whole = self._plan.read(value)

        def gather() -> None:
            torch.index_select(whole.get(), 0, self._ids, out=out.tensor)

        self._plan.do(f"{value}: early copy", gather, out, *whole.touches)

    def _call(
        self, link: Linear | Epilogue, out: FirstRows
    ) -> tuple[Callable[[], object], tuple[FirstRows, ...], MaskSeed | None]:
        """Return the call that computes the rows, what it reads in the arena, and the seed of its mask."""
        plan, source = self._plan, self._found.get(link.inputs[0])
        x, ids = plan.read(link.inputs[0]) if source is None else _read(source), self._ids
        after = link if isinstance(link, Epilogue) else link.after
        mask = None if after is None else early_mask_of(plan, after, ids)
        seed = None if after is None or mask is None else seed_of(plan, after, mask)
        if isinstance(link, Epilogue):
            draw = mask
            assert draw is not None
            run = partial(_through, link, x, draw, out)
            return run, x.touches, seed

        def multiply() -> None:
            epilogue = None
            if after is not None and mask is not None:
                epilogue = kernels.row_epilogue(after.bias_row(), after.act, mask(), out.tensor)
            tall_product(
                x.get(),
                link.matrix().t(),
                out=out.tensor,
                add=len(link.inputs) == 2,
                ids=ids if source is None else None,
                after=epilogue,
            )

        return multiply, x.touches, seed


def _through(op: Epilogue, x: Read, mask: Callable[[], kernels.Mask], out: FirstRows) -> None:
    kernels.epilogue(x.get(), op.bias_row(), op.act, mask(), out.tensor)


def _read(rows: FirstRows) -> Read:
    return Read(lambda: rows.tensor, (rows,))


__all__ = ["early_chains", "plan_early_rows"]
