"""What each operation of a program runs: calls of the operators' kernels on buffers, forward and backward.

Results go where the engine decides. Beside them a call takes memory of the size of a weight, or of the rows
and columns it handles at a time.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from graphbraid.fullgraph.step.calls.spmm_choice import PickedAggregation
from graphbraid.fullgraph.step.device_copies import DeviceCopies
from graphbraid.graph.sparse_features import SparseFeatures
from graphbraid.ops import reference
from graphbraid.ops.aggregation import Aggregation, aggregated, backend
from graphbraid.ops.binary import BinaryRows
from graphbraid.ops.bit_product import bit_gram, bit_product
from graphbraid.ops.dense import tall_gram, tall_product
from graphbraid.ops.epilogue import ACTIVATION_CODES, LEAKY_SLOPE
from graphbraid.ops.row_epilogue import RowEpilogue
from graphbraid.ops.sparse_linear import structure


class BothWays:
    """A linear map of rows and its transpose, which is made at its first use and kept."""

    def __init__(self, how: Aggregation) -> None:
        self._how = how
        self._reverse: Aggregation | None = None

    def forward(
        self,
        x: Tensor,
        *,
        addend: Tensor | None = None,
        out: Tensor | None = None,
        after: RowEpilogue | None = None,
    ) -> Tensor:
        """``A x (+ addend)``, then the epilogue, as :meth:`Aggregation.forward`."""
        return aggregated(self._how, x, addend=addend, out=out, after=after)

    def backward(self, grad: Tensor, *, addend: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        """``Aᵀ grad (+ addend)``."""
        if self._reverse is None:  # float32: what rows of any storage are summed in
            self._reverse = self._how.transposed(torch.float32)
        return aggregated(self._reverse, grad, addend=addend, out=out)


Map = Aggregation | BothWays | PickedAggregation
"""A linear map of rows, by one kernel or by the faster of two."""


def aggregate(
    how: Map, x: Tensor, out: Tensor, addend: Tensor | None, after: RowEpilogue | None = None
) -> None:
    """``out = A x (+ addend)``, then the epilogue; ``addend`` may be ``out`` or its first rows."""
    if isinstance(how, Aggregation):  # of planned buffers, which nobody has to check
        aggregated(how, x, addend=addend, out=out, after=after)
    else:
        how.forward(x, addend=addend, out=out, after=after)


def aggregate_backward(how: Map, grad: Tensor, out: Tensor, addend: Tensor | None) -> None:
    """``out = Aᵀ grad (+ addend)``."""
    how.backward(grad, addend=addend, out=out)


class DenseInput:
    """The features as a matrix, in place: all rows, or some by id."""

    def __init__(self, x: Tensor, nodes: Tensor | None) -> None:
        self.x, self.nodes = x, nodes

    def placed(self, copies: DeviceCopies) -> DenseInput:
        """The same rows on a device, gathered once."""
        return DenseInput(copies.matrix(self.x if self.nodes is None else self.x[self.nodes]), None)

    def multiply(
        self,
        weight: Tensor,
        out: Tensor,
        *,
        add: bool,
        turned: Tensor | None = None,
        after: RowEpilogue | None = None,
    ) -> None:
        """``out (+)= x weightᵀ``, then the epilogue."""
        tall_product(self.x, weight.t(), out=out, add=add, ids=self.nodes, after=after)

    def weight_grad(self, grad: Tensor, out: Tensor | None = None, *, turned: Tensor | None = None) -> Tensor:
        """``gradᵀ x``, ``(out_channels, in_channels)``, into ``out`` if given."""
        return tall_gram(grad, self.x, out=out, ids=self.nodes)


class SparseInput:
    """The features in CSR: forward by rows, backward by columns."""

    def __init__(self, x: SparseFeatures, nodes: Tensor | None) -> None:
        rows = x if nodes is None else x.rows(nodes)
        pattern = structure(rows)
        by_column, perm = pattern.transpose()
        self._by_row: Map = Aggregation(csc=pattern, weight=rows.values)
        self._by_column: Map = Aggregation(csc=by_column, weight=rows.values[perm])

    def placed(self, copies: DeviceCopies) -> SparseInput:
        """The same values on a device."""
        there = copy.copy(self)
        assert isinstance(self._by_row, Aggregation)
        assert isinstance(self._by_column, Aggregation)
        there._by_row = copies.aggregation(self._by_row, backward=False)
        there._by_column = copies.aggregation(self._by_column, backward=False)
        return there

    def multiply(
        self,
        weight: Tensor,
        out: Tensor,
        *,
        add: bool,
        turned: Tensor | None = None,
        after: RowEpilogue | None = None,
    ) -> None:
        """``out (+)= x weightᵀ``, then the epilogue.

        ``turned``, ``(in_channels, out_channels)``, is written on the way.
        """
        rows = weight.t().contiguous() if turned is None else turned.copy_(weight.t())
        aggregate(self._by_row, rows, out, out if add else None, after)

    def weight_grad(self, grad: Tensor, out: Tensor | None = None, *, turned: Tensor | None = None) -> Tensor:
        """``gradᵀ x``, ``(out_channels, in_channels)``, into ``out`` if given; ``turned`` as above."""
        found = self._by_column.forward(grad, out=turned).t()
        return found if out is None else out.copy_(found)


class BinaryInput:
    """Features whose non-zeros are one number a node, as bits: forward by rows, backward by columns."""

    def __init__(self, x: Tensor | SparseFeatures, nodes: Tensor | None) -> None:
        self._rows = BinaryRows.of(x, nodes)

    def placed(self, copies: DeviceCopies) -> BinaryInput:
        """The same bits on a device."""
        there, rows = copy.copy(self), self._rows
        there._rows = BinaryRows(
            by_row=copies.matrix(rows.by_row),
            by_column=copies.matrix(rows.by_column),
            factors=None if rows.factors is None else copies.matrix(rows.factors),
        )
        return there

    def multiply(
        self,
        weight: Tensor,
        out: Tensor,
        *,
        add: bool,
        turned: Tensor | None = None,
        after: RowEpilogue | None = None,
    ) -> None:
        """``out (+)= x weightᵀ``, then the epilogue."""
        rows = self._rows
        bit_product(rows.by_row, weight.t(), out=out, factors=rows.factors, add=add, after=after)

    def weight_grad(self, grad: Tensor, out: Tensor | None = None, *, turned: Tensor | None = None) -> Tensor:
        """``gradᵀ x``, ``(out_channels, in_channels)``, into ``out`` if given."""
        rows = self._rows
        if out is None:
            out = grad.new_empty(grad.shape[1], rows.by_column.shape[1])
        return bit_gram(grad, rows.by_column, out=out, factors=rows.factors)


Input = DenseInput | SparseInput | BinaryInput
"""The features as the first weights multiply them."""


@dataclass(frozen=True, eq=False, slots=True)
class Mask:
    """Which elements dropout keeps: a function of the seed and of each row's node, not of its place."""

    p: float
    seed: int | Tensor = 0
    """A number, or ``(1,)`` int64 in memory that kernels read as they run."""
    nodes: Tensor | None = None
    """``(num_rows,)`` int64; None: row v is node v."""


