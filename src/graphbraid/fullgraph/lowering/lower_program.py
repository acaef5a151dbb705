"""Lowering of a program to the cheapest equivalent one, on only the nodes and edges it needs.

The stages are pure functions: the adjacency that serves as its own transpose, the levels that the outputs
depend on, the passes over the program, and the order of the levels' nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from graphbraid.fullgraph.device.device import Device
from graphbraid.fullgraph.device.graphs import on_place
from graphbraid.fullgraph.device.host import HOST
from graphbraid.fullgraph.lowering.facts import Basis, Facts, facts_of
from graphbraid.fullgraph.lowering.locality import choose_order, feature_copies
from graphbraid.fullgraph.lowering.lower_typed import lower_typed, typed_for_evaluation
from graphbraid.fullgraph.lowering.lowered import Lowered
from graphbraid.fullgraph.lowering.options import CompileOptions
from graphbraid.fullgraph.lowering.passes import through_passes
from graphbraid.fullgraph.lowering.reach.levels import Block, Blocks, Reach, everything, towards, whole_graph
from graphbraid.fullgraph.lowering.reach.pruning import prune
from graphbraid.fullgraph.lowering.reach.symmetry import with_shared_transpose
from graphbraid.fullgraph.lowering.streamed import lowered_to_stream, streamed
from graphbraid.fullgraph.program import Attention, Decision, Program
from graphbraid.fullgraph.program.refusal import NotLoweredError
from graphbraid.graph import Graph
from graphbraid.graph.csc import Csc


def lower_program(
    program: Program, graph: Graph, nodes: Tensor, options: CompileOptions, basis: Basis
) -> Lowered:
    """Lower a program over a whole graph.

    Args:
        program: the program as it was read from the model.
        graph: a graph with features; used in place, and on the host whatever the device.
        nodes: ``(num_train,)`` int64, the distinct nodes whose outputs are needed.
        options: the decisions that may be taken, and the device that the program will run on.
        basis: the measurements by which choices are weighed.

    Raises:
        NotLoweredError: an operation has no kernel on the device.
    """
    check_kernels(program, options.device)
    if options.features is not None:
        program = streamed(program)
    if program.parts:
        allowed = _hoist_bytes(options)
        return lower_typed(program, graph, nodes, options, basis, hoist_bytes=allowed)
    graph, shared = _with_shared_transpose(program, on_place(graph, HOST.place), options)
    reached, pruned = prune(program, graph.csc, nodes, wanted="prune" in options.passes)
    facts = _facts_of(program, graph, reached, options, basis)
    passed = _passed(program.rewritten(program.ops, shared, pruned), facts, options, options.passes)
    passed, reached = _renumbered(passed, graph.csc, reached, facts, options)
    blocks, row_of = whole_graph(graph.csc, program.num_levels - 1), None
    if reached is not None:
        blocks = towards(graph.csc, reached, keep_edges=program.reads_edges)
        row_of = _rows_of(reached, graph.num_nodes)
    return Lowered(
        program=passed,
        graph=graph,
        nodes=nodes,
        blocks=tuple(blocks),
        rows=output_rows(nodes, row_of, blocks),
        row_of=None if pruned.taken else row_of,
        options=options,
        basis=basis,
        facts=facts,
    )


def lower_for_evaluation(lowered: Lowered, program: Program) -> tuple[Program, Blocks]:
    """Lower a program over the same graph for the outputs of all nodes; return it and its blocks.

    Nothing is hoisted, since the program may run only once, unless streamed features need it. If ``lowered``
    renumbered all nodes and using that order takes no copy of the features, the order is kept and
    ``lowered.blocks`` itself is returned.
    """
    if program.parts:
        return typed_for_evaluation(lowered, program)
    csc, num_blocks = lowered.graph.csc, program.num_levels - 1
    rows, edges = _sizes(csc, num_blocks, None)
    facts = replace(lowered.facts, rows=rows, edges=edges, hoist_bytes=0)
    options = lowered.options
    if options.features is not None:
        program = streamed(program)
    passed = _passed(program, facts, options, options.passes - {"hoist"})
    if lowered.row_of is not None and not feature_copies(passed):
        return passed, lowered.blocks
    return passed, whole_graph(csc, num_blocks)


def _passed(program: Program, facts: Facts, options: CompileOptions, passes: frozenset[str]) -> Program:
    """Return a program after the passes, of which streamed features may need more."""
    if options.features is None:
        return through_passes(program, facts, passes)
    return lowered_to_stream(
        lambda by, hoists: through_passes(program, by, passes | {"hoist"} if hoists else passes), facts
    )


def check_kernels(program: Program, device: Device) -> None:
    """Check that every operation of a program has a kernel on a device.

    Raises:
        NotLoweredError: one has none; the message names it.
    """
    if not device.is_host and any(isinstance(op, Attention) and op.reads_edges for op in program.ops):
        what = f"attention to edge features has no kernel on {device.place}"
        raise NotLoweredError("attention", what, "the CPU, or edge_dim=None")


def _with_shared_transpose(program: Program, graph: Graph, options: CompileOptions) -> tuple[Graph, Decision]:
    wanted = "symmetry" in options.passes
    csc, decision = with_shared_transpose(graph.csc, wanted=wanted, ordered=program.reads_edges)
    return graph if csc is graph.csc else graph.replace(csc=csc), decision


def _facts_of(
    program: Program, graph: Graph, reached: Reach | None, options: CompileOptions, basis: Basis
) -> Facts:
    rows, edges = _sizes(graph.csc, program.num_levels - 1, reached)
    allowed = _hoist_bytes(options)
    sample = None if options.features is None else options.features.sample()
    facts = facts_of(
        graph, rows, edges, basis.rates, hoist_bytes=allowed, storage=options.storage, sample=sample
    )
    return facts if basis.trials is None else replace(facts, trials=basis.trials(graph, facts.density))


def _sizes(csc: Csc, num_blocks: int, reached: Reach | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the number of nodes of each level and of edges from each level to the next."""
    if reached is None:
        return (csc.num_dst,) * (num_blocks + 1), (csc.num_edges,) * num_blocks
    return reached.sizes[::-1], reached.edges(csc)


