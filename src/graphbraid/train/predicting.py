"""LinkPredictions: what a trainer of links predicts: scores of pairs, and the likeliest links of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from torch import Tensor

from graphbraid.errors import ConfigError
from graphbraid.signatures import typed
from graphbraid.train.inference.evaluate import EvalMode
from graphbraid.train.inference.link_predictions import TopLinks, link_scores, top_links
from graphbraid.train.step.links.runner import LinkRunner

if TYPE_CHECKING:
    from graphbraid.train.trainer import Trainer


class LinkPredictions:
    """The part of :class:`graphbraid.Trainer` that predicts links."""

    @typed
    def predict_links(
        self,
        links: Tensor | Sequence[Sequence[int]],
        relation: Tensor | Sequence[int] | None = None,
        *,
        probabilities: bool = False,
        mode: EvalMode = "exact",
    ) -> Tensor:
        """Return the scores of pairs of nodes, the higher the likelier a link; for ``task="link"``.

        Args:
            links: ``(2, num_links)`` ids of sources and destinations, each within its node type.
            relation: ``(num_links,)`` relation of each, by its place in ``graph.edge_types``, for predictors
                of relations.
            probabilities: whether to apply the sigmoid, which has a meaning after ``negatives="binary"``.
            mode: ``exact`` or ``sampled`` neighbourhoods of the nodes.

        Returns:
            ``(num_links,)`` float32 on the CPU.

        Raises:
            ConfigError: an id is out of range, a relation is missing, or the task is another one.
            ResourceError: exact inference does not fit the budget.
        """
        trainer, runner = self._of_links("predict_links")
        with trainer.turn(mode):
            scores = link_scores(runner, trainer.config, links, relation, mode)
        return scores.sigmoid() if probabilities else scores

    @typed
    def top_links(
        self,
        nodes: Tensor | Sequence[int],
        relation: Tensor | Sequence[int] | None = None,
        *,
        k: int = 10,
        sources: bool = False,
        known: bool = False,
        mode: EvalMode = "exact",
    ) -> TopLinks:
        """Return the ``k`` likeliest destinations of links from each of some nodes; for ``task="link"``.

        Args:
            nodes: ``(num,)`` ids of sources within their type, in any order and possibly repeated.
            relation: ``(num,)`` relation of each link to find, as in :meth:`predict_links`.
            k: number of destinations of each.
            sources: whether ``nodes`` are destinations, whose likeliest sources are returned.
            known: whether the links of the graph, and a node itself, are listed, too.
            mode: ``exact`` or ``sampled`` neighbourhoods of the nodes.

        Returns:
            ``(num, k)`` ids of nodes, best first, and their ``(num, k)`` float32 scores. Where fewer than
            ``k`` nodes are left, the others are -1 with a score of ``-inf``.

        Raises:
            ConfigError: an id is out of range, a relation is missing, or the task is another one.
            ResourceError: the rows of all nodes do not fit the budget.
        """
        trainer, runner = self._of_links("top_links")
        with trainer.turn(mode):
            return top_links(runner, trainer.config, nodes, relation, mode, k=k, sources=sources, known=known)

    def _of_links(self, name: str) -> tuple[Trainer, LinkRunner]:
        trainer = cast("Trainer", self)
        if not isinstance(trainer.runner, LinkRunner):
            raise ConfigError(f"{name} needs task='link'; predict gives the outputs of nodes.")
        return trainer, trainer.runner
