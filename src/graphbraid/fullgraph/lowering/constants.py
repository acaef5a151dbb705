"""Constants: values that depend on no parameter, computed once over the whole graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from graphbraid.fullgraph.lowering.reach.levels import aggregation
from graphbraid.fullgraph.program import Add, AdjacencyMatrix, Aggregate, Combine, Operation, Own
from graphbraid.graph.csc import Csc
from graphbraid.ops import reference
from graphbraid.ops.aggregation import Aggregation, backend

COLUMNS_AT_A_TIME = 32
"""Columns computed at a time, which bounds the temporary memory: where only some rows are kept, where several
operations follow each other, and in the reference, which takes memory per edge and column."""
FOLDED = (Aggregate, Own, Add, Combine)
"""Operations that treat each column alike and have no parameters."""


def computed_once(
    ops: Sequence[Operation], csc: Csc | Callable[[AdjacencyMatrix], Csc], x: Tensor, nodes: Tensor | None
) -> Tensor:
    """Return the ``(len(nodes), in_channels)`` rows of the last operation's value.

    Args:
        ops: operations of the types :data:`FOLDED`, in the order they run, starting from the features.
        csc: the graph's in-edges, or a function that returns those that an adjacency stands for.
        x: ``(num_nodes, in_channels)`` features.
        nodes: int64 ids of the rows to keep. If None, all of them.
    """
    edges = (lambda _: csc) if isinstance(csc, Csc) else csc
    read = {op.adjacency: edges(op.adjacency) for op in ops if isinstance(op, Aggregate)}
    maps = {adjacency: aggregation(adjacency, its) for adjacency, its in read.items()}
    num_dst = [its.num_dst for its in read.values()][-1]
    if nodes is None and len(ops) == 1 and backend(x) is not reference:
        return _result(ops, maps, x)
    out = x.new_empty(num_dst if nodes is None else nodes.numel(), x.shape[1])
    for start in range(0, x.shape[1], COLUMNS_AT_A_TIME):
        part = slice(start, start + COLUMNS_AT_A_TIME)
        rows = _result(ops, maps, x[:, part])
        out[:, part] = rows if nodes is None else rows.index_select(0, nodes)
    return out


def _result(ops: Sequence[Operation], maps: Mapping[AdjacencyMatrix, Aggregation], x: Tensor) -> Tensor:
    values = {ops[0].inputs[0]: x}
    for op in ops:
        values[op.out] = _run(op, maps, [values[name] for name in op.inputs])
    return values[ops[-1].out]


def _run(op: Operation, maps: Mapping[AdjacencyMatrix, Aggregation], inputs: list[Tensor]) -> Tensor:
    if isinstance(op, Aggregate):
        return maps[op.adjacency].forward(inputs[0], addend=inputs[1] if len(inputs) > 1 else None)
    if isinstance(op, Own):  # every level holds all nodes here
        return inputs[0]
    factors = op.factors if isinstance(op, Combine) else (1.0,) * len(inputs)
    out = torch.mul(inputs[0], factors[0])
    for value, factor in zip(inputs[1:], factors[1:], strict=True):
        out.add_(value, alpha=factor)
    return out


__all__ = ["COLUMNS_AT_A_TIME", "FOLDED", "computed_once"]
