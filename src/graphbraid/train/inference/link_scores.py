"""Evaluation of links: loss and AUC beside negatives, and filtered ranks among all nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from graphbraid.errors import ResourceError
from graphbraid.files.writing import format_bytes
from graphbraid.sampling import rng
from graphbraid.sampling.schedule import MOST_EPOCHS
from graphbraid.train.config import TrainConfig
from graphbraid.train.inference.metrics import AUC, LOSS, MRR, hits_of
from graphbraid.train.inference.ranking import Ranking, link_auc, rank_links
from graphbraid.train.step.links.runner import LinkRunner
from graphbraid.train.task import Task

PAIRS = 1 << 16
"""Number of pairs that are scored at a time."""
_DRAWN_IN = MOST_EPOCHS - 1  # epoch of the negatives of every evaluation; no run gets there


def score_links(
    runner: LinkRunner,
    config: TrainConfig,
    positions: Tensor,
    rows: Tensor,
    *,
    task: Task,
    metrics: Sequence[str],
    check: Callable[[], None] = lambda: None,
) -> dict[str, float]:
    """Return loss and metrics of the links at ``positions``.

    Loss and AUC compare each link with a pair of nodes that is no edge, the same in every evaluation. Ranks
    are those of both ends among all nodes, without other known links of the other end and the relation.

    Args:
        runner: the model and its graph.
        config: options of the run.
        positions: ``(num_links,)`` int64 positions in ``runner.labels``.
        rows: ``(num_nodes, channels)`` the encoder's rows of the nodes that links join.
        task: the loss.
        metrics: names of the metrics.
        check: function called between parts, which may raise to stop.
    """
    own, others = beside_negatives(runner, config, positions, rows, check)
    values = {LOSS: float(_loss(task, own, others))}
    hits = {name: k for name in metrics if (k := hits_of(name)) is not None}
    if AUC in metrics:
        values[AUC] = link_auc(own, others)
    if hits or MRR in metrics:
        ranking = ranking_of(runner, positions, rows, check)
        values |= {MRR: ranking.mrr} | {name: ranking.hits(k) for name, k in hits.items()}
    return {name: values[name] for name in (LOSS, *metrics)}


def check_rows_fit(num_nodes: int, channels: int, budget: int) -> None:
    """Check that the rows of all nodes fit the memory budget.

    Raises:
        ResourceError: they do not.
    """
    needed = 4 * num_nodes * channels
    if needed > budget:
        raise ResourceError(
            f"ranking links needs the rows of all {num_nodes} nodes, {format_bytes(needed)}; "
            f"memory_budget_bytes allows {format_bytes(budget)}. Raise it, or set eval_every=0 and "
            "test_at_end=False."
        )


def _loss(task: Task, own: Tensor, others: Tensor) -> Tensor:
    if task.width > 1:
        return task.loss(torch.stack([own, others], 1), torch.zeros(own.numel(), dtype=torch.int64))
    labels = torch.cat([torch.ones_like(own), torch.zeros_like(others)])
    return task.loss(torch.cat([own, others]).unsqueeze(1), labels)


def beside_negatives(
    runner: LinkRunner,
    config: TrainConfig,
    positions: Tensor,
    rows: Tensor,
    check: Callable[[], None] = lambda: None,
) -> tuple[Tensor, Tensor]:
    """Return the scores of the links, and of as many pairs that are no edges, each of its link's relation."""
    ends, relation = runner.labels.ends[:, positions], runner.labels.relations_at(positions)
    key = rng.batch_key(config.seed, _DRAWN_IN, 0)
    heads, tails = runner.negatives_of_evaluation().draw(key, ends[0].numpy(), None)
    drawn = torch.stack([torch.from_numpy(heads), torch.from_numpy(tails)])
    place = runner.data.ends.places
    own, others = (pair_scores(runner, rows, place(pairs), relation, check) for pairs in (ends, drawn))
    return own, others


def pair_scores(
    runner: LinkRunner,
    rows: Tensor,
    pairs: Tensor,
    relation: Tensor | None,
    check: Callable[[], None] = lambda: None,
) -> Tensor:
    """Return the scores of pairs of rows, ``(2, num_pairs)``, as ``(num_pairs,)`` float32."""
    found = [torch.empty(0)]
    for begin in range(0, pairs.shape[1], PAIRS):
        check()
        part = slice(begin, begin + PAIRS)
        src, dst = (rows[ends].to(runner.device) for ends in pairs[:, part])
        found.append(runner.score_pairs(src, dst, None if relation is None else relation[part]))
    return torch.cat(found)


def scores_with_all(
    runner: LinkRunner, rows: Tensor, check: Callable[[], None] = lambda: None, *, sources: bool = False
) -> Callable[..., Tensor]:
    """Return a function that scores nodes with all destinations, or with all ``sources``, of their links.

    It takes ``(b,)`` int64 ids within their type, and relations if there are, and returns ``(b, num)``.

    Args:
        runner: the model and its graph.
        rows: ``(num_nodes, channels)`` the encoder's rows of the nodes that links join.
        check: function called each time, which may raise to stop.
        sources: whether destinations are given, and scored with all sources.
    """
    of_sources, of_destinations = (rows[part].to(runner.device) for part in runner.data.ends.rows)
    of_given, of_all = (of_destinations, of_sources) if sources else (of_sources, of_destinations)

    def score(given: Tensor, relation: Tensor | None = None) -> Tensor:
        check()
        return runner.score_all(of_given[given.to(runner.device)], of_all, relation, sources=sources)

    return score


def ranking_of(
    runner: LinkRunner, positions: Tensor, rows: Tensor, check: Callable[[], None] = lambda: None
) -> Ranking:
    """Return the ranks of both ends of the links at ``positions`` among all nodes of their types."""
    links, ends = runner.labels, runner.data.ends
    return rank_links(
        scores_with_all(runner, rows, check),
        ends.within(links.ends[:, positions]),
        ends.counts[1],
        num_sources=ends.counts[0],
        relation=links.relations_at(positions),
        score_sources=scores_with_all(runner, rows, check, sources=True),
        known=ends.within(links.ends),
        known_relation=links.relation,
    )
