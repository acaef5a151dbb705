"""Lowering of a program to the cheapest equivalent one, on only the nodes and edges it needs, and its result.

The stages are pure functions: the adjacency that serves as its own transpose, the levels that the outputs
depend on, the passes over the program, and the order of the levels' nodes. The result, a Lowered, can be
printed, run, or emitted as source code.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from graphbraid.fullgraph import program as ir
from graphbraid.fullgraph.device import Device
from graphbraid.fullgraph.lowering.costs import CostModel, NodeTypeSizes, constant_bytes, in_bytes, row_reads
from graphbraid.fullgraph.lowering.levels import (
    FEW_EDGES,
    STRETCH,
    Block,
    Blocks,
    PartView,
    Reach,
    TypedBlock,
    everything,
    num_rows_of,
    on_needed_rows,
    reach,
    towards,
    whole_graph,
)
from graphbraid.fullgraph.lowering.locality import added_bytes, choose_order, feature_copies
from graphbraid.fullgraph.lowering.options import CompileOptions, passed_to_stream, streamed
from graphbraid.fullgraph.lowering.passes import through_passes
from graphbraid.graph import Graph
from graphbraid.graph.csc import Csc
from graphbraid.graph.types import Relation, Types, csc_of
from graphbraid.ops.gather import places_of


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Lowered:
    """A lowered program over a whole graph; none of it is allocated or on a device yet."""

    program: ir.Program
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
    """The costs behind the choices: sizes, and rates with any doubt about them."""
    part: PartView | None = None
    """The place of ``graph`` in the whole one, if it is one rank's part. Then blocks have local ids of nodes,
    and ``nodes`` has ids of the whole graph."""

    def num_rows(self, level: int, node_type: int = 0) -> int:
        """Return the number of nodes of a level, and of one type where there are types."""
        return num_rows_of(self.blocks, ir.LevelNodes(level, node_type), self.graph.num_nodes)

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
            f"{cache_bytes / 1e6:.3g} MB of cache; "
            f"{100 * self.costs.density:.4g}% of the features are not zero",
        ]

    def _levels(self) -> list[str]:
        if self.program.by_relation:
            return typed_level_lines(self.program, self.blocks, self.num_rows)
        order = "in the graph's order" if self.row_of is None else "renumbered"
        if self.blocks and self.blocks[-1].after()[1] is not None and self.row_of is None:
            order = "those of the last level first"
        lines = [f"Levels, their nodes {order}"]
        for level in range(self.program.num_levels):
            line = f"  {level}: {self.num_rows(level):,} nodes"
            if level < len(self.blocks):
                line += f", {self.blocks[level].of(None).csc.num_edges:,} edges to the next"
            lines.append(line)
        return lines


# ---- text about a lowered program: its decisions, its operations and their shapes


def decision_lines(program: ir.Program, doubt: str = "") -> list[str]:
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


def operation_lines(program: ir.Program, num_rows: Callable[[int, int], int]) -> list[str]:
    """Return a line per operation with its result's shape; ``num_rows`` gives the nodes of a level's type."""
    lines = ["Program"]
    for op in program.ops:
        rows, details = num_rows(*program.place(op.out)), op.details()
        size = f"({rows:,}, {program.width(op.out)})"
        reads = ", ".join(op.inputs)
        lines.append(f"  {op.out} {size} = {op.symbol}({reads}){': ' + details if details else ''}")
    return lines


def typed_level_lines(program: ir.Program, blocks: Blocks, num_rows: Callable[[int, int], int]) -> list[str]:
    """Return a line per level with its nodes of each type, and under it one per relation to the next."""
    lines = ["Levels, by node type"]
    relations: dict[int, dict[int, Relation]] = {}
    for op in program.ops:
        for one in op.relations_read:
            relations.setdefault(program.level(op.out) - 1, {})[one.number] = one
    for level in range(program.num_levels):
        counts = (f"{num_rows(level, number):,} {of.name}" for number, of in enumerate(program.node_types))
        lines.append(f"  {level}: {', '.join(counts)}")
        for relation in relations.get(level, {}).values():
            edges = blocks[level].of(relation).csc.num_edges
            lines.append(f"    {ir.name_of(relation)}: {edges:,} edges to the next")
    return lines


def lower_program(
    program: ir.Program, graph: Graph, nodes: Tensor, options: CompileOptions, costs: CostModel
) -> Lowered:
    """Lower a program over a whole graph.

    Where there are types, levels are found over all edges together, as in a graph of one type, and then
    divided by type.

    Args:
        program: the program as it was read from the model.
        graph: a graph with features, on the host also where a device computes; used in place.
        nodes: ``(num_train,)`` int64, the distinct nodes whose outputs are needed; where there are types, of
            the output's type.
        options: the decisions that may be taken, and the device that the program will run on.
        costs: the cost model of the graph, whose levels have no sizes yet.

    Raises:
        NotLoweredError: an operation has no kernel on the device.
    """
    check_kernels(program, options.device)
    if options.features is not None:
        program = streamed(program)
    types, wanted = graph.types if program.by_relation else None, "symmetry" in options.passes
    if types is None:
        csc, shared = with_shared_transpose(graph.csc, wanted=wanted, ordered=program.reads_edges)
        graph, seeds = graph if csc is graph.csc else graph.replace(csc=csc), nodes
    else:
        left = "a relation's edges lead from one type to another"
        shared = ir.Decision(name="symmetry", taken=False, what=left)
        seeds = nodes + types.first_ids[program.node_type(program.output)]
    reached, pruned = prune(program, graph.csc, seeds, wanted="prune" in options.passes)
    if reached is not None:
        program = on_needed_rows(program)
    program = program.rewritten(program.ops, shared, pruned)
    blocks: tuple[Block, ...] | tuple[TypedBlock, ...]
    row_of = None
    if types is None:
        rows_of, edges = _sizes(graph.csc, program.num_levels - 1, reached)
        costs = replace(costs, rows=rows_of, edges=edges)
        passed = _passed(program, costs, options, options.passes)
        passed, reached = _renumbered(passed, graph.csc, reached, costs, options)
        if reached is None:
            blocks = tuple(whole_graph(graph.csc, program.num_levels - 1))
        else:
            blocks = tuple(towards(graph.csc, reached, keep_edges=program.reads_edges))
            row_of = places_of(reached.nodes, graph.num_nodes, torch.int64)
        rows = output_rows(nodes, row_of, blocks)
    else:
        blocks = typed_blocks(types, _whole(types, program), program.num_levels - 1, reached)
        costs = replace(costs, **_typed_sizes(blocks, costs.node_types))
        left = "nodes of several types keep their order so far"
        passed = through_passes(program, costs, options.passes).decided("locality", False, left)
        rows = nodes if reached is None else None  # pruned levels begin with the training nodes, in order
    return Lowered(
        program=passed,
        graph=graph,
        nodes=nodes,
        blocks=blocks,
        rows=rows,
        row_of=None if pruned.taken else row_of,
        options=options,
        costs=costs,
    )


def lower_for_evaluation(lowered: Lowered, program: ir.Program) -> tuple[ir.Program, Blocks]:
    """Lower a program over the same graph for the outputs of all nodes; return it and its blocks.

    Nothing is hoisted, since the program may run only once, unless streamed features need it. If ``lowered``
    renumbered all nodes and using that order takes no copy of the features, the order is kept and
    ``lowered.blocks`` itself is returned.
    """
    num_blocks, options, kept = program.num_levels - 1, lowered.options, lowered.blocks
    if program.by_relation:
        types = lowered.graph.types
        assert types is not None
        assert isinstance(kept[0], TypedBlock)
        whole = {**kept[0].whole, **_whole(types, program, known=kept[0].whole)}
        blocks = typed_blocks(types, whole, num_blocks, None)
        costs = replace(lowered.costs, **_typed_sizes(blocks, lowered.costs.node_types), hoist_bytes=0)
        return through_passes(program, costs, options.passes - {"hoist"}), blocks
    csc = lowered.graph.csc
    rows, edges = _sizes(csc, num_blocks, None)
    costs = replace(lowered.costs, rows=rows, edges=edges, hoist_bytes=0)
    if options.features is not None:
        program = streamed(program)
    passed = _passed(program, costs, options, options.passes - {"hoist"})
    if lowered.row_of is not None and not _needs_order(program) and not feature_copies(passed):
        return passed, kept
    return passed, whole_graph(csc, num_blocks)


def _passed(
    program: ir.Program, costs: CostModel, options: CompileOptions, passes: frozenset[str]
) -> ir.Program:
    """Return a program after the passes. Streamed features may need more of them."""
    return (through_passes if options.features is None else passed_to_stream)(program, costs, passes)


def check_kernels(program: ir.Program, device: Device) -> None:
    """Raise NotLoweredError, which names it, if an operation of a program has no kernel on a device."""
    for op in () if device.is_host else program.ops:
        if isinstance(op, ir.Attention) and op.reads_edges:
            what = f"attention to edge features has no kernel on {device.place}"
            raise ir.NotLoweredError("attention", what, "the CPU, or edge_dim=None")
        is_one_kernel = isinstance(op, ir.Messages) and op.has_device_kernel and op.edges is None
        if isinstance(op, ir.Messages | ir.RelationAttention) and not is_one_kernel:
            raise ir.NotLoweredError(op.symbol, f"no kernel stands for them on {device.place}", "the CPU")


def _sizes(csc: Csc, num_blocks: int, reached: Reach | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the number of nodes of each level and of edges from each level to the next."""
    if reached is None:
        return (csc.num_dst,) * (num_blocks + 1), (csc.num_edges,) * num_blocks
    return reached.sizes[::-1], reached.edges(csc)


