"""Products that batches fuse with a sum beside them; their operands as autograd sees them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from graphbraid.fullgraph.program import AdjacencyMatrix, Epilogue, Following, Linear, Operation
from graphbraid.graph.types import Relation


@dataclass(frozen=True, kw_only=True)
class AggregateLinear(Linear):
    """``out = A x Wᵀ``, plus ``x_dst W_rootᵀ`` of the destinations' own rows if there is a root."""

    adjacency: AdjacencyMatrix
    root: Linear | None = None
    """The operation that would multiply the destinations' own rows alone."""
    symbol = "aggregate and linear"
    moves = True

    @property
    def walks(self) -> Relation | None:
        """The relation whose edges it reads; None if it reads all edges together."""
        return self.adjacency.relation

    def parameters(self) -> tuple[nn.Parameter, ...]:
        """Return the parameters it learns."""
        return (*super().parameters(), *(() if self.root is None else self.root.parameters()))

    def details(self) -> str:
        """Return the text to print after the inputs."""
        return f"{self.adjacency}{', and own rows' if self.root else ''}, {super().details()}"


@dataclass(frozen=True, kw_only=True)
class LinearSum(Following):
    """``out = x Wᵀ + x_other W_otherᵀ``."""

    terms: tuple[Linear, Linear]
    """The operations that would multiply each input alone."""
    symbol = "sum of linear"

    @property
    def width_out(self) -> int:
        """Number of columns of the result."""
        return self.terms[0].shape[0]

    def parameters(self) -> tuple[nn.Parameter, ...]:
        """Return the parameters it learns."""
        return (*(p for term in self.terms for p in term.parameters()), *super().parameters())

    def details(self) -> str:
        """Return the text to print after the inputs."""
        return " and ".join(term.details() for term in self.terms) + super().details()


def operands_of(op: Operation) -> tuple[Tensor | None, ...]:
    """Return the matrices and the bias of an operation, as autograd sees them."""
    if isinstance(op, AggregateLinear):
        terms: tuple[Linear | None, ...] = op, op.root
    else:
        terms = op.terms if isinstance(op, LinearSum) else (op,) if isinstance(op, Linear) else ()
    after = op.after if isinstance(op, Following) else op
    bias = after.bias_of(after.bias) if isinstance(after, Epilogue) and after.bias is not None else None
    return (*(None if term is None else term.matrix(learns=True) for term in terms), bias)
