"""The costs that lowering weighs: sizes of the graph and its levels, a machine's rates, and trials."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from graphbraid.errors import DataError
from graphbraid.fullgraph.program import LevelNodes
from graphbraid.graph import Graph
from graphbraid.graph.scaled_features import Features, stored_rows
from graphbraid.graph.sparse_features import SparseFeatures
from graphbraid.graph.types import Relation
from graphbraid.machine.rates import Rates
from graphbraid.ops.binary import is_binary

# ---- evidence: the rates and trials behind a lowering, so that another one can repeat it bit for bit


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """Rates and trials that a run stores and uses again when it is resumed.

    The choices differ in how they round, so with new measurements, taken on another day or machine, a resumed
    run could give other bits.
    """

    rates: Rates
    trials: Mapping[str, float] = field(default_factory=dict)
    """Measured seconds, by the name of the trial."""

    def to_json(self) -> dict[str, Any]:
        """Return the evidence as plain values."""
        return {"rates": dataclasses.asdict(self.rates), "trials": dict(self.trials)}

    @classmethod
    def from_json(cls, content: Any, where: str = "the evidence") -> Evidence:
        """Make evidence from the values of :meth:`to_json`.

        Raises:
            DataError: ``content`` is anything else; the message says what is wrong in ``where``.
        """
        try:
            return cls(rates=Rates.from_json(content["rates"]), trials=sound_trials(content["trials"]))
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise DataError(
                f"{where} holds no sound rates and trials: {error}. Delete it, and the run goes on by those "
                "of this machine."
            ) from error


def sound_trials(found: Any) -> dict[str, float]:
    """Return trials read from a file, once checked.

    Raises:
        ValueError: ``found`` is not a mapping from names to positive numbers.
    """
    if not isinstance(found, dict):
        raise ValueError("trials must be seconds by name")
    for name, seconds in found.items():
        if not isinstance(seconds, float | int) or not math.isfinite(seconds) or seconds <= 0:
            raise ValueError(f"{name!r} cannot have taken {seconds!r} seconds")
    return {str(name): float(seconds) for name, seconds in found.items()}


# ---- the cost model: sizes of the graph and its levels, a machine's rates, and trials

CLOSE = 2.0
"""Factor within which two choices' predicted times are close, so that a trial decides."""
LEAST_STAKE = 20e-6
"""Seconds per step below which no trial runs: its noise would decide, and so change bits between runs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeTypeSizes:
    """Sizes of one node type, in a graph with types."""

    rows: tuple[int, ...]
    """Number of the type's nodes of each level."""
    density: float
    """Share of its features that are not zero; 0 without features."""
    is_sparse: bool
    """Whether the graph holds its features in CSR."""


