"""Metrics of link prediction: AUC of links against negatives, and ranks among all nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from graphbraid.arguments import as_count, check_tensor
from graphbraid.errors import ConfigError, DataError
from graphbraid.graph.csc import KeyLookup
from graphbraid.graph.scans import check_ids, first_out_of_range
from graphbraid.graph.types import MOST_RELATIONS
from graphbraid.machine.hardware import return_freed_blocks
from graphbraid.signatures import typed

ScoreFunction = Callable[..., Tensor]
"""Function of ``(b,)`` sources, and relations if there are, that returns their ``(b, num_nodes)`` scores."""

MOST_SCORES = 1 << 22
"""Scores computed at a time, if one link has not more: 16 MiB, which a processor's cache may hold, and less
than what the C library takes from the system and gives back each time."""


@dataclass(frozen=True, eq=False, slots=True)
class Ranking:
    """Ranks of the true links among the candidates.

    Raises:
        DataError: ``ranks`` is not a floating point tensor of one dimension.
    """

    ranks: Tensor
    """``(num_links,)`` float64 from 1, the best; of candidates with equal scores the mean."""

    def __post_init__(self) -> None:
        check_tensor(self.ranks, "ranks", ndim=1, floating=True)

    @property
    def mrr(self) -> float:
        """Mean of the ranks' reciprocals; 0 without links."""
        return float(self.ranks.reciprocal().mean()) if self.ranks.numel() else 0.0

    @typed
    def hits(self, k: int) -> float:
        """Return the share of links whose rank is at most ``k``; 0 without links.

        Raises:
            ConfigError: ``k`` is less than 1.
        """
        as_count(k, "k", least=1)
        return float((self.ranks <= k).double().mean()) if self.ranks.numel() else 0.0


