"""Maps of a whole graph divided among ranks of one process, whose rows lie in matrices of their own."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from hypothesis import strategies as st
from tests.ops.graphs import values
from torch import Tensor

from graphbraid.graph.csc import Csc
from graphbraid.ops import Aggregation
from graphbraid.ops.peers import PeerEdges, PeerTable

COEFFICIENTS = ("plain", "mean", "weight", "scales", "loops", "all")


def owned_by(part_of: Tensor, num_ranks: int) -> list[Tensor]:
    return [(part_of == rank).nonzero().squeeze(1) for rank in range(num_ranks)]


def with_coefficients(csc: Csc, wanted: str) -> Aggregation:
    """An aggregation over a square graph with some of the coefficients that layers have."""
    n, found = csc.num_dst, Aggregation(csc=csc, mean=wanted in ("mean", "all"))
    if wanted in ("weight", "all"):
        found = replace(found, weight=values(csc.num_edges))
    if wanted in ("scales", "loops", "all"):
        found = replace(found, src_scale=values(n, seed=2), dst_scale=values(n, seed=3))
    if wanted in ("loops", "all"):
        found = replace(found, loop=values(n, seed=4), loop_scale=1.5, skip_loops=wanted == "loops")
    return found


def share_of(how: Aggregation, part_of: Tensor, rank: int, num_ranks: int) -> tuple[PeerEdges, Aggregation]:
    """A rank's edges of a map over a whole graph, and its map from own rows and a halo, by id."""
    csc, owned = how.csc, owned_by(part_of, num_ranks)
    own, destination = owned[rank], csc.destinations().long()
    mine = (part_of[destination] == rank).nonzero().squeeze(1)
    sources = csc.indices[mine].long()
    halo = sources[part_of[sources] != rank].unique()
    place = torch.full((csc.num_src,), -1)
    place[own], place[halo] = torch.arange(len(own)), len(own) + torch.arange(len(halo))
    indptr = torch.zeros(len(own) + 1, dtype=torch.int64)
    torch.cumsum(csc.degrees()[own], 0, out=indptr[1:])
    known = torch.cat([own, halo])
    mapped = replace(
        how,
        csc=Csc(indptr, place[sources].to(csc.indices.dtype), len(known)),
        weight=None if how.weight is None else how.weight[mine],
        src_scale=None if how.src_scale is None else how.src_scale[known],
        dst_scale=None if how.dst_scale is None else how.dst_scale[own],
        loop=None if how.loop is None else how.loop[own],
    )
    row = torch.zeros(csc.num_src, dtype=torch.int64)
    for nodes in owned:
        row[nodes] = torch.arange(len(nodes))
    edges = PeerEdges.of(mapped, len(own), part_of[halo], row[halo], rank=rank, num_ranks=num_ranks)
    return edges, mapped


def tables(x: Tensor, part_of: Tensor, num_ranks: int) -> list[PeerTable]:
    """Each rank's table of everybody's rows."""
    parts = [x[nodes].contiguous() for nodes in owned_by(part_of, num_ranks)]
    return [PeerTable(parts, rank) for rank in range(num_ranks)]


def edge_list(pairs: Sequence[tuple[int, int]], num_nodes: int) -> Csc:
    """The graph of edges ``(source, destination)``, repeated ones and self-loops included."""
    order = sorted(pairs, key=lambda pair: pair[1])
    indptr = torch.zeros(num_nodes + 1, dtype=torch.int64)
    for _, destination in order:
        indptr[destination + 1 :] += 1
    return Csc(indptr, torch.tensor([source for source, _ in order], dtype=torch.int32), num_nodes)


@st.composite
def divided_maps(draw: st.DrawFn, *, most_ranks: int = 4) -> tuple[Aggregation, Tensor, int]:
    """A map over a graph with isolated nodes, self-loops and a hub, and owners; ranks may own nothing."""
    n = draw(st.integers(1, 12))
    node = st.integers(0, n - 1)
    pairs = draw(st.lists(st.tuples(node, node), max_size=30))
    pairs += [(draw(node), 0) for _ in range(draw(st.sampled_from([0, 0, 40])))]
    num_ranks = draw(st.integers(1, most_ranks))
    part_of = torch.tensor(draw(st.lists(st.integers(0, num_ranks - 1), min_size=n, max_size=n)))
    how = with_coefficients(edge_list(pairs, n), draw(st.sampled_from(COEFFICIENTS)))
    return how, part_of, num_ranks
