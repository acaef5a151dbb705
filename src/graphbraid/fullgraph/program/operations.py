"""The operations a program is made of: typed, plain data that can be printed, compared and rewritten.

A value is a matrix with a row per node of its *level*. Level 0 holds the input's nodes, the last level those
whose outputs are asked for; an aggregation leads from one level to the next. Before pruning, every level
holds all nodes; after it, each holds only what the next one reads, destinations first, so that a level's
nodes are the first of the level before it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor, nn

from graphbraid.fullgraph.program.maps import WHOLE, View

INPUT = "x"
"""Name of the value that holds the node features."""


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One operation: makes the value ``out`` from the values ``inputs``."""

    out: str
    inputs: tuple[str, ...]
    symbol: ClassVar[str] = "op"
    moves: ClassVar[bool] = False
    """Whether the result is one level further than the inputs."""

    @property
    def reads_edges(self) -> bool:
        """Whether it reads the edges' features."""
        return False

    def parameters(self) -> tuple[nn.Parameter, ...]:
        """What it learns."""
        return ()

    def details(self) -> str:
        """What to print after the inputs."""
        return ""

    def num_blocks(self) -> int:
        """How many levels the result is further than the first input."""
        return int(self.moves)

    def renamed(self, names: dict[str, str]) -> Operation:
        """The same operation with values renamed."""
        return replace(
            self, out=names.get(self.out, self.out), inputs=tuple(names.get(i, i) for i in self.inputs)
        )


@dataclass(frozen=True, kw_only=True)
class Epilogue(Operation):
    """``out = dropout(act(x + bias), p)``, each part optional; in place where nothing else reads x.

    An operation of its own, or what follows another one (:class:`Following`): then its ``out`` is that one's.
    """

    bias: nn.Parameter | None = None
    bias_at: tuple[int, ...] = ()
    """Indices of the bias's first dimensions, where only a part of it is added."""
    act: str = "none"
    """As in :func:`graphbraid.ops.bias_act_dropout`."""
    p: float = 0.0
    """Probability of dropping an element while training."""
    symbol = "epilogue"

    def parameters(self) -> tuple[nn.Parameter, ...]:
        """What it learns."""
        return () if self.bias is None else (self.bias,)

    def bias_of(self, whole: Tensor) -> Tensor:
        """``(width,)``: the part of the bias, or of its gradient, that is added; shares its memory."""
        return (whole[self.bias_at] if self.bias_at else whole).view(-1)

    def bias_row(self) -> Tensor | None:
        """``(width,)`` what is added, without history."""
        return None if self.bias is None else self.bias_of(self.bias.detach())

    def details(self) -> str:
        """What to print after the inputs."""
        parts = ["bias"] * (self.bias is not None) + [self.act] * (self.act != "none")
        return ", ".join(parts + [f"dropout {self.p:g}"] * (self.p > 0))


@dataclass(frozen=True, kw_only=True)
class Following(Operation):
    """An operation whose kernel can apply an epilogue to each row before the row leaves the cache."""

    after: Epilogue | None = None

    def parameters(self) -> tuple[nn.Parameter, ...]:
        """What it learns."""
        return () if self.after is None else self.after.parameters()

    def details(self) -> str:
        """What to print after the inputs."""
        return "" if self.after is None else f", then {self.after.details()}"


@dataclass(frozen=True, kw_only=True)
class Linear(Following):
    """``out = x matrixᵀ``, plus the second input where one is given; the matrix is a view of the weight."""

    weight: nn.Parameter
    view: View = WHOLE
    symbol = "linear"

    @property
    def shape(self) -> tuple[int, int]:
        """``(out_channels, in_channels)``."""
        return self.view.shape(self.weight)

    def matrix(self) -> Tensor:
        """``(out_channels, in_channels)``, without history."""
        return self.weight.detach() if self.view == WHOLE else self.view.matrix(self.weight)

    def parameters(self) -> tuple[nn.Parameter, ...]:
        """What it learns."""
        return (self.weight, *super().parameters())

    def details(self) -> str:
        """What to print after the inputs."""
        out_channels, in_channels = self.shape
        return f"{in_channels} -> {out_channels}{super().details()}"


@dataclass(frozen=True, kw_only=True)
class Own(Operation):
    """The destinations' own rows: the first rows of the level before. Costs nothing."""

    symbol = "own rows"
    moves = True


@dataclass(frozen=True, kw_only=True)
class Add(Operation):
    """``out = a + b`` of one level and width."""

    symbol = "add"


