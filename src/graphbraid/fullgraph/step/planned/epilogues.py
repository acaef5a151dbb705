"""Epilogues of planned operations: the dropout masks they draw, and how they follow another kernel's rows."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from graphbraid.fullgraph.program import Epilogue, Following
from graphbraid.fullgraph.step.calls import kernels
from graphbraid.fullgraph.step.calls.repeated import MaskSeed
from graphbraid.fullgraph.step.calls.rows import FirstRows
from graphbraid.fullgraph.step.step_plan import StepPlan
from graphbraid.ops.dropout import RowEpilogue

After = Callable[[FirstRows], RowEpilogue | None]
"""Makes an operation's fused epilogue for its rows while its task runs; None if it has none."""
Draw = Callable[[], kernels.Mask]
"""Draws an epilogue's mask, which the backward pass finds in ``plan.masks``."""


def after_of(plan: StepPlan, op: Following) -> tuple[After, MaskSeed | None]:
    """Return what makes ``op``'s fused epilogue, and its mask's seed."""
    after = op.after
    if after is None:
        return lambda _: None, None
    mask = mask_of(plan, after)

    def epilogue(out: FirstRows) -> RowEpilogue:
        return kernels.row_epilogue(after.bias_row(), after.act, mask(), out.tensor)

    return epilogue, seed_of(plan, after, mask)


def seed_of(plan: StepPlan, op: Epilogue, mask: Draw) -> MaskSeed | None:
    """Return the seed of an epilogue's mask; None if it has no mask."""
    if op.p == 0:
        return None
    return MaskSeed(draw=lambda: mask().seed, drawn=lambda: plan.masks[op.out].seed)


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


def plan_epilogue_backward(
    plan: StepPlan, op: Epilogue, grad: FirstRows, target: FirstRows, ids: Tensor | None = None
) -> None:
    """Plan the gradients of an epilogue's input and bias from that of its result.

    Args:
        plan: the step's plan.
        op: the epilogue.
        grad: gradient of its rows, or of some of them.
        target: the input's, written; may be ``grad``.
        ids: ``(grad.count,)`` int64 rows that ``grad`` belongs to. If None, all.
    """
    out, bias, nodes = _rows_of(plan, op, ids), op.bias, None if ids is None else _nodes_of(plan, op, ids)
    name, touches = f"gradient of {op.inputs[0]}", (grad, out, target)

    def run(whole: Tensor | None = None) -> None:
        grad_bias = None if whole is None else op.bias_of(whole)
        mask = plan.masks[op.out]
        if nodes is not None:
            mask = kernels.Mask(mask.p, mask.seed, nodes if mask.p > 0 else None)
        kernels.epilogue_backward(grad.tensor, out.tensor, op.act, mask, target.tensor, grad_bias)

    def drawn() -> int | Tensor:
        return plan.masks[op.out].seed

    seed = MaskSeed(draw=drawn, drawn=drawn) if op.p > 0 else None
    if bias is None or not bias.requires_grad:
        plan.repeat(name, run, *touches, seed=seed)
    elif not op.bias_at:
        plan.repeat(name, run, *touches, seed=seed, gradient_of=bias)
    else:

        def run_for_part() -> None:
            whole = plan.lend(bias).zero_()
            run(whole)
            plan.give(bias, whole)

        plan.do(name, run_for_part, *touches)


def _rows_of(plan: StepPlan, op: Epilogue, ids: Tensor | None) -> FirstRows:
    """Return the rows of an epilogue's result, or plan to gather some of them."""
    whole = plan.values[op.out]
    if ids is None:
        return whole
    some = plan.scratch(f"{op.out}: some rows", ids.numel(), plan.program.width(op.out))

    def gather() -> None:
        torch.index_select(whole.tensor, 0, ids, out=some.tensor)

    plan.do(f"{op.out}: some rows", gather, whole, some)
    return some


def _nodes_of(plan: StepPlan, op: Epilogue, rows: Tensor) -> Tensor:
    nodes = plan.nodes_of(op.out)
    return rows if nodes is None else nodes[rows]


def early_mask_of(plan: StepPlan, op: Epilogue, rows: Tensor) -> Draw:
    """Return a function that draws an epilogue's mask before its time, and returns that of some rows."""
    draw, nodes = mask_of(plan, op), _nodes_of(plan, op, rows)
    plan.ahead.masks.add(op.out)

    def early() -> kernels.Mask:
        mask = draw()
        return kernels.Mask(mask.p, mask.seed, nodes if mask.p > 0 else None)

    return early


__all__ = ["After", "after_of", "early_mask_of", "mask_of", "plan_epilogue_backward", "seed_of"]
