"""How often rows will be read: from the graph, from the sampler's walks on it, or counted in sampled batches.

A row is read when a walk against the edges reaches its node. Each score is the expectation of such a walk:
degrees, PageRanks, inclusion probabilities. Some follow the sampler closely, others do not. All are summed in
whole numbers (csrc/graph/scores.cpp), so their bits do not depend on the number of threads. They depend on
the nodes' numbering only if draws use weights.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from graphbraid import native
from graphbraid.arguments import MOST_THREADS, as_count, check_type
from graphbraid.errors import ConfigError
from graphbraid.features import reference
from graphbraid.graph import Graph
from graphbraid.graph.csc import Csc
from graphbraid.graph.scans import check_ids
from graphbraid.ops import rng
from graphbraid.sampling.config import MOST_EPOCHS, SamplerConfig, SeedSchedule
from graphbraid.sampling.cpu import make_pipeline
from graphbraid.signatures import typed

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
    """Reverse PageRank with more walks that begin at training nodes, ``(num_nodes,)`` float64.

    Algorithm 1 of Min et al., "Graph Neural Network Training with Data Tiering": scores begin at ``1 /
    num_nodes``, those of training nodes ``num_nodes / num_train`` times as high; repeated ones count once. It
    stops after few rounds on purpose, since a converged score does not depend on its start. In-degrees of 0
    divide nothing: no node would receive the quotient.
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


_OTHER_SEED = 0x6F74686572


@typed
def batch_reads(
    graph: Graph,
    sampler: SamplerConfig,
    schedule: SeedSchedule,
    epochs: int | range = 1,
    *,
    steps: range | None = None,
    workers: int | None = None,
) -> Iterator[Tensor]:
    """The ``n_id`` of each coming batch in the order of steps, as a loader of these settings will gather it.

    Threads sample batches ahead. A batch is dropped once the next is taken, so memory does not grow with
    their number. Each tensor keeps its batch alive: clone the tensors that you keep.

    Args:
        graph: the graph; its features are not touched.
        sampler: options of the sampler.
        schedule: seeds of the steps.
        epochs: number of first epochs, or a range of epochs.
        steps: steps of every epoch; None: all.
        workers: number of threads; None takes PyTorch's.

    Returns:
        An iterator of ``(num_nodes_of_batch,)`` int64; a seed that is twice in a step is there twice.

    Raises:
        ConfigError: epochs or steps do not exist, or there are no seeds.
        DataError: seeds are outside the graph, or the sampler needs weights and they are missing or negative.
    """
    last = _as_steps(steps, schedule).stop
    first = 0 if steps is None else steps.start
    parts = ((epoch, first, last) for epoch in as_epochs(epochs))
    return _reads(graph, sampler, schedule, parts, workers)


def spread_reads(
    graph: Graph,
    sampler: SamplerConfig,
    schedule: SeedSchedule,
    *,
    epoch: int = 0,
    count: int,
    workers: int | None = None,
) -> Iterator[Tensor]:
    """:func:`batch_reads` of ``count`` steps spread evenly over an epoch, or of all where there are fewer."""
    last = _as_steps(None, schedule).stop
    if count >= last:
        return _reads(graph, sampler, schedule, [(epoch, 0, last)], workers)
    first = [last * part // count for part in range(count)]
    return _reads(graph, sampler, schedule, [(epoch, step, step + 1) for step in first], workers)


def count_reads(batches: Iterable[Tensor], num_nodes: int) -> Tensor:
    """Count each row's reads by batches, given by their ``n_id``: ``(num_nodes,)`` int64."""
    counts = torch.zeros(num_nodes, dtype=torch.int64)
    add = backend().count_ids
    for n_id in batches:
        add(n_id, counts)
    return counts


def with_other_seed(schedule: SeedSchedule) -> SeedSchedule:
    """Return a schedule of the same seeds with another random seed."""
    return dataclasses.replace(schedule, seed=rng.mix(schedule.seed ^ _OTHER_SEED) >> 1)


def as_epochs(epochs: int | range) -> Sequence[int]:
    """Return a range of epochs, from their number or a range; ConfigError if empty or out of bounds."""
    if isinstance(epochs, range):
        if epochs.step != 1 or not epochs or epochs.start < 0 or epochs.stop > MOST_EPOCHS:
            raise ConfigError(
                f"epochs must be a rising range of at least one epoch from 0 on, such as range(3, 5); "
                f"got {epochs}"
            )
        return epochs
    return range(as_count(epochs, "epochs", least=1, most=MOST_EPOCHS))


def _as_steps(steps: range | None, schedule: SeedSchedule) -> range:
    check_type(schedule, "schedule", SeedSchedule, "a SeedSchedule", error=ConfigError)
    if not schedule.num_steps:
        raise ConfigError("the schedule has no seeds, and so no batches; give it some")
    if steps is None:
        return range(schedule.num_steps)
    if steps.step != 1 or not steps or steps.start < 0 or steps.stop > schedule.num_steps:
        raise ConfigError(
            f"steps must be a rising range of at least one in [0, {schedule.num_steps}); got {steps}"
        )
    return steps


def _reads(
    graph: Graph,
    sampler: SamplerConfig,
    schedule: SeedSchedule,
    parts: Iterable[tuple[int, int, int]],
    workers: int | None,
) -> Iterator[Tensor]:
    """Yield the reads of parts of epochs, given as epoch, first step, and the step after the last."""
    check_ids(schedule.seeds, graph.num_nodes, "seeds")
    threads = torch.get_num_threads() if workers is None else workers
    threads = as_count(threads, "workers", least=1, most=MOST_THREADS)
    config = dataclasses.replace(sampler, return_edge_id=False)  # no node depends on it
    pipeline = make_pipeline(graph, config, num_threads=threads, depth=2 * threads)
    runs = (pipeline.run(schedule, *part) for part in parts)
    # no generator of batches: it would hold one while the next is waited for
    return map(attrgetter("sampled.n_id"), itertools.chain.from_iterable(runs))
