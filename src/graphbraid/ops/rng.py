"""Counter-based random numbers: a draw is a function of its coordinates, so that nothing is stored.

The sampler's coordinates are (seed, epoch, step, hop, node, index). ``csrc/base/rng.h`` has the same
functions in C++. A mask of dropout is a function of a seed and of each element's position, as in
``csrc/base/dropout.h``. All arithmetic is modulo 2**64.
"""

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from graphbraid.graph.scans import tracing
from graphbraid.ops.library import AnySeed

U64 = npt.NDArray[np.uint64]
MASK = (1 << 64) - 1
RELATION_BIT = 40
"""Lowest bit of the relation in a row's word: nodes are below it, the hop begins at bit 56."""
PHI = 0x9E3779B97F4A7C15
_MUL_1, _MUL_2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def mix(z: int) -> int:
    """Apply the finaliser of splitmix64 to one number."""
    z &= MASK
    z = ((z ^ (z >> 30)) * _MUL_1) & MASK
    z = ((z ^ (z >> 27)) * _MUL_2) & MASK
    return z ^ (z >> 31)


def mix_array(z: U64) -> U64:
    """Apply :func:`mix` to every element of a uint64 array."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(_MUL_1)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(_MUL_2)
    return z ^ (z >> np.uint64(31))


def batch_key(seed: int, epoch: int, step: int) -> int:
    """Return the key of a mini-batch; ``step`` must be below 2**32 - 1."""
    return mix(seed ^ mix(((epoch << 32) + step) & MASK))


def seed_with_key(key_seed: int, epoch: int, step: int) -> int:
    """Return the seed whose step 0 of epoch 0 has the key ``batch_key(key_seed, epoch, step)``."""
    return key_seed ^ mix(((epoch << 32) + step) & MASK)  # since mix(0) is 0


def shuffle_key(seed: int, epoch: int) -> int:
    """Return the key of an epoch's seed shuffle: the batch key of a step that no epoch reaches."""
    return batch_key(seed, epoch, 0xFFFFFFFF)


def row_keys(key: int | U64, hop: int, nodes: npt.NDArray[np.int64]) -> U64:
    """Return the keys of the rows of ``nodes`` at one hop, ``(len(nodes),)`` uint64.

    ``key`` is the batch's, or that of each node's tree.
    """
    rows = mix_array(nodes.astype(np.uint64) + np.uint64(hop << 56))
    return mix_array(np.asarray(key, dtype=np.uint64) ^ rows)


def tree_keys(key: int, trees: npt.NDArray[np.int64]) -> U64:
    """Return the keys of disjoint trees, one for each; their rows use them instead of the batch's ``key``."""
    return mix_array(np.uint64(key) + (trees.astype(np.uint64) + np.uint64(1)) * np.uint64(PHI))


def relation_keys(key: int | U64, hop: int, relation: int, nodes: npt.NDArray[np.int64]) -> U64:
    """Return the keys of the rows of ``nodes`` and a relation at one hop; relation 0 has :func:`row_keys`."""
    return row_keys(key, hop, nodes + (relation << RELATION_BIT))


def draws(keys: U64, count: int) -> U64:
    """Return the first ``count`` draws of each row: ``(len(keys), count)`` uint64, each below 2**32."""
    counter = np.arange(count, dtype=np.uint64) * np.uint64(PHI)
    return mix_array(keys[:, None] + counter) >> np.uint64(32)


def bounded(bits: U64, bound: U64 | np.uint64) -> npt.NDArray[np.int64]:
    """Map draws to ``[0, bound)``; ``bound`` must be below 2**32."""
    return ((bits * bound) >> np.uint64(32)).astype(np.int64)


def wide_draw(keys: U64, index: int) -> U64:
    """Return all 64 bits of one draw of each row, ``(len(keys),)`` uint64."""
    return mix_array(keys + np.uint64(index * PHI & MASK))


def wide_bounded(bits: U64, bound: int) -> npt.NDArray[np.int64]:
    """Map draws of 64 bits to ``[0, bound)``: ``bits * bound >> 64`` by halves; ``bound`` is below 2**32."""
    low = (bits & np.uint64(0xFFFFFFFF)) * np.uint64(bound) >> np.uint64(32)
    return (((bits >> np.uint64(32)) * np.uint64(bound) + low) >> np.uint64(32)).astype(np.int64)


def unit(bits: U64) -> npt.NDArray[np.float64]:
    """Map draws of 64 bits to multiples of 2**-53 in ``[0, 1)``."""
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def log_of_draw(bits: U64) -> npt.NDArray[np.float64]:
    """Return the natural logarithm of ``(bits + 1/2) / 2**32``, by a fixed sequence of IEEE operations.

    The ``log`` of a library may differ in the last bit between machines; this one equals that of
    ``csrc/sampling/sample_row.inl`` bit for bit.
    """
    mantissa, exponent = np.frexp(bits.astype(np.float64) + 0.5)
    mantissa, power = mantissa * 2.0, exponent.astype(np.float64) - 1.0 - 32.0
    large = mantissa > 1.4142135623730951
    mantissa, power = np.where(large, mantissa * 0.5, mantissa), np.where(large, power + 1.0, power)
    s = (mantissa - 1.0) / (mantissa + 1.0)
    q = s * s
    p = np.full_like(q, 1.0 / 17.0)
    for odd in range(15, 0, -2):
        p = p * q + 1.0 / odd
    return power * 0.6931471805599453 + 2.0 * s * p


