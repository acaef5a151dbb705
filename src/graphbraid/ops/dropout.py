"""Counter-based dropout: the mask is a function of a seed and each element's position, so never stored."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from graphbraid.graph.scans import tracing
from graphbraid.ops.library import AnySeed

_GIVEN = threading.local()
_MASK32 = 0xFFFFFFFF
_PHI = 0x9E3779B97F4A7C15 - (1 << 64)  # as a signed 64-bit number
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

    None if a mask is to be drawn for the place of each row: no ids are given, or not so many.
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
    keys = _shift(_mix(rows * _PHI + seed), 32)
    at = torch.arange(columns, device=rows.device) if isinstance(columns, int) else columns.long()
    h = (keys[:, None] + at * _PHI32) & _MASK32
    h = ((h ^ (h >> 16)) * 0x85EBCA6B) & _MASK32
    h = ((h ^ (h >> 13)) * 0xC2B2AE35) & _MASK32
    return (h ^ (h >> 16)) >= int(p * 2**32)


def _mix(z: Tensor) -> Tensor:
    """Apply the splitmix64 finaliser to int64, which wraps around as uint64 does."""
    z = (z ^ _shift(z, 30)) * (0xBF58476D1CE4E5B9 - (1 << 64))
    z = (z ^ _shift(z, 27)) * (0x94D049BB133111EB - (1 << 64))
    return z ^ _shift(z, 31)


def _shift(z: Tensor, bits: int) -> Tensor:
    """Shift to the right logically, filling with zeros."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


class RowEpilogue(NamedTuple):
    """The arguments of ``dropout(act(row + bias), p)``, in the order and form that the kernels take.

    A compiled kernel with an epilogue gives the same bits as the kernel followed by the kernel ``epilogue``.
    A Triton kernel may round once less, where the bias is added to a product.
    """

    bias: Tensor | None
    """``(width,)`` in the dtype of the sums, contiguous, or None."""
    act: int
    """Activation, as numbered in :data:`graphbraid.ops.epilogue.ACTIVATION_CODES`."""
    slope: float
    """Slope of leaky ReLU below zero."""
    p: float
    """Probability of dropping an element."""
    seed: int | Tensor
    """Seed of the dropout mask: an int or, except for the compiled kernels, a ``(1,)`` int64 tensor."""
    ids: Tensor | None
    """``(num_rows,)`` int64 row numbers that the rows' masks are drawn for, or None for their own."""
