"""Lowered: the result of lowering, a record that can be printed, run, or emitted as source code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from graphbraid.fullgraph.lowering.costs import CostModel
from graphbraid.fullgraph.lowering.levels import Block, Blocks, TypedBlock, num_rows_of
from graphbraid.fullgraph.lowering.options import CompileOptions
from graphbraid.fullgraph.lowering.route import PartView
from graphbraid.fullgraph.program import LevelNodes, Program, name_of
from graphbraid.graph import Graph
from graphbraid.graph.types import Relation


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Lowered:
    """A lowered program over a whole graph; none of it is allocated or on a device yet."""

    program: Program
    """The lowered program, with the decisions that led to it."""
    graph: Graph
    """The graph, on the host; if its adjacency is symmetric, that serves as its own transpose."""
    nodes: Tensor
    """``(num_train,)`` int64, the distinct nodes whose outputs are needed; where there are types, of one."""
    blocks: tuple[Block, ...] | tuple[TypedBlock, ...]
    """The edges from each level to the next, on the host."""
    rows: Tensor | None
    """``(num_train,)`` int64 rows of the output that belong to ``nodes``; None if all of them, in order."""
    row_of: Tensor | None
    """``(graph.num_nodes,)`` int64 row of each node, if every level holds all nodes in another order than the
    graph's; None if row v is node v, or if only some nodes have rows."""
    options: CompileOptions
    """The options it was lowered with."""
    costs: CostModel
    """What choices were weighed by: sizes, rates and any doubt about them, and trials between close ones."""
    part: PartView | None = None
    """The place of ``graph`` in the whole one, if it is one rank's part of it; then blocks number its nodes,
    and ``nodes`` are those of the whole graph."""

    def num_rows(self, level: int, node_type: int = 0) -> int:
        """Return the number of nodes of a level, where there are types those of one."""
        return num_rows_of(self.blocks, LevelNodes(level, node_type), self.graph.num_nodes)

    @property
    def num_outputs(self) -> int:
        """Number of all nodes that the program could give outputs of."""
        return self.graph.nodes_of(
            self.program.node_types[self.program.node_type(self.program.output)].name
        ).num_nodes

    def __str__(self) -> str:
        lines = [*self._heading(), *decision_lines(self.program, self.costs.doubt)]
        return "\n".join([*lines, *operation_lines(self.program, self.num_rows), *self._levels()])

    def _heading(self) -> list[str]:
        storage = str(self.options.storage).removeprefix("torch.")
        place = self.options.device.place
        rates = self.costs.rates
        cache_bytes = self.options.cache_bytes_by(rates)
        return [
            f"Lowered for the outputs of {self.nodes.numel():,} of {self.num_outputs:,} nodes on {place}, "
            f"rows stored in {storage}",
            f"  weighed by {rates.multiply_flops / 1e9:.3g} GFLOP/s, {rates.stream_bytes / 1e9:.3g} GB/s in "
            f"sequence, {rates.row_bytes / 1e9:.3g} at random, {rates.cached_row_bytes / 1e9:.3g} in "
            f"{cache_bytes / 1e6:.3g} MB of cache; {self.costs.density:.4g} of the features are not zero",
        ]

    def _levels(self) -> list[str]:
        if self.program.by_relation:
            return typed_level_lines(self.program, self.blocks, self.num_rows)
        order = "in the graph's order" if self.row_of is None else "renumbered"
        if self.blocks and self.blocks[-1].destination_nodes() is not None and self.row_of is None:
            order = "those of the last level first"
        lines = [f"Levels, their nodes {order}"]
        for level in range(self.program.num_levels):
            line = f"  {level}: {self.num_rows(level):,} nodes"
            if level < len(self.blocks):
                line += f", {self.blocks[level].of(None).csc.num_edges:,} edges to the next"
            lines.append(line)
        return lines


# ---- text about a lowered program: its decisions, its operations and their shapes


def decision_lines(program: Program, doubt: str = "") -> list[str]:
    """Return a line per decision; ``doubt`` says why the rates may be wrong, and is empty otherwise."""
    lines = ["Decisions"]
    if doubt:
        lines.append(f"  weighed by doubtful rates: {doubt}")
    for decision in program.decisions:
        line = f"  {'+' if decision.taken else '-'} {decision.name}: {decision.what}"
        line += f"; saves {decision.saves}" if decision.saves else ""
        line += f" (instead of {decision.instead_of})" if decision.instead_of else ""
        lines.append(line)
    return lines


def operation_lines(program: Program, num_rows: Callable[[int, int], int]) -> list[str]:
    """Return a line per operation with its result's shape; ``num_rows`` gives the nodes of a level's type."""
    lines = ["Program"]
    for op in program.ops:
        rows, details = num_rows(*program.place(op.out)), op.details()
        size = f"({rows:,}, {program.width(op.out)})"
        reads = ", ".join(op.inputs)
        lines.append(f"  {op.out} {size} = {op.symbol}({reads}){': ' + details if details else ''}")
    return lines


def typed_level_lines(program: Program, blocks: Blocks, num_rows: Callable[[int, int], int]) -> list[str]:
    """Return a line per level with its nodes of each type, and under it one per relation to the next."""
    lines = ["Levels, by node type"]
    relations = _relations_by_level(program)
    for level in range(program.num_levels):
        counts = (f"{num_rows(level, number):,} {one.name}" for number, one in enumerate(program.node_types))
        lines.append(f"  {level}: {', '.join(counts)}")
        for relation in relations.get(level, {}).values():
            edges = blocks[level].of(relation).csc.num_edges
            lines.append(f"    {name_of(relation)}: {edges:,} edges to the next")
    return lines


def _relations_by_level(program: Program) -> dict[int, dict[int, Relation]]:
    """Return the relations whose edges are read in every step, by level and number."""
    found: dict[int, dict[int, Relation]] = {}
    for op in program.ops:
        for one in op.relations_read:
            found.setdefault(program.level(op.out) - 1, {})[one.number] = one
    return found
