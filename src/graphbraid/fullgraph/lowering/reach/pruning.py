"""Pruning: finding the nodes on which the needed outputs depend, level by level."""

from __future__ import annotations

from torch import Tensor

from graphbraid.fullgraph.lowering.reach.levels import Reach, reach
from graphbraid.fullgraph.program import Decision, Module, Normalise, Program
from graphbraid.graph.csc import Csc

PRUNE_BELOW = 0.95
"""Share of the edges that may be left for pruning to pay."""


def prune(program: Program, csc: Csc, nodes: Tensor, *, wanted: bool) -> tuple[Reach | None, Decision]:
    """Find the nodes that the outputs of ``nodes`` depend on; None means all nodes at every level."""
    num_blocks = program.num_levels - 1
    left_alone = None
    if not wanted:
        left_alone = "switched off"
    elif num_blocks == 0 or csc.num_edges == 0:
        left_alone = "there is nothing to aggregate"
    elif _couples_rows(program):
        left_alone = "batch normalisation needs every node's row"
    if left_alone is not None:
        return None, Decision(name="prune", taken=False, what=left_alone)
    reached = reach(csc, nodes, num_blocks)
    left = sum(reached.edges(csc)) / (num_blocks * csc.num_edges)
    if left > PRUNE_BELOW:
        return None, Decision(name="prune", taken=False, what=f"{left:.0%} of the edges would be left")
    rows = " -> ".join(f"{size:,}" for size in reversed(reached.sizes))
    what = f"{left:.0%} of the edges reach the nodes of the loss; rows per level {rows}"
    return reached, Decision(name="prune", taken=True, what=what)


def _couples_rows(program: Program) -> bool:
    """Return whether a row's result depends on rows it has no edge from, so that none may be left out."""
    return any(isinstance(op, Module | Normalise) and op.couples_rows for op in program.ops)


__all__ = ["prune"]
