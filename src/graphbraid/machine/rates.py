"""Rates: what a machine does in a second, and the time that products and aggregations take by them.

The one cost model of the library. A layer that runs alone weighs the default rates, since it must decide
before anything was measured; full-graph training weighs those of the machine.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """What a machine does in a second; only the ratios decide.

    The defaults are those of the two machines in docs/results.md within a factor of two, and a wrong choice
    near a tie costs little.
    """

    multiply_flops: float = 1.5e11
    """Of a float32 matrix product with a weight."""
    row_bytes: float = 1.2e10
    """Reading rows at random, as an aggregation does."""
    cached_row_bytes: float = 6e10
    """Reading rows at random out of the processor's cache."""
    cache_bytes: float = 8e6
    """Rows of so many bytes in all are read at the cache's rate rather than at the memory's."""
    stream_bytes: float = 1.5e10
    """Reading or writing in sequence."""
    sparse_values: float = 4e8
    """Stored values a second times one vector of columns (16): sparse features times a weight."""

    binary_values: float = 1e10
    """Zeros and ones a second times one vector of columns (16): binary features times a weight."""

    @property
    def gamma(self) -> float:
        """Multiplications a second along the sparse input path over those along the dense (Morphling)."""
        return self.sparse_values * 16 * 2 / self.multiply_flops

    def aggregate_seconds(self, num_edges: int, width: int) -> float:
        """Time of an aggregation of float32 rows."""
        return 4.0 * num_edges * width / self.row_bytes

    def multiply_seconds(self, num_rows: int, depth: int, width: int) -> float:
        """Time of a dense product: its arithmetic or its rows, whichever takes longer."""
        arithmetic = 2.0 * num_rows * depth * width / self.multiply_flops
        return max(arithmetic, 4.0 * num_rows * (depth + width) / self.stream_bytes)

    def sparse_seconds(self, num_values: float, width: int) -> float:
        """Time of sparse features' product with a weight."""
        return num_values * ((width + 15) // 16) / self.sparse_values

    def binary_seconds(self, num_rows: int, depth: int, width: int) -> float:
        """Time of binary features' product with a weight; words are of 32 features."""
        return num_rows * ((depth + 31) // 32 * 32) * ((width + 15) // 16) / self.binary_values
