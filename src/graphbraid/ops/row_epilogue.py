"""RowEpilogue: bias, activation and dropout that a kernel applies to a row while the cache holds it."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class RowEpilogue(NamedTuple):
    """The arguments of ``dropout(act(row + bias), p)``, in the order and form that the kernels take.

    A compiled kernel with an epilogue gives the same bits as the kernel followed by the kernel ``epilogue``.
    A Triton kernel may round once less, where the bias is added to a product.
    """

    bias: Tensor | None
    """``(width,)`` in the dtype of the sums, contiguous, or None."""
    act: int
    """Activation, as numbered in :data:`graphbraid.ops.rowwise.epilogue.ACTIVATION_CODES`."""
    slope: float
    """Slope of leaky ReLU below zero."""
    p: float
    """Probability of dropping an element."""
    seed: int | Tensor
    """Seed of the dropout mask: an int or, except for the compiled kernels, a ``(1,)`` int64 tensor."""
    ids: Tensor | None
    """``(num_rows,)`` int64 row numbers that the rows' masks are drawn for, or None for their own."""
