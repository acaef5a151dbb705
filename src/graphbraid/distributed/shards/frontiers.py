"""Frontiers: the draws of a hop, made by the owners of the nodes that draw, for batches of any rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from graphbraid.distributed.shards.exchange import NO_IDS, Routed, numbered, swap
from graphbraid.graph.types import Relation
from graphbraid.ops import rng
from graphbraid.sampling.batch_seeds import Constraints
from graphbraid.sampling.config import SamplerConfig
from graphbraid.sampling.cpu import HostPipeline, make_pipeline
from graphbraid.sampling.links.negatives import EdgeLookup
from graphbraid.sampling.reference import I64, edges_of_hops
from graphbraid.sampling.sample import PreparedBatch, Sampled, keep_share

if TYPE_CHECKING:
    from graphbraid.distributed.shards.sharded_graph import ShardedGraph

_Drawn = Sequence[Tensor]
"""The draws of some nodes: of all nodes by the first relation, then by the second, and so on. They are the
number of edges of each node and relation; of each edge its source, within the sources' type; and if these are
kept, its int64 position in the whole graph."""


class _Draft:
    """A batch while it is drawn, hop by hop."""

    def __init__(self, seeds: Sequence[Tensor], seed: int, num_relations: int) -> None:
        self.names = list(seeds)
        """Ids of each node type, within it."""
        self.seed = seed
        """Seed whose step 0 of epoch 0 has the batch's key."""
        self.nodes_by_type = [[len(ids)] for ids in self.names]
        self.hops: list[list[tuple[I64, I64, I64]]] = [[] for _ in range(num_relations)]

    def drawing(self, config: SamplerConfig) -> list[Tensor]:
        """Return the nodes of each type that draw at the next hop: all, or those that the last hop found."""
        by_layer = config.layout == "blocks"
        return [
            ids[0 if by_layer else len(ids) - counts[-1] :]
            for ids, counts in zip(self.names, self.nodes_by_type, strict=True)
        ]

    def add(self, relations: Sequence[Relation], drawn: Sequence[_Drawn]) -> None:
        """Add a hop's draws for the nodes of :meth:`drawing`, in their order, relation by relation."""
        for number, names in enumerate(self.names):
            own = [one.number for one in relations if one.source == number]
            found = [drawn[one][1].long() for one in own]
            # Names of a type come from its relations in their order.
            self.names[number], places = numbered(names, torch.cat([*found, NO_IDS]))
            self.nodes_by_type[number].append(len(self.names[number]) - len(names))
            for one, local in zip(own, torch.split(places, [*map(len, found)]), strict=True):
                counts, _, positions = (*drawn[one], NO_IDS)[:3]
                self.hops[one].append((counts.numpy(), local.numpy(), positions.numpy()))


def _joined(drawn: Sequence[_Drawn]) -> _Drawn:
    return drawn[0] if len(drawn) == 1 else [*map(torch.cat, zip(*drawn, strict=True))]


