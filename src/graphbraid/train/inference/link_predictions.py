"""Predictions of a model of links: scores of pairs of nodes, and the likeliest other ends of nodes."""

from typing import NamedTuple

import torch
from torch import Tensor

from graphbraid.arguments import as_count
from graphbraid.errors import ConfigError
from graphbraid.graph.interop.convert import as_tensor
from graphbraid.nn.module_traits import in_mode
from graphbraid.train.config import TrainConfig
from graphbraid.train.inference.evaluate import EvalMode, encoder_rows, pair_scores, scores_with_all
from graphbraid.train.inference.ranking import MOST_SCORES, KnownLinks
from graphbraid.train.step.links.runner import LinkRunner
from graphbraid.train.step.runner import ModelRunner

NOBODY = -1
"""Stands in :class:`TopLinks` for a node where fewer than ``k`` are left."""


class TopLinks(NamedTuple):
    """The likeliest other ends of some nodes, best first."""

    nodes: Tensor
    """``(num, k)`` int64 ids within their type; -1 where fewer than ``k`` are left."""
    scores: Tensor
    """``(num, k)`` float32; ``-inf`` there."""


def link_scores(
    runner: ModelRunner, config: TrainConfig, links: object, relation: object, mode: EvalMode
) -> Tensor:
    """Return the scores of pairs of nodes given by a caller, ``(num_links,)`` float32 on the CPU."""
    runner = _of_links(runner, "predict_links")
    pairs = _as_whole(links, "links", "a (2, num_links) list of node ids")
    if pairs.ndim != 2 or pairs.shape[0] != 2 or not pairs.shape[1]:
        raise ConfigError(f"links must be of shape (2, num_links), not empty; got {tuple(pairs.shape)}.")
    ends = runner.data.ends
    for row, of in enumerate(("sources", "destinations")):
        _check_ids(pairs[row], ends.counts[row], f"{of} of links", ends.types[row])
    kind = _relations(runner, relation, pairs.shape[1])
    ids, place = torch.unique(ends.whole(pairs), return_inverse=True)
    with in_mode(runner.model, training=False):
        rows = encoder_rows(runner, config, ids, mode)
        return pair_scores(runner, rows, place, kind)


def top_links(
    runner: ModelRunner,
    config: TrainConfig,
    nodes: object,
    relation: object,
    mode: EvalMode,
    *,
    k: int,
    sources: bool,
    known: bool,
) -> TopLinks:
    """Return the ``k`` likeliest destinations (``sources``: sources) of links of nodes given by a caller."""
    runner = _of_links(runner, "top_links")
    ends = runner.data.ends
    given = _as_whole(nodes, "nodes", "a list of node ids")
    if given.ndim != 1 or not given.numel():
        raise ConfigError(f"nodes must be a list of node ids, not empty; got shape {tuple(given.shape)}.")
    _check_ids(given, ends.counts[sources], "nodes", ends.types[sources])
    most = as_count(k, "k", least=1)
    kind = _relations(runner, relation, given.numel())
    num_candidates = ends.counts[1 - sources]
    found_nodes = torch.full((given.numel(), most), NOBODY)
    found_scores = torch.full((given.numel(), most), -torch.inf)
    left_out = None if known else _known(runner, given, sources)
    with in_mode(runner.model, training=False):
        score = scores_with_all(runner, encoder_rows(runner, config, ends.nodes, mode), sources=sources)
        per_call = max(MOST_SCORES // num_candidates, 1)
        for begin in range(0, given.numel(), per_call):
            part = slice(begin, begin + per_call)
            kinds = None if kind is None else kind[part]
            scores = score(given[part], kinds).clone().cpu()
            if left_out is not None:
                scores[left_out.of(given[part], kinds)] = -torch.inf
                if ends.are_alike:
                    scores[torch.arange(scores.shape[0]), given[part]] = -torch.inf
            best, at = scores.topk(min(most, num_candidates), dim=1)
            found_scores[part, : best.shape[1]] = best
            found_nodes[part, : best.shape[1]] = at.where(best > -torch.inf, NOBODY)
    return TopLinks(found_nodes, found_scores)


def _of_links(runner: ModelRunner, name: str) -> LinkRunner:
    """Return the runner if it is one of links; else refuse the Trainer's method ``name``."""
    if not isinstance(runner, LinkRunner):
        raise ConfigError(f"{name} needs task='link'; predict gives the outputs of nodes.")
    return runner


def _known(runner: LinkRunner, given: Tensor, sources: bool) -> KnownLinks:
    links = runner.labels
    ends = runner.data.ends.within(links.beside(runner.data.ends.whole(given.expand(2, -1))))
    kind = None if runner.num_relations is None else links.relation
    return KnownLinks(ends[int(sources)], ends[1 - sources], kind)


def _relations(runner: LinkRunner, relation: object, count: int) -> Tensor | None:
    """Return the relations given by a caller, one for each link or node; None if the predictor knows none."""
    if runner.num_relations is None:
        if relation is not None:
            raise ConfigError("the predictor knows no relations; leave relation out.")
        return None
    if relation is None:
        raise ConfigError(f"relation must say, for each link, which of {runner.num_relations} it is of.")
    kind = _as_whole(relation, "relation", "a (num_links,) list of relations")
    inside = (kind >= 0) & (kind < runner.num_relations)
    if kind.shape != (count,) or not bool(inside.all()):
        raise ConfigError(
            f"relation must have {count} entries in [0, {runner.num_relations}), one for each link; got "
            f"{tuple(kind.shape)}" + ("." if bool(inside.all()) else f" with {int(kind[~inside][0])}.")
        )
    return kind


def _as_whole(values: object, name: str, wanted: str) -> Tensor:
    numbers = as_tensor(values, name)
    if numbers.is_floating_point() or numbers.is_complex() or numbers.dtype == torch.bool:
        raise ConfigError(f"{name} must be {wanted}; got {numbers.dtype}.")
    return numbers.long().cpu()


def _check_ids(ids: Tensor, count: int, name: str, node_type: str) -> None:
    outside = ((ids < 0) | (ids >= count)).nonzero()
    if outside.numel():
        at = int(outside[0])
        raise ConfigError(
            f"{name} must be ids of nodes of type {node_type!r}, in [0, {count}); entry {at} is "
            f"{int(ids[at])}."
        )
