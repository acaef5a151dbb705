"""What a step is trained on: a sampled mini-batch, or the whole graph as one batch."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from graphbraid.sampling.minibatch import MiniBatch


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class WholeGraph:
    """The whole graph as one batch; its tensors lie on the model's device."""

    nodes: Tensor
    """``(batch_size,)`` int64 ids of the seeds: the nodes whose outputs are trained on."""
    seed_y: Tensor
    """The seeds' labels: rows of ``Graph.y``."""

    @property
    def batch_size(self) -> int:
        """Number of seeds."""
        return self.nodes.numel()


Batch = MiniBatch | WholeGraph
"""Both have ``batch_size`` seeds and their labels, ``seed_y``; ``ModelRunner.outputs_of`` runs the model."""
