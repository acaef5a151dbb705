"""An epoch of whole-graph training predicted for many ranks, from a step measured on one rank.

A rank takes its share of each operation's measured seconds, by its edges or by its rows. A step is cut into
segments, one for each exchange of rows; what a rank computes in one for its own rows hides what travels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch

from graphbraid.distributed import Division, PartitionReport, partition, report_of
from graphbraid.estimates.cluster import (
    Cluster,
    EpochClock,
    RankEpoch,
    RanksForecast,
    Sending,
    exchange,
    ring_sum,
)
from graphbraid.fullgraph import Engine
from graphbraid.fullgraph.explain.floor import Floor
from graphbraid.fullgraph.lowering.lowered import Lowered
from graphbraid.fullgraph.program import (
    INPUT,
    Aggregate,
    Attention,
    DestinationRows,
    Exchange,
    Gine,
    Hoisted,
    Maximum,
    Operation,
    Program,
)
from graphbraid.fullgraph.ranks.distribute import divided_program
from graphbraid.fullgraph.ranks.halo import NAME, HaloSeconds, must_travel, values_that_may_travel
from graphbraid.graph import Graph

LEAST_NODES = 64
"""Nodes of a part below which no partition is made: its halo would say little of larger ones."""
MOST_PARTS = 16
"""Most parts into which the graph at hand is divided; larger numbers are extrapolated."""
_LEAST_RATIO = 1e-6
"""Stands for the ratio of a partition that cuts nothing, which has no logarithm."""

Degrees = Sequence[tuple[float, float]]
"""Numbers of out-edges, each with the share of the nodes that have so many."""


# ---- how a graph divides


class LargestShare(NamedTuple):
    """What the busiest rank has of a graph."""

    num_ranks: int
    rows: float
    """Its nodes by all nodes."""
    edges: float
    """Its in-edges by all edges."""
    remote: float
    """Its in-edges that come from others' nodes, by all its in-edges."""
    halo: float
    """The rows that it receives or sends in an exchange, whichever are more, by all nodes."""


def degrees_of(graph: Graph) -> Degrees:
    """Count the out-edges of a graph's nodes."""
    degrees = torch.bincount(graph.csc.indices, minlength=graph.num_nodes)
    found, nodes = torch.unique(degrees, return_counts=True)
    return list(zip(found.tolist(), (nodes / graph.num_nodes).tolist(), strict=True))


def random_share(num_ranks: int, degrees: Degrees) -> LargestShare:
    """Return what a rank has of nodes with random owners, in equal parts: the most rows that can travel.

    A node with d out-edges is in the halo of ``(p - 1) (1 - (1 - 1/p)^d)`` of p parts.
    """
    part = 1 / num_ranks
    halo = math.fsum(share * (1 - part) * (1 - (1 - part) ** degree) for degree, share in degrees)
    return LargestShare(num_ranks, rows=part, edges=part, remote=1 - part, halo=halo)


def largest_share(report: PartitionReport) -> LargestShare:
    """Return what the busiest part of a partition has."""
    most = max(max(part.halo_rows, part.sent_rows) for part in report.parts)
    return LargestShare(
        num_ranks=report.num_parts,
        rows=max(part.nodes for part in report.parts) / report.num_nodes,
        edges=max(part.edges for part in report.parts) / max(report.num_edges, 1),
        remote=report.edge_cut_share,
        halo=most / report.num_nodes,
    )


def measured_shares(graph: Graph, counts: Sequence[int]) -> list[LargestShare]:
    """Divide a graph into some numbers of parts; return what the busiest part of each partition has.

    Args:
        graph: the graph at hand.
        counts: numbers of ranks; partitions are made for those of at most :data:`MOST_PARTS`, for 2 and 4 if
            there are none, and for none whose parts would be smaller than :data:`LEAST_NODES`.
    """
    wanted = sorted({count for count in counts if 1 < count <= MOST_PARTS} or {2, 4})
    made = [partition(graph, count) for count in wanted if count * LEAST_NODES <= graph.num_nodes]
    return [largest_share(report_of(each, Division(graph, each).outlines)) for each in made]


