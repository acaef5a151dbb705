"""Scores from the graph or from the sampler's walks on it: degrees, PageRanks, inclusion probabilities.

A row is read when a walk against the edges reaches its node. Each score is the expectation of such a walk.
Some follow the sampler closely, others do not. All are summed in whole numbers (csrc/graph/scores.cpp), so
their bits do not depend on the number of threads. They depend on the nodes' numbering only if draws use
weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from graphbraid import native
from graphbraid.features import reference
from graphbraid.graph.csc import Csc
from graphbraid.sampling.config import SamplerConfig, SeedSchedule

DAMPING = 0.85
ROUNDS = 5
"""Rounds of the weighted reverse PageRank: after more of them the start has no influence."""
MOST_ROUNDS = 100
CONVERGED = 1e-4
"""Largest change of a node's score in the last round of the reverse PageRank, as a part of the mean score."""


def backend() -> Any:
    """Return the compiled walks, or their twins."""
    return native.kernels() or reference


def out_degree(csc: Csc) -> Tensor:
    """Return the number of each node's out-edges: ``(num_nodes,)`` float64."""
    return _pushed(csc, torch.ones(csc.num_dst, dtype=torch.int64)).double()


def reverse_pagerank(csc: Csc, *, damping: float = DAMPING) -> Tensor:
    """Reverse PageRank: the long-run probability that a walk against the edges is at each node.

    A walk goes from a node to the source of one of its in-edges, or, with probability ``1 - damping``, to any
    node. It ends at a node without in-edges, as in :func:`weighted_reverse_pagerank`.

    Returns:
        ``(num_nodes,)`` float64.
    """
    scores = torch.ones(csc.num_dst, dtype=torch.float64)
    for _ in range(MOST_ROUNDS):
        before, scores = scores, _round(csc, scores, damping)
        if not scores.numel() or float((scores - before).abs_().max()) <= CONVERGED:
            break
    return scores.div_(max(csc.num_dst, 1))


def weighted_reverse_pagerank(
    csc: Csc, train_ids: Tensor, *, damping: float = DAMPING, rounds: int = ROUNDS
) -> Tensor:
    """Reverse PageRank with more walks that begin at training nodes.

    Algorithm 1 of Min et al., "Graph Neural Network Training with Data Tiering": scores begin at ``1 /
    num_nodes``, those of training nodes ``num_nodes / num_train`` times as high. It stops after few rounds on
    purpose, since a converged score does not depend on its start. In-degrees of 0 divide nothing: no node
    would receive the quotient.

    Args:
        csc: the graph.
        train_ids: ``(num_train,)`` int64 node ids, at least one; repeated ones count once.
        damping: weight of the scores that are handed on.
        rounds: number of times that scores are handed on.

    Returns:
        ``(num_nodes,)`` float64.
    """
    scores = torch.ones(csc.num_dst, dtype=torch.float64)
    train_ids = torch.unique(train_ids)
    scores[train_ids] = csc.num_dst / train_ids.numel()
    for _ in range(rounds):
        scores = _round(csc, scores, damping)
    return scores.div_(csc.num_dst)


def inclusion(csc: Csc, sampler: SamplerConfig, schedule: SeedSchedule) -> Tensor:
    """Return the expected number of an epoch's batches that read each node's row.

    These are the sampler's hops in expectation. The schedule gives the probability that a seed is in a batch.
    Fanout, replacement and weights give the probability that a node draws an in-neighbour (an approximation
    for weights without replacement). Draws are taken as independent, even of the batch's earlier nodes; in
    truth nodes near the same seeds share batches. An unshuffled schedule is treated like a shuffled one.

    Returns:
        ``(num_nodes,)`` float64, at most the number of steps.
    """
    missed = torch.ones(csc.num_dst, dtype=torch.float64)
    for hop in _hops(csc, sampler, schedule):
        missed = hop.missed  # which later hops lower in place
    return (1.0 - missed).mul_(schedule.num_steps)


def expansions(csc: Csc, sampler: SamplerConfig, schedule: SeedSchedule) -> Iterator[tuple[int, Tensor]]:
    """Yield each hop's fanout and the expected number of draws from each node's in-edges in an epoch.

    This is the number of reads of its adjacency list: one for each hop that finds it, and in layout
    ``blocks`` also for each later hop. Its row is read once a batch (:func:`inclusion`).

    Returns:
        An iterator of fanouts and ``(num_nodes,)`` float64.
    """
    for hop in _hops(csc, sampler, schedule):
        yield hop.fanout, hop.draws * schedule.num_steps


class _Hop(NamedTuple):
    fanout: int
    draws: Tensor
    """Probability that a node draws at this hop of a batch, ``(num_nodes,)`` float64."""
    missed: Tensor
    """Probability that a node is in no hop before this one; updated after the hop."""


def _hops(csc: Csc, sampler: SamplerConfig, schedule: SeedSchedule) -> Iterator[_Hop]:
    """Yield the hops of a batch in expectation; see :func:`inclusion`."""
    num_seeds, steps = schedule.seeds.numel(), schedule.num_steps
    copies = torch.bincount(schedule.seeds, minlength=csc.num_dst)
    draws = (copies.double() * (schedule.num_used / (steps * num_seeds))).clamp_(max=1.0)
    missed = 1.0 - draws
    sums = torch.empty(csc.num_dst, dtype=torch.int64)
    weight = csc.weight if sampler.weighted else None
    for fanout in sampler.fanouts:
        yield _Hop(fanout, draws, missed)
        before = missed.clone()
        backend().push_draws(csc.indptr, csc.indices, weight, draws, fanout, sampler.replace, sums, missed)
        # The next hop draws for what this one found, or for all that is known.
        draws = 1.0 - missed if sampler.layout == "blocks" else before.sub_(missed)


def _round(csc: Csc, scores: Tensor, damping: float) -> Tensor:
    """Hand every node's score on to its in-neighbours in equal shares. The mean score begins at 1."""
    # Scores sum to less than twice the nodes, and shares are rounded down: no sum reaches 2**62.
    unit = 2.0 ** (62 - (2 * csc.num_dst).bit_length())
    shares = (scores / csc.degrees().clamp_(min=1)).mul_(unit).long()
    return _pushed(csc, shares).double().mul_(damping / unit).add_(1.0 - damping)


def _pushed(csc: Csc, shares: Tensor) -> Tensor:
    sums = torch.empty(csc.num_dst, dtype=torch.int64)
    backend().push_shares(csc.indptr, csc.indices, shares, sums)
    return sums