def _renumbered(
    program: ir.Program, csc: Csc, reached: Reach | None, costs: CostModel, options: CompileOptions
) -> tuple[ir.Program, Reach | None]:
    """Choose the order of the levels' nodes; None for the levels means all nodes in the graph's order."""
    reads, cache_bytes = row_reads(program), options.cache_bytes_by(costs.rates)
    left_alone, better = None, None
    if "locality" not in options.passes:
        left_alone = "switched off"
    elif not options.device.is_host:
        left_alone = f"the caches of {options.device.place} are not modelled"
    elif program.num_levels == 1 or csc.num_edges == 0:
        left_alone = "there is nothing to aggregate"
    elif program.reads_edges:
        left_alone = "edge features are read in the graph's order"
    elif _needs_order(program):
        left_alone = "a part that runs as written reads rows in the graph's order"
    elif not reads:
        left_alone = "nothing is aggregated every epoch"
    if left_alone is not None:
        return program.decided("locality", False, left_alone), reached
    every = reached or everything(csc.num_dst, program.num_levels - 1)
    allowed = options.allowed_bytes() - constant_bytes(program, costs)
    if all(costs.fits(read, cache_bytes) for read in reads):
        why = f"rows fit in {in_bytes(cache_bytes)} of cache in any order"
        decision = ir.Decision(name="locality", taken=False, what=why)
    else:
        better, decision = choose_order(
            program, csc, every, costs, reads, allowed_bytes=allowed, cache_bytes=cache_bytes
        )
    is_small = csc.num_dst >= STRETCH and csc.num_edges <= FEW_EDGES
    if is_small and (better or reached or added_bytes(program, csc, costs) <= allowed):
        better = (better or every).by_degree(csc.degrees().to(torch.int64))
        what = f"{decision.what}; of {STRETCH:,} nodes in succession, those of one degree stand together"
        decision = replace(decision, taken=True, what=what)
    return program.rewritten(program.ops, decision), better or reached


