"""What lowering weighs: the sizes of the graph and its levels, and this machine's rates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from graphbraid.graph import Graph
from graphbraid.sparse_features import SparseFeatures


@dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """What a machine does in a second; only the ratios decide."""

    multiply_flops: float = 1.5e11
    """Of a float32 matrix product with a weight."""
    row_bytes: float = 1.2e10
    """Reading rows at random, as an aggregation does."""
    cached_row_bytes: float = 6e10
    """Reading rows at random out of the processor's cache."""
    stream_bytes: float = 1.5e10
    """Reading or writing in sequence."""
    sparse_values: float = 4e8
    """Stored values a second times one vector of columns (16): sparse features times a weight."""

    @property
    def gamma(self) -> float:
        """Multiplications a second along the sparse input path over those along the dense (Morphling)."""
        return self.sparse_values * 16 * 2 / self.multiply_flops


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
    hoist_bytes: int
    """Bytes a hoisted aggregation may take."""
    rates: Rates
    storage: torch.dtype = torch.float32
    """What rows may be rounded to before they are aggregated: float32 or bfloat16."""

    def aggregate_seconds(self, step: int, width: int) -> float:
        """Time of an aggregation over the edges of a step."""
        return 4.0 * self.edges[step] * width / self.rates.row_bytes

    def multiply_seconds(self, rows: int, depth: int, width: int) -> float:
        """Time of a dense product: its arithmetic or its rows, whichever takes longer."""
        arithmetic = 2.0 * rows * depth * width / self.rates.multiply_flops
        return max(arithmetic, 4.0 * rows * (depth + width) / self.rates.stream_bytes)

    def sparse_seconds(self, rows: int, width: int) -> float:
        """Time of the features' product with a weight along the sparse path."""
        vectors = (width + 15) // 16
        return rows * self.in_channels * self.density * vectors / self.rates.sparse_values


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
    return Facts(
        rows=tuple(rows),
        edges=tuple(edges),
        in_channels=int(x.shape[1]),
        density=density(x),
        is_sparse=isinstance(x, SparseFeatures),
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
