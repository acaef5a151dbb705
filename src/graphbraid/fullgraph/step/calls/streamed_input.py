"""Products of features that do not lie in memory: block by block, with the bits of one of all rows."""

from __future__ import annotations

from torch import Tensor

from graphbraid.features.rows.row_stream import RowStream
from graphbraid.ops.aggregation import follow_up
from graphbraid.ops.dropout import RowEpilogue
from graphbraid.ops.linear import GramRounds, tall_product


class StreamedInput:
    """A form of the features, beside those of :mod:`.kernels`, whose rows are read in every pass."""

    def __init__(self, rows: RowStream) -> None:
        self.rows = rows

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
        for part, rows in self.rows:
            for place, piece in part.of(rows):
                tall_product(piece, weight.t(), out=out[place], add=add)
        follow_up(out, after)

    def weight_grad(self, grad: Tensor, out: Tensor | None = None, *, turned: Tensor | None = None) -> Tensor:
        """Compute ``gradᵀ x``, ``(out_channels, in_channels)``, into ``out`` if given."""
        gram = GramRounds(grad, self.rows.width, out)
        for part, rows in self.rows:
            gram.add(part, rows)
        return gram.out


__all__ = ["StreamedInput"]
