"""What lowering weighs: the sizes of the graph and its levels, and a machine's rates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from graphbraid.graph import Graph
from graphbraid.graph.sparse_features import SparseFeatures
from graphbraid.machine.rates import Rates
from graphbraid.ops.binary import is_binary

CLOSE = 2.0
"""Choices whose times by the rates are within this factor are told apart by trial."""
LEAST_STAKE = 20e-6
"""Seconds of a step: where less is at stake a trial would only add its noise, to the bits too."""


class Tried(Protocol):
    """Seconds taken by trial on the very operands, beside those by rates."""

    found: dict[str, float]
    """Seconds by what was tried so far."""

    def aggregate_seconds(self, num_edges: int, width: int) -> float:
        """Of an aggregation over so many edges."""
        ...

    def multiply_seconds(self, rows: int, depth: int, width: int) -> float:
        """Of a dense product."""
        ...

    def sparse_seconds(self, rows: int, width: int) -> float:
        """Of the features' product with a weight along the sparse path."""
        ...

    def binary_seconds(self, rows: int, width: int) -> float:
        """Of the features' product with a weight along the binary path."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Basis:
    """What choices are weighed by: measured, where the facts are looked up."""

    rates: Rates
    doubt: str = ""
    """Why the rates may be wrong, as a sentence; empty where nothing speaks against them."""
    trials: Callable[[Graph, float], Tried | None] | None = None
    """Gives the trials of a graph, from its features' share of non-zeros; None: rates alone decide."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """Sizes that costs are made of."""

    rows: tuple[int, ...]
    """Nodes of each level."""
    edges: tuple[int, ...]
    """Edges from each level to the next."""
    in_channels: int
    density: float
    """Share of the features that is not zero."""
    is_sparse: bool
    """Whether the graph holds its features in CSR."""
    is_binary: bool
    """Whether the non-zero features of each node are one number; False where nothing would be faster by it.
    """
    hoist_bytes: int
    """Bytes a hoisted aggregation may take."""
    rates: Rates
    storage: torch.dtype = torch.float32
    """What rows may be rounded to before they are aggregated: float32 or bfloat16."""

    trials: Tried | None = None
    """Times what rates do not tell apart; None: rates alone decide."""
    by_trial: bool = False
    """Whether times are those of trials."""

    @property
    def _speed(self) -> Rates | Tried:
        return self.trials if self.by_trial and self.trials is not None else self.rates

    def weighed(self, seconds: Callable[[Facts], dict[str, float]]) -> tuple[dict[str, float], str]:
        """Seconds of each choice: by the rates, or by trial where the best two are close.

        Returns:
            The seconds, and what they are by, to be printed after them.
        """
        found = seconds(self)
        best, *others = sorted(found.values())
        if self.trials is None or not others or others[0] > CLOSE * best or others[0] < LEAST_STAKE:
            return found, ""
        return seconds(replace(self, by_trial=True)), " (tried)"

    def aggregate_seconds(self, level: int, width: int) -> float:
        """Time of an aggregation over the edges that lead on from a level."""
        return self._speed.aggregate_seconds(self.edges[level], width)

    def multiply_seconds(self, rows: int, depth: int, width: int) -> float:
        """Time of a dense product."""
        return self._speed.multiply_seconds(rows, depth, width)

    def sparse_seconds(self, rows: int, width: int) -> float:
        """Time of the features' product with a weight along the sparse path."""
        if self.by_trial and self.trials is not None:
            return self.trials.sparse_seconds(rows, width)
        return self.rates.sparse_seconds(rows * self.in_channels * self.density, width)

    def binary_seconds(self, rows: int, width: int) -> float:
        """Time of the features' product with a weight along the binary path."""
        if self.by_trial and self.trials is not None:
            return self.trials.binary_seconds(rows, width)
        return self.rates.binary_seconds(rows, self.in_channels, width)


def facts_of(
    graph: Graph,
    rows: Sequence[int],
    edges: Sequence[int],
    rates: Rates,
    *,
    hoist_bytes: int,
    storage: torch.dtype = torch.float32,
) -> Facts:
    """The sizes of a graph and of its levels: ``rows`` of each, ``edges`` from each to the next."""
    x = graph.x
    assert x is not None
    in_channels, share = int(x.shape[1]), density(x)
    serves = rates.binary_seconds(1, in_channels, 1) < CLOSE * rates.sparse_seconds(share * in_channels, 1)
    return Facts(
        rows=tuple(rows),
        edges=tuple(edges),
        in_channels=in_channels,
        density=share,
        is_sparse=isinstance(x, SparseFeatures),
        is_binary=serves and is_binary(x),
        hoist_bytes=hoist_bytes,
        rates=rates,
        storage=storage,
    )


def density(x: Tensor | SparseFeatures) -> float:
    """Share of the features that is not zero, counted in at most 2²⁴ of them for dense ones."""
    cells = max(x.shape[0] * x.shape[1], 1)
    if isinstance(x, SparseFeatures):
        return x.nnz / cells
    every = max(1, cells // 2**24)
    sample = x[::every]
    return float(torch.count_nonzero(sample)) / max(sample.numel(), 1)