def share_of(num_ranks: int, measured: Sequence[LargestShare], degrees: Degrees) -> LargestShare:
    """Return what the busiest of some ranks has.

    If no partition into as many parts was made, the ratios to random owners follow a power of the number of
    parts through the last two partitions. They neither fall with more parts nor exceed 1.

    Args:
        num_ranks: number of ranks.
        measured: partitions, by ascending number of parts. If empty, owners are random.
        degrees: those of the graph.
    """
    chance = random_share(num_ranks, degrees)
    exact = [share for share in measured if share.num_ranks == num_ranks]
    if num_ranks == 1 or exact or not measured:
        return exact[0] if exact else chance
    last, before = measured[-1], measured[-2] if len(measured) > 1 else measured[-1]
    more = num_ranks / last.num_ranks

    def grown(name: str) -> float:
        by_chance = [getattr(random_share(share.num_ranks, degrees), name) for share in (before, last)]
        low, high = (
            max(getattr(share, name) / max(most, _LEAST_RATIO), _LEAST_RATIO)
            for share, most in zip((before, last), by_chance, strict=True)
        )
        steps = math.log(last.num_ranks / before.num_ranks) or 1.0
        ratio: float = min(1.0, high * more ** max(0.0, math.log(high / low) / steps))
        return ratio * float(getattr(chance, name))

    return LargestShare(
        num_ranks=num_ranks,
        rows=min(1.0, last.rows / more),
        edges=min(1.0, last.edges / more),
        remote=grown("remote"),
        halo=grown("halo"),
    )


# ---- a step


class OperationSeconds(NamedTuple):
    """An operation in one direction, over the whole graph on one rank."""

    seconds: float
    by_edges: bool = False
    """Whether ranks divide it as they do the edges; otherwise as the rows."""
    with_halo: bool = False
    """Whether each rank also computes the rows of its halo."""


