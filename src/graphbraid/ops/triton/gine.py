"""GINE's sums of rectified sums in Triton: messages made of steps, beside a node's own row."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from graphbraid.ops import reference
from graphbraid.ops.triton.launch import like
from graphbraid.ops.triton.messages import Step, run_steps

_SUM: tuple[Step, ...] = (("SOURCE", 0, 0, 0.0, 0), ("EDGE", 0, 0, 0.0, 0), ("ADD", 0, 1, 0.0, 0))
_GRADIENT: tuple[Step, ...] = (*_SUM, ("DESTINATION", 0, 0, 0.0, 0), ("RELU_GRADIENT", 3, 2, 0.0, 0))


@like(reference.gine)
def gine(a: Any) -> None:
    """Compute like the twin."""
    steps: tuple[Step, ...] = (*_SUM, ("RELU", 2, 0, 0.0, 0))
    _reduce(a, steps, a.x, sources=(a.x,), edges=(a.edges,))


@like(reference.gine_backward)
def gine_backward(a: Any) -> None:
    """Compute like the twin."""
    how: dict[str, Any] = {"perm": a.perm, "by_source": True, "edges": (a.edges,)}
    if a.x is None:
        _reduce(a, _SUM[1:2], a.grad, **how)
    else:
        _reduce(a, _GRADIENT, a.grad, sources=(a.x,), destinations=(a.grad,), **how)


@like(reference.gine_edge_backward)
def gine_edge_backward(a: Any) -> None:
    """Compute like the twin."""
    read: dict[str, Any] = {"sources": (a.x,), "destinations": (a.grad,), "edges": (a.edges,)}
    results = [("EDGE", len(_GRADIENT) - 1, a.out, None)]
    run_steps(a.indptr, a.indices, _GRADIENT, results, width=a.out.shape[1], **read)


def _reduce(a: Any, steps: tuple[Step, ...], own: Tensor, **read: Any) -> None:
    """Write the sums of messages, and of ``loop_scale`` times the own rows of the first nodes."""
    out: Tensor = a.out
    adds = a.num_loops > 0
    total = out if out.dtype == torch.float32 or not adds else out.new_empty(out.shape, dtype=torch.float32)
    if adds:
        total[a.num_loops :] = 0
        torch.mul(own[: a.num_loops].float(), a.loop_scale, out=total[: a.num_loops])
    results = [("SUM", len(steps) - 1, total, None)]
    run_steps(a.indptr, a.indices, steps, results, width=out.shape[1], adds=adds, **read)
    if total is not out:
        out.copy_(total)