OperationTimer = Callable[[str, int, int, float], float]
"""Returns the measured seconds of a trial, given its name, rows or edges, columns and expected seconds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CostModel:
    """Predicts the seconds of operations from sizes and rates; trials decide between close choices."""

    in_channels: int
    """Number of feature columns; where there are types, of all types together."""
    density: float
    """Share of the features that are not zero."""
    is_sparse: bool
    """Whether the graph holds its features in CSR."""
    is_binary: bool
    """Whether each node's non-zero features all equal one number; False, unchecked, where bits would not pay.
    """
    hoist_bytes: int
    """Bytes that hoisted aggregations may take."""
    rates: Rates
    doubt: str = ""
    """Why the rates may be wrong, as a sentence; empty if there is no doubt."""
    storage: torch.dtype = torch.float32
    """Dtype to which rows may be rounded before they are aggregated: float32 or bfloat16."""

    rows: tuple[int, ...] = ()
    """Number of nodes of each level."""
    edges: tuple[int, ...] = ()
    """Number of edges from each level to the next."""
    node_types: tuple[NodeTypeSizes, ...] = ()
    """The node types; empty for a graph of one."""
    relation_edges: tuple[Mapping[int, int], ...] = ()
    """Number of edges of each relation, by the level that they lead from; empty for a graph of one type."""

    found: Mapping[str, float] | None = None
    """Seconds by trial name. If None, nothing is tried, and rates alone decide."""
    trial: OperationTimer | None = None
    """Times a trial that :attr:`found` lacks, and adds it. If None, the rates predict it."""
    by_trial: bool = False
    """Whether the time methods return measured times of trials instead of predictions by rates."""

    def weighed(self, seconds: Callable[[CostModel], dict[str, float]]) -> tuple[dict[str, float], str]:
        """Return the seconds of each choice, by the rates or, where the best two are close, by trial.

        Returns:
            The seconds by choice, and a suffix for the printed decision: ``" (tried)"`` or empty.
        """
        predicted = seconds(self)
        best, *others = sorted(predicted.values())
        if self.found is None or not others or others[0] > CLOSE * best or others[0] < LEAST_STAKE:
            return predicted, ""
        return seconds(replace(self, by_trial=True)), " (tried)"

    def num_rows(self, place: LevelNodes) -> int:
        """Return the number of nodes for which a value at a place has rows."""
        return (
            self.node_types[place.node_type].rows[place.level] if self.node_types else self.rows[place.level]
        )

    def density_of(self, node_type: int) -> float:
        """Return the share of a node type's features that are not zero."""
        return self.node_types[node_type].density if self.node_types else self.density

    def num_edges(self, level: int, relation: Relation | None = None) -> int:
        """Return the number of edges from ``level`` to the next, all or those of one relation."""
        return self.edges[level] if relation is None else self.relation_edges[level][relation.number]

    def aggregate_seconds(self, level: int, width: int, relation: Relation | None = None) -> float:
        """Return the seconds of an aggregation over the edges from ``level`` to the next."""
        num_edges = self.num_edges(level, relation)
        return self._seconds("aggregate", num_edges, width, self.rates.aggregate_seconds(num_edges, width))

    def multiply_seconds(self, rows: int, depth: int, width: int) -> float:
        """Return the seconds of a dense ``(rows, depth) x (depth, width)`` product."""
        return self._seconds("dense", rows, width, self.rates.multiply_seconds(rows, depth, width), depth)

    def sparse_seconds(self, rows: int, width: int) -> float:
        """Return the seconds of the features' product with a weight on the sparse path."""
        expected = self.rates.sparse_seconds(rows * self.in_channels * self.density, width)
        return self._seconds("sparse", rows, width, expected)

    def binary_seconds(self, rows: int, width: int) -> float:
        """Return the seconds of the features' product with a weight on the binary path."""
        expected = self.rates.binary_seconds(rows, self.in_channels, width)
        return self._seconds("binary", rows, width, expected)

    def _seconds(self, kind: str, count: int, width: int, expected: float, depth: int | None = None) -> float:
        """Return the expected seconds of an operation; by trial, the seconds of a measured run.

        A run of a product has two products, the result and the weight's gradient. So half of its time counts.
        """
        if not self.by_trial or self.found is None or expected <= 0:
            return expected
        directions = 1 if kind == "aggregate" else 2
        name = " ".join(str(part) for part in (kind, count, depth, width) if part is not None)
        if name not in self.found and self.trial is not None:
            return self.trial(name, count, width, directions * expected) / directions
        return self.found.get(name, directions * expected) / directions


def cost_model(
    graph: Graph,
    rates: Rates,
    *,
    rows: Sequence[int] = (),
    edges: Sequence[int] = (),
    hoist_bytes: int,
    storage: torch.dtype = torch.float32,
    sample: Tensor | None = None,
) -> CostModel:
    """Make the cost model of a graph whose levels have ``rows`` nodes and ``edges`` edges to the next level.

    Of features that do not lie in memory, a ``sample`` of rows stands for all.
    """
    x = graph.x if sample is None else sample
    assert x is not None
    in_channels, share = int(x.shape[1]), density(x)
    serves = rates.binary_seconds(1, in_channels, 1) < CLOSE * rates.sparse_seconds(share * in_channels, 1)
    return CostModel(
        rows=tuple(rows),
        edges=tuple(edges),
        in_channels=in_channels,
        density=share,
        is_sparse=isinstance(x, SparseFeatures),
        is_binary=serves and sample is None and is_binary(x),
        hoist_bytes=hoist_bytes,
        rates=rates,
        storage=storage,
    )


def density(x: Features) -> float:
    """Return the share of features that are not zero; dense ones are sampled if there are more than 2²⁴."""
    cells = max(x.shape[0] * x.shape[1], 1)
    if isinstance(x, SparseFeatures):
        return x.nnz / cells
    every = max(1, cells // 2**24)
    rows = stored_rows(x)
    assert rows is not None
    sample = rows[::every]
    return float(torch.count_nonzero(sample)) / max(sample.numel(), 1)


def in_seconds(seconds: float) -> str:
    """Format a time."""
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def in_bytes(count: float) -> str:
    """Format a size."""
    return f"{count / 1e6:.3g} MB" if count < 1e9 else f"{count / 1e9:.3g} GB"
