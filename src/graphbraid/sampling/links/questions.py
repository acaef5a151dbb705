"""QuestionSeeds: mini-batches of questions for the other ends of links, with all answers."""

from __future__ import annotations

import torch
from torch import Tensor

from graphbraid.sampling.batch_seeds import BatchSeeds, Constraints, EdgeTimes
from graphbraid.sampling.links.edge_lookup import EdgeLookup
from graphbraid.sampling.links.link_seeds import LinkEnds

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
        self._lookup: EdgeLookup | None = None

    def exclude(self, lookup: EdgeLookup) -> None:
        """Leave the links that answer a batch's questions, and their reverses, out of the draws."""
        self._lookup = lookup

    @property
    def num_inputs(self) -> int:
        """Number of questions."""
        return self._given.numel()

    @property
    def edge_times(self) -> EdgeTimes | None:
        """None: all nodes answer every question, and none has a time of its own."""
        return None

    def seeds_of(
        self, positions: Tensor, epoch: int, step: int, part: tuple[int, int] | None = None
    ) -> BatchSeeds:
        """Return the seeds of a batch of the questions at ``positions``; epoch and step do not matter."""
        constraints = None
        if self._lookup is not None:
            links = self._links[:, torch.unique(self._link[self._places(positions)])]
            excluded = self._lookup.between(links, reverse=True)
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

    def _places(self, positions: Tensor) -> Tensor:
        """Return the places of some questions' answers among all answers, question by question."""
        counts = self._counts[positions]
        first = self._begins[positions] - (counts.cumsum(0) - counts)
        return torch.arange(int(counts.sum())) + first.repeat_interleave(counts)