@dataclass(frozen=True, kw_only=True)
class Combine(Operation):
    """``out = factors[0] a + factors[1] b + ...`` of values of one level and width, each of them once."""

    factors: tuple[float, ...]
    symbol = "combine"

    def details(self) -> str:
        """What to print after the inputs."""
        return "times " + ", ".join(f"{factor:g}" for factor in self.factors)


@dataclass(frozen=True, kw_only=True)
class Concat(Operation):
    """The values' columns side by side."""

    symbol = "side by side"


@dataclass(frozen=True, kw_only=True)
class Largest(Operation):
    """``out = max(a, b, ...)`` element by element; the first of equals has the gradient."""

    symbol = "largest"


@dataclass(frozen=True, kw_only=True)
class RowFunction(Operation):
    """A function of each row that learns nothing, by PyTorch's kernels: see :mod:`.row_functions`."""

    kind: str
    """A name of :data:`graphbraid.fullgraph.step.planned.row_functions.FUNCTIONS`."""
    arguments: tuple[float | str, ...] = ()
    """What the function takes beside the rows."""
    symbol = "function"

    def details(self) -> str:
        """What to print after the inputs."""
        return " ".join((self.kind, *map(str, self.arguments)))


@dataclass(frozen=True, kw_only=True)
class Prelu(Operation):
    """``out = x`` above 0, else ``slope x`` with a learned slope for all columns or for each."""

    slope: nn.Parameter
    """``(1,)`` or ``(width,)``."""
    symbol = "prelu"

    def parameters(self) -> tuple[nn.Parameter, ...]:
        """What it learns."""
        return (self.slope,)


@dataclass(frozen=True, kw_only=True)
class Scale(Operation):
    """``out = (1 + factor) x``."""

    factor: nn.Parameter
    """``(1,)``: GIN's learned epsilon."""
    symbol = "scale"

    def parameters(self) -> tuple[nn.Parameter, ...]:
        """What it learns."""
        return (self.factor,)

    def details(self) -> str:
        """What to print after the inputs."""
        return "1 + a learned number"


@dataclass(frozen=True, kw_only=True)
class UnitRows(Operation):
    """``out = x / max(|x|, eps)`` with each row's Euclidean length: :func:`torch.nn.functional.normalize`."""

    eps: float = 1e-12
    symbol = "rows of length 1"


@dataclass(frozen=True, kw_only=True)
class Normalise(Operation):
    """``out = (x - mean) / sqrt(var + eps) * weight + bias`` of each row (layer) or column (batch)."""

    kind: str
    """``layer`` or ``batch``."""
    module: nn.Module
    """Holds ``eps``, ``weight`` and ``bias`` (or None), and the running statistics as
    :class:`torch.nn.BatchNorm1d` does."""
    channels: int
    symbol = "normalise"

    @property
    def couples_rows(self) -> bool:
        """Whether a row's result depends on other rows: then no row may be left out."""
        return self.kind == "batch"

    def parameters(self) -> tuple[nn.Parameter, ...]:
        """What it learns."""
        return tuple(self.module.parameters(recurse=False))

    def details(self) -> str:
        """What to print after the inputs."""
        return f"{self.kind}, eps {self.module.eps:g}"


@dataclass(frozen=True, kw_only=True)
class Module(Operation):
    """A module that maps rows to rows, run by PyTorch: an activation or normalisation without a kernel."""

    module: nn.Module
    width_out: int | None
    """Columns of the result; None: as many as the input has."""
    couples_rows: bool
    """Whether a row's result depends on other rows, as in batch normalisation: then no row may be left out.
    """
    symbol = "module"

    def parameters(self) -> tuple[nn.Parameter, ...]:
        """What it learns."""
        return tuple(self.module.parameters())

    def details(self) -> str:
        """What to print after the inputs."""
        return str(self.module).splitlines()[0]


@dataclass(frozen=True, kw_only=True)
class Hoisted(Operation):
    """A value that no parameter reaches, computed once when the engine is made."""

    of: tuple[Operation, ...]
    """Aggregations, own rows and combinations that make it of the features, in the order they run."""
    symbol = "constant"

    def num_blocks(self) -> int:
        """How many levels the result is further than the features."""
        levels = {INPUT: 0}
        for op in self.of:
            levels[op.out] = levels[op.inputs[0]] + op.num_blocks()
        return levels[self.of[-1].out]

    def details(self) -> str:
        """What to print after the inputs."""
        steps = [op for op in self.of if not isinstance(op, Own)]
        return "; ".join(f"{op.symbol} {op.details()}".strip() for op in steps) + ", computed once"