@typed
def rank_links(
    score: ScoreFunction,
    links: Tensor,
    num_nodes: int,
    *,
    num_sources: int | None = None,
    relation: Tensor | None = None,
    score_sources: ScoreFunction | None = None,
    known: Tensor | None = None,
    known_relation: Tensor | None = None,
    most_scores: int = MOST_SCORES,
) -> Ranking:
    """Rank the destination of each link among all nodes by their scores with the link's source.

    Args:
        score: function of ``(b,)`` int64 sources that returns their ``(b, num_nodes)`` scores with all nodes,
            the higher the likelier; with ``relation`` it also gets the ``(b,)`` relations.
        links: ``(2, num_links)`` int64 sources and destinations to rank.
        num_nodes: number of nodes, all of which are candidates.
        num_sources: number of nodes that may be sources, where these are of another type and have ids of
            their own; ``num_nodes`` then counts the destinations. If None, both are nodes of one kind.
        relation: ``(num_links,)`` int64 relation of each link, from 0. If None, all are of one kind.
        score_sources: function of ``(b,)`` destinations, and relations, that returns their scores with all
            nodes as sources: sources are then ranked, too, and their ranks follow those of the destinations,
            ``(2 * num_links,)`` in all. If None, only destinations are ranked.
        known: ``(2, num_known)`` int64 links that are known to be true, such as those of training, validation
            and test together: they are left out of the candidates of other links with the same source and
            relation, or, where sources are ranked, the same destination and relation ("filtered"). If None,
            nothing is left out.
        known_relation: ``(num_known,)`` int64 relations of ``known``; given where ``relation`` is.
        most_scores: number of scores that are computed at a time, if one link has not more.

    Raises:
        ConfigError: a number is out of bounds, a relation is missing, or ``score`` returns another shape.
        DataError: a link's end is not a node, a relation does not fit the links, or a score is NaN.
    """
    as_count(num_nodes, "num_nodes", least=1)
    if num_sources is None:
        num_sources = num_nodes
    as_count(num_sources, "num_sources", least=1)
    as_count(most_scores, "most_scores", least=1, most=1 << 40)
    counts = num_sources, num_nodes
    src, dst = _checked(links, counts, "links")
    kind = _checked_relation(relation, src, "relation", "links")
    others, known_kind = None, None
    if known is not None:
        if (relation is None) != (known_relation is None):
            missing = "relation" if relation is None else "known_relation"
            raise ConfigError(f"relation and known_relation go together: {missing} is not given")
        others = _checked(known, counts, "known")
        known_kind = _checked_relation(known_relation, others[0], "known_relation", "known")
    ranks = []
    for function, one, other, end in ((score, src, dst, 0), (score_sources, dst, src, 1)):
        if function is None:
            continue
        beside = None
        if others is not None:
            return_freed_blocks()  # of the other end's scores: the look-up would lie between them
            beside = KnownLinks(others[end], others[1 - end], known_kind)
        return_freed_blocks()  # of the look-up: they are too small for scores
        candidates = counts[1 - end]
        per_call = max(most_scores // candidates, 1)
        shape = {"num_nodes": candidates, "per_call": per_call}
        ranks.append(_ranked(function, one, other, kind=kind, known=beside, **shape))
    return Ranking(torch.cat(ranks))


def _ranked(
    score: ScoreFunction,
    given: Tensor,
    wanted: Tensor,
    *,
    kind: Tensor | None,
    known: KnownLinks | None,
    num_nodes: int,
    per_call: int,
) -> Tensor:
    """Return the ranks of the nodes ``wanted`` among all, by their scores with the ends ``given``."""
    ranks, marks = torch.empty(given.numel(), dtype=torch.float64), None
    for begin in range(0, given.numel(), per_call):
        part = slice(begin, begin + per_call)
        kinds = None if kind is None else kind[part]
        with torch.no_grad():
            scores = (score(given[part]) if kinds is None else score(given[part], kinds)).detach()
        if scores.shape != (given[part].numel(), num_nodes):
            raise ConfigError(
                "score must return one row per source and one column per node, "
                f"({given[part].numel()}, {num_nodes}); got {tuple(scores.shape)}"
            )
        beside = None if known is None else known.of(given[part], kinds)
        if marks is None:  # once: the system would clear its memory each time
            # Their sums are exact; PyTorch adds booleans several times slower.
            exact = torch.float32 if num_nodes <= 1 << 24 else torch.float64
            marks = torch.empty_like(scores, dtype=exact)
        ranks[part] = _ranks(scores, wanted[part], beside, begin, marks[: scores.shape[0]])
        del scores  # before the next ones are computed
    return ranks


@typed
def link_auc(positive: Tensor, negative: Tensor) -> float:
    """Return the probability that a true link's score is above a negative's; equal scores count as one half.

    Args:
        positive: ``(num_links,)`` scores of true links.
        negative: ``(num_negatives,)`` scores of negatives.

    Raises:
        DataError: one of them is empty, not of one dimension, or holds NaN.
    """
    for name, scores in (("positive", positive), ("negative", negative)):
        check_tensor(scores, name, ndim=1)
        if not scores.numel() or bool(scores.isnan().any()):
            raise DataError(f"{name} must hold at least one score and no NaN; got {scores.numel()} scores")
    ordered = np.sort(negative.detach().cpu().double().numpy())
    values = positive.detach().cpu().double().numpy()
    below = np.searchsorted(ordered, values, side="left")
    up_to = np.searchsorted(ordered, values, side="right")
    return float((below + up_to).sum() / (2 * len(values) * len(ordered)))


def _checked(links: Tensor, counts: tuple[int, int], name: str) -> tuple[Tensor, Tensor]:
    if check_tensor(links, name).ndim != 2 or links.shape[0] != 2:
        raise DataError(f"{name} must have shape (2, num_links); got {tuple(links.shape)}")
    for ends, count, end in zip(links, counts, ("sources", "destinations"), strict=True):
        check_ids(ends, count, f"{end} of {name}")
    return links[0].long(), links[1].long()


def _checked_relation(relation: Tensor | None, ends: Tensor, name: str, of: str) -> Tensor | None:
    if relation is None:
        return None
    if check_tensor(relation, name, ndim=1).shape != ends.shape:
        raise DataError(f"{name} must have an entry for each of {ends.numel()} {of}; got {relation.numel()}")
    relation = relation.long()
    at = first_out_of_range(relation, MOST_RELATIONS)
    if at >= 0:
        raise DataError(f"{name} must be in [0, {MOST_RELATIONS}); {name}[{at}] is {int(relation[at])}")
    return relation


class KnownLinks:
    """The known links of each end and relation, found by binary search.

    All are ``(num_known,)``. Links are looked up by ``ends``. ``kind`` is None if there is one relation.
    """

    def __init__(self, ends: Tensor, others: Tensor, kind: Tensor | None) -> None:
        order = others.argsort()
        keys, by_key = _keys(ends, kind)[order].sort(stable=True)
        others = others[order[by_key]]
        is_new = torch.ones_like(keys, dtype=torch.bool)
        is_new[1:] = (keys[1:] != keys[:-1]) | (others[1:] != others[:-1])
        self._others, self._lookup = others[is_new], KeyLookup(keys[is_new])

    def of(self, ends: Tensor, kind: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return for each different known link of some ends its place among these, and its other end."""
        row, place = self._lookup.places(_keys(ends, kind))
        return row, self._others[place]


def _keys(ends: Tensor, kind: Tensor | None) -> Tensor:
    return ends if kind is None else ends * MOST_RELATIONS + kind


def _ranks(
    scores: Tensor, wanted: Tensor, known: tuple[Tensor, Tensor] | None, first: int, marks: Tensor
) -> Tensor:
    """Return the ranks of one node per row of ``scores``, without those known; ``marks`` is overwritten."""
    row = torch.arange(wanted.numel(), device=scores.device)
    own = scores[row, wanted.to(scores.device)]
    bad = scores.amax(1).isnan().nonzero()  # the largest of numbers and a NaN is NaN
    if bad.numel():
        raise DataError(f"score must return numbers; NaN is among the scores of link {first + int(bad[0])}")
    above = torch.gt(scores, own[:, None], out=marks).sum(1)
    alike = torch.eq(scores, own[:, None], out=marks).sum(1) - 1
    ranks = (1 + above.double() + alike.double() / 2).cpu()
    if known is not None:
        row, column = (places.to(scores.device) for places in known)
        others, mine = scores[row, column], own[row]
        shares = (others > mine) + (others == mine) / 2
        shares *= column != wanted.to(scores.device)[row]
        ranks.index_add_(0, known[0], -shares.double().cpu())
    return ranks
