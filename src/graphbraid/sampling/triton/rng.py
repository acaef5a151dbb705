"""The counter-based generator in Triton, equal to ``ops/rng.py`` and ``csrc/base/rng.h`` bit for bit.

Keys and draws are uint64 tensors. A kernel receives a key as a signed argument (:func:`signed`).
"""

from __future__ import annotations

import triton
import triton.language as tl

_PHI = tl.constexpr(0x9E3779B97F4A7C15)
_MUL_1 = tl.constexpr(0xBF58476D1CE4E5B9)
_MUL_2 = tl.constexpr(0x94D049BB133111EB)
_FRACTION = tl.constexpr(0x000FFFFFFFFFFFFF)
_ONE = tl.constexpr(0x3FF0000000000000)  # the bits of 1.0


def signed(key: int) -> int:
    """Return the signed integer with the same bits as a 64-bit key."""
    return key - (1 << 64) if key >> 63 else key


@triton.jit
def mix(z):
    """Apply the finaliser of splitmix64."""
    z = (z ^ (z >> 30)) * _MUL_1
    z = (z ^ (z >> 27)) * _MUL_2
    return z ^ (z >> 31)


@triton.jit
def unsigned(number):
    """Return the 64 bits of a signed integer as uint64."""
    return tl.cast(number, tl.int64).to(tl.uint64)


@triton.jit
def row_key(batch_key, hop, node):
    """Return the key of a node's row at a hop."""
    return mix(unsigned(batch_key) ^ mix((unsigned(hop) << 56) + node.to(tl.uint64)))


@triton.jit
def draw(key, i):
    """Return the i-th draw of a row: 32 random bits."""
    return mix(key + unsigned(i) * _PHI) >> 32


@triton.jit
def bounded(bits, bound):
    """Map draws to [0, bound), int64; bound must be below 2**32."""
    return ((bits * unsigned(bound)) >> 32).to(tl.int64)


@triton.jit
def log_of_draw(bits):
    """Return ln((bits + 1/2) / 2**32) in float64 by the operations of ``log_of_draw`` in ``ops/rng.py``.

    For equal bits the calling kernel must be compiled with ``enable_fp_fusion=False``.
    """
    raw = (bits.to(tl.float64) + 0.5).to(tl.uint64, bitcast=True)
    power = ((raw >> 52).to(tl.int64) - (1023 + 32)).to(tl.float64)
    mantissa = ((raw & _FRACTION) | _ONE).to(tl.float64, bitcast=True)
    large = mantissa > 1.4142135623730951
    mantissa = tl.where(large, mantissa * 0.5, mantissa)
    power = tl.where(large, power + 1.0, power)
    s = (mantissa - 1.0) / (mantissa + 1.0)
    q = s * s
    p = tl.full(q.shape, 1.0 / 17.0, tl.float64)
    for i in tl.static_range(8):
        p = p * q + 1.0 / (15 - 2 * i)
    return power * 0.6931471805599453 + 2.0 * s * p