def epilogue(x: Tensor, bias: Tensor | None, act: str, mask: Mask, out: Tensor) -> None:
    """``out = dropout(act(x + bias))``; ``out`` may be ``x``."""
    factors, *how, ids = row_epilogue(bias, act, mask, x)
    backend(x).epilogue(x, factors, *how, out, ids)


def row_epilogue(bias: Tensor | None, act: str, mask: Mask, like: Tensor) -> RowEpilogue:
    """The same as what follows another kernel, whose rows are on the device of ``like``."""
    return RowEpilogue(
        bias=bias,
        act=ACTIVATION_CODES[act],
        slope=LEAKY_SLOPE,
        p=mask.p,
        seed=seed_for(like, mask.seed),
        ids=mask.nodes,
    )


def epilogue_backward(  # noqa: PLR0917 - in the order of the kernel's
    grad: Tensor, out: Tensor, act: str, mask: Mask, grad_x: Tensor, grad_bias: Tensor | None
) -> None:
    """The gradients of :func:`epilogue`; ``grad_x`` may be ``grad``."""
    how = (ACTIVATION_CODES[act], LEAKY_SLOPE, mask.p, seed_for(grad, mask.seed))
    backend(grad).epilogue_backward(grad, out, *how, grad_x, grad_bias, mask.nodes)


def seed_for(rows: Tensor, seed: int | Tensor) -> int | Tensor:
    """A mask's seed as the kernels of ``rows`` take it: the compiled ones of the CPU take numbers only."""
    by_value = rows.device.type == "cpu" and backend(rows) is not reference
    return int(seed) if by_value else seed
