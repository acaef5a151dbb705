"""Seeds of mini-batches: LinkSeeds, with labels, times and negatives, and QuestionSeeds; LinkEnds: types."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from graphbraid.graph import EdgeType, Graph
from graphbraid.graph.csc import ranges
from graphbraid.graph.types import first_ids
from graphbraid.ops import rng
from graphbraid.sampling.batch_seeds import BatchSeeds, Constraints, EdgeTimes
from graphbraid.sampling.links.negatives import EdgeLookup, NegativeDraws


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkEnds:
    """The node types that links join, and the ids of their nodes in the whole graph.

    A node has three numbers: users give its id within its type, samplers and edges use its id in the whole
    graph, and an evaluation has rows for the two types only (:attr:`nodes`).
    """

    types: tuple[str, str]
    """Type of the sources, and of the destinations."""
    first: tuple[int, int]
    """Id in the whole graph of the first node of each."""
    counts: tuple[int, int]
    """Number of nodes of each."""

    @classmethod
    def of(cls, graph: Graph, edge_type: EdgeType) -> LinkEnds:
        """Return the ends of a relation's links."""
        sizes = [graph.nodes_of(name).num_nodes for name in graph.node_types]
        first = dict(zip(graph.node_types, first_ids(sizes), strict=False))
        source, _, destination = edge_type
        return cls(
            types=(source, destination),
            first=(first[source], first[destination]),
            counts=(graph.nodes_of(source).num_nodes, graph.nodes_of(destination).num_nodes),
        )

    @property
    def are_alike(self) -> bool:
        """Whether both ends are nodes of one type."""
        return self.types[0] == self.types[1]

    @property
    def nodes(self) -> Tensor:
        """Ids in the whole graph of the nodes of both types, int64, each once, ascending."""
        bounds = {(first, first + count) for first, count in zip(self.first, self.counts, strict=True)}
        return torch.cat([torch.arange(*one) for one in sorted(bounds)])

    @property
    def rows(self) -> tuple[slice, slice]:
        """Places of the sources and of the destinations in :attr:`nodes`."""
        begins = [0, 0]
        if not self.are_alike:
            later = int(self.first[1] > self.first[0])
            begins[later] = self.counts[1 - later]
        source, destination = (slice(one, one + num) for one, num in zip(begins, self.counts, strict=True))
        return source, destination

    def whole(self, pairs: Tensor) -> Tensor:
        """Return ``(2, num)`` ids in the whole graph for ids within the types."""
        return pairs + torch.tensor(self.first).unsqueeze(1)

    def within(self, pairs: Tensor) -> Tensor:
        """Return ``(2, num)`` ids within the types for ids in the whole graph."""
        return pairs - torch.tensor(self.first).unsqueeze(1)

    def places(self, pairs: Tensor) -> Tensor:
        """Return ``(2, num)`` places in :attr:`nodes` for ids in the whole graph."""
        begins = torch.tensor([part.start for part in self.rows]).unsqueeze(1)
        return self.within(pairs) + begins


OF_LINKS = ("edge_label_index", "edge_label", "edge_label_time", "seed_time")
"""Attributes of a batch's links. The data's attributes of these names are not in batches."""


