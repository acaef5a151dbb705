"""Operations on rows and a second operand: other rows, or a row that is computed of parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from graphbraid.fullgraph.program.operations import Operation

# ---- small tensors that are computed of parameters in each step


@dataclass(frozen=True, eq=False, slots=True)
class Leaf:
    """A tensor of the model's own: a parameter, or a constant. Equal only to a leaf of the same tensor."""

    tensor: Tensor

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Leaf) and other.tensor is self.tensor

    def __hash__(self) -> int:
        return id(self.tensor)


@dataclass(frozen=True, slots=True)
class SmallTensor:
    """A call of PyTorch's on tensors of the model's own, such as ``softmax(weights)[0]``: a tree of calls."""

    function: Callable[..., Any]
    """Called with the arguments."""
    args: tuple[Any, ...]
    """Leaves, other small tensors, and constants."""
    kwargs: tuple[tuple[str, Any], ...] = ()

    def leaves(self) -> Iterator[Leaf]:
        """Yield the tensors it is computed of."""
        for argument in (*self.args, *(value for _, value in self.kwargs)):
            if isinstance(argument, Leaf):
                yield argument
            elif isinstance(argument, SmallTensor):
                yield from argument.leaves()

    def parameters(self) -> tuple[nn.Parameter, ...]:
        """Return the parameters it is computed of, each once."""
        found = (leaf.tensor for leaf in self.leaves())
        return tuple({id(p): p for p in found if isinstance(p, nn.Parameter)}.values())

    def tensor(self) -> Tensor:
        """Compute it, differentiably where gradients are on."""
        out: Tensor = self.function(*map(_value, self.args), **{key: _value(v) for key, v in self.kwargs})
        return out

    def __str__(self) -> str:
        if self.function is itself:
            return "a tensor of the model's own"
        return f"{getattr(self.function, '__name__', 'function')} of " + " and ".join(
            str(one) for one in self.args if isinstance(one, SmallTensor)
        )


def itself(tensor: Tensor) -> Tensor:
    """Return the tensor: the function of a small tensor that is one of the model's own as it is."""
    return tensor


def _value(argument: Any) -> Any:
    if isinstance(argument, Leaf):
        return argument.tensor
    return argument.tensor() if isinstance(argument, SmallTensor) else argument


@dataclass(frozen=True, kw_only=True)
class RowOfParameters(Operation):
    """``out = x * row`` or ``out = x + row``: a number, or one for each column, computed of parameters."""

    row: SmallTensor
    """Computed in each step; it has one element, or as many as ``x`` has columns."""
    adds: bool = False
    """Whether the row is added; if False, it is multiplied."""
    symbol: ClassVar[str] = "by a row"

    def parameters(self) -> tuple[nn.Parameter, ...]:
        """Return the parameters it learns."""
        return self.row.parameters()

    def details(self) -> str:
        """Return the text to print after the inputs."""
        return f"{'plus' if self.adds else 'times'} {self.row}"


# ---- rows with rows, and rows with themselves


@dataclass(frozen=True, kw_only=True)
class Product(Operation):
    """``out = a * b`` element by element; ``b`` may have one column, which multiplies all of ``a``'s."""

    symbol: ClassVar[str] = "product"


@dataclass(frozen=True, kw_only=True)
class ColumnRange(Operation):
    """The columns ``[first, last)`` of ``x``."""

    first: int
    last: int
    symbol = "columns"
    shown = "{op.first} to {op.last}"


@dataclass(frozen=True, kw_only=True)
class AlongRow(Operation):
    """The sum or the mean of each row's pieces, ``width_out`` columns each, or its Euclidean norm."""

    kind: str
    """``sum``, ``mean`` or ``norm``."""
    width_out: int = 1
    """Number of columns of a piece, and of the result: 1 for one number of each row, as a norm is."""
    symbol = "along the row"
    shown = "{op.kind}, width {op.width_out}"
