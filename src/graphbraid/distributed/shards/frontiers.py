"""Frontiers: the draws of a hop, made by the owners of the nodes that draw, for batches of any rank."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from graphbraid import native
from graphbraid.distributed.shards.exchange import Routed, swap
from graphbraid.graph.csc import ranges
from graphbraid.graph.types import Relation, first_ids
from graphbraid.sampling.batch_seeds import Constraints
from graphbraid.sampling.config import SamplerConfig
from graphbraid.sampling.cpu import HostPipeline, make_pipeline
from graphbraid.sampling.links.negatives import EdgeLookup
from graphbraid.sampling.reference import I64, edges_of_hops, relabel
from graphbraid.sampling.sample import Sampled

if TYPE_CHECKING:
    from graphbraid.distributed.shards.sharded_graph import ShardedGraph


class _Draft:
    """A batch while it is drawn, hop by hop."""

    def __init__(self, seeds: Sequence[Tensor], seed: int, num_relations: int) -> None:
        self.names: list[I64] = [ids.numpy() for ids in seeds]
        """Ids of each node type, within it."""
        self.seed = seed
        """Seed whose step 0 of epoch 0 has the batch's key."""
        self.nodes_by_type = [[len(ids)] for ids in self.names]
        self.hops: list[list[tuple[I64, I64, I64]]] = [[] for _ in range(num_relations)]

    def drawing(self, config: SamplerConfig) -> list[Tensor]:
        """Return the nodes of each type that draw at the next hop: all, or those that the last hop found."""
        by_layer = config.layout == "blocks"
        return [
            torch.from_numpy(ids[0 if by_layer else len(ids) - counts[-1] :])
            for ids, counts in zip(self.names, self.nodes_by_type, strict=True)
        ]

    def add(self, relations: Sequence[Relation], by_relation: Iterable[_Drawn]) -> None:
        """Add a hop's draws for the nodes of :meth:`drawing`, in their order, relation by relation."""
        drawn = list(by_relation)
        for number, names in enumerate(self.names):
            own = [one.number for one in relations if one.source == number]
            found = [drawn[one].sources.long() for one in own]
            if any(map(len, found)):  # names of a type come from its relations in their order
                everything = torch.cat(found)
                if (kernels := native.kernels()) is None:
                    self.names[number], local = relabel(names, everything.numpy())
                else:
                    ids, places = kernels.relabel(torch.from_numpy(names), everything)
                    self.names[number], local = ids.numpy(), places.numpy()
            else:
                local = np.empty(0, np.int64)
            self.nodes_by_type[number].append(len(self.names[number]) - len(names))
            ends = np.cumsum([*map(len, found)], dtype=np.int64)
            for one, end in zip(own, ends, strict=True):
                counts, sources, positions = drawn[one]
                of_one = local[end - len(sources) : end]
                self.hops[one].append((counts.numpy().astype(np.int64), of_one, positions.numpy()))

    def finished(self, config: SamplerConfig) -> Sampled:
        """Return the batch as any sampler does."""
        by_layer = config.layout == "blocks"
        return Sampled(
            n_id_by_type=[torch.from_numpy(ids) for ids in self.names],
            edges_by_relation=[
                [edges_of_hops(group, config) for group in ([[hop] for hop in hops] if by_layer else [hops])]
                for hops in self.hops
            ],
            nodes_by_type=self.nodes_by_type,
            counts_by_relation=[[len(local) for _, local, _ in hops] for hops in self.hops],
        )


class _Drawing(NamedTuple):
    """The nodes of a batch that draw at a hop: those of the first type, then those of the second."""

    ids: Tensor
    """``(num_nodes,)`` int64 ids in the whole graph."""
    begins: Tensor
    """Place of the first node of each type, and at the end the number of nodes."""
    route: Routed
    """The nodes by owner; those of one owner are in the same order."""


