"""Forecast: an epoch of one graph on different numbers of ranks, with what it rests on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch import nn

from graphbraid.distributed.partitioning.choose import partition
from graphbraid.distributed.parts.report import report_of
from graphbraid.distributed.parts.split import Division
from graphbraid.fullgraph.explain.floor import Floor, floor_of
from graphbraid.fullgraph.explain.ledger import Ledger
from graphbraid.fullgraph.lowering.lowered import Lowered
from graphbraid.fullgraph.lowering.options import ALL, HOIST_BYTES, CompileOptions
from graphbraid.fullgraph.scale.cluster import Cluster
from graphbraid.fullgraph.scale.division import Degrees, LargestShare, Law, Point
from graphbraid.fullgraph.scale.halo_choice import HaloChoice
from graphbraid.fullgraph.scale.phases import Step
from graphbraid.fullgraph.scale.published import GraphSize, miniature
from graphbraid.fullgraph.scale.simulate import Prediction, simulate
from graphbraid.graph import Graph
from graphbraid.machine.rates import Rates

LEAST_NODES = 64
"""Nodes of a part below which no partition is made: its halo would say little of larger ones."""
MOST_PARTS = 16
"""Most parts into which the graph at hand is divided; a law takes over beyond."""

Range = tuple[float, float]
Lower = Callable[[nn.Module, Graph, CompileOptions], Lowered]
"""Lowers a model over a graph, for its training split."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Forecast:
    """Predictions for one graph."""

    name: str
    num_nodes: int
    num_edges: int
    assumptions: tuple[str, ...]
    """What the predictions rest on, a sentence each."""
    predictions: tuple[Prediction, ...]
    """Epochs by ascending number of ranks; the first is for one rank."""
    ranges: tuple[Range, ...]
    """Seconds of each prediction by the lower and by the upper cost of moving a byte."""

    @property
    def alone(self) -> Prediction:
        """The prediction for one rank."""
        return self.predictions[0]

    def speedup(self, prediction: Prediction) -> float:
        """Return how many times as fast as one rank it is."""
        return self.alone.seconds / prediction.seconds

    def to_json(self) -> dict[str, Any]:
        """Return the forecast as JSON holds it."""
        derived = [
            asdict(p)
            | {
                "waiting_seconds": p.waiting_seconds,
                "bound_seconds": p.bound_seconds,
                "speedup": self.speedup(p),
                "range_seconds": seconds,
            }
            for p, seconds in zip(self.predictions, self.ranges, strict=True)
        ]
        found = asdict(self) | {"predictions": derived}
        del found["ranges"]
        return found


def predicted_range(
    predict: Callable[[Cluster], Prediction], cluster: Cluster, moving: Range | None
) -> Range:
    """Return the seconds of a prediction by a lower and an upper cost of a byte; twice its own if None."""
    costs = moving or (cluster.byte_processor_seconds,) * 2
    low, high = (predict(replace(cluster, byte_processor_seconds=cost)).seconds for cost in costs)
    return low, high


def measured_law(graph: Graph, counts: Sequence[int]) -> tuple[Law, Degrees]:
    """Divide a graph into some numbers of parts; return how it divides, and its degrees.

    Args:
        graph: the graph at hand.
        counts: numbers of ranks; partitions are made for those of at most :data:`MOST_PARTS`, for 2 and 4 if
            there are none, and for none whose parts would be smaller than :data:`LEAST_NODES`.
    """
    degrees = Degrees.of(graph.csc.indices, graph.num_nodes)
    wanted = sorted({count for count in counts if 1 < count <= MOST_PARTS} or {2, 4})
    points = []
    for num_parts in wanted:
        if num_parts * LEAST_NODES <= graph.num_nodes:
            found = partition(graph, num_parts)
            points.append(Point.of(report_of(found, Division(graph, found).outlines), degrees))
    return (Law(points=tuple(points)) if points else Law()), degrees


def forecast_at_hand(
    graph: Graph,
    lowered: Lowered,
    floor: Floor,
    *,
    counts: Sequence[int],
    cluster: Cluster,
    division: tuple[Law, Degrees],
    moving: Range | None = None,
    wire_bytes: int = 4,
) -> Forecast:
    """Predict epochs of the graph at hand from the times measured on it.

    Args:
        graph: the graph.
        lowered: the model's program over it on one rank.
        floor: the floor of its step, measured.
        counts: numbers of ranks, ascending, the first of them 1.
        cluster: the ranks and their network.
        division: how the graph divides, and its degrees, as :func:`measured_law` says.
        moving: processor seconds between which moving a byte was measured; None takes the cluster's as exact.
        wire_bytes: bytes of a number on the wire.
    """
    law, degrees = division
    choice = HaloChoice(lowered, floor, wire_bytes=wire_bytes)
    sizes: dict[str, Any] = {"num_nodes": graph.num_nodes, "num_edges": graph.num_edges}
    shares = [law.share(count, degrees, graph.num_nodes) for count in counts]
    steps = [choice.step(share, cluster, graph.num_nodes) for share in shares]
    predicts = [
        _predictor(step, share, num_features=graph.num_features, **sizes)
        for step, share in zip(steps, shares, strict=True)
    ]
    assumptions = (
        f"Kernels take what they took here on one rank ({1e3 * choice.computed.seconds:.3g} ms a step): "
        "a rank's share of the edges or of the rows of each.",
        f"The graph divides as {law}.",
    )
    return Forecast(
        name=graph.name or "the graph at hand",
        num_nodes=graph.num_nodes,
        num_edges=graph.num_edges,
        assumptions=assumptions,
        predictions=tuple(predict(cluster) for predict in predicts),
        ranges=tuple(predicted_range(predict, cluster, moving) for predict in predicts),
    )


