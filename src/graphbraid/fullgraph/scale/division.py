"""Division: how much of a graph a rank holds and receives, measured for some numbers of ranks, else by a law.

A partition is weighed against random owners of the nodes, whose halo follows from the degrees alone: a node
with d out-edges is in the halo of ``(p - 1) (1 - (1 - 1/p)^d)`` of p parts, and a share ``1 - 1/p`` of the
edges is cut. The law says that the ratio of a partition's halo rows, and of its cut edges, to those of random
owners is a power of the number of parts, fitted to the measured ones, and at most 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from graphbraid.distributed.parts.report import PartitionReport

_LEAST = 1e-6
"""Ratio that stands for a partition that cuts nothing, which has no logarithm."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Degrees:
    """How many nodes have which number of out-edges; a graph that is not at hand has its mean alone."""

    counts: tuple[tuple[float, float], ...]
    """Pairs of a number of out-edges and how many nodes have it."""

    @classmethod
    def of(cls, sources: Tensor, num_nodes: int) -> Degrees:
        """Count the out-edges of a graph's nodes by the sources of its edges."""
        degrees = torch.bincount(sources, minlength=num_nodes)
        found, nodes = torch.unique(degrees, return_counts=True)
        return cls(counts=tuple(zip(found.tolist(), nodes.tolist(), strict=True)))

    @classmethod
    def mean_of(cls, num_nodes: int, num_edges: int) -> Degrees:
        """Return equal degrees, which give more halo rows than unequal ones of the same mean."""
        return cls(counts=((num_edges / num_nodes, num_nodes),))

    def random_halo(self, num_parts: int) -> float:
        """Return the halo rows of all parts together that random owners would give."""
        missed = 1 - 1 / num_parts
        return float(sum(nodes * (num_parts - 1) * (1 - missed**degree) for degree, nodes in self.counts))


@dataclass(frozen=True, kw_only=True, slots=True)
class LargestShare:
    """What the busiest rank has, as shares of the whole graph."""

    num_ranks: int
    rows: float
    """Its nodes by all nodes."""
    edges: float
    """Its in-edges by all edges."""
    remote: float
    """Its in-edges that come from others' nodes, by all its in-edges."""
    halo: float
    """The rows that it receives or sends in an exchange, whichever are more, by all nodes."""
    is_measured: bool = False
    """Whether a partition was made, not the law asked."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """A partition that was made, in numbers that do not depend on the graph's size."""

    num_parts: int
    halo_ratio: float
    """Halo rows of all parts by those of random owners."""
    cut_ratio: float
    """Cut edges by those of random owners."""
    node_balance: float
    edge_balance: float
    """The busiest part's nodes and in-edges by the mean."""
    halo_balance: float
    """Most rows that a part receives or sends by the mean."""

    @classmethod
    def of(cls, report: PartitionReport, degrees: Degrees) -> Point:
        """Weigh a partition against random owners."""
        parts = report.num_parts
        most = max(max(part.halo_rows, part.sent_rows) for part in report.parts)
        by_chance = degrees.random_halo(parts), report.num_edges * (1 - 1 / parts)
        return cls(
            num_parts=parts,
            halo_ratio=report.halo_rows / max(by_chance[0], 1.0),
            cut_ratio=report.edge_cut / max(by_chance[1], 1.0),
            node_balance=report.imbalance("nodes"),
            edge_balance=report.imbalance("edges"),
            halo_balance=most * parts / max(report.halo_rows, 1),
        )


RANDOM = Point(
    num_parts=2, halo_ratio=1.0, cut_ratio=1.0, node_balance=1.0, edge_balance=1.0, halo_balance=1.0
)
"""Random owners, in equal parts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Law:
    """How a graph divides: the partitions that were made, and a power of the number of parts between them."""

    points: tuple[Point, ...] = (RANDOM,)
    """The partitions that were made, by ascending number of parts; at least one."""

    def at(self, num_ranks: int) -> tuple[Point, bool]:
        """Return the partition into as many parts, and whether it was made."""
        known = next((point for point in self.points if point.num_parts == num_ranks), None)
        if known is not None and self.points != (RANDOM,):
            return known, True
        largest = self.points[-1]
        point = Point(
            num_parts=num_ranks,
            halo_ratio=_power([(p.num_parts, p.halo_ratio) for p in self.points], num_ranks),
            cut_ratio=_power([(p.num_parts, p.cut_ratio) for p in self.points], num_ranks),
            node_balance=largest.node_balance,
            edge_balance=largest.edge_balance,
            halo_balance=largest.halo_balance,
        )
        return point, False

    def share(self, num_ranks: int, degrees: Degrees, num_nodes: int) -> LargestShare:
        """Return what the busiest of some ranks has of a graph with these degrees."""
        if num_ranks == 1:
            return LargestShare(num_ranks=1, rows=1.0, edges=1.0, remote=0.0, halo=0.0, is_measured=True)
        point, is_measured = self.at(num_ranks)
        halo = point.halo_ratio * degrees.random_halo(num_ranks) / num_ranks * point.halo_balance
        others = 1 - 1 / num_ranks
        return LargestShare(
            num_ranks=num_ranks,
            rows=min(1.0, point.node_balance / num_ranks),
            edges=min(1.0, point.edge_balance / num_ranks),
            remote=point.cut_ratio * others,
            halo=min(halo / num_nodes, others * (num_ranks - 1)),
            is_measured=is_measured,
        )

    def __str__(self) -> str:
        if self.points == (RANDOM,):
            return "random owners of the nodes, the most rows that can travel"
        counts = ", ".join(str(point.num_parts) for point in self.points)
        exponent = _fit([(p.num_parts, p.halo_ratio) for p in self.points])[1]
        return (
            f"measured for {counts} ranks; beyond, halo rows are {self.points[-1].halo_ratio:.3g} times "
            f"those of random owners at {self.points[-1].num_parts} ranks, growing with their number to the "
            f"power {exponent:.2f}, at most 1"
        )


def _power(points: Sequence[tuple[int, float]], num_ranks: int) -> float:
    """Return the ratio for a number of ranks by the power law through measured ones, from the last one on."""
    last, ratio = points[-1]
    exponent = _fit(points)[1]
    return float(min(1.0, max(ratio, _LEAST) * (num_ranks / last) ** exponent))


def _fit(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Return factor and exponent of the power of least squared logarithmic error; exponents below 0 are 0."""
    logs = [(math.log(parts), math.log(max(ratio, _LEAST))) for parts, ratio in points]
    mean = [sum(values) / len(logs) for values in zip(*logs, strict=True)]
    spread = sum((x - mean[0]) ** 2 for x, _ in logs)
    slope = sum((x - mean[0]) * (y - mean[1]) for x, y in logs) / spread if spread else 0.0
    slope = max(0.0, slope)  # more parts never cut a smaller share of what chance would
    return math.exp(mean[1] - slope * mean[0]), slope


__all__ = ["RANDOM", "Degrees", "LargestShare", "Law", "Point"]