@dataclass(kw_only=True, slots=True)
class StepSegment:
    """What a rank computes from one exchange of rows to the next, and what travels meanwhile."""

    works: list[OperationSeconds] = field(default_factory=list)
    """Operations on rows of their own."""
    reader: OperationSeconds = field(default_factory=lambda: OperationSeconds(0.0))
    """The operation that reads others' rows, or, backward, makes their gradients."""
    reader_splits: bool = False
    """Whether it works on own rows while others' travel."""
    row_bytes: tuple[float, ...] = ()
    """Bytes of a halo row in each exchange."""
    backward: bool = False
    """Whether gradients of halo rows travel while the works are computed. Forward, rows travel after them."""
    sums: list[int] = field(default_factory=list)
    """Bytes of the parameters' gradients that are complete at its end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """A training step on one rank."""

    segments: tuple[StepSegment, ...]
    other_seconds: float
    """Seconds between the operations, which every rank takes in full."""
    num_nodes: int
    num_edges: int
    row_bytes: float
    """Bytes of all values and gradients, and of the features, by the number of nodes."""

    @property
    def seconds(self) -> float:
        """Seconds of the step on one rank."""
        works = [work for segment in self.segments for work in (*segment.works, segment.reader)]
        return self.other_seconds + sum(work.seconds for work in works)


_OVER_EDGES = (Aggregate, Attention, Gine, Maximum)


def step_of(lowered: Lowered, floor: Floor, wire_bytes: int = 4) -> Step:
    """Cut a lowered step into segments.

    Args:
        lowered: the program of one rank over a graph.
        floor: the floor of its step; its measured times count if there are any, else the floor itself.
        wire_bytes: bytes of a number on the wire.

    Raises:
        NotLoweredError: an operation cannot be divided among ranks; the message names it.
    """
    program, num_nodes = lowered.program, lowered.graph.num_nodes
    of_rank, with_halo = divided_program(program)
    is_measured = floor.step_seconds is not None
    complete = program.first_uses()
    exchanged: dict[str, list[str]] = {}
    for each in of_rank.ops:
        if isinstance(each, Exchange) and not _is_constant(of_rank, each.inputs[0]):
            exchanged.setdefault(of_rank.consumers(each.out)[0].out, []).append(each.inputs[0])

    segments = [StepSegment()]
    for entry in floor.operations:
        op, back = program.producer(entry.operation), entry.backward
        work = OperationSeconds(
            seconds=entry.seconds if is_measured else entry.floor_seconds,
            by_edges=isinstance(op, _OVER_EDGES),
            with_halo=with_halo and op is not None and program.level(op.out) == 0,
        )
        values = [v for v in exchanged.get(entry.operation, ()) if not back or program.learns(v)]
        if values and back:  # gradients of the halo travel while what follows is computed
            segments.append(StepSegment(backward=True))
        if values:
            segments[-1].reader = work
            segments[-1].reader_splits = _splits(op, backward=back)
            segments[-1].row_bytes = tuple(
                wire_bytes * program.width(v) * lowered.num_rows(program.level(v)) / num_nodes for v in values
            )
        else:
            segments[-1].works.append(work)
        if values and not back:
            segments.append(StepSegment())
        if back and complete.get(entry.operation):
            segments[-1].sums.append(sum(4 * p.numel() for p in complete[entry.operation]))
    return Step(
        segments=tuple(segments),
        other_seconds=max(0.0, floor.between_seconds) if is_measured else 0.0,
        num_nodes=num_nodes,
        num_edges=lowered.graph.num_edges,
        row_bytes=4.0 * lowered.graph.num_features
        + sum(
            2 * 4.0 * program.width(op.out) * lowered.num_rows(program.level(op.out)) / num_nodes
            for op in program.ops
            if not isinstance(op, DestinationRows)
        ),
    )


def steps_of(lowered: Lowered, floor: Floor, wire_bytes: int = 4) -> list[Step]:
    """Return the steps between which ranks choose: rows of level 0 are computed by each, or they travel.

    The arguments and errors are those of :func:`step_of`.
    """
    steps, program = [step_of(lowered, floor, wire_bytes)], lowered.program
    values = values_that_may_travel(program)
    if NAME in lowered.options.passes and not must_travel(program) and values:
        travels = HaloSeconds(computed=math.inf, travelling=0.0).decision(values)
        changed = replace(lowered, program=program.rewritten(program.ops, travels))
        steps.append(step_of(changed, floor, wire_bytes))
    return steps


def _splits(op: Operation | None, *, backward: bool) -> bool:
    """Return whether an operation works on own rows while others' travel."""
    return isinstance(op, Aggregate) or (backward and isinstance(op, Maximum))


def _is_constant(program: Program, value: str) -> bool:
    """Return whether no step changes a value, so that it travels only once."""
    op = program.producer(value)
    if isinstance(op, DestinationRows):
        return _is_constant(program, op.inputs[0])
    return value == INPUT or isinstance(op, Hoisted)


# ---- forecasts


def forecast_full(
    graph: Graph,
    engine: Engine,
    *,
    counts: Sequence[int],
    cluster: Cluster,
    wire_bytes: int = 4,
) -> RanksForecast:
    """Predict epochs from a step measured on one rank.

    Args:
        graph: the graph.
        engine: the model over it, on one rank.
        counts: numbers of ranks, ascending, the first of them 1.
        cluster: the ranks and their network.
        wire_bytes: bytes of a number on the wire.

    Raises:
        NotLoweredError: an operation cannot be divided among ranks; the message names it.
        ResourceError: there is too little memory to measure a step.
    """
    measured, degrees = measured_shares(graph, counts), degrees_of(graph)
    steps = steps_of(engine.lowered, engine.floor(measure=True), wire_bytes)
    return RanksForecast(
        name=graph.name or "the graph at hand",
        num_nodes=graph.num_nodes,
        num_edges=graph.num_edges,
        epochs=tuple(predict(steps, share_of(count, measured, degrees), cluster) for count in counts),
        assumptions=(
            "An operation takes a rank's share, of edges or of rows, of what it took here on one rank "
            f"({1e3 * steps[0].seconds:.3g} ms a step).",
            f"The graph divides as {_in_words(measured)}.",
        ),
    )


