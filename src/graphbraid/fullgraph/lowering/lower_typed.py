"""Lowering over a graph with types: the nodes of each type of each level, the edges of each relation between.

Levels are found over all edges together and then divided by type, so that pruning is that of one type.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import pairwise

from torch import Tensor

from graphbraid.fullgraph.lowering.facts import Basis, Facts, PartFacts, density
from graphbraid.fullgraph.lowering.lowered import Lowered
from graphbraid.fullgraph.lowering.options import CompileOptions
from graphbraid.fullgraph.lowering.passes import through_passes
from graphbraid.fullgraph.lowering.reach.levels import Block, Reach, TypedBlock, towards
from graphbraid.fullgraph.lowering.reach.pruning import prune
from graphbraid.fullgraph.program import Decision, Program
from graphbraid.graph import Graph
from graphbraid.graph.csc import Csc
from graphbraid.graph.sparse_features import SparseFeatures
from graphbraid.graph.types import Relation, Types, csc_of


def lower_typed(
    program: Program,
    graph: Graph,
    nodes: Tensor,
    options: CompileOptions,
    basis: Basis,
    *,
    hoist_bytes: int,
) -> Lowered:
    """Lower a program over a graph with types.

    Args:
        program: the program as it was read from the model.
        graph: a graph with types; used in place.
        nodes: ``(num_train,)`` int64, the distinct nodes, of the output's type, whose outputs are needed.
        options: the decisions that may be taken, and the device that the program will run on.
        basis: the measurements by which choices are weighed.
        hoist_bytes: bytes that values computed once may take.
    """
    types = graph.types
    assert types is not None
    part = program.part(program.output)
    in_graph = nodes + types.first_ids[part]
    reached, pruned = prune(program, graph.csc, in_graph, wanted="prune" in options.passes)
    blocks = typed_blocks(types, _whole(types, program), program.num_levels - 1, reached)
    facts = _facts(graph, program, blocks, basis)
    facts = replace(facts, hoist_bytes=hoist_bytes, storage=options.storage)
    left = "a relation's edges lead from one type to another"
    first = Decision(name="symmetry", taken=False, what=left)
    passed = through_passes(program.rewritten(program.ops, first, pruned), facts, options.passes)
    last = Decision(name="locality", taken=False, what="nodes of several types keep their order so far")
    return Lowered(
        program=passed.rewritten(passed.ops, last),
        graph=graph,
        nodes=nodes,
        blocks=blocks,
        rows=nodes if reached is None else None,  # pruned levels begin with the training nodes, in order
        row_of=None,
        options=options,
        basis=basis,
        facts=facts,
    )


def typed_for_evaluation(lowered: Lowered, program: Program) -> tuple[Program, tuple[TypedBlock, ...]]:
    """Lower a program over the same graph for the outputs of all nodes; nothing is hoisted."""
    types, kept = lowered.graph.types, lowered.blocks[0]
    assert types is not None
    assert isinstance(kept, TypedBlock)
    whole = dict(kept.whole) | _whole(types, program, known=kept.whole)
    blocks = typed_blocks(types, whole, program.num_levels - 1, None)
    sizes = _sizes(blocks)
    parts = zip(lowered.facts.parts, sizes[0], strict=True)
    facts = replace(
        lowered.facts,
        rows=tuple(map(sum, zip(*sizes[0], strict=True))),
        edges=tuple(sum(edges.values()) for edges in sizes[1]),
        parts=tuple(replace(part, rows=rows) for part, rows in parts),
        relation_edges=sizes[1],
        hoist_bytes=0,
    )
    return through_passes(program, facts, lowered.options.passes - {"hoist"}), blocks


def whole_typed(graph: Graph, program: Program) -> tuple[TypedBlock, ...]:
    """Return blocks of a program between levels that each hold all nodes of all types."""
    assert graph.types is not None
    return typed_blocks(graph.types, _whole(graph.types, program), program.num_levels - 1, None)


def typed_blocks(
    types: Types, whole: Mapping[int, Csc], num_blocks: int, reached: Reach | None
) -> tuple[TypedBlock, ...]:
    """Return the blocks between levels that hold the reached nodes; all nodes if ``reached`` is None.

    Args:
        types: the graph's types.
        whole: all edges of the relations that are read, by the relation's number.
        num_blocks: number of blocks.
        reached: the levels' nodes, of all types together, by their ids in the whole graph.
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
        blocks.append(
            TypedBlock(
                {relation: some[number] for relation, some in by_relation.items()},
                whole,
                before,
                after,
                tuple(level.nodes[:count] for level, count in zip(levels, before, strict=True)),
                tuple(level.nodes[:count] for level, count in zip(levels, after, strict=True)),
            )
        )
    return tuple(blocks)


def _of_type(reached: Reach, first: int, last: int) -> Reach:
    """Return the levels' nodes with ids in ``[first, last)``, those of one type, by their ids in it."""
    is_of_type = (reached.nodes >= first) & (reached.nodes < last)
    sizes = tuple(int(is_of_type[:size].sum()) for size in reached.sizes)
    return Reach(reached.nodes[is_of_type] - first, sizes)


def _whole(types: Types, program: Program, known: Collection[int] = ()) -> dict[int, Csc]:
    """Return the adjacencies of the relations that a program reads, but for those known."""
    read = {relation.number: relation for relation in _relations(program) if relation.number not in known}
    return {number: _without_weights(csc_of(types, relation)) for number, relation in sorted(read.items())}


def _relations(program: Program) -> list[Relation]:
    """Return the relations whose edges a program's operations read."""
    return [op.walks for op in program.ops if op.walks is not None]


def _without_weights(csc: Csc) -> Csc:
    return csc if csc.weight is None else Csc(csc.indptr, csc.indices, csc.num_src, trusted=True)


def _facts(graph: Graph, program: Program, blocks: tuple[TypedBlock, ...], basis: Basis) -> Facts:
    features = [graph.nodes_of(name).x for name in graph.node_types]
    rows, edges = _sizes(blocks)
    parts = tuple(
        PartFacts(
            rows=part_rows, density=0.0 if x is None else density(x), is_sparse=isinstance(x, SparseFeatures)
        )
        for x, part_rows in zip(features, rows, strict=True)
    )
    return Facts(
        rows=tuple(map(sum, zip(*rows, strict=True))),
        edges=tuple(sum(some.values()) for some in edges),
        in_channels=sum(program.inputs.values()),
        density=max((part.density for part in parts), default=0.0),
        is_sparse=any(part.is_sparse for part in parts),
        is_binary=False,
        hoist_bytes=0,
        rates=basis.rates,
        parts=parts,
        relation_edges=edges,
    )


def _sizes(blocks: tuple[TypedBlock, ...]) -> tuple[list[tuple[int, ...]], tuple[dict[int, int], ...]]:
    """Return each type's number of nodes by level, and by level the number of edges of each relation."""
    levels = [*(block.num_src for block in blocks), blocks[-1].num_dst]
    edges = tuple({number: one.csc.num_edges for number, one in block.relations.items()} for block in blocks)
    return list(zip(*levels, strict=True)), edges


__all__ = ["lower_typed", "typed_blocks", "typed_for_evaluation", "whole_typed"]