def _hoist_bytes(options: CompileOptions) -> int:
    return min(options.hoist_bytes, available_bytes(options)) if "hoist" in options.passes else 0


def available_bytes(options: CompileOptions) -> int:
    """Return the bytes that a choice may take: half of what is free."""
    return (options.device.free_bytes() or 0) // 2


def _renumbered(
    program: Program, csc: Csc, reached: Reach | None, facts: Facts, options: CompileOptions
) -> tuple[Program, Reach | None]:
    """Choose the order of the levels' nodes; None for the levels means all nodes in the graph's order."""
    left_alone = None
    if "locality" not in options.passes:
        left_alone = "switched off"
    elif not options.device.is_host:
        left_alone = f"the caches of {options.device.place} are not modelled"
    elif program.num_levels == 1 or csc.num_edges == 0:
        left_alone = "there is nothing to aggregate"
    elif program.reads_edges:
        left_alone = "edge features are read in the graph's order"
    if left_alone is not None:
        decision = Decision(name="locality", taken=False, what=left_alone)
        return program.rewritten(program.ops, decision), reached
    better, decision = choose_order(
        program,
        csc,
        reached or everything(csc.num_dst, program.num_levels - 1),
        facts,
        allowed_bytes=min(options.locality_bytes, available_bytes(options)),
        cache_bytes=options.cache_bytes_by(facts.rates),
    )
    return program.rewritten(program.ops, decision), better or reached


def _rows_of(reached: Reach, num_nodes: int) -> Tensor:
    """Return the ``(num_nodes,)`` int64 row of each node; -1 for nodes that no level holds."""
    row_of = torch.full((num_nodes,), -1, dtype=torch.int64)
    row_of[reached.nodes] = torch.arange(reached.nodes.numel())
    return row_of


def output_rows(nodes: Tensor, row_of: Tensor | None, blocks: Sequence[Block]) -> Tensor | None:
    """Return the output's rows of ``nodes``; None if these are all of its rows, in order."""
    if row_of is None:
        return nodes
    rows = row_of[nodes]
    is_in_order = blocks[-1].csc.num_dst == rows.numel() and bool((rows.diff() == 1).all())
    return None if is_in_order else rows


__all__ = [
    "available_bytes",
    "check_kernels",
    "lower_for_evaluation",
    "lower_program",
    "output_rows",
    "through_passes",
]
