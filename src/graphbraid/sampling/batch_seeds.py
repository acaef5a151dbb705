"""BatchSeeds: the nodes that a mini-batch starts from, and the Constraints that its draws keep to."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from graphbraid.graph.csc import Csc
from graphbraid.sampling.config import SeedSchedule, part_of
from graphbraid.sampling.sample import PreparedBatch, Sampled


def sorted_by_time(csc: Csc, time: Tensor) -> tuple[Csc, Tensor]:
    """Sort each node's in-edges by ``(num_edges,)`` int64 times, stably; also return their positions."""
    order = torch.from_numpy(np.lexsort((time.numpy(), csc.destinations().numpy())))
    weight = None if csc.weight is None else csc.weight[order]
    return Csc(csc.indptr, csc.indices[order], csc.num_src, weight, trusted=True), order


NO_TIME = (1 << 63) - 1
"""Placeholder for the time of an edge that has none; it is not compared with others."""


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Constraints:
    """Limits on the draws of one mini-batch."""

    disjoint: bool = False
    """Whether each seed has a tree of its own, which shares no node with another's."""
    times: Tensor | None = None
    """``(num_seeds,)`` int64: largest time of an edge in each seed's tree. Needs ``disjoint`` and the edges'
    :class:`EdgeTimes`."""
    excluded: Tensor | None = None
    """``(num_excluded,)`` int64 positions of edges that are not drawn, ascending; None if there are none."""


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class EdgeTimes:
    """The time of each edge of a graph, and the rule by which edges up to a seed's time are drawn."""

    time: Tensor
    """``(num_edges,)`` int64 by position in the graph, ascending within the in-edges of each node, or of each
    node and relation if there are types."""
    last: bool = False
    """Whether to draw only the latest edges."""
    untimed: frozenset[int] = frozenset()
    """Numbers of the relations whose edges have no times (``NO_TIME``). All their edges may be drawn."""


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class BatchSeeds:
    """The seeds of one mini-batch and the limits on its draws."""

    nodes: Tensor
    """``(num_seeds,)`` int64 node ids; in disjoint trees, each has its own."""
    constraints: Constraints | None = None
    """Limits on the draws. If None, there are none."""
    inputs: Tensor | None = None
    """Number of the input that each seed belongs to, ``(num_seeds,)`` int64; only of disjoint trees."""
    attributes: Mapping[str, Tensor] = field(default_factory=dict)
    """Further attributes of the batch, such as ``edge_label_index``."""
    own: Tensor | None = None
    """Positions in ``nodes`` of the seeds of one part of the inputs, ascending; ``inputs`` and ``attributes``
    are then of this part. If None, all."""

    def owners_of(self, sampled: Sampled) -> list[Tensor] | None:
        """Return the input whose tree each node is in, ``(num_nodes,)`` int64, by node type.

        None unless trees are disjoint.
        """
        if sampled.trees_by_type is None or self.inputs is None:
            return None
        return [self.inputs[trees] for trees in sampled.trees_by_type]


class SeedSource(Protocol):
    """The inputs of a loader, as the seeds of batches: a pure function of their positions, epoch and step."""

    num_inputs: int
    """Number of inputs that batches have positions of, such as links."""
    edge_times: EdgeTimes | None
    """Times of the graph's edges; None if seeds have no times."""

    def seeds_of(
        self, positions: Tensor, epoch: int, step: int, part: tuple[int, int] | None = None
    ) -> BatchSeeds:
        """Return the seeds of a batch of the inputs at ``positions``, ``(num,)`` int64.

        ``part`` is a range ``(first, end)`` of the inputs, whose seeds are ``own``.
        """
        ...


def seeds_of_step(
    schedule: SeedSchedule, given: SeedSource | None, positions: Tensor, *, epoch: int, step: int
) -> tuple[Tensor, BatchSeeds]:
    """Return the positions of the inputs of a schedule's part, and the seeds that it draws for.

    They are those of the whole step, with ``own``. In layout ``blocks`` they are those of the part alone, as
    a node's draws do not depend on the other seeds. ``positions`` are those of the inputs of all parts.
    """
    bounds = None
    if schedule.num_parts > 1 or schedule.reach is not None:
        bounds = part_of(positions.numel(), schedule.part, schedule.num_parts)
    if given is not None:
        seeds = given.seeds_of(positions, epoch, step, bounds)
    else:
        own = None if bounds is None else torch.arange(*bounds)
        seeds = BatchSeeds(nodes=schedule.seeds[positions], own=own)
    if seeds.own is not None and schedule.reach is None:
        seeds = replace(seeds, nodes=seeds.nodes[seeds.own])
    return positions if bounds is None else positions[slice(*bounds)], seeds


def begin_batch(
    begin: Callable[..., Iterator[PreparedBatch]],
    schedule: SeedSchedule,
    given: SeedSource | None,
    positions: Tensor,
    *,
    epoch: int,
    step: int,
) -> Iterator[PreparedBatch]:
    """Begin to prepare the batch of :func:`seeds_of_step`; return an iterator that waits for it.

    ``begin`` is as :meth:`.cpu.HostPipeline.begin`.
    """
    own, seeds = seeds_of_step(schedule, given, positions, epoch=epoch, step=step)
    share = None if seeds.own is None or schedule.reach is None else (seeds.own, schedule.reach)
    begun = begin(seeds.nodes, schedule.seed, epoch, step, seeds.constraints, share=share)
    return (batch._replace(input_id=own, seeds=seeds) for batch in begun)


class TreeSeeds:
    """Nodes that mini-batches start from, each with a disjoint tree of its own.

    Args:
        nodes: ``(num_seeds,)`` int64 node ids.
        times: ``(num_seeds,)`` int64: largest time of an edge in each seed's tree. If None, no limit.
        edge_times: times of the graph's edges; given with ``times``.
        shown_times: ``(num_seeds,)`` the user's times, which batches have as ``seed_time``.
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
        self.num_inputs, self.edge_times = nodes.numel(), edge_times

    def seeds_of(
        self, positions: Tensor, epoch: int, step: int, part: tuple[int, int] | None = None
    ) -> BatchSeeds:
        """Return the seeds of a batch of the nodes at ``positions``; epoch and step do not matter."""
        times = None if self._times is None else self._times[positions]
        own = slice(*(part or (0, positions.numel())))
        shown = {} if self._shown_times is None else {"seed_time": self._shown_times[positions[own]]}
        return BatchSeeds(
            nodes=self._nodes[positions],
            constraints=Constraints(disjoint=True, times=times),
            inputs=torch.arange(own.stop - own.start),
            attributes=shown,
            own=None if part is None else torch.arange(*part),
        )