def forecast_by_size(
    size: GraphSize,
    make_model: Callable[[int, int], nn.Module],
    lower: Lower,
    *,
    rates: Rates,
    counts: Sequence[int],
    cluster: Cluster,
    law: Law,
    slowness: float = 1.0,
    moving: Range | None = None,
    wire_bytes: int = 4,
) -> Forecast:
    """Predict epochs of a graph by its sizes alone, from a machine's rates.

    The model is lowered over a random graph in miniature, of the same mean degree, for whose rows there is no
    cache, and its work grows with the graph.

    Args:
        size: the graph's sizes.
        make_model: makes the model from its numbers of features and classes.
        lower: lowers it.
        rates: the rates of a rank.
        counts: numbers of ranks, ascending, the first of them 1.
        cluster: the ranks and their network.
        law: how the graph is taken to divide.
        slowness: measured time of a step by its floor, on the graph at hand.
        moving: as in :func:`forecast_at_hand`.
        wire_bytes: bytes of a number on the wire.
    """
    choices: dict[bool, HaloChoice] = {}
    predictions, ranges = [], []
    degrees = Degrees.mean_of(size.num_nodes, size.num_edges)
    sizes: dict[str, Any] = {"num_nodes": size.num_nodes, "num_edges": size.num_edges}
    for count in counts:
        hoists = 4 * size.num_nodes * size.num_features <= count * HOIST_BYTES
        if hoists not in choices:
            choices[hoists] = _choice_in_miniature(
                size, make_model, lower, rates, hoists=hoists, wire_bytes=wire_bytes
            )
        share = law.share(count, degrees, size.num_nodes)
        step = choices[hoists].step(share, cluster, size.num_nodes)
        predict = _predictor(
            step,
            share,
            num_features=size.num_features,
            feature_bytes=size.feature_bytes,
            slowness=slowness,
            **sizes,
        )
        predictions.append(predict(cluster))
        ranges.append(predicted_range(predict, cluster, moving))
    assumptions = (
        f"Sizes: {size.source}.",
        f"Kernels work at the rates of memory without a cache for rows, {slowness:.3g} times as long as the "
        "floor at these rates, as was measured on the graph at hand.",
        f"The graph divides like the one at hand, {law}; all its nodes have the mean degree "
        f"{size.mean_degree:.3g}.",
        "Aggregated features are computed once where a rank has room for its part of them "
        f"({HOIST_BYTES >> 20} MiB).",
    )
    return Forecast(
        name=size.name,
        num_nodes=size.num_nodes,
        num_edges=size.num_edges,
        assumptions=assumptions,
        predictions=tuple(predictions),
        ranges=tuple(ranges),
    )


def _predictor(step: Step, share: LargestShare, **sizes: Any) -> Callable[[Cluster], Prediction]:
    return lambda cluster: simulate(step, share, cluster, **sizes)


def _choice_in_miniature(
    size: GraphSize,
    make_model: Callable[[int, int], nn.Module],
    lower: Lower,
    rates: Rates,
    *,
    hoists: bool,
    wire_bytes: int,
) -> HaloChoice:
    graph = miniature(size)
    passes = ALL - {"locality", "symmetry"} - (set() if hoists else {"hoist"})
    options = CompileOptions(passes=frozenset(passes), rates=rates, cache_bytes=1)
    lowered = lower(make_model(size.num_features, size.num_classes), graph, options)
    ledger = Ledger(lowered.program, lowered.blocks, lowered.num_rows, lowered.facts, (1, 1))
    floor = floor_of(lowered.program, ledger, rates, num_nodes=lowered.nodes.numel())
    return HaloChoice(lowered, floor, wire_bytes=wire_bytes)


NETWORK_ASSUMPTIONS = (
    "Ranks are alike and none waits for a slower one; every rank reaches every other at its full rate.",
    "Rows before the first aggregation travel where the rates and the link say that computing them on every "
    "rank that reads them takes a quarter longer.",
    "Rows travel as the busiest rank's do; sums of gradients go round a ring; the link takes one at a time.",
    "What moving bytes takes of the cores is taken from computing, evenly over the time they travel.",
    "Sums of own rows hide what travels, and backward so do own rows of maxima and GAT; forward, maxima and "
    "attention are taken to wait for the halo.",
    "The loss and the optimizer are not in it, nor the evaluation.",
)
"""What all forecasts rest on."""

__all__ = [
    "NETWORK_ASSUMPTIONS",
    "Forecast",
    "forecast_at_hand",
    "forecast_by_size",
    "measured_law",
    "predicted_range",
]
