"""Batch: what a step is trained on, either a sampled mini-batch or the whole graph."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from graphbraid.sampling.minibatch.mini_batch import MiniBatch
from graphbraid.sampling.minibatch.typed_mini_batch import TypedMiniBatch


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class WholeGraph:
    """The whole graph as one batch, with tensors on the model's device."""

    nodes: Tensor
    """Ids of the seeds, the nodes whose outputs are trained on: ``(batch_size,)`` int64."""
    seed_y: Tensor
    """Labels of the seeds: rows of ``Graph.y``."""

    @property
    def batch_size(self) -> int:
        """Number of seeds."""
        return self.nodes.numel()


Batch = MiniBatch | TypedMiniBatch | WholeGraph
"""A batch of ``batch_size`` seeds with labels ``seed_y``; ``ModelRunner.outputs_of`` runs the model on it."""
