"""Streams of the counter RNG for datasets: draw ``i`` of a stream is ``mix(key + i·φ)``."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from graphbraid.arguments import as_count
from graphbraid.sampling.rng import PHI, mix, mix_array


def stream_key(seed: int, purpose: int) -> int:
    """Return the 64-bit key of one kind of draws under one seed.

    Raises:
        ConfigError: the seed is not a whole number of at most 64 bits.
    """
    seed = as_count(seed, "seed", most=(1 << 64) - 1)
    return mix(seed ^ mix(purpose))


def draws(key: int, count: int, first: int = 0) -> npt.NDArray[Any]:
    """Return the draws ``first``, ``first + 1``, ... of a stream as ``(count,)`` uint64."""
    return mix_array(np.arange(first, first + count, dtype=np.uint64) * np.uint64(PHI) + np.uint64(key))