class LinkSeeds:
    """The links that mini-batches start from.

    The seeds of a batch are the ends of its links and negatives, each node once; in disjoint trees, each end
    has its own: all sources, then all destinations. If sources and destinations have two types, seeds of the
    sources' type come first. Seeds are ids in the whole graph, and batches have local ids within the types.

    Args:
        links: ``(2, num_links)`` int64 sources and destinations, ids within their types.
        seed: random seed of the negatives.
        label: ``(num_links, ...)`` labels of the links; None if they have none.
        times: ``(num_links,)`` int64 times of the links, which are those of their trees; needs ``disjoint``.
        shown_times: ``(num_links,)`` the user's times, which batches have; given with ``times``.
        negatives: negatives of each batch; None for none.
        disjoint: whether each end has a tree of its own.
        edge_times: times of the graph's edges; given with ``times``.
        ends: the types that links join. If None, there is one.
        attributes: further values of the links by name, ``(num_links, ...)``, copied to their batches.
        shared: whether all links of a batch share its negatives, so that each part of the batch has them.
        fetch: returns the ends of links by positions and communicator, where ranks divide the edges. Then
            ``links`` has their number alone, and edges are left out where they are drawn. If None, they are
            here.
    """

    def __init__(
        self,
        links: Tensor,
        *,
        seed: int,
        label: Tensor | None = None,
        times: Tensor | None = None,
        shown_times: Tensor | None = None,
        negatives: NegativeDraws | None = None,
        disjoint: bool = False,
        edge_times: EdgeTimes | None = None,
        ends: LinkEnds | None = None,
        attributes: Mapping[str, Tensor] | None = None,
        shared: bool = False,
        fetch: Callable[[Tensor, Any], Tensor] | None = None,
    ) -> None:
        self.fetch, self._fetched = fetch, cast("Tensor | None", None)
        self._attributes, self._shared = attributes or {}, shared
        self._links, self._label, self._negatives = links, label, negatives
        self._times, self._shown_times = times, shown_times
        self.num_inputs, self.edge_times = int(links.shape[1]), edge_times
        self._seed, self._disjoint = seed, disjoint
        self._first_ids = (0,) if ends is None else ends.first[: 1 if ends.are_alike else 2]
        self._lookup: EdgeLookup | None = None
        self._with_reverse = False

    def exclude(self, lookup: EdgeLookup, *, reverse: bool) -> None:
        """Leave a batch's links, and with ``reverse`` their reverses, out of the draws."""
        self._lookup, self._with_reverse = lookup, reverse

    def with_ends(self, links: Tensor) -> LinkSeeds:
        """Return the seeds of one batch, whose links ``(2, num)`` were fetched."""
        made = copy.copy(self)
        made._fetched = links
        return made

    def seeds_of(
        self, positions: Tensor, epoch: int, step: int, part: tuple[int, int] | None = None
    ) -> BatchSeeds:
        """Return the seeds of a batch of the links at ``positions``.

        A part of it has the seeds of its links and of their negatives, with local ids among these.
        """
        links = self._links[:, positions] if self._fetched is None else self._fetched
        heads, tails = self._with_negatives(links, positions, epoch, step)
        seeds, place = self._seeded(heads, tails)
        owners = self._owners(positions.numel()) if self._disjoint else None
        constraints, own = self._constraints(links, positions, owners), None
        if part is not None:
            assert len(self._first_ids) == 1, "parts are of links whose seeds are ids in the whole graph"
            count = positions.numel()
            of_part = [self._of_part(ends.numel(), count, part) for ends in (heads, tails)]
            own, place = torch.unique(place[torch.cat(of_part)], return_inverse=True)
            owners = None if owners is None else owners[own] - part[0]
            positions = positions[slice(*part)]
        return BatchSeeds(
            nodes=seeds,
            constraints=constraints,
            inputs=owners,
            attributes=self._attributes_of(place, positions)
            | {name: values[positions] for name, values in self._attributes.items()},
            own=own,
        )

    def _of_part(self, num_ends: int, num_links: int, part: tuple[int, int]) -> Tensor:
        """Return a mask of the ends of links, and then of negatives, that belong to a part of the links."""
        link = torch.arange(num_ends) % max(num_links, 1)  # negative j is one of link j % num_links
        found = (link >= part[0]) & (link < part[1])
        if self._shared:
            found[num_links:] = True
        return found

    def _seeded(self, heads: Tensor, tails: Tensor) -> tuple[Tensor, Tensor]:
        """Return the seeds, and the local ids of all sources, then of all destinations."""
        parts = [heads, tails] if len(self._first_ids) == 2 else [torch.cat([heads, tails])]
        if self._disjoint:
            found = [(nodes, torch.arange(nodes.numel())) for nodes in parts]
        else:
            found = [torch.unique(nodes, return_inverse=True) for nodes in parts]
        seeds = [nodes + first for (nodes, _), first in zip(found, self._first_ids, strict=True)]
        return torch.cat(seeds), torch.cat([place for _, place in found])

    def _with_negatives(
        self, links: Tensor, positions: Tensor, epoch: int, step: int
    ) -> tuple[Tensor, Tensor]:
        """Return the sources and the destinations of all pairs; triplets have no sources of their own."""
        if self._negatives is None:
            return links[0], links[1]
        times = None if self._times is None else self._times[positions].numpy()
        key = rng.batch_key(self._seed, epoch, step)
        heads, tails = self._negatives.draw(key, links[0].numpy(), times)
        dst = torch.cat([links[1], torch.from_numpy(tails)])
        if self._negatives.how.is_triplet:
            return links[0], dst
        return torch.cat([links[0], torch.from_numpy(heads)]), dst

    def _constraints(self, links: Tensor, positions: Tensor, owners: Tensor | None) -> Constraints | None:
        excluded = None
        if self._lookup is not None:
            found = self._lookup.between(links, reverse=self._with_reverse)
            excluded = found if found.numel() else None
        if owners is None and excluded is None:
            return None
        times = None if self._times is None or owners is None else self._times[positions][owners]
        return Constraints(disjoint=self._disjoint, times=times, excluded=excluded)

    def _owners(self, num_links: int) -> Tensor:
        """Return the link that each end belongs to, in the order of the seeds of disjoint trees."""
        num_pairs = self._num_pairs(num_links)
        heads = torch.arange(num_links if self._is_triplet else num_pairs)
        return torch.cat([heads, torch.arange(num_pairs)]) % max(num_links, 1)

    def _attributes_of(self, place: Tensor, positions: Tensor) -> dict[str, Tensor]:
        num_links = positions.numel()
        times = None if self._shown_times is None else self._shown_times[positions]
        if self._is_triplet:
            assert self._negatives is not None
            per_link = int(self._negatives.how.amount)
            negative = place[2 * num_links :].reshape(per_link, num_links).t().contiguous()
            found = {
                "src_index": place[:num_links],
                "dst_pos_index": place[num_links : 2 * num_links],
                "dst_neg_index": negative.squeeze(1) if per_link == 1 else negative,
            }
            return found if times is None else found | {"seed_time": times}
        found = {"edge_label_index": place.view(2, place.numel() // 2)}
        label = self._labels(positions, place.numel() // 2)
        if label is not None:
            found["edge_label"] = label
        if times is not None:
            owner = torch.arange(self._num_pairs(num_links)) % max(num_links, 1)
            found["edge_label_time"] = times[owner]
        return found

    def _labels(self, positions: Tensor, num_pairs: int) -> Tensor | None:
        """Return the labels of the links, then 0 for each negative among ``num_pairs`` pairs."""
        label = None if self._label is None else self._label[positions]
        if self._negatives is None:
            return label
        label = torch.ones(positions.numel()) if label is None else label
        num_negatives = num_pairs - positions.numel()
        return torch.cat([label, label.new_zeros((num_negatives, *label.shape[1:]))])

    @property
    def _is_triplet(self) -> bool:
        return self._negatives is not None and self._negatives.how.is_triplet

    def _num_pairs(self, num_links: int) -> int:
        return num_links + (0 if self._negatives is None else self._negatives.how.count(num_links))


GIVEN, KIND, COUNTS = "question_given", "question_kind", "question_counts"
"""Attributes of a batch of questions, see :class:`QuestionSeeds`."""
ANSWERS, WEIGHT = "question_answers", "question_weight"
"""Further attributes of a batch of questions."""


class QuestionSeeds:
    """Questions that mini-batches start from. The seeds are all nodes that can be answers.

    A question is a source and a relation, and the answers are destinations; or a destination and a relation,
    and the answers are sources. Links with the same question share it, and each is one of its answers.

    A batch has ``GIVEN``, ``(num,)`` places of the given nodes in ``ends.nodes``; ``KIND``, ``(num,)`` twice
    the relation, plus one if the answers are sources; ``COUNTS``, ``(num,)`` numbers of answers; ``ANSWERS``,
    their places among the nodes of their type, question by question; and ``WEIGHT``, ``(1,)`` float64, the
    number of questions by that of answers in all inputs. With this weight, an epoch's mean over questions is
    the mean over links.

    Args:
        links: ``(2, num_links)`` int64 sources and destinations, ids in the whole graph.
        relation: ``(num_links,)`` int64 relations; None if there is one.
        ends: the types that links join.
    """

    def __init__(self, links: Tensor, relation: Tensor | None, ends: LinkEnds) -> None:
        kind = torch.zeros_like(links[0]) if relation is None else relation
        kind, given = torch.cat([2 * kind, 2 * kind + 1]), links.flatten()
        answers, link = ends.within(links).flip(0).flatten(), torch.arange(links.shape[1]).repeat(2)
        num_kinds = int(kind.max()) + 1 if kind.numel() else 1
        asked, question = torch.unique(given * num_kinds + kind, return_inverse=True)
        order = question.argsort(stable=True)
        self._links, self._nodes = links, ends.nodes
        self._answers, self._link = answers[order], link[order]
        self._counts = torch.bincount(question, minlength=asked.numel())
        self._begins = self._counts.cumsum(0) - self._counts
        self._kind, node = asked % num_kinds, asked // num_kinds
        self._given = torch.searchsorted(self._nodes, node)
        self.num_inputs, self.edge_times = asked.numel(), cast("EdgeTimes | None", None)
        self._lookup: EdgeLookup | None = None

    def exclude(self, lookup: EdgeLookup) -> None:
        """Leave the links that answer a batch's questions, and their reverses, out of the draws."""
        self._lookup = lookup

    def seeds_of(
        self, positions: Tensor, epoch: int, step: int, part: tuple[int, int] | None = None
    ) -> BatchSeeds:
        """Return the seeds of a batch of the questions at ``positions``; epoch and step do not matter."""
        constraints = None
        if self._lookup is not None:
            excluded = self._lookup.between(self.links_of(positions), reverse=True)
            constraints = Constraints(excluded=excluded) if excluded.numel() else None
        own = positions if part is None else positions[slice(*part)]
        weight = self.num_inputs / max(1, self._answers.numel())
        return BatchSeeds(
            nodes=self._nodes,
            constraints=constraints,
            attributes={
                GIVEN: self._given[own],
                KIND: self._kind[own],
                COUNTS: self._counts[own],
                ANSWERS: self._answers[self._places(own)],
                WEIGHT: torch.tensor([weight], dtype=torch.float64),
            },
            own=None if part is None else torch.arange(self._nodes.numel()),
        )

    def links_of(self, positions: Tensor) -> Tensor:
        """Return the links that answer the questions at ``positions``, each once, ``(2, num)``."""
        return self._links[:, torch.unique(self._link[self._places(positions)])]

    def _places(self, positions: Tensor) -> Tensor:
        """Return the places of some questions' answers among all answers, question by question."""
        return ranges(self._begins[positions], self._counts[positions])