# ---- dropout

_GIVEN = threading.local()
_PHI32 = 0x9E3779B9


def draw_seed() -> int:
    """Draw a seed from torch's generator, so that ``torch.manual_seed`` and saved states reproduce it."""
    given: Iterator[Any] | None = getattr(_GIVEN, "seeds", None)
    if given is not None and (seed := next(given, None)) is not None:
        found: int = seed
        return found
    return int(torch.randint(0, 2**63 - 1, (), dtype=torch.int64))


def seed_of_call() -> AnySeed:
    """Draw a seed; while torch traces, a tensor, so that each call of what it traced draws another."""
    return torch.randint(0, 2**63 - 1, (1,), dtype=torch.int64) if tracing() else draw_seed()


@contextmanager
def given_seeds(seeds: Iterable[AnySeed]) -> Iterator[None]:
    """Make :func:`draw_seed` give these seeds, in this order, to this thread inside the ``with`` block.

    Tensors are for operators on a device alone, whose kernels read a seed as they run.
    """
    before, _GIVEN.seeds = getattr(_GIVEN, "seeds", None), iter(seeds)
    try:
        yield
    finally:
        _GIVEN.seeds = before


@contextmanager
def given_rows(rows: Mapping[str, Tensor] | None) -> Iterator[None]:
    """Draw the masks of rows for the nodes of a mini-batch, in this thread inside the ``with`` block.

    A node then has the same mask in every batch that has it, for the same seed.

    Args:
        rows: by node type the ids of the batch's nodes, ``(num_nodes,)`` int64, in the graph's order of
            types. If None, masks are drawn for the places of rows.
    """
    before = rows_given(), getattr(_GIVEN, "ids", None)
    _GIVEN.rows, _GIVEN.ids = rows, None if rows is None else next(iter(rows.values()))
    try:
        yield
    finally:
        _GIVEN.rows, _GIVEN.ids = before


def rows_given() -> Mapping[str, Tensor] | None:
    """Return the ids that :func:`given_rows` has given, by node type; None if there are none."""
    rows: Mapping[str, Tensor] | None = getattr(_GIVEN, "rows", None)
    return rows


def mask_type(node_type: str | int) -> None:
    """Draw the next masks for nodes of this type, given by name or number, if any ids are given."""
    rows = rows_given()
    if rows is not None:
        _GIVEN.ids = [*rows.values()][node_type] if isinstance(node_type, int) else rows.get(node_type)


def row_ids(count: int) -> Tensor | None:
    """Return the ids that the masks of ``count`` rows are drawn for, those of the batch's first nodes.

    None if a mask is to be drawn for the place of each row: no ids are given, or fewer than ``count``.
    """
    ids: Tensor | None = getattr(_GIVEN, "ids", None)
    return None if ids is None or count > ids.numel() else ids[:count]


def keep_mask(rows: Tensor, columns: int | Tensor, p: float, seed: int | Tensor) -> Tensor:
    """Return the elements that dropout keeps; the twin of ``dropout.h``.

    Args:
        rows: ``(num_rows,)`` int64 row numbers.
        columns: number of columns; or ``(num_rows, k)`` int64, the columns of some elements of each row.
        p: probability of dropping an element, to the precision of 32 bits.
        seed: seed from :func:`draw_seed`, or a ``(1,)`` int64 tensor that holds it.

    Returns:
        ``(num_rows, columns)`` bool, True where kept.
    """
    keys = _shift(_mix_tensor(rows * (PHI - (1 << 64)) + seed), 32)
    at = torch.arange(columns, device=rows.device) if isinstance(columns, int) else columns.long()
    h = (keys[:, None] + at * _PHI32) & 0xFFFFFFFF  # below, products may wrap: their low 32 bits are right
    h = ((h ^ (h >> 16)) * 0x85EBCA6B) & 0xFFFFFFFF
    h = ((h ^ (h >> 13)) * 0xC2B2AE35) & 0xFFFFFFFF
    return (h ^ (h >> 16)) >= int(p * 2**32)


def _mix_tensor(z: Tensor) -> Tensor:
    """Apply the splitmix64 finaliser to int64, which wraps around as uint64 does."""
    z = (z ^ _shift(z, 30)) * (_MUL_1 - (1 << 64))
    z = (z ^ _shift(z, 27)) * (_MUL_2 - (1 << 64))
    return z ^ _shift(z, 31)


def _shift(z: Tensor, bits: int) -> Tensor:
    """Shift to the right logically, filling with zeros."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)
