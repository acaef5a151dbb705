"""Lowering of a program on a rank that holds its own part of the graph alone."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from graphbraid.fullgraph.lowering.costs import CostModel
from graphbraid.fullgraph.lowering.levels import Block
from graphbraid.fullgraph.lowering.lower_program import Lowered
from graphbraid.fullgraph.lowering.options import CompileOptions
from graphbraid.fullgraph.lowering.passes import through_passes
from graphbraid.fullgraph.program import Decision, Program
from graphbraid.fullgraph.ranks.distribute import Weigh, as_decided, divided_program, weighed
from graphbraid.fullgraph.ranks.part import RankPart
from graphbraid.fullgraph.ranks.ranks import Ranks

_LEFT = ("prune", "symmetry", "locality")
"""Passes that look at all edges of the graph."""


def lower_part(
    program: Program, ranks: Ranks, nodes: Tensor, options: CompileOptions, costs: CostModel
) -> Lowered:
    """Lower a program over a graph where each rank holds its own part; all ranks call this together.

    Args:
        program: the program as it was read from the model.
        ranks: the ranks, with this one's part.
        nodes: ``(num_train,)`` int64, the training nodes of all ranks.
        options: the decisions that may be taken.
        costs: the cost model of this rank's part; rates of the first rank count.

    Raises:
        NotLoweredError: an operation cannot be divided among ranks, or needs more than a part holds.
        ConfigError: the ranks have not lowered alike.
    """
    part = ranks.part
    assert part is not None
    part.check_divisible(program)
    costs = _shared_costs(program, part, ranks, costs)
    left = [Decision(name=name, taken=False, what="each rank holds its part alone") for name in _LEFT]
    passed = through_passes(program.rewritten(program.ops, *left), costs, options.passes)
    divided, blocks = part_of_program(passed, ranks, ranks.weigh(costs, options))
    own = ranks.owned(nodes)
    row_of = torch.full((part.num_nodes,), -1, dtype=torch.int64)
    row_of[part.view.ids[: part.view.num_own]] = torch.arange(part.view.num_own)
    return Lowered(
        program=divided,
        graph=part.graph,
        nodes=own,
        blocks=tuple(blocks),
        rows=row_of[own],
        row_of=None,
        options=options,
        costs=costs,
        part=part.view,
    )


def evaluation_part(lowered: Lowered, program: Program, ranks: Ranks) -> tuple[Program, list[Block]]:
    """Lower a program in evaluation mode over the same part; nothing is hoisted."""
    assert ranks.part is not None
    ranks.part.check_divisible(program)
    passed = through_passes(
        program, replace(lowered.costs, hoist_bytes=0), lowered.options.passes - {"hoist"}
    )
    return part_of_program(passed, ranks, as_decided(lowered.program))


def part_of_program(program: Program, ranks: Ranks, weigh: Weigh | None) -> tuple[Program, list[Block]]:
    """Return a rank's program and blocks of a lowered program, once all have lowered alike."""
    assert ranks.part is not None
    ranks.check_alike_lowered(program, ())
    blocks = ranks.part.blocks(program.num_levels - 1)
    if blocks:
        program = weighed(program, blocks[0], weigh)
    divided, with_halo = divided_program(program)
    ranks.part.ask_for_scales(ranks.comm, program)
    return divided, blocks[with_halo:]


def _shared_costs(program: Program, part: RankPart, ranks: Ranks, own: CostModel) -> CostModel:
    """Return one cost model on all ranks: sizes of the whole graph, and what the ranks say of their parts.

    Nothing is tried, since ranks that try different parts would choose differently.
    """
    num_blocks, comm = program.num_levels - 1, ranks.comm
    said = comm.gather([own.density, own.is_sparse, own.is_binary, own.hoist_bytes * comm.size])
    return replace(
        own,
        found=None,
        trial=None,
        rows=(part.num_nodes,) * (num_blocks + 1),
        edges=(part.num_edges,) * num_blocks,
        density=said[0][0],
        is_sparse=said[0][1],
        is_binary=all(binary for _, _, binary, _ in said),
        hoist_bytes=min(allowed for *_, allowed in said),
    )