class Frontiers:
    """The draws of one hop at a time, made by the owners of the nodes that draw, where their lists are."""

    def __init__(self, graph: ShardedGraph, config: SamplerConfig, num_threads: int, seed_type: int) -> None:
        self._graph, self._shards, self._config = graph, graph.shards, config
        self._relations, self._first_ids = graph.all_types.relations(), graph.all_types.first_ids
        self._ids = graph.csc.indices.dtype  # of ids that travel
        self._threads, self._seed_type, self._begun = num_threads, seed_type, list[_Draft]()
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

    def begin(
        self, seeds: Tensor, seed: int, epoch: int, step: int, _: object, *, share: tuple[Tensor, int] | None
    ) -> Iterator[PreparedBatch]:
        """Begin a batch as :meth:`.cpu.HostPipeline.begin` does; its iterator needs :meth:`draw`."""
        draft = _Draft(self._by_type(seeds), rng.seed_with_key(seed, epoch, step), len(self._relations))
        self._begun.append(draft)

        def finished() -> Iterator[PreparedBatch]:
            sampled = Sampled(
                n_id_by_type=draft.names,
                edges_by_relation=[[*edges_of_hops(hops, self._config)] for hops in draft.hops],
                nodes_by_type=draft.nodes_by_type,
                counts_by_relation=[[len(local) for _, local, _ in hops] for hops in draft.hops],
            )
            if share is not None:  # of the whole batch, this rank's share
                ends = [(one.source, one.destination) for one in self._relations]
                sampled = keep_share(sampled, ends, self._by_type(share[0]), share[1])
            yield PreparedBatch(step, NO_IDS, sampled, [None] * len(draft.names))

        return finished()

    def draw(self, count: int, links: Sequence[Tensor] | None = None) -> None:
        """Draw all hops of the batches that were begun, ``count`` at most; all ranks call it together.

        ``links`` are ``(2, num)`` pairs of nodes of each batch, whose edges it does not draw either way.
        """
        drafts, self._begun = self._begun, []
        missing = count - len(drafts)
        drafts += [_Draft(self._by_type(NO_IDS), 0, len(self._relations)) for _ in range(missing)]
        limits = None if links is None else self._excluded([*links, *[NO_IDS.view(2, 0)] * missing])
        for hop in range(len(self._config.fanouts)):
            for draft, drawn in zip(drafts, self._draw(hop, drafts, limits), strict=True):
                draft.add(self._relations, drawn)

    def _by_type(self, seeds: Tensor) -> list[Tensor]:
        """Return the ids of seeds by node type: all are of one."""
        return [seeds if number == self._seed_type else NO_IDS for number in range(len(self._first_ids) - 1)]

    def _sizes(self, owners: Sequence[Tensor]) -> Tensor:
        """Return how many ids each owner has of each batch, ``(num_ranks, num_batches)``."""
        return torch.stack([torch.bincount(one, minlength=self._shards.comm.size) for one in owners], 1)

    def _excluded(self, links: Sequence[Tensor]) -> list[Constraints | None]:
        """Tell owners which edges are not drawn; return the limits of the batches of rank 0, then of 1."""
        self._lookup = self._lookup or EdgeLookup(self._graph.csc)
        comm, both = self._shards.comm, [torch.cat([one, one.flip(0)], 1) for one in links]
        pairs = torch.cat(both, 1).t()
        owners = self._shards.owners(pairs[:, 1])
        asked = swap(comm, self._sizes(torch.split(owners, [one.shape[1] for one in both])))
        routed = Routed(comm, owners)
        routed.asked = asked.sum(1).tolist()
        found = [
            torch.from_numpy(self._lookup.positions(*of_batch.t().contiguous().numpy()))
            for of_batch in torch.split(routed.send(pairs), asked.flatten().tolist())
        ]
        return [Constraints(excluded=one) if one.numel() else None for one in found]

    def _draw(
        self, hop: int, drafts: Sequence[_Draft], limits: Sequence[Constraints | None] | None
    ) -> list[list[_Drawn]]:
        """Return the draws of each batch for the nodes that draw at a hop, relation by relation.

        ``limits`` are of the batches of rank 0, then of rank 1. If None, all edges may be drawn.
        """
        comm, first_ids = self._shards.comm, self._first_ids[:-1]
        drawing = [draft.drawing(self._config) for draft in drafts]
        ids = [[nodes + first for nodes, first in zip(one, first_ids, strict=True)] for one in drawing]
        owners = [[self._shards.owners(nodes) for nodes in of_batch] for of_batch in ids]
        routed = Routed(comm, torch.cat([*chain(*owners)]))
        # For each owner and batch: the number of nodes that draw, and their key of random numbers.
        keys = torch.tensor([draft.seed for draft in drafts], dtype=torch.uint64).view(torch.int64)
        sizes = self._sizes([torch.cat(of_batch) for of_batch in owners])
        asked = swap(comm, torch.stack([sizes, keys.expand(comm.size, -1)], 2))
        routed.asked = asked[:, :, 0].sum(1).tolist()
        nodes = routed.send(torch.cat([*chain(*ids)]).to(self._ids)).long()
        sampler, (num_nodes, seeds) = self._by_hop[hop], asked.flatten(0, 1).t().tolist()
        of_batches = zip(torch.split(nodes, num_nodes), seeds, limits or [None] * len(seeds), strict=True)
        begun = [sampler.begin(one, seed % (1 << 64), 0, 0, limit) for one, seed, limit in of_batches]
        made = [self._drawn(hop, next(batch).sampled) for batch in begun]
        answers = [_joined(made[at : at + len(drafts)]) for at in range(0, len(made), len(drafts))]
        # A node has a list by each relation into its type.
        of_lists = [of_batch[one.destination] for of_batch in owners for one in self._relations]
        if self._graph.is_typed:
            routed = Routed(comm, torch.cat(of_lists))
        routed.asked = [len(of_rank[0]) for of_rank in answers]
        counts, sources, *positions = _joined(answers)
        tables = [counts.to(self._ids), sources.to(self._ids), *positions]
        all_counts, *found = routed.lists(tables)
        counts_of = torch.split(all_counts, [*map(len, of_lists)])
        num_edges = [int(one.sum()) for one in counts_of]
        drawn = zip(counts_of, *(torch.split(table, num_edges) for table in found), strict=True)
        return [[next(drawn) for _ in self._relations] for _ in drafts]

    def _drawn(self, hop: int, sampled: Sampled) -> _Drawn:
        """Return what the seeds of a batch drew at the one hop at which they draw."""
        found = list[_Drawn]()
        for relation, by_hop in zip(self._relations, sampled.edges_by_relation, strict=True):
            edges, type_ = by_hop[hop], relation.destination
            counts, positions = edges.indptr.diff(), list[Tensor]()
            if edges.positions is not None:
                own = sampled.nodes_by_type[type_][0]
                ids = sampled.n_id_by_type[type_][:own] + self._first_ids[type_]
                positions = [self._graph.positions(ids, counts, edges.positions)]
            sources = sampled.n_id_by_type[relation.source][edges.indices.long()]
            found.append([counts, sources, *positions])
        return _joined(found)
