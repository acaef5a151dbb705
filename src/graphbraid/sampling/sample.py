"""Records of sampling: the lists that samplers read, what they return, and one rank's share of that."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor

from graphbraid.graph.csc import Csc, ranges
from graphbraid.graph.types import Types

if TYPE_CHECKING:
    from graphbraid.sampling.batch_seeds import BatchSeeds


class ListReads(NamedTuple):
    """Numbers of drawn edges and of their adjacency lists, by the memory they were read from."""

    device_lists: int
    device_edges: int
    host_lists: int
    host_edges: int

    @classmethod
    def of(cls, counted: Tensor) -> ListReads:
        """Return the sums of a device, ``(4,)`` int64 in this order; waits for it."""
        return cls(*counted.tolist())

    @property
    def device_share(self) -> float:
        """Share of the lists that were read from the device; 0 before the first read."""
        return self.device_lists / max(self.device_lists + self.host_lists, 1)


class NeighborLists(Protocol):
    """The adjacency lists of a graph's nodes, in memory or in a file."""

    @property
    def csc(self) -> Csc:
        """The graph's topology, whose ``indptr`` is in memory.

        Its ``indices`` serve reads in order. Samplers read them only if :attr:`native` is None.
        """
        ...

    @property
    def native(self) -> Any | None:
        """Reader of the ids of drawn edges in this process; None: all are in ``csc.indices``.

        The compiled ``NeighborLists``, or its twin in :mod:`graphbraid.features.tiers.topology`.
        """
        ...


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class SampledEdges:
    """Edges between the nodes of a sample, as a CSC over local ids."""

    indptr: Tensor
    """Offsets of the rows in ``indices``, ``(num_rows + 1,)`` int64."""
    indices: Tensor
    """Local ids of the sources, ``(num_edges,)`` int32."""
    positions: Tensor | None
    """Position of each edge in the graph, ``(num_edges,)`` int64; None unless the sampler keeps them."""

    def apply(self, change: Callable[[Tensor], Tensor]) -> SampledEdges:
        """Return the edges with ``change`` applied to ``indptr`` and ``indices``; ``positions`` stay."""
        return dataclasses.replace(self, indptr=change(self.indptr), indices=change(self.indices))


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Sampled:
    """A sample before features are gathered: the record that every sampler returns.

    Lists are in the order of the graph's node types and relations. A graph of one type has one entry in each
    list: :attr:`n_id`, :attr:`edges`, :attr:`nodes_per_hop`, :attr:`edges_per_hop` and :attr:`trees`.
    """

    n_id_by_type: list[Tensor]
    """Ids of each node type, ``(num_nodes,)`` int64: the seeds, then the other nodes by first appearance."""
    edges_by_relation: list[list[SampledEdges]]
    """Edges of each relation between local ids of its two types: in layout ``subgraph`` one record for all
    hops, in ``blocks`` one per hop, the hop nearest the seeds first."""
    nodes_by_type: list[list[int]]
    """Number of seeds, then of new nodes per hop, of each node type."""
    counts_by_relation: list[list[int]]
    """Number of edges per hop, of each relation."""
    trees_by_type: list[Tensor] | None = None
    """Tree of each node by node type, numbered as its seed among all seeds, ``(num_nodes,)`` int64; None
    unless disjoint."""
    by_hop: bool = True
    """Whether edges are the drawn ones, hop by hop. Otherwise :mod:`graphbraid.sampling.subgraph` made them
    between any nodes, and there are no blocks."""

    @property
    def n_id(self) -> Tensor:
        """``(num_nodes,)`` int64 global ids, in a graph of one type."""
        [n_id] = self.n_id_by_type
        return n_id

    @property
    def edges(self) -> list[SampledEdges]:
        """The edges, in a graph of one relation."""
        [edges] = self.edges_by_relation
        return edges

    @property
    def nodes_per_hop(self) -> list[int]:
        """Number of seeds, then of new nodes per hop, in a graph of one type."""
        [counts] = self.nodes_by_type
        return counts

    @property
    def edges_per_hop(self) -> list[int]:
        """Number of edges per hop, in a graph of one relation."""
        [counts] = self.counts_by_relation
        return counts

    @property
    def trees(self) -> Tensor | None:
        """Tree of each node, in a graph of one type; None unless disjoint."""
        return None if self.trees_by_type is None else self.trees_by_type[0]

    @property
    def positions_are_kept(self) -> bool:
        """Whether the sampler kept each edge's position in the graph."""
        return self.edges_by_relation[0][0].positions is not None

    def positions(self, relation: int = 0) -> Tensor | None:
        """Return the position of each edge of a relation in the graph's edges, of all relations.

        They are ``(num_edges,)`` int64, hop by hop; None if they are not kept.
        """
        kept = [edges.positions for edges in self.edges_by_relation[relation] if edges.positions is not None]
        return torch.cat(kept) if kept else None

    def positions_by_layer(self, layout: str) -> list[Tensor]:
        """Return the position in the graph of each block's edges, outermost first; they must be kept."""
        found = []
        for hop in reversed(range(len(self.edges_per_hop))):
            positions = self.edges[hop if layout == "blocks" else 0].positions
            assert positions is not None, "asked for where they are kept"
            found.append(positions if layout == "blocks" else positions[: sum(self.edges_per_hop[: hop + 1])])
        return found


X_BY_TYPE = "x_by_type"
"""Attribute of a batch whose nodes are of several types, numbered as in the whole graph: feature rows of each
type, in the order of its nodes; None for a type without features."""


class PreparedBatch(NamedTuple):
    """The contents of a mini-batch: the record that every pipeline yields."""

    step: int
    input_id: Tensor
    """Positions of the seeds in the schedule, ``(batch_size,)`` int64."""
    sampled: Sampled
    x: list[Tensor | None]
    """Gathered feature rows of each node type, ``(num_nodes, F)``; None where the pipeline gathers none."""
    edge_rows: Mapping[Any, Tensor] | None = None
    """Rows of edge attributes by name, or by relation and name, hop by hop; no others can be read. None: they
    are read from the graph."""
    seeds: BatchSeeds | None = None
    """Seeds that are more than plain nodes, such as the ends of links."""


def own_by_type(types: Types, seed_type: int | None, seeds: Tensor, own: Tensor) -> list[Tensor]:
    """Return the ascending local ids of the seeds at positions ``own``, by node type.

    Without ``seed_type``, seeds are ids in the whole graph, and else ids of that type.
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
    drew them; nodes of the last hop have none. ``ends`` are the types of each relation's ends, and ``own``
    local ids of the seeds by type, ascending. Trees keep their numbers. Twin of ``csrc/sampling/share.cpp``.
    """
    device = whole.n_id_by_type[0].device
    num_nodes = [ids.numel() for ids in whole.n_id_by_type]
    edges = [records[0] for records in whole.edges_by_relation]
    indptrs = [with_rows(one.indptr, num_nodes[end]) for one, (_, end) in zip(edges, ends, strict=True)]
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
            positions = ranges(first, degree)
            place = torch.arange(positions.numel(), device=device)
            found = edges[number].indices[positions].long()
            earliest = torch.full((num_nodes[source],), place.numel(), device=device)
            earliest.scatter_reduce_(0, found, place, "amin")  # a new node is numbered at its first edge
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


def with_rows(indptr: Tensor, num_rows: int) -> Tensor:
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
