"""An epoch of whole-graph training predicted for many ranks, from a step measured on one rank.

A rank takes its share of each operation's measured seconds, by its edges or by its rows. It sends rows of its
nodes, their gradients and sums of the parameters' gradients; computing hides these transfers.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from graphbraid.distributed import Division, PartitionReport, partition, report_of
from graphbraid.estimates.ranks import Cluster, RankEpoch, RanksForecast, exchange, ring_sum
from graphbraid.files.writing import format_bytes
from graphbraid.fullgraph import Engine
from graphbraid.fullgraph.explain.floor import Floor
from graphbraid.fullgraph.lowering.costs import constant_bytes
from graphbraid.fullgraph.lowering.lower_program import Lowered
from graphbraid.fullgraph.program import (
    INPUT,
    Aggregate,
    Attention,
    DestinationRows,
    Exchange,
    Gine,
    Hoisted,
    Maximum,
    Program,
)
from graphbraid.fullgraph.ranks.distribute import divided_program
from graphbraid.fullgraph.ranks.halo import NAME, HaloSeconds, must_travel, values_that_may_travel
from graphbraid.graph import Graph

LEAST_NODES = 64
"""Fewest nodes of a part: the halo of a smaller part would tell little about larger ones."""
MOST_PARTS = 16
"""Most parts into which the graph is divided; larger numbers are extrapolated."""

Degrees = Sequence[tuple[float, float]]
"""Numbers of out-edges, each with the share of the nodes that have this number."""


# ---- how a graph divides


class LargestShare(NamedTuple):
    """The busiest rank's share of a graph."""

    num_ranks: int
    rows: float
    """Its share of all nodes."""
    edges: float
    """Its share of all edges, as in-edges of its nodes."""
    remote: float
    """Share of its in-edges that come from nodes of other ranks."""
    halo: float
    """The larger of the rows that it receives and sends in an exchange, as a share of all nodes."""


def degrees_of(graph: Graph) -> Degrees:
    """Count the out-edges of a graph's nodes."""
    degrees = torch.bincount(graph.csc.indices, minlength=graph.num_nodes)
    found, nodes = torch.unique(degrees, return_counts=True)
    return list(zip(found.tolist(), (nodes / graph.num_nodes).tolist(), strict=True))


def random_share(num_ranks: int, degrees: Degrees) -> LargestShare:
    """Return a rank's share if nodes have random owners in equal parts, which sends the most rows.

    A node with d out-edges is in the halo of ``(p - 1) (1 - (1 - 1/p)^d)`` of p parts.
    """
    part = 1 / num_ranks
    halo = math.fsum(share * (1 - part) * (1 - (1 - part) ** degree) for degree, share in degrees)
    return LargestShare(num_ranks, rows=part, edges=part, remote=1 - part, halo=halo)


def largest_share(report: PartitionReport) -> LargestShare:
    """Return the share of the busiest part of a partition."""
    most = max(max(part.halo_rows, part.sent_rows) for part in report.parts)
    return LargestShare(
        num_ranks=report.num_parts,
        rows=max(part.nodes for part in report.parts) / report.num_nodes,
        edges=max(part.edges for part in report.parts) / max(report.num_edges, 1),
        remote=report.edge_cut_share,
        halo=most / report.num_nodes,
    )


def measured_shares(graph: Graph, counts: Sequence[int]) -> list[LargestShare]:
    """Divide a graph into some numbers of parts; return the busiest part's share of each partition.

    Partitions are made for ``counts`` up to :data:`MOST_PARTS`, or else for 4. None is made with parts
    smaller than :data:`LEAST_NODES`.
    """
    wanted = sorted({count for count in counts if 1 < count <= MOST_PARTS} or {4})
    made = [partition(graph, count) for count in wanted if count * LEAST_NODES <= graph.num_nodes]
    return [largest_share(report_of(each, Division(graph, each).outlines)) for each in made]


def share_of(num_ranks: int, measured: Sequence[LargestShare], degrees: Degrees) -> LargestShare:
    """Return the share of the busiest of some ranks.

    If no partition into as many parts was made, the ratio of its rows to those of random owners is taken from
    the largest partition. ``measured`` partitions are ordered by number of parts. If there are none, owners
    are random.
    """
    chance = random_share(num_ranks, degrees)
    exact = [share for share in measured if share.num_ranks == num_ranks]
    if num_ranks == 1 or exact or not measured:
        return exact[0] if exact else chance
    last = measured[-1]
    there, more = random_share(last.num_ranks, degrees), num_ranks / last.num_ranks
    return LargestShare(
        num_ranks=num_ranks,
        rows=min(1.0, last.rows / more),
        edges=min(1.0, last.edges / more),
        remote=chance.remote * min(1.0, last.remote / there.remote),
        halo=chance.halo * min(1.0, last.halo / there.halo) if there.halo else 0.0,
    )


