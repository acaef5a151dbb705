"""Rates: how fast a machine is, and the time that products and aggregations take at these rates.

This is the library's only cost model. A layer that runs by itself uses the default rates, since it must
decide before anything is measured; full-graph training uses the rates measured on the machine.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """Throughput of a machine per second; decisions depend only on the ratios.

    The defaults are within a factor of two of those of the two machines in docs/results.md; a wrong choice
    near a tie costs little.
    """

    multiply_flops: float = 1.5e11
    """Floating-point operations per second of a float32 matrix product with a weight."""
    row_bytes: float = 1.2e10
    """Bytes per second read from randomly placed rows in memory, as by an aggregation."""
    cached_row_bytes: float = 6e10
    """Bytes per second read from randomly placed rows in the caches of the cores."""
    outer_row_bytes: float = 3e10
    """Bytes per second read from randomly placed rows in the cache behind those."""
    inner_cache_bytes: float = 2e6
    """Size in bytes up to which a matrix is read at the rate of the cores' caches."""
    cache_bytes: float = 8e6
    """Size in bytes up to which a matrix is read at the rate of the cache rather than that of memory."""
    stream_bytes: float = 1.5e10
    """Bytes per second read or written sequentially."""
    outer_stream_bytes: float = 3e10
    """Bytes per second read or written sequentially in the cache behind the cores'."""
    sparse_values: float = 4e8
    """Stored values per second that sparse features times a weight multiply by a vector of 16 columns."""

    binary_values: float = 1e10
    """Zeros and ones per second that binary features times a weight multiply by a vector of 16 columns."""

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Rates:
        """Make rates from their values by name.

        Raises:
            TypeError, ValueError: a value is missing or unknown, or no positive number.
        """
        values = {str(name): float(rate) for name, rate in content.items()}
        if bad := [name for name, rate in values.items() if not math.isfinite(rate) or rate <= 0]:
            raise ValueError(f"the rate {bad[0]} is {values[bad[0]]}, not a positive number")
        return cls(**values)

    @property
    def gamma(self) -> float:
        """Ratio of the sparse input path's arithmetic rate to the dense path's (Morphling's gamma)."""
        return self.sparse_values * 16 * 2 / self.multiply_flops

    def fastest(self, other: Rates) -> Rates:
        """Return the higher of each two rates, since disturbances only make a measurement slower."""
        return Rates(
            **{name: max(rate, getattr(other, name)) for name, rate in dataclasses.asdict(self).items()}
        )

    def aggregate_seconds(self, num_edges: int, width: int) -> float:
        """Return the time of an aggregation of float32 rows."""
        return 4.0 * num_edges * width / self.row_bytes

    def multiply_seconds(self, num_rows: int, depth: int, width: int) -> float:
        """Return the time of a dense product: the longer of its arithmetic and its memory traffic."""
        arithmetic = 2.0 * num_rows * depth * width / self.multiply_flops
        return max(arithmetic, 4.0 * num_rows * (depth + width) / self.stream_bytes)

    def sparse_seconds(self, num_values: float, width: int) -> float:
        """Return the time of the product of sparse features with a weight."""
        return num_values * ((width + 15) // 16) / self.sparse_values

    def binary_seconds(self, num_rows: int, depth: int, width: int) -> float:
        """Return the time of the product of binary features, 32 to a word, with a weight."""
        return num_rows * ((depth + 31) // 32 * 32) * ((width + 15) // 16) / self.binary_values
