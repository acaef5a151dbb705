"""Metrics of link prediction: AUC of links against negatives, and ranks among all nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from graphbraid.arguments import as_count, check_tensor
from graphbraid.errors import ConfigError, DataError
from graphbraid.graph.csc import Csc, coo_to_csc
from graphbraid.graph.scans import check_ids
from graphbraid.signatures import typed

Score = Callable[[Tensor], Tensor]
"""Function of ``(b,)`` sources that returns their ``(b, num_nodes)`` scores with all nodes."""


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
    score: Score,
    links: Tensor,
    num_nodes: int,
    *,
    known: Tensor | None = None,
    most_scores: int = 1 << 24,
) -> Ranking:
    """Rank the destination of each link among all nodes by their scores with the link's source.

    Args:
        score: function of ``(b,)`` int64 sources that returns their ``(b, num_nodes)`` scores with all nodes,
            the higher the likelier.
        links: ``(2, num_links)`` int64 sources and destinations to rank.
        num_nodes: number of nodes, all of which are candidates.
        known: ``(2, num_known)`` int64 links that are known to be true, such as those of training, validation
            and test together: they are left out of the candidates of their source's other links ("filtered").
            If None, nothing is left out.
        most_scores: number of scores that are computed at a time, if one link has not more.

    Raises:
        ConfigError: a number is out of bounds, or ``score`` returns another shape.
        DataError: a link's end is not a node, or a score is NaN.
    """
    as_count(num_nodes, "num_nodes", least=1)
    per_call = max(as_count(most_scores, "most_scores", least=1, most=1 << 40) // num_nodes, 1)
    src, dst = _checked(links, num_nodes, "links")
    others = None if known is None else _checked(known, num_nodes, "known")
    filtered: Csc | None = None
    ranks = torch.empty(src.numel(), dtype=torch.float64)
    for begin in range(0, src.numel(), per_call):
        part = slice(begin, begin + per_call)
        with torch.no_grad():
            scores = score(src[part]).detach()
        if scores.shape != (src[part].numel(), num_nodes):
            raise ConfigError(
                "score must return one row per source and one column per node, "
                f"({src[part].numel()}, {num_nodes}); got {tuple(scores.shape)}"
            )
        if others is not None and filtered is None:
            filtered = _by_source(*others, num_nodes)
        ranks[part] = _ranks(_copied(scores), src[part], dst[part], filtered, begin)
    return Ranking(ranks)


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


def _checked(links: Tensor, num_nodes: int, name: str) -> tuple[Tensor, Tensor]:
    if check_tensor(links, name).ndim != 2 or links.shape[0] != 2:
        raise DataError(f"{name} must have shape (2, num_links); got {tuple(links.shape)}")
    for ends, end in zip(links, ("sources", "destinations"), strict=True):
        check_ids(ends, num_nodes, f"{end} of {name}")
    return links[0].long(), links[1].long()


def _by_source(src: Tensor, dst: Tensor, num_nodes: int) -> Csc:
    """Return the known destinations of each source, as the rows of an adjacency."""
    return coo_to_csc(dst, src, num_nodes, num_nodes, keep_perm=False)[0]


def _copied(scores: Tensor) -> Tensor:
    return scores.clone() if scores.is_floating_point() else scores.double()


def _ranks(scores: Tensor, src: Tensor, dst: Tensor, filtered: Csc | None, first: int) -> Tensor:
    """Return the ranks of some links from their sources' scores with all nodes, which are overwritten."""
    row = torch.arange(src.numel(), device=scores.device)
    column = dst.to(scores.device)
    own = scores[row, column].clone()
    bad = scores.isnan().any(1).nonzero()
    if bad.numel():
        raise DataError(f"score must return numbers; NaN is among the scores of link {first + int(bad[0])}")
    if filtered is not None:
        starts, ends = filtered.indptr[src], filtered.indptr[src + 1]
        counts = ends - starts
        offset = torch.arange(int(counts.sum())) - (counts.cumsum(0) - counts).repeat_interleave(counts)
        others = filtered.indices[starts.repeat_interleave(counts) + offset].long().to(scores.device)
        scores[row.repeat_interleave(counts.to(scores.device)), others] = torch.nan  # neither above nor alike
        scores[row, column] = own
    above = (scores > own[:, None]).sum(1)
    alike = (scores == own[:, None]).sum(1) - 1
    return (1 + above + alike.double() / 2).cpu()
