"""keep_share: one rank's share of a batch, which is the part that its seeds read."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from graphbraid.graph.types import Types
from graphbraid.sampling.sample import Sampled, SampledEdges


def own_by_type(types: Types, seed_type: int | None, seeds: Tensor, own: Tensor) -> list[Tensor]:
    """Return the local ids of some seeds of a batch, by node type, ascending.

    Args:
        types: types of the graph.
        seed_type: type of all seeds. If None, seeds are ids in the whole graph.
        seeds: ``(num_seeds,)`` int64 seeds of the batch.
        own: ``(num_own,)`` int64 positions in ``seeds``, ascending.
    """
    first = torch.tensor(types.first_ids[1:-1], device=seeds.device)
    kind = (
        torch.bucketize(seeds, first, right=True) if seed_type is None else torch.full_like(seeds, seed_type)
    )
    is_own = torch.zeros_like(seeds, dtype=torch.bool).index_fill_(0, own, value=True)
    return [torch.nonzero(is_own[kind == number]).flatten() for number in range(len(types.nodes))]


def keep_share(whole: Sampled, ends: Sequence[tuple[int, int]], own: list[Tensor], reach: int) -> Sampled:
    """Return the part of a batch within ``reach`` sampled edges of some of its seeds (layout ``subgraph``).

    It has the form of a batch of ``reach`` hops. A node keeps all its in-edges of ``whole``, whichever hop
    drew them; nodes of the last hop have none. Twin of ``csrc/sampling/share.cpp``.

    Args:
        whole: the batch.
        ends: numbers of the types of each relation's sources and destinations.
        own: local ids of the seeds by type, ascending.
        reach: number of hops.

    Returns:
        The share. Trees keep the numbers that they have in ``whole``.
    """
    device = whole.n_id_by_type[0].device
    num_nodes = [ids.numel() for ids in whole.n_id_by_type]
    edges = [records[0] for records in whole.edges_by_relation]
    indptrs = [_with_rows(one.indptr, num_nodes[end]) for one, (_, end) in zip(edges, ends, strict=True)]
    names, known = list(own), [0] * len(own)
    local = [torch.full((count,), -1, device=device) for count in num_nodes]
    for of, ids in zip(local, names, strict=True):
        of[ids] = torch.arange(ids.numel(), device=device)
    nodes_by_type = [[ids.numel()] for ids in names]
    drawn: list[list[tuple[Tensor, Tensor, Tensor]]] = [[] for _ in ends]
    for _ in range(reach):
        last = [ids.numel() for ids in names]
        for number, (source, destination) in enumerate(ends):
            rows = names[destination][known[destination] : last[destination]]
            first, degree = indptrs[number][rows], indptrs[number][rows + 1] - indptrs[number][rows]
            place = torch.arange(int(degree.sum()), device=device)
            positions = place + (first - (degree.cumsum(0) - degree)).repeat_interleave(degree)
            found = edges[number].indices[positions].long()
            earliest = torch.full((num_nodes[source],), place.numel(), device=device)
            earliest.scatter_reduce_(0, found, place, "amin")
            new = found[(earliest[found] == place) & (local[source][found] < 0)]
            local[source][new] = names[source].numel() + torch.arange(new.numel(), device=device)
            names[source] = torch.cat((names[source], new))
            drawn[number].append((degree, local[source][found], positions))
        for number, ids in enumerate(names):
            nodes_by_type[number].append(ids.numel() - last[number])
        known = last
    return Sampled(
        n_id_by_type=[ids[at] for ids, at in zip(whole.n_id_by_type, names, strict=True)],
        edges_by_relation=[[_joined(hops, one)] for hops, one in zip(drawn, edges, strict=True)],
        nodes_by_type=nodes_by_type,
        counts_by_relation=[[found.numel() for _, found, _ in hops] for hops in drawn],
        trees_by_type=None
        if whole.trees_by_type is None
        else [trees[at] for trees, at in zip(whole.trees_by_type, names, strict=True)],
    )


def _with_rows(indptr: Tensor, num_rows: int) -> Tensor:
    """Return ``indptr`` with rows without edges appended."""
    return torch.cat((indptr, indptr[-1:].expand(num_rows + 1 - indptr.numel())))


def _joined(hops: list[tuple[Tensor, Tensor, Tensor]], edges: SampledEdges) -> SampledEdges:
    """Return one record of hops: the degree of each row; source and place in ``edges`` of each edge."""
    degree, found, positions = (torch.cat(parts) for parts in zip(*hops, strict=True))
    return SampledEdges(
        indptr=torch.cat((degree.new_zeros(1), degree.cumsum(0))),
        indices=found.to(torch.int32),
        positions=None if edges.positions is None else edges.positions[positions],
    )
