"""Work: the bytes and operations that a lowered operation cannot avoid, and the least time they take."""

from __future__ import annotations

from dataclasses import dataclass

from graphbraid.machine.rates import Rates


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """Bytes and operations of one pass; memory, cache and arithmetic work at the same time."""

    stream_bytes: float = 0.0
    """Bytes read from or written to memory in sequence."""
    random_bytes: float = 0.0
    """Bytes of rows read at random that miss every cache."""
    outer_stream_bytes: float = 0.0
    """Bytes read or written in sequence where all fits in the cache behind the cores'."""
    outer_bytes: float = 0.0
    """Bytes of rows read at random that miss the cores' caches and are found in the cache behind them."""
    cached_bytes: float = 0.0
    """Bytes of all rows read at random, hits and misses, and of matrices that fit in the cores' caches."""
    flops: float = 0.0
    """Number of multiplications and additions."""
    bit_seconds: float = 0.0
    """Seconds of products with features stored as bits, by their own measured rate."""

    def seconds(self, rates: Rates) -> float:
        """Return the longest of the times of arithmetic, of bytes read, and of those brought to the cores."""
        fetched = self.stream_bytes / rates.stream_bytes + self.random_bytes / rates.row_bytes
        fetched += (
            self.outer_stream_bytes / rates.outer_stream_bytes + self.outer_bytes / rates.outer_row_bytes
        )
        cached, arithmetic = self.cached_bytes / rates.cached_row_bytes, self.flops / rates.multiply_flops
        return max(fetched, cached, arithmetic, self.bit_seconds)