# ---- a step


class RankWork(NamedTuple):
    """An operation in one direction, over the whole graph on one rank."""

    seconds: float
    by_edges: bool = False
    """Whether ranks divide it by edges; otherwise by rows."""
    with_halo: bool = False
    """Whether each rank also computes the rows of its halo."""
    hides: bool = False
    """Whether the part of it that reads no row or gradient of other ranks runs during transfers."""
    reads: int = 0
    """Number of exchanges: of values with rows of other ranks that it reads or makes gradients for."""
    again: bool = False
    """Whether it takes the rows whose gradients come back in a second pass."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankStep:
    """A training step on one rank."""

    works: tuple[RankWork, ...]
    row_bytes: tuple[float, ...]
    """Bytes of a halo row in each exchange of rows or of their gradients."""
    sum_bytes: int
    """Bytes of the parameters' gradients, which all ranks add up."""
    other_seconds: float
    """Seconds between the operations; every rank takes them in full."""
    num_nodes: int
    num_edges: int
    held_bytes: float
    """Bytes of all values, gradients and features for each node."""
    constant_bytes: int = 0
    """Bytes of values computed once, such as aggregated features, over all nodes."""

    @property
    def seconds(self) -> float:
        """Seconds of the step on one rank."""
        return self.other_seconds + sum(work.seconds for work in self.works)


_OVER_EDGES = (Aggregate, Attention, Gine, Maximum)


def step_of(lowered: Lowered, floor: Floor, wire_bytes: int = 4) -> RankStep:
    """Return the operations of a lowered step and, for several ranks, its transfers.

    Seconds are the measured ones of ``floor`` if there are any. A number on the wire takes ``wire_bytes``.
    """
    program, num_nodes = lowered.program, lowered.graph.num_nodes
    of_rank, with_halo = divided_program(program)
    is_measured = floor.step_seconds is not None

    def bytes_of(value: str) -> float:
        """Bytes of a float32 row of a value, times the share of nodes that have one."""
        return 4.0 * program.width(value) * lowered.num_rows(program.level(value)) / num_nodes

    exchanged: dict[str, list[str]] = {}
    for each in of_rank.ops:
        if isinstance(each, Exchange) and not _is_constant(of_rank, each.inputs[0]):
            exchanged.setdefault(of_rank.consumers(each.out)[0].out, []).append(each.inputs[0])
    works, row_bytes, travels = list[RankWork](), list[float](), False
    for entry in floor.operations:
        op, back = program.producer(entry.operation), entry.backward
        values = [v for v in exchanged.get(entry.operation, ()) if not back or program.learns(v)]
        row_bytes += [wire_bytes / 4 * bytes_of(value) for value in values]
        # Sums of own rows hide an exchange; backward, so does all that is computed until the next one.
        splits = isinstance(op, Aggregate) or (back and isinstance(op, Maximum))
        works.append(
            RankWork(
                seconds=entry.seconds if is_measured else entry.floor_seconds,
                by_edges=isinstance(op, _OVER_EDGES),
                with_halo=with_halo and op is not None and program.level(op.out) == 0,
                hides=splits if values else travels,
                reads=len(values),
                again=travels and not values,
            )
        )
        travels = travels or (back and bool(values))
    return RankStep(
        works=tuple(works),
        row_bytes=tuple(row_bytes),
        sum_bytes=sum(4 * parameter.numel() for parameter in program.parameters()),
        other_seconds=max(0.0, floor.between_seconds) if is_measured else 0.0,
        num_nodes=num_nodes,
        num_edges=lowered.graph.num_edges,
        held_bytes=4.0 * lowered.graph.num_features
        + sum(2 * bytes_of(op.out) for op in program.ops if not isinstance(op, DestinationRows)),
        constant_bytes=constant_bytes(program, lowered.costs),
    )


def steps_of(lowered: Lowered, floor: Floor, wire_bytes: int = 4) -> list[RankStep]:
    """Return the steps that ranks choose from: each rank computes rows of level 0, or they are sent.

    The arguments and errors are those of :func:`step_of`.
    """
    steps, program = [step_of(lowered, floor, wire_bytes)], lowered.program
    values = values_that_may_travel(program)
    if NAME in lowered.options.passes and not must_travel(program) and values:
        travels = HaloSeconds(computed=math.inf, travelling=0.0).decision(values)
        changed = replace(lowered, program=program.rewritten(program.ops, travels))
        steps.append(step_of(changed, floor, wire_bytes))
    return steps


def _is_constant(program: Program, value: str) -> bool:
    """Return whether a value stays the same in all steps, so that it is sent only once."""
    op = program.producer(value)
    if isinstance(op, DestinationRows):
        return _is_constant(program, op.inputs[0])
    return value == INPUT or isinstance(op, Hoisted)


# ---- forecasts


