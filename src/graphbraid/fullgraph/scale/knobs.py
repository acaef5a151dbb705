"""knobs_of(): in how many parts the first steps of training will try to send rows on some ranks.

:class:`.PipelineTuner` measures the ways between the ranks and counts its own rows; here both follow from the
cluster and the share of the busiest rank.
"""

from __future__ import annotations

import math

from graphbraid.fullgraph.ranks.ladders import Load, ladders
from graphbraid.fullgraph.ranks.link import Link
from graphbraid.fullgraph.scale.cluster import Cluster
from graphbraid.fullgraph.scale.division import LargestShare
from graphbraid.fullgraph.scale.phases import Step

KnobValues = dict[str, tuple[int, ...]]
"""The values worth a trial of each knob of a :class:`.Pipeline` that has more than one."""


def knobs_of(
    step: Step,
    share: LargestShare,
    cluster: Cluster,
    *,
    num_nodes: int,
    num_edges: int,
    stream_bytes: float,
    wire_bytes: int = 4,
) -> KnobValues:
    """Return the values that will be tried, the threads of sums aside, of which nothing is known here.

    Args:
        step: a step on one rank.
        share: what the busiest rank has of the graph.
        cluster: the ranks and their network.
        num_nodes: nodes of the graph.
        num_edges: its edges.
        stream_bytes: bytes per second that one process reads or writes in order.
        wire_bytes: bytes of a number on the wire.
    """
    if share.num_ranks == 1:
        return {}
    rows, remote = share.rows * num_nodes, share.remote * share.edges * num_edges
    # Random destinations: of so many rows, those that at least one of the remote edges ends in.
    sums = rows * -math.expm1(-remote / rows) if rows else 0.0
    divided = [phase for phase in step.phases if phase.travels and phase.overlaps]
    forth = [phase.travels for phase in divided if not phase.backward]
    back = [phase.travels for phase in divided if phase.backward]
    halo = share.halo * num_nodes
    load = Load(
        exchanges=len(forth),
        bytes=round(sum(forth) * halo),
        back_bytes=round(sum(back) * halo),
        sum_bytes=round(2 * 4 / wire_bytes * sum(forth) * sums),
    )
    link = Link(
        message_seconds=cluster.exchange_seconds(share.num_ranks, 0),
        byte_seconds=1 / cluster.bandwidth_bytes,
    )
    return ladders([load], link, stream_bytes * cluster.speed, threads=1)


def tried(knobs: KnobValues) -> str:
    """Say in few words what is tried."""
    names = {"chunks": "rows", "back_chunks": "gradients"}
    said = [f"{names[name]} {', '.join(map(str, values))}" for name, values in knobs.items()]
    return "; ".join(said) or "whole"


__all__ = ["KnobValues", "knobs_of", "tried"]
