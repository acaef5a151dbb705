"""HaloChoice: the phases of a step by where rows of level 0 come from, which ranks decide by their link."""

from __future__ import annotations

from dataclasses import replace

from graphbraid.fullgraph.explain.floor import Floor
from graphbraid.fullgraph.lowering.lowered import Lowered
from graphbraid.fullgraph.ranks.halo import (
    NAME,
    HaloSeconds,
    halo_seconds,
    must_travel,
    values_that_may_travel,
)
from graphbraid.fullgraph.ranks.link import Link
from graphbraid.fullgraph.scale.cluster import Cluster
from graphbraid.fullgraph.scale.division import LargestShare
from graphbraid.fullgraph.scale.phases import Step, step_of


class HaloChoice:
    """A lowered step whose ranks compute rows of level 0 or let them travel, as :mod:`..ranks.halo` decides.

    Args:
        lowered: the program of one rank over a graph.
        floor: the floor of its step; see :func:`.step_of`.
        wire_bytes: bytes of a number on the wire.

    Raises:
        NotLoweredError: an operation cannot be divided among ranks; the message names it.
    """

    def __init__(self, lowered: Lowered, floor: Floor, *, wire_bytes: int = 4) -> None:
        self._lowered = lowered
        self._values = values_that_may_travel(lowered.program)
        if NAME not in lowered.options.passes or must_travel(lowered.program):
            self._values = []
        self.computed = step_of(lowered, floor, wire_bytes=wire_bytes)
        """The step where they are computed, or must travel."""
        self._travelling: Step | None = None
        if self._values:
            decision = HaloSeconds(computed=float("inf"), travelling=0.0).decision(self._values)
            program = lowered.program.rewritten(lowered.program.ops, decision)
            self._travelling = step_of(replace(lowered, program=program), floor, wire_bytes=wire_bytes)

    def step(self, share: LargestShare, cluster: Cluster, num_nodes: int) -> Step:
        """Return the step that ranks with such a share of a graph run.

        Args:
            share: what the busiest rank has of the graph.
            cluster: the ranks and their network.
            num_nodes: nodes of the graph.
        """
        if self._travelling is None or share.num_ranks == 1:
            return self.computed
        link = Link(
            message_seconds=cluster.exchange_seconds(share.num_ranks, 0),
            byte_seconds=1 / cluster.bandwidth_bytes,
        )
        rows = round(share.halo * num_nodes)
        seconds = halo_seconds(self._lowered.program, self._lowered.facts, link, rows)
        here = replace(seconds, computed=seconds.computed / cluster.speed)
        return self._travelling if here.should_travel else self.computed


__all__ = ["HaloChoice"]