def forecast_full(
    graph: Graph,
    engines: Sequence[Engine],
    *,
    counts: Sequence[int],
    cluster: Cluster,
    spare_bytes: int,
    wire_bytes: int = 4,
) -> RanksForecast:
    """Predict epochs from steps measured on one rank.

    ``engines`` run the model on one rank with values that are computed once, and also without them if ranks
    may lack ``spare_bytes`` of memory for these. ``counts`` ascend from 1.
    """
    measured, degrees = measured_shares(graph, counts), degrees_of(graph)
    steps = [
        step for each in engines for step in steps_of(each.lowered, each.floor(measure=True), wire_bytes)
    ]
    divides = "among random owners of the nodes, the most rows that can travel"
    if measured:
        divides = (
            f"measured for {', '.join(str(share.num_ranks) for share in measured)} ranks; beyond, the rows "
            "that travel are the same part of those of random owners as in the last partition. The longer "
            "time beside is that of random owners"
        )
    epochs = []
    for count in counts:
        epoch = predict(steps, share_of(count, measured, degrees), cluster, spare_bytes)
        if measured and count not in {1, *(share.num_ranks for share in measured)}:
            random = predict(steps, random_share(count, degrees), cluster, spare_bytes)
            epoch.most_seconds = max(epoch.seconds, random.seconds)
        epochs.append(epoch)
    assumptions = [
        "An operation takes a rank's share, of edges or of rows, of what it took here on one rank "
        f"({1e3 * steps[0].seconds:.3g} ms a step).",
        f"The graph divides as {divides}.",
    ]
    if constant := max(step.constant_bytes for step in steps):
        least = next((str(count) for count in counts if constant <= count * spare_bytes), "none of these")
        assumptions.append(
            f"Aggregated features take {format_bytes(constant)} over all ranks, and a rank has "
            f"{format_bytes(spare_bytes)} for its part. The least number of ranks on which they are "
            f"computed once: {least}."
        )
    return RanksForecast(
        name=graph.name or "the graph at hand",
        num_nodes=graph.num_nodes,
        num_edges=graph.num_edges,
        epochs=tuple(epochs),
        assumptions=tuple(assumptions),
    )


def predict(
    steps: Sequence[RankStep], share: LargestShare, cluster: Cluster, spare_bytes: float = math.inf
) -> RankEpoch:
    """Predict an epoch (one step) of whole-graph training on the busiest of some ranks.

    Ranks choose the fastest of ``steps`` that fits their memory; each has ``spare_bytes`` for values that are
    computed once.
    """
    able = [step for step in steps if step.constant_bytes <= share.num_ranks * spare_bytes]
    return min((_predicted(step, share, cluster) for step in able), key=lambda epoch: epoch.seconds)


def _predicted(step: RankStep, share: LargestShare, cluster: Cluster) -> RankEpoch:
    """Predict an epoch of one step: each operation's transfers, and the computing that hides them.

    The sums of gradients are sent with the last rows.
    """
    ranks, halo = share.num_ranks, share.halo * step.num_nodes
    rows = step.num_nodes * share.rows + halo
    lists = 2 * (4 if rows < 1 << 31 else 8) * share.edges * step.num_edges + 16 * share.rows * step.num_nodes
    epoch = RankEpoch(num_ranks=ranks, memory_bytes=rows * step.held_bytes + lists)
    sent = [exchange(ranks, nbytes * halo) for nbytes in step.row_bytes]
    compute, hiding, begun, num_sent = step.other_seconds, 0.0, 0, 0
    for work in step.works:
        if work.reads:
            epoch.run(cluster, compute, *sent[begun:num_sent], hiding=hiding)
            compute, hiding, begun, num_sent = 0.0, 0.0, num_sent, num_sent + work.reads
        seconds = work.seconds * (share.edges if work.by_edges else share.rows)
        seconds *= 1 + share.halo / share.rows if work.with_halo else 1.0
        # Own rows hide what travels. The rows whose gradients have come back follow by themselves.
        compute += seconds * (1 + min(1.0, share.halo / share.rows) if work.again else 1.0)
        hiding += seconds * (1 - share.remote if work.reads else 1.0) if work.hides else 0.0
    epoch.run(cluster, compute, *sent[begun:], ring_sum(ranks, step.sum_bytes), hiding=hiding)
    epoch.sent_bytes = sum(each.nbytes for each in sent)  # of rows, as a partition's report counts them
    return epoch


FULL_ASSUMPTIONS = (
    "Ranks are alike and none waits for a slower one; every rank reaches every other at its full rate.",
    "Rows, their gradients and sums of gradients travel as the busiest rank's do, while it computes what "
    "does not need them; forward, maxima and attention wait for rows.",
    "Rows before the first aggregation travel, or ranks that read them compute them, whichever is faster.",
    "The loss and the optimizer are not in it, nor the evaluation.",
)
"""Assumptions of all forecasts of whole-graph training."""
