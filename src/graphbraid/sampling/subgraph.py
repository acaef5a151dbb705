"""Subgraph types: edges of a mini-batch other than the drawn ones, as in PyG's loaders.

``directional`` edges are the drawn ones. ``bidirectional`` adds their reverses, each pair of nodes once.
``induced`` takes all edges of the graph between the nodes of the batch.
"""

import dataclasses
import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from graphbraid import native
from graphbraid.graph import EdgeType, Graph
from graphbraid.graph.csc import Csc, indptr_of_rows, ranges
from graphbraid.graph.types import Relation
from graphbraid.sampling.batch_seeds import Constraints, EdgeTimes
from graphbraid.sampling.config import BIDIRECTIONAL, DIRECTIONAL, EGO
from graphbraid.sampling.sample import Sampled, SampledEdges, with_rows


def with_edges(
    sampled: Sampled,
    subgraph_type: str,
    graph: Graph,
    constraints: Constraints | None = None,
    edge_times: EdgeTimes | None = None,
) -> Sampled:
    """Return a sample of layout ``subgraph``, on the CPU, with the edges of a subgraph type.

    :data:`EGO` takes disjoint trees of a graph without types. Limits on the draws hold for the other edges,
    too; limits on times need ``edge_times``.
    """
    if subgraph_type == DIRECTIONAL:
        return sampled
    if subgraph_type == EGO:
        sampled = _tree_by_tree(sampled)
    types = graph.all_types
    if subgraph_type == BIDIRECTIONAL and graph.is_typed:
        found = _both_ways_by_relation(sampled, list(types.edges), types.relations())
    elif subgraph_type == BIDIRECTIONAL:
        found = [both_ways(sampled.edges[0], sampled.n_id.numel())]
    else:
        found = [
            _induced(sampled, types.rows, relation, constraints, edge_times) for relation in types.relations()
        ]
    return dataclasses.replace(
        sampled,
        edges_by_relation=[[edges] for edges in found],
        counts_by_relation=[[edges.indices.numel()] for edges in found],
        by_hop=False,
    )


def _induced(
    sampled: Sampled,
    rows: Csc,
    relation: Relation,
    constraints: Constraints | None,
    edge_times: EdgeTimes | None,
) -> SampledEdges:
    """Return all edges of a relation between the nodes of a sample that constraints allow."""
    ids, trees = sampled.n_id_by_type, sampled.trees_by_type
    own_trees, source_trees = (
        None if trees is None else trees[end] for end in (relation.destination, relation.source)
    )
    edges = induced_edges(
        rows,
        relation.first_row + ids[relation.destination] * relation.stride,
        relation.first_source + ids[relation.source],
        own_trees,
        source_trees,
    )
    if constraints is not None:
        has_times = edge_times is not None and relation.number not in edge_times.untimed
        edges = _allowed(edges, own_trees, constraints, edge_times if has_times else None)
    return edges if sampled.positions_are_kept else dataclasses.replace(edges, positions=None)


def _both_ways_by_relation(
    sampled: Sampled, edge_types: Sequence[EdgeType], relations: Sequence[Relation]
) -> list[SampledEdges]:
    """Return each relation's edges and the reverses of its reverse relation's edges, each pair once, as PyG.

    The reverse of ``(a, r, b)`` is ``(b, rev_r, a)``, or else the only relation from ``b`` to ``a``, which
    gets no more edges itself. Within one type, a relation without ``rev_r`` is its own reverse. Such pairs
    need not be edges of the relation, so no positions are kept.
    """
    counts = [ids.numel() for ids in sampled.n_id_by_type]
    ends = []
    for [edges], relation in zip(sampled.edges_by_relation, relations, strict=True):
        dst = torch.repeat_interleave(torch.arange(edges.indptr.numel() - 1), edges.indptr.diff())
        ends.append((edges.indices.long(), dst, counts[relation.source], counts[relation.destination]))
    joined: dict[int, tuple[int, bool]] = {}  # by relation, its reverse, and whether that is turned, too
    for number, (source, name, destination) in enumerate(edge_types):
        reverse = (destination, f"rev_{name}", source)
        back = [place for place, one in enumerate(edge_types) if (one[0], one[2]) == (destination, source)]
        if name.startswith("rev_"):
            continue
        if reverse in edge_types:
            joined[number] = edge_types.index(reverse), True
        elif source == destination or len(back) == 1:
            joined[number] = (number if source == destination else back[0]), False
        else:
            warnings.warn(
                f"edges of {(source, name, destination)} stay as they were drawn, since its reverse "
                f"relation is not known. Name it {reverse}",
                stacklevel=2,
            )
    found = [_once(src, dst, None, num_src, num_dst) for src, dst, num_src, num_dst in ends]
    for number, (other, turns) in joined.items():
        src, dst, num_src, num_dst = ends[number]
        both = torch.cat([src, ends[other][1]]), torch.cat([dst, ends[other][0]])
        found[number] = _once(*both, None, num_src, num_dst)
        if turns:
            found[other] = _once(*both[::-1], None, num_dst, num_src)
    for number in set(range(len(ends))) - joined.keys() - {o for o, turns in joined.values() if turns}:
        [edges] = sampled.edges_by_relation[number]
        indptr = with_rows(edges.indptr, ends[number][3])
        found[number] = dataclasses.replace(edges, indptr=indptr, positions=None)
    return found


