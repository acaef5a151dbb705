"""RowEpilogue: what a kernel does to each row of its result before the row leaves the cache."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class RowEpilogue(NamedTuple):
    """``dropout(act(row + bias), p)``, in the order and form that the kernels take.

    A compiled kernel given one writes the bits that it and the kernel ``epilogue`` after it would. A Triton
    kernel may round once less, where the bias is added to a product.
    """

    bias: Tensor | None
    """``(width,)`` in the dtype of the sums, contiguous, or None."""
    act: int
    """As in :data:`graphbraid.ops.epilogue.ACTIVATION_CODES`."""
    slope: float
    """Of leaky ReLU below 0."""
    p: float
    """Probability of dropping an element."""
    seed: int | Tensor
    """Of the dropout mask. The compiled kernels take a number only, the others also ``(1,)`` int64 in memory.
    """
    ids: Tensor | None
    """``(num_rows,)`` int64: the row that each row's mask is drawn for; None: itself."""
