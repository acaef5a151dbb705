"""The kernel calls of a program's operations, forward and backward, on given buffers.

The engine decides where results go. In addition, a call takes at most the memory of a weight, or of the rows
and columns that it handles at a time.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from graphbraid.fullgraph.step.calls.device_copies import DeviceCopies
from graphbraid.fullgraph.step.calls.spmm_choice import PickedAggregation
from graphbraid.fullgraph.step.calls.streamed_input import StreamedInput
from graphbraid.graph.scaled_features import Features
from graphbraid.graph.sparse_features import SparseFeatures
from graphbraid.ops import reference
from graphbraid.ops.aggregation import Aggregation, aggregated
from graphbraid.ops.binary import BinaryRows, bit_gram, bit_product
from graphbraid.ops.dropout import RowEpilogue
from graphbraid.ops.epilogue import ACTIVATION_CODES, LEAKY_SLOPE
from graphbraid.ops.kernels import backend
from graphbraid.ops.linear import structure, tall_gram, tall_product


class BothWays:
    """A linear map of rows and its transpose, which is made at its first use and stored."""

    def __init__(self, how: Aggregation) -> None:
        self._how = how
        self._reverse: Aggregation | None = None

    @property
    def how(self) -> Aggregation:
        """The map."""
        return self._how

    @property
    def reverse(self) -> Aggregation:
        """The transposed map."""
        if self._reverse is None:  # float32, in which rows of any storage dtype are summed
            self._reverse = self._how.transposed(torch.float32)
        return self._reverse

    def forward(
        self,
        x: Tensor,
        *,
        addend: Tensor | None = None,
        out: Tensor | None = None,
        after: RowEpilogue | None = None,
    ) -> Tensor:
        """Compute ``A x (+ addend)``, then the epilogue, like :meth:`Aggregation.forward`."""
        return aggregated(self._how, x, addend=addend, out=out, after=after)

    def backward(self, grad: Tensor, *, addend: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        """Compute ``Aᵀ grad (+ addend)``."""
        return aggregated(self.reverse, grad, addend=addend, out=out)


Map = Aggregation | BothWays | PickedAggregation
"""A linear map of rows, by one kernel or by the faster of two."""


def aggregate(
    how: Map, x: Tensor, out: Tensor, addend: Tensor | None, after: RowEpilogue | None = None
) -> None:
    """Compute ``out = A x (+ addend)``, then the epilogue; ``addend`` may be ``out`` or a prefix of it."""
    if isinstance(how, Aggregation):  # planned buffers need no checks
        aggregated(how, x, addend=addend, out=out, after=after)
    else:
        how.forward(x, addend=addend, out=out, after=after)


def aggregate_backward(how: Map, grad: Tensor, out: Tensor, addend: Tensor | None) -> None:
    """Compute ``out = Aᵀ grad (+ addend)``."""
    how.backward(grad, addend=addend, out=out)


class DenseInput:
    """The features as a dense matrix, in place: all rows, or some by id."""

    def __init__(self, x: Tensor, nodes: Tensor | None) -> None:
        self.x, self.nodes = x, nodes

    def placed(self, copies: DeviceCopies) -> DenseInput:
        """Return the same rows on a device, gathered once."""
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
        """Compute ``out (+)= x weightᵀ``, then the epilogue."""
        tall_product(self.x, weight.t(), out=out, add=add, ids=self.nodes, after=after)

    def weight_grad(self, grad: Tensor, out: Tensor | None = None, *, turned: Tensor | None = None) -> Tensor:
        """Compute ``gradᵀ x``, ``(out_channels, in_channels)``, into ``out`` if given."""
        return tall_gram(grad, self.x, out=out, ids=self.nodes)


class SparseInput:
    """The features in CSR, stored by row for forward and by column for backward."""

    def __init__(self, x: SparseFeatures, nodes: Tensor | None) -> None:
        rows = x if nodes is None else x.rows(nodes)
        pattern = structure(rows)
        by_column, perm = pattern.transpose()
        self._by_row: Map = Aggregation(csc=pattern, weight=rows.values)
        self._by_column: Map = Aggregation(csc=by_column, weight=rows.values[perm])

    def placed(self, copies: DeviceCopies) -> SparseInput:
        """Return the same values on a device."""
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
        """Compute ``out (+)= x weightᵀ``, then the epilogue.

        ``turned``, ``(in_channels, out_channels)``, is scratch memory for the transposed weight.
        """
        rows = weight.t().contiguous() if turned is None else turned.copy_(weight.t())
        aggregate(self._by_row, rows, out, out if add else None, after)

    def weight_grad(self, grad: Tensor, out: Tensor | None = None, *, turned: Tensor | None = None) -> Tensor:
        """Compute ``gradᵀ x``, ``(out_channels, in_channels)``, into ``out`` if given, through ``turned``."""
        found = self._by_column.forward(grad, out=turned).t()
        return found if out is None else out.copy_(found)


class BinaryInput:
    """Features with one non-zero number per node, as bits by row for forward and by column for backward."""

    def __init__(self, rows: BinaryRows) -> None:
        self._rows = rows

    @classmethod
    def of(cls, x: Features, nodes: Tensor | None) -> BinaryInput:
        """Pack the features of ``nodes``, of all nodes if None."""
        return cls(BinaryRows.of(x, nodes))

    def placed(self, copies: DeviceCopies) -> BinaryInput:
        """Return the same bits on a device."""
        return BinaryInput(self._rows.apply(copies.matrix))

    def multiply(
        self,
        weight: Tensor,
        out: Tensor,
        *,
        add: bool,
        turned: Tensor | None = None,
        after: RowEpilogue | None = None,
    ) -> None:
        """Compute ``out (+)= x weightᵀ``, then the epilogue."""
        rows = self._rows
        bit_product(rows.by_row, weight.t(), out=out, factors=rows.factors, add=add, after=after)

    def weight_grad(self, grad: Tensor, out: Tensor | None = None, *, turned: Tensor | None = None) -> Tensor:
        """Compute ``gradᵀ x``, ``(out_channels, in_channels)``, into ``out`` if given."""
        rows = self._rows
        if out is None:
            out = grad.new_empty(grad.shape[1], rows.by_column.shape[1])
        return bit_gram(grad, rows.by_column, out=out, factors=rows.factors)


Input = DenseInput | SparseInput | BinaryInput | StreamedInput
"""The features in the form that the first weights multiply."""


@dataclass(frozen=True, eq=False, slots=True)
class Mask:
    """A dropout mask, which depends on the seed and on each row's node, not on the row's position."""

    p: float
    seed: int | Tensor = 0
    """A number, or a ``(1,)`` int64 tensor that kernels read as they run."""
    nodes: Tensor | None = None
    """``(num_rows,)`` int64 node of each row; None if row v is node v."""


def epilogue(x: Tensor, bias: Tensor | None, act: str, mask: Mask, out: Tensor) -> None:
    """Compute ``out = dropout(act(x + bias))``; ``out`` may be ``x``."""
    factors, *how, ids = row_epilogue(bias, act, mask, x)
    backend(x).epilogue(x, factors, *how, out, ids)


def row_epilogue(bias: Tensor | None, act: str, mask: Mask, like: Tensor) -> RowEpilogue:
    """Return the same epilogue for fusing with another kernel, whose rows are on the device of ``like``."""
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
    """Compute the gradients of :func:`epilogue`; ``grad_x`` may be ``grad``."""
    how = (ACTIVATION_CODES[act], LEAKY_SLOPE, mask.p, seed_for(grad, mask.seed))
    backend(grad).epilogue_backward(grad, out, *how, grad_x, grad_bias, mask.nodes)


def seed_for(rows: Tensor, seed: int | Tensor) -> int | Tensor:
    """Return a mask's seed as the kernels for ``rows`` take it; compiled CPU kernels take only numbers."""
    by_value = rows.device.type == "cpu" and backend(rows) is not reference
    return int(seed) if by_value else seed