class _Drawn(NamedTuple):
    """The draws of some nodes: of all nodes by the first relation, then by the second, and so on."""

    counts: Tensor
    """``(num_rows,)`` edges of each node and relation."""
    sources: Tensor
    """``(num_edges,)`` ids within the sources' types."""
    positions: Tensor
    """``(num_edges,)`` int64 positions in the whole graph; empty unless they are kept."""

    @classmethod
    def joined(cls, drawn: Sequence[_Drawn]) -> _Drawn:
        """Return the draws by several relations, one after another."""
        return drawn[0] if len(drawn) == 1 else cls(*map(torch.cat, zip(*drawn, strict=True)))


class Frontiers:
    """The draws of one hop at a time, made by the owners of the nodes that draw.

    Args:
        graph: the graph, whose lists are with their nodes.
        config: options of the sampler.
        num_threads: number of threads that draw for others and for this rank.
    """

    def __init__(self, graph: ShardedGraph, config: SamplerConfig, num_threads: int) -> None:
        self._graph, self._shards, self._config = graph, graph.shards, config
        self._relations, self._first_ids = graph.all_types.relations(), graph.all_types.first_ids
        self._threads = num_threads
        self._limits: list[Constraints | None] | None = None
        self._lookup: EdgeLookup | None = None
        self._by_hop = [self._sampler_of(hop) for hop in range(len(config.fanouts))]

    def _sampler_of(self, hop: int) -> HostPipeline:
        """Return a sampler that draws for its seeds as they would at ``hop``.

        In layout ``blocks`` all known nodes draw at every hop. Earlier hops draw nothing here, so the known
        nodes are the seeds.
        """
        first, *_ = by_relation = [(0,) * hop + (fanouts[hop],) for fanouts in self._config.all_fanouts]
        relations = tuple(by_relation) if self._graph.is_typed else None
        config = replace(self._config, fanouts=first, by_relation=relations, layout="blocks")
        return make_pipeline(self._graph, config, num_threads=self._threads, depth=2 * self._threads)

    def sample(
        self, batches: Sequence[tuple[Sequence[Tensor], int]], links: Sequence[Tensor] | None = None
    ) -> list[Sampled]:
        """Draw all hops of several batches; all ranks must call it together, with as many batches.

        Args:
            batches: the seeds of each node type, and the seed whose step 0 of epoch 0 has the batch's key.
            links: of each batch ``(2, num)`` pairs of nodes, whose edges in both directions it does not draw.
                If None, on all ranks, all edges may be drawn.
        """
        self._limits = None if links is None else self._excluded(links)
        drafts = [_Draft(seeds, seed, len(self._relations)) for seeds, seed in batches]
        for hop in range(len(self._config.fanouts)):
            drawing = [self._drawing(draft) for draft in drafts]
            for draft, one, drawn in zip(drafts, drawing, self._draw(hop, drafts, drawing), strict=True):
                draft.add(self._relations, self._by_relation(one, drawn))
        return [draft.finished(self._config) for draft in drafts]

    def _excluded(self, links: Sequence[Tensor]) -> list[Constraints | None]:
        """Tell owners which edges are not drawn; return the limits of the batches of rank 0, then of 1."""
        self._lookup = self._lookup or EdgeLookup(self._graph.csc)
        comm, both = self._shards.comm, [torch.cat([one, one.flip(0)], 1) for one in links]
        routes = [Routed.by_owner(self._shards.owners(pairs[1]), comm.size) for pairs in both]
        sizes = torch.tensor([route.counts for route in routes], dtype=torch.int64).t()
        asked = swap(comm, sizes)
        by_batch = [
            torch.split(pairs.t()[route.order], route.counts)
            for pairs, route in zip(both, routes, strict=True)
        ]
        rows = torch.cat([of_batch[rank] for rank in range(comm.size) for of_batch in by_batch])
        given = comm.all_to_all(rows, sizes.sum(1).tolist(), asked.sum(1).tolist()).wait()
        found = [
            torch.from_numpy(self._lookup.positions(*pairs.t().contiguous().numpy()))
            for pairs in torch.split(given, asked.flatten().tolist())
        ]
        return [Constraints(excluded=one) if one.numel() else None for one in found]

    def _drawing(self, draft: _Draft) -> _Drawing:
        by_type = draft.drawing(self._config)
        ids = torch.cat([nodes + first for nodes, first in zip(by_type, self._first_ids[:-1], strict=True)])
        begins = torch.tensor(first_ids([nodes.numel() for nodes in by_type]))
        return _Drawing(ids, begins, Routed.by_owner(self._shards.owners(ids), self._shards.comm.size))

    def _draw(self, hop: int, drafts: Sequence[_Draft], drawing: Sequence[_Drawing]) -> list[_Drawn]:
        comm, routes = self._shards.comm, [one.route for one in drawing]
        # For each owner and batch: the number of nodes that draw, and their key of random numbers.
        sizes = torch.tensor([route.counts for route in routes], dtype=torch.int64).view(-1, comm.size).t()
        seeds = torch.tensor([_signed(draft.seed) for draft in drafts], dtype=torch.int64)
        asked = swap(comm, torch.stack([sizes, seeds.expand(comm.size, -1)], 2))
        by_batch = [torch.split(one.ids[one.route.order], one.route.counts) for one in drawing]
        by_owner = [[of_batch[rank] for of_batch in by_batch] for rank in range(comm.size)]
        send_rows, receive_rows = sizes.sum(1).tolist(), asked[:, :, 0].sum(1).tolist()
        ids = self._graph.csc.indices.dtype
        nodes = comm.all_to_all(_joined(by_owner, ids), send_rows, receive_rows).wait().long()
        answers = self._answers(hop, nodes, asked)
        return self._asked(drawing, answers)

    def _answers(self, hop: int, nodes: Tensor, asked: Tensor) -> list[list[_Drawn]]:
        """Draw for all ranks; return the draws for each batch of each rank."""
        sampler, given = self._by_hop[hop], torch.split(nodes, asked[:, :, 0].reshape(-1).tolist())
        seeds = asked[:, :, 1].reshape(-1).tolist()
        limits = self._limits or [None] * len(given)
        begun = [
            sampler.begin(one, seed % (1 << 64), 0, 0, limit)
            for one, seed, limit in zip(given, seeds, limits, strict=True)
        ]
        drawn = [self._drawn(hop, next(batch).sampled) for batch in begun]
        num_batches = asked.shape[1]
        return [drawn[at : at + num_batches] for at in range(0, len(drawn), num_batches)]

    def _drawn(self, hop: int, sampled: Sampled) -> _Drawn:
        """Return what the seeds of a batch drew at the one hop at which they draw."""
        indptr, found = self._graph.csc.indptr, list[_Drawn]()
        for relation, by_hop in zip(self._relations, sampled.edges_by_relation, strict=True):
            edges, type_ = by_hop[hop], relation.destination
            counts, positions = edges.indptr.diff(), torch.empty(0, dtype=torch.int64)
            if edges.positions is not None:
                own = sampled.nodes_by_type[type_][0]
                ids = sampled.n_id_by_type[type_][:own] + self._first_ids[type_]
                offsets = edges.positions - torch.repeat_interleave(indptr[ids], counts)
                positions = self._shards.positions(ids, counts, offsets)
            sources = sampled.n_id_by_type[relation.source][edges.indices.long()]
            found.append(_Drawn(counts, sources, positions))
        return _Drawn.joined(found)

    def _places(self, one: _Drawing, rank: int) -> Tensor:
        """Return where the rows of a rank's answer stand among all rows of the batch."""
        begin = sum(one.route.counts[:rank])
        nodes, begins = one.route.order[begin : begin + one.route.counts[rank]], one.begins.tolist()
        places, before = [nodes[:0]], 0
        for relation in self._relations:
            first, last = begins[relation.destination : relation.destination + 2]
            of_type = nodes[(nodes >= first) & (nodes < last)]
            places.append(of_type + (before - first))
            before += last - first
        return torch.cat(places)

    def _asked(self, drawing: Sequence[_Drawing], answers: list[list[_Drawn]]) -> list[_Drawn]:
        """Give every rank its answers, and return those to this rank's questions, in the nodes' order."""
        comm, ids = self._shards.comm, self._graph.csc.indices.dtype
        places = [[self._places(one, rank) for one in drawing] for rank in range(comm.size)]
        sizes = torch.tensor([[rows.numel() for rows in of_rank] for of_rank in places]).view(comm.size, -1)
        edges = torch.tensor([[one.sources.numel() for one in of_rank] for of_rank in answers])
        num_edges = swap(comm, edges.view(comm.size, -1))
        parts = [[*(one.counts for one in of_rank), *(one.sources for one in of_rank)] for of_rank in answers]
        send_rows = [sum(part.numel() for part in of_rank) for of_rank in parts]
        receive_rows = (sizes.sum(1) + num_edges.sum(1)).tolist()
        got = comm.all_to_all(_joined(parts, ids), send_rows, receive_rows).wait()
        pieces = torch.split(got, torch.cat([sizes, num_edges], 1).reshape(-1).tolist())
        width, count = 2 * len(drawing), len(drawing)
        kept = [torch.empty(0, dtype=torch.int64)] * (count * comm.size)
        if self._config.return_edge_id:
            positions = [[one.positions for one in of_rank] for of_rank in answers]
            rows = [sum(part.numel() for part in of_rank) for of_rank in positions]
            taken = comm.all_to_all(_joined(positions, torch.int64), rows, num_edges.sum(1).tolist()).wait()
            kept = list(torch.split(taken, num_edges.reshape(-1).tolist()))
        found = []
        for batch in range(count):
            counts = torch.cat([pieces[rank * width + batch] for rank in range(comm.size)]).long()
            sources = torch.cat([pieces[rank * width + count + batch] for rank in range(comm.size)])
            positions_of = torch.cat([kept[rank * count + batch] for rank in range(comm.size)])
            order = torch.cat([places[rank][batch] for rank in range(comm.size)])
            found.append(_in_order(order, _Drawn(counts, sources, positions_of)))
        return found

    def _by_relation(self, one: _Drawing, drawn: _Drawn) -> Iterator[_Drawn]:
        """Divide the draws of a batch's nodes by relation."""
        num_nodes = one.begins.diff().tolist()
        counts = torch.split(drawn.counts, [num_nodes[relation.destination] for relation in self._relations])
        num_edges = [int(of_relation.sum()) for of_relation in counts]
        sources = torch.split(drawn.sources, num_edges)
        positions = torch.split(drawn.positions, num_edges) if drawn.positions.numel() else sources
        for of_relation, ids, at in zip(counts, sources, positions, strict=True):
            yield _Drawn(of_relation, ids, at if drawn.positions.numel() else drawn.positions)


def _signed(seed: int) -> int:
    return seed - (1 << 64) if seed >> 63 else seed


def _joined(parts: Sequence[Sequence[Tensor]], dtype: torch.dtype) -> Tensor:
    """Return all parts, those for rank 0 first, as one tensor."""
    return torch.cat(
        [torch.empty(0, dtype=dtype), *(part.to(dtype) for of_rank in parts for part in of_rank)]
    )


def _in_order(order: Tensor, drawn: _Drawn) -> _Drawn:
    """Return the draws of the nodes ``order``, which are a permutation, in ascending order of the nodes."""
    place = torch.empty_like(order)
    place[order] = torch.arange(order.numel())
    counts = drawn.counts[place]
    begins = (drawn.counts.cumsum(0) - drawn.counts)[place]
    at = ranges(begins, counts)
    return _Drawn(
        counts, drawn.sources[at], drawn.positions[at] if drawn.positions.numel() else drawn.positions
    )