def output_rows(nodes: Tensor, row_of: Tensor | None, blocks: Sequence[Block]) -> Tensor | None:
    """Return the output's rows of ``nodes``; None if these are all of its rows, in order."""
    if row_of is None:
        return nodes
    rows = row_of[nodes]
    is_in_order = blocks[-1].csc.num_dst == rows.numel() and bool((rows.diff() == 1).all())
    return None if is_in_order else rows


# ---- graphs with types


def whole_typed(graph: Graph, program: ir.Program) -> tuple[TypedBlock, ...]:
    """Return blocks of a program between levels that each hold all nodes of all types."""
    assert graph.types is not None
    return typed_blocks(graph.types, _whole(graph.types, program), program.num_levels - 1, None)


def typed_blocks(
    types: Types, whole: Mapping[int, Csc], num_blocks: int, reached: Reach | None
) -> tuple[TypedBlock, ...]:
    """Return the blocks between levels that hold the reached nodes; all nodes if ``reached`` is None.

    ``whole`` has all edges of the relations that are read, by the relation's number. ``reached`` has nodes of
    all types together, by their ids in the whole graph.
    """
    counts = tuple(nodes.num_nodes for nodes in types.nodes.values())
    if reached is None:
        everywhere = (None,) * len(counts)
        relations = {number: Block(csc, None, None, None) for number, csc in whole.items()}
        return (TypedBlock(relations, whole, counts, counts, everywhere, everywhere),) * num_blocks
    levels = [_of_type(reached, first, last) for first, last in pairwise(types.first_ids)]
    relation_of = {relation.number: relation for relation in types.relations()}
    by_relation = {
        number: towards(csc, levels[at.destination], sources=levels[at.source])
        for number, csc in whole.items()
        for at in (relation_of[number],)
    }
    blocks = []
    for number in range(num_blocks):
        before, after = (tuple(level.sizes[-1 - number - i] for level in levels) for i in range(2))
        edges = {relation: some[number] for relation, some in by_relation.items()}
        sources, destinations = (
            tuple(level.nodes[:count] for level, count in zip(levels, counts, strict=True))
            for counts in (before, after)
        )
        blocks.append(TypedBlock(edges, whole, before, after, sources, destinations))
    return tuple(blocks)


def _of_type(reached: Reach, first: int, last: int) -> Reach:
    """Return the levels' nodes with ids in ``[first, last)``, those of one type, by their ids in it."""
    is_of_type = (reached.nodes >= first) & (reached.nodes < last)
    sizes = tuple(int(is_of_type[:size].sum()) for size in reached.sizes)
    return Reach(reached.nodes[is_of_type] - first, sizes)


