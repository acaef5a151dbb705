"""BatchSeeds: the nodes that a mini-batch starts from, and what else is known of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from graphbraid.sampling.constraints import Constraints, EdgeTimes
from graphbraid.sampling.sample import Sampled


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class BatchSeeds:
    """What one mini-batch is sampled from."""

    nodes: Tensor
    """``(num_seeds,)`` int64 node ids; in disjoint trees, each has its own."""
    constraints: Constraints | None = None
    """What its draws keep to. If None, they are free."""
    inputs: Tensor | None = None
    """Number of the input that each seed belongs to, ``(num_seeds,)`` int64; only of disjoint trees."""
    attributes: Mapping[str, Tensor] = field(default_factory=dict)
    """Further attributes of the batch, such as ``edge_label_index``."""

    def attributes_of(self, sampled: Sampled) -> dict[str, Tensor]:
        """Return what the batch has beside the attributes that its source gives."""
        if sampled.trees is None or self.inputs is None:
            return dict(self.attributes)
        return {"batch": self.inputs[sampled.trees], **self.attributes}


class SeedSource(Protocol):
    """The inputs of a loader, as the seeds of batches: a pure function of their positions, epoch and step."""

    @property
    def num_inputs(self) -> int:
        """Number of inputs that batches have positions of, such as links."""
        ...

    @property
    def edge_times(self) -> EdgeTimes | None:
        """When each edge of the graph arose, where seeds have times."""
        ...

    def seeds_of(self, positions: Tensor, epoch: int, step: int) -> BatchSeeds:
        """Return the seeds of a batch of the inputs at ``positions``, ``(num,)`` int64."""
        ...


class TreeSeeds:
    """Nodes that mini-batches start from, each with a disjoint tree of its own.

    Args:
        nodes: ``(num_seeds,)`` int64 node ids.
        times: ``(num_seeds,)`` int64: the tree of each seed has edges up to this time. If None, any.
        edge_times: when each edge of the graph arose; given with ``times``.
        shown_times: ``(num_seeds,)`` times as the user gave them, which batches have as ``seed_time``.
    """

    def __init__(
        self,
        nodes: Tensor,
        *,
        times: Tensor | None = None,
        edge_times: EdgeTimes | None = None,
        shown_times: Tensor | None = None,
    ) -> None:
        self._nodes, self._times, self._shown_times = nodes, times, shown_times
        self._edge_times = edge_times

    @property
    def num_inputs(self) -> int:
        """Number of nodes."""
        return self._nodes.numel()

    @property
    def edge_times(self) -> EdgeTimes | None:
        """When each edge of the graph arose, where nodes have times."""
        return self._edge_times

    def seeds_of(self, positions: Tensor, epoch: int, step: int) -> BatchSeeds:
        """Return the seeds of a batch of the nodes at ``positions``, which no epoch or step changes."""
        times = None if self._times is None else self._times[positions]
        shown = {} if self._shown_times is None else {"seed_time": self._shown_times[positions]}
        return BatchSeeds(
            nodes=self._nodes[positions],
            constraints=Constraints(disjoint=True, times=times),
            inputs=torch.arange(positions.numel()),
            attributes=shown,
        )
