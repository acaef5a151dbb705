"""The streamed input path: features that do not lie in memory are read block by block in every step.

A product with weights needs the rows of the features one after the other, forward and backward. An
operation that reads rows at random cannot be streamed: attention, or an aggregation, unless that is hoisted
and its result streamed instead. Nor can a row-wise function, whose result is as large as the features.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from graphbraid.arguments import as_size, check_type
from graphbraid.errors import ConfigError, ResourceError
from graphbraid.features import DiskOptions, TieredFeatures
from graphbraid.features.budgets import options_for
from graphbraid.features.rows.row_stream import LONGEST_ROUND
from graphbraid.files.writing import format_bytes
from graphbraid.fullgraph import program as ir
from graphbraid.fullgraph.lowering.costs import CostModel, in_bytes
from graphbraid.graph import Graph
from graphbraid.graph.identity import check_made_for
from graphbraid.machine.hardware import free_memory_bytes
from graphbraid.sampling.rows.by_id import FeatureSource

STREAMED = "streamed"
"""Name of the input path."""
_SAMPLED_ROWS = 4096


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class StreamedFeatures:
    """Where a step reads features that do not lie in memory, and the memory it may take for them."""

    rows: FeatureSource
    """The rows by id."""
    host_bytes: int
    """Memory for blocks that are read and for rows that stay in memory from step to step."""

    @classmethod
    def of(cls, graph: Graph, tiers: FeatureSource | None, host: int | str | None) -> StreamedFeatures | None:
        """Return the features of a graph as :func:`graphbraid.compile` is asked for them; None: in memory.

        Args:
            graph: with dense features; mapped from a store, if ``tiers`` are not given.
            tiers: the rows by id. If None, those of the store's file.
            host: bytes or a size, ``"all"`` or 0 as in :class:`graphbraid.features.TieredFeatures`.

        Raises:
            ConfigError: a size that cannot be meant, or tiers of another shape or on a device, or no tiers.
            DataError: the features are not dense, or not mapped from a store, or tiers are of another graph.
            ResourceError: the memory is not free, or the file cannot be read.
        """
        if tiers is None and host is None:
            return None
        graph.check_one_type("features that are streamed")
        whole = 4 * graph.num_nodes * graph.num_features
        size = 4 * LONGEST_ROUND if host is None else 2 * whole if host == "all" else as_size(host, "host")
        free = free_memory_bytes()
        if host is not None and free is not None and min(size, whole) > free:
            raise ResourceError(
                f"host={host!r} takes {format_bytes(min(size, whole))} of memory; {format_bytes(free)} are "
                "free. Give less: the other rows are read from the file in every step"
            )
        if tiers is None:
            tiers = TieredFeatures.build(
                graph, host=0, disk=options_for(size) if size else DiskOptions(depth=32)
            )
        check_type(
            tiers, "tiers", FeatureSource, "TieredFeatures or another source of rows", error=ConfigError
        )
        if tiers.hot is not None:
            raise ConfigError(
                "a step reads rows on the host, and these tiers have some on devices; leave hot out."
            )
        if tuple(tiers.shape) != (graph.num_nodes, graph.num_features):
            raise ConfigError(
                f"tiers must hold the features of this graph, ({graph.num_nodes}, {graph.num_features}); got "
                f"{tuple(tiers.shape)}"
            )
        check_made_for(tiers, graph.x, "the features' tiers were")
        return cls(rows=tiers, host_bytes=size)

    def sample(self) -> Tensor:
        """Return some rows, spread evenly, that stand for all: ``(num_rows, F)`` float32."""
        count = self.rows.shape[0]
        ids = torch.arange(0, count, max(1, count // _SAMPLED_ROWS))
        return self.rows.gather(ids).to(torch.float32)


def streamed(program: ir.Program) -> ir.Program:
    """Return a program, as it was read, whose features are to be streamed.

    Raises:
        ConfigError: it is one over relations.
    """
    if program.by_relation:
        raise ConfigError(
            "features are streamed in graphs of one type, and this model has layers over relations."
        )
    decision = ir.Decision(
        name="input path",
        taken=True,
        what="streamed: a step reads the features in blocks, ahead of their use",
    )
    return program.rewritten(program.ops, decision, input_path=STREAMED)


def lowered_to_stream(lower: Callable[[CostModel, bool], ir.Program], costs: CostModel) -> ir.Program:
    """Lower a program so that only products read its features, hoisting more than usual if that is needed.

    Args:
        lower: runs the passes by a cost model; the second argument tells whether they must hoist.
        costs: the cost model, with the usual limit of hoisted bytes.

    Raises:
        ConfigError: an operation reads the features at random; the message names it and the remedy.
    """
    program = lower(costs, False)
    if _random_reader(program) is None:
        return program
    program = lower(replace(costs, hoist_bytes=1 << 62), True)
    reader = _random_reader(program)
    if reader is not None:
        raise ConfigError(_refusal(program, *reader, costs))
    return program


def needs_lowering(why: ir.NotLoweredError | None) -> str:
    """Return the message about a model that runs as it is written, which needs all features in memory."""
    reason = "" if why is None else f", and {why.part}: {why.reason}"
    return (
        f"features that do not lie in memory are read by a lowered program alone{reason}. Leave host and "
        "tiers out, or use mini-batches (mode='sampled')."
    )


def held_rows(program: ir.Program) -> dict[str, str]:
    """Return the values that hold rows of a streamed matrix, each with the name of that matrix."""
    held = {ir.INPUT: ir.INPUT}
    for op in program.ops:
        if isinstance(op, ir.Hoisted):
            held[op.out] = op.out
        elif isinstance(op, ir.DestinationRows) and op.inputs[0] in held:
            held[op.out] = held[op.inputs[0]]
    return held


def _random_reader(program: ir.Program) -> tuple[ir.Operation, str] | None:
    """Return the first operation that reads streamed rows and is no product, with the value it reads."""
    held = held_rows(program)
    for op in program.ops:
        products = 1 if isinstance(op, ir.Linear) else 0
        read = () if isinstance(op, ir.DestinationRows | ir.Hoisted) else op.inputs[products:]
        for value in read:
            if value in held:
                return op, value
    if program.output in held:
        return program.ops[-1], program.output
    return None


def _refusal(program: ir.Program, op: ir.Operation, value: str, costs: CostModel) -> str:
    layer = program.level(value) + 1
    if isinstance(op, ir.Attention):
        why = "attends to rows of neighbours in any order before a product"
    elif isinstance(op, ir.Aggregate):
        why = "aggregates rows of neighbours, in any order, in a way that cannot be computed once"
    else:
        count = 4 * costs.rows[0] * costs.in_channels
        why = f"needs all rows at once or makes as many new ones ({in_bytes(count)})"
    return (
        f"the features do not lie in memory, and layer {layer} reads them by {op.symbol} before any product "
        f"with weights, which {why}. Begin with a linear layer (and drop out behind it), give the features "
        "memory by leaving host and tiers out, or use mini-batches (mode='sampled')."
    )