def _tree_by_tree(sampled: Sampled) -> Sampled:
    """Return the nodes of a sample in the order of their trees, each tree's seed first."""
    assert sampled.trees is not None, "ego networks are disjoint trees"
    trees, order = torch.sort(sampled.trees, stable=True)
    return dataclasses.replace(sampled, n_id_by_type=[sampled.n_id[order]], trees_by_type=[trees])


def induced_edges(
    csc: Csc,
    rows: Tensor,
    sources: Tensor,
    row_trees: Tensor | None = None,
    source_trees: Tensor | None = None,
) -> SampledEdges:
    """Return the edges of int64 rows of a graph that come from given sources, in the order of its lists.

    They lead from positions in ``sources``, the first of equal ones in a tree, to those in ``rows``. With
    trees of rows and sources, edges stay within a tree.
    """
    kernels = native.kernels()
    find: Callable[..., tuple[Tensor, Tensor, Tensor]] = (
        _induced_reference if kernels is None else kernels.induced_edges
    )
    indptr, indices, positions = find(csc.indptr, csc.indices, rows, row_trees, sources, source_trees)
    return SampledEdges(indptr=indptr, indices=indices, positions=positions)


def _induced_reference(  # noqa: PLR0917  (the native function's arguments)
    indptr: Tensor,
    indices: Tensor,
    rows: Tensor,
    row_trees: Tensor | None,
    sources: Tensor,
    source_trees: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The twin of ``csrc/sampling/induced.cpp``."""
    degree = indptr[rows + 1] - indptr[rows]
    owner = torch.repeat_interleave(torch.arange(rows.numel()), degree)
    places = ranges(indptr[rows], degree)
    wanted = indices[places].long()
    known = sources
    if row_trees is not None and source_trees is not None:
        stride = (
            max(int(sources.max()) if sources.numel() else 0, int(wanted.max()) if wanted.numel() else 0) + 1
        )
        known, wanted = source_trees * stride + sources, row_trees[owner] * stride + wanted
    ordered, order = torch.sort(known, stable=True)
    if not order.numel():
        return torch.zeros(rows.numel() + 1, dtype=torch.int64), order.int(), order
    at = torch.searchsorted(ordered, wanted).clamp_(max=order.numel() - 1)
    hit = ordered[at] == wanted
    return indptr_of_rows(owner[hit], rows.numel()), order[at[hit]].int(), places[hit]


def both_ways(edges: SampledEdges, num_nodes: int) -> SampledEdges:
    """Return edges and their reverses, each pair of nodes once, by destination and then by source.

    Of several edges between two nodes in one direction, the first drawn stays; a reverse has the position of
    the edge that it reverses. Each of the first ``num_nodes`` nodes has a row in the result.
    """
    dst = torch.repeat_interleave(torch.arange(edges.indptr.numel() - 1), edges.indptr.diff())
    src = edges.indices.long()
    return _once(
        torch.cat([src, dst]),
        torch.cat([dst, src]),
        None if edges.positions is None else torch.cat([edges.positions, edges.positions]),
        num_nodes,
        num_nodes,
    )


def _once(src: Tensor, dst: Tensor, positions: Tensor | None, num_src: int, num_dst: int) -> SampledEdges:
    """Return the first edge of each pair of nodes, by destination and then by source."""
    key, order = torch.sort(dst * max(num_src, 1) + src, stable=True)  # equal pairs in the order of edges
    is_first = torch.ones_like(key, dtype=torch.bool)
    torch.ne(key[1:], key[:-1], out=is_first[1:])
    kept = order[is_first]
    return SampledEdges(
        indptr=indptr_of_rows(dst[kept], num_dst),
        indices=src[kept].int(),
        positions=None if positions is None else positions[kept],
    )


def _allowed(
    edges: SampledEdges, trees: Tensor | None, constraints: Constraints, edge_times: EdgeTimes | None
) -> SampledEdges:
    """Return the edges that are not excluded, nor later than the seed of the tree that they are in."""
    positions = edges.positions
    assert positions is not None
    rows = torch.repeat_interleave(torch.arange(edges.indptr.numel() - 1), edges.indptr.diff())
    keep = torch.ones(positions.numel(), dtype=torch.bool)
    if constraints.excluded is not None:
        keep &= ~torch.isin(positions, constraints.excluded)
    if constraints.times is not None and edge_times is not None:
        assert trees is not None, "seeds with times have trees of their own"
        keep &= edge_times.time[positions] <= constraints.times[trees[rows]]
    ends = indptr_of_rows(rows[keep], edges.indptr.numel() - 1)
    return SampledEdges(indptr=ends, indices=edges.indices[keep], positions=positions[keep])