def predict(steps: Sequence[Step], share: LargestShare, cluster: Cluster) -> RankEpoch:
    """Predict an epoch of whole-graph training, which is one step, on the busiest of some ranks.

    Args:
        steps: steps on one rank; ranks choose the fastest.
        share: what the busiest rank has of the graph.
        cluster: the ranks and their network.
    """

    def fastest(cluster: Cluster) -> tuple[EpochClock, Step]:
        clocks = [(_run(step, share, cluster), step) for step in steps]
        return min(clocks, key=lambda found: found[0].seconds)

    clock, step = fastest(cluster)
    rows = step.num_nodes * (share.rows + share.halo)
    lists = 2 * (4 if rows < 1 << 31 else 8) * share.edges * step.num_edges + 16 * share.rows * step.num_nodes
    return clock.epoch(
        share.num_ranks,
        [fastest(extreme)[0].seconds for extreme in cluster.extremes()],
        sent_bytes=sum(sum(part.row_bytes) for part in step.segments) * share.halo * step.num_nodes,
        memory_bytes=rows * step.row_bytes + lists,
    )


def _run(step: Step, share: LargestShare, cluster: Cluster) -> EpochClock:
    """Add up the segments of a step."""
    clock, ranks, halo = EpochClock(cluster), share.num_ranks, share.halo * step.num_nodes
    sent = min(1.0, share.halo / share.rows)

    def seconds(work: OperationSeconds) -> float:
        held = 1 + share.halo / share.rows if work.with_halo else 1.0
        return work.seconds * (share.edges if work.by_edges else share.rows) * held

    sums: list[Sending] = []
    for segment in step.segments:
        own, reader = sum(map(seconds, segment.works)), seconds(segment.reader)
        again, hiding = 0.0, own
        if segment.row_bytes:
            # Sums of others' rows come last, or first backward. Backward, the works on own rows follow while
            # gradients travel; the rows whose gradients come back go through them by themselves.
            again, hiding = (sent * own, own) if segment.backward else (0.0, 0.0)
            hiding += (1 - share.remote) * reader if segment.reader_splits else 0.0
        rows = [exchange(ranks, each * halo) for each in segment.row_bytes]
        clock.run(again + own + reader, *sums, *rows, hiding=hiding)
        sums = [ring_sum(ranks, nbytes) for nbytes in segment.sums]
    clock.run(0.0, *sums)
    clock.run(step.other_seconds)
    return clock


def _in_words(measured: Sequence[LargestShare]) -> str:
    if not measured:
        return "among random owners of the nodes, the most rows that can travel"
    counts = ", ".join(str(share.num_ranks) for share in measured)
    return (
        f"measured for {counts} ranks; beyond, the rows that travel by those of random owners grow with the "
        "number of ranks as between the last two, at most to 1"
    )


FULL_ASSUMPTIONS = (
    "Ranks are alike and none waits for a slower one; every rank reaches every other at its full rate.",
    "Rows and their gradients travel as the busiest rank's do, while it computes what does not need "
    "them; forward, maxima and attention wait for them.",
    "Sums of gradients go round a ring while the next part of the step is computed.",
    "Rows before the first aggregation travel, or ranks that read them compute them, whichever is faster.",
    "The loss and the optimizer are not in it, nor the evaluation.",
)
"""What all forecasts of whole-graph training rest on."""
