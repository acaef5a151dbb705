"""Epilogues of planned operations: the dropout masks they draw, and how they follow another kernel's rows."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from graphbraid.fullgraph.program import Epilogue, Following
from graphbraid.fullgraph.step.calls import kernels
from graphbraid.fullgraph.step.calls.repeated import Seed
from graphbraid.fullgraph.step.calls.rows import Rows
from graphbraid.fullgraph.step.step_plan import StepPlan
from graphbraid.ops.row_epilogue import RowEpilogue

After = Callable[[Rows], RowEpilogue | None]
"""Makes an operation's fused epilogue for its rows while its task runs; None if it has none."""
Draw = Callable[[], kernels.Mask]
"""Draws an epilogue's mask, which the backward pass finds in ``plan.masks``."""


def after_of(plan: StepPlan, op: Following) -> tuple[After, Seed | None]:
    """Return what makes ``op``'s fused epilogue, and its mask's seed."""
    after = op.after
    if after is None:
        return lambda _: None, None
    mask = mask_of(plan, after)

    def epilogue(out: Rows) -> RowEpilogue:
        return kernels.row_epilogue(after.bias_row(), after.act, mask(), out.tensor)

    return epilogue, seed_of(plan, after, mask)


def seed_of(plan: StepPlan, op: Epilogue, mask: Draw) -> Seed | None:
    """Return the seed of an epilogue's mask; None if it has no mask."""
    if op.p == 0:
        return None
    return Seed(draw=lambda: mask().seed, drawn=lambda: plan.masks[op.out].seed)


def mask_of(plan: StepPlan, op: Epilogue) -> Draw:
    """Return a function that draws an epilogue's mask; one that was drawn for early rows is kept."""
    if op.out in plan.ahead.masks:
        return lambda: plan.masks[op.out]
    p, nodes = op.p, plan.nodes_of(op.out)
    seed = plan.seeds.add() if p > 0 else lambda: 0

    def draw() -> kernels.Mask:
        mask = plan.masks[op.out] = kernels.Mask(p, seed(), nodes if p > 0 else None)
        return mask

    return draw


def early_mask_of(plan: StepPlan, op: Epilogue, rows: Tensor) -> Draw:
    """Return a function that draws an epilogue's mask before its time, and returns that of some rows."""
    draw, nodes = mask_of(plan, op), plan.nodes_of(op.out)
    plan.ahead.masks.add(op.out)
    nodes = rows if nodes is None else nodes[rows]

    def early() -> kernels.Mask:
        mask = draw()
        return kernels.Mask(mask.p, mask.seed, nodes if mask.p > 0 else None)

    return early


__all__ = ["After", "after_of", "early_mask_of", "mask_of", "seed_of"]