def _whole(types: Types, program: ir.Program, known: Collection[int] = ()) -> dict[int, Csc]:
    """Return the adjacencies of the relations that a program reads, without the known ones.

    They have weights where an operation reads these.
    """
    read = {one.number: one for op in program.ops for one in op.relations_read}
    maps = [op.adjacency for op in program.ops if isinstance(op, ir.Aggregate)]
    weighted = {one.relation.number for one in maps if one.weighted and one.relation is not None}
    messages = [op for op in program.ops if isinstance(op, ir.Messages) and op.reads_weights]
    weighted |= {op.relation.number for op in messages if op.relation is not None}
    found = {number: csc_of(types, read[number]) for number in sorted(read.keys() - set(known))}
    return {
        number: csc if number in weighted else Csc(csc.indptr, csc.indices, csc.num_src, trusted=True)
        for number, csc in found.items()
    }


def _typed_sizes(blocks: tuple[TypedBlock, ...], node_types: tuple[NodeTypeSizes, ...]) -> dict[str, Any]:
    """Return the fields of a cost model about the numbers of nodes and edges of each level."""
    levels = [*(block.num_src for block in blocks), blocks[-1].num_dst]
    edges = tuple({number: one.csc.num_edges for number, one in block.relations.items()} for block in blocks)
    return {
        "rows": tuple(map(sum, levels)),
        "edges": tuple(sum(some.values()) for some in edges),
        "node_types": tuple(
            replace(one, rows=rows) for one, rows in zip(node_types, zip(*levels, strict=True), strict=True)
        ),
        "relation_edges": edges,
    }


# ---- pruning: finding the nodes on which the needed outputs depend, level by level

PRUNE_BELOW = 0.95
"""Share of the edges that may be left for pruning to pay."""


def prune(program: ir.Program, csc: Csc, nodes: Tensor, *, wanted: bool) -> tuple[Reach | None, ir.Decision]:
    """Find the nodes that the outputs of ``nodes`` depend on; None means all nodes at every level."""
    num_blocks = program.num_levels - 1
    left_alone = None
    if not wanted:
        left_alone = "switched off"
    elif num_blocks == 0 or csc.num_edges == 0:
        left_alone = "there is nothing to aggregate"
    elif (op := next((op for op in program.ops if couples_rows(op)), None)) is not None:
        what = "a part that runs as written" if isinstance(op, ir.Break) else "batch normalisation"
        left_alone = f"{what} needs every node's row"
    if left_alone is not None:
        return None, ir.Decision(name="prune", taken=False, what=left_alone)
    reached = reach(csc, nodes, num_blocks)
    left = sum(reached.edges(csc)) / (num_blocks * csc.num_edges)
    if left > PRUNE_BELOW:
        return None, ir.Decision(name="prune", taken=False, what=f"{left:.0%} of the edges would be left")
    rows = " -> ".join(f"{size:,}" for size in reversed(reached.sizes))
    what = f"{left:.0%} of the edges reach the nodes of the loss; rows per level {rows}"
    return reached, ir.Decision(name="prune", taken=True, what=what)


def couples_rows(op: ir.Operation) -> bool:
    """Return whether a row's result depends on rows it has no edge from, so that none may be left out."""
    return isinstance(op, ir.Break | ir.Normalise) and op.couples_rows


def _needs_order(program: ir.Program) -> bool:
    """Return whether a graph break reads all rows, whose order may matter to it."""
    return any(isinstance(op, ir.Break) and op.is_graph_break and op.couples_rows for op in program.ops)


# ---- symmetry: an undirected graph's adjacency serves as its own transpose


def with_shared_transpose(csc: Csc, wanted: bool, ordered: bool = False) -> tuple[Csc, ir.Decision]:
    """Return the adjacency, marked as its own transpose if each edge is stored in both directions.

    This does not apply to weighted edges, nor where edges must keep their order (``ordered``) because they
    have features: their positions in the transpose are needed anyway.
    """
    if not wanted or csc.weight is not None or ordered:
        of_edges = "edge features need" if ordered else "edge weights need"
        what = f"{of_edges} the transpose's order" if wanted else "switched off"
        return csc, ir.Decision(name="symmetry", taken=False, what=what)
    rising, _ = csc.sort_rows()
    shared = Csc(rising.indptr, rising.indices, rising.num_src, trusted=True)
    reverse = shared.reversed()
    if not (torch.equal(reverse.indptr, shared.indptr) and torch.equal(reverse.indices, shared.indices)):
        return csc, ir.Decision(name="symmetry", taken=False, what="edges are not stored both ways")
    shared.keep_as_own_reverse()
    saves = f"{csc.nbytes / 1e6:.3g} MB"
    return shared, ir.Decision(
        name="symmetry", taken=True, what="the adjacency is its own transpose", saves=saves
    )
