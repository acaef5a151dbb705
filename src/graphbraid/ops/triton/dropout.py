"""Counter-based dropout in Triton, with the bits of ``csrc/base/dropout.h`` and ``ops.dropout.keep_mask``."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

_PHI = tl.constexpr(0x9E3779B97F4A7C15)
_MIX_1 = tl.constexpr(0xBF58476D1CE4E5B9)
_MIX_2 = tl.constexpr(0x94D049BB133111EB)
_PHI32 = tl.constexpr(0x9E3779B9)


def dropout_arguments(p: float, seed: int | Tensor) -> dict[str, Any]:
    """Return the kernels' arguments: seed, threshold (32 bits as a signed number), scale, whether to drop.

    If the seed is a tensor of one int64, the kernel reads it when it runs, so a recorded launch uses the seed
    that the tensor holds when it is replayed.
    """
    threshold = int(p * 2**32)
    signed = threshold - 2**32 if threshold >= 2**31 else threshold
    return {"seed": seed, "threshold": signed, "keep_scale": 1 / (1 - p), "DROPOUT": threshold != 0}


@triton.jit
def seed_of(seed):
    """Load the seed if it was given as a pointer."""
    return tl.load(seed) if seed.dtype.is_ptr() else seed


@triton.jit
def dropout_key(seed, row):
    """Return 32 bits for each int64 ``row``, the high half of splitmix64's finaliser."""
    z = tl.cast(seed, tl.int64).to(tl.uint64) + row.to(tl.uint64) * _PHI
    z = (z ^ (z >> 30)) * _MIX_1
    z = (z ^ (z >> 27)) * _MIX_2
    return ((z ^ (z >> 31)) >> 32).to(tl.uint32)


@triton.jit
def kept(key, column, threshold):
    """Return which of the elements (row with this key, column) are kept."""
    h = key + column.to(tl.uint32) * _PHI32
    h = (h ^ (h >> 16)) * 0x85EBCA6B
    h = (h ^ (h >> 13)) * 0xC2B2AE35
    return (h ^ (h >> 16)) >= tl.cast(threshold, tl.int32).to(tl.uint32)
