"""Program: a model over a whole graph as a short list of typed operations on node matrices.

A model is read into a program (:mod:`graphbraid.fullgraph.recognise`), lowered to the cheapest equal one
(:mod:`graphbraid.fullgraph.lower`) and run (:mod:`graphbraid.fullgraph.engine`). Everything here is plain
data: it can be printed, compared and rewritten.

A value is a matrix with a row per node of its *level*. Level 0 holds the input's nodes, the last level those
whose outputs are asked for; an aggregation leads from one level to the next. Before pruning, every level
holds all nodes; after it, each holds only what the next one reads, destinations first, so that a level's
nodes are the first of the level before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import nn

INPUT = "x"
"""Name of the value that holds the node features."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Adjacency:
    """Which linear map of rows an aggregation is; the graph's edges and weights make it a matrix."""

    kind: str
    """``sum``, ``mean``, or ``gcn``: symmetrically normalised by degrees, with self-loops."""
    loop_scale: float = 0.0
    """Factor of a node's own row: ``1 + eps`` in GIN; 1, or 2 where ``improved``, in GCN; 0: none."""
    weighted: bool = False
    """Whether the graph's edge weights count."""

    def __str__(self) -> str:
        loops = f" + {self.loop_scale:g} I" if self.loop_scale else ""
        return f"{self.kind}{' weighted' if self.weighted else ''}{loops}"


@dataclass(frozen=True, kw_only=True)
class Op:
    """One operation: makes the value ``out`` from the values ``inputs``."""

    out: str
    inputs: tuple[str, ...]
    symbol: ClassVar[str] = "op"
    moves: ClassVar[bool] = False
    """Whether the result is one level further than the inputs."""

    def parameters(self) -> tuple[nn.Parameter, ...]:
        """What it learns."""
        return ()

    def details(self) -> str:
        """What to print after the inputs."""
        return ""

    def renamed(self, names: dict[str, str]) -> Op:
        """The same operation with values renamed."""
        return replace(
            self, out=names.get(self.out, self.out), inputs=tuple(names.get(i, i) for i in self.inputs)
        )


@dataclass(frozen=True, kw_only=True)
class Epilogue(Op):
    """``out = dropout(act(x + bias), p)``, each part optional; in place where nothing else reads x.

    An operation of its own, or what follows another one (:class:`Following`): then its ``out`` is that one's.
    """

    bias: nn.Parameter | None = None
    act: str = "none"
    """As in :func:`graphbraid.ops.bias_act_dropout`."""
    p: float = 0.0
    """Probability of dropping an element while training."""
    symbol = "epilogue"

    def parameters(self) -> tuple[nn.Parameter, ...]:
        """What it learns."""
        return () if self.bias is None else (self.bias,)

    def details(self) -> str:
        """What to print after the inputs."""
        parts = ["bias"] * (self.bias is not None) + [self.act] * (self.act != "none")
        return ", ".join(parts + [f"dropout {self.p:g}"] * (self.p > 0))


@dataclass(frozen=True, kw_only=True)
class Following(Op):
    """An operation whose kernel can apply an epilogue to each row before the row leaves the cache."""

    after: Epilogue | None = None

    def parameters(self) -> tuple[nn.Parameter, ...]:
        """What it learns."""
        return () if self.after is None else self.after.parameters()

    def details(self) -> str:
        """What to print after the inputs."""
        return "" if self.after is None else f", then {self.after.details()}"


@dataclass(frozen=True, kw_only=True)
class Aggregate(Following):
    """``out[v] = sum over in-neighbours u of a[v, u] x[u]``, plus the second input where one is given."""

    adjacency: Adjacency
    rows: torch.dtype = torch.float32
    """What the rows are rounded to before they are read; sums are float32."""
    symbol = "aggregate"
    moves = True

    def details(self) -> str:
        """What to print after the inputs."""
        rounded = "" if self.rows == torch.float32 else f", {str(self.rows).removeprefix('torch.')} rows"
        return f"{self.adjacency}{rounded}{super().details()}"


@dataclass(frozen=True, kw_only=True)
class Maximum(Op):
    """``out[v] = max over in-neighbours u of x[u]``, column by column; 0 where there are none."""

    symbol = "maximum"
    moves = True


@dataclass(frozen=True, kw_only=True)
class Linear(Following):
    """``out = x weightᵀ``, plus the second input where one is given."""

    weight: nn.Parameter
    symbol = "linear"

    def parameters(self) -> tuple[nn.Parameter, ...]:
        """What it learns."""
        return (self.weight, *super().parameters())

    def details(self) -> str:
        """What to print after the inputs."""
        return f"{self.weight.shape[1]} -> {self.weight.shape[0]}{super().details()}"


@dataclass(frozen=True, kw_only=True)
class Own(Op):
    """The destinations' own rows: the first rows of the level before. Costs nothing."""

    symbol = "own rows"
    moves = True


@dataclass(frozen=True, kw_only=True)
class Add(Op):
    """``out = a + b`` of one level and width."""

    symbol = "add"


@dataclass(frozen=True, kw_only=True)
class Scale(Op):
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
class UnitRows(Op):
    """``out = x / max(|x|, eps)`` with each row's Euclidean length: :func:`torch.nn.functional.normalize`."""

    eps: float = 1e-12
    symbol = "rows of length 1"


@dataclass(frozen=True, kw_only=True)
class Attention(Op):
    """Attention over in-neighbours of rows that are transformed already: GAT's and GATv2's middle.

    Inputs are the sources' rows and, for GATv2, the destinations' own rows; for GAT the rows that the
    coefficients come from, where those that are summed are others.
    """

    kind: str
    """``gat`` or ``gatv2``."""
    heads: int
    channels: int
    """Of one head."""
    concat: bool
    """Whether heads stand side by side; if not, their mean is the result."""
    negative_slope: float
    self_loops: bool
    dropout: float
    vectors: tuple[nn.Parameter, ...]
    """GAT: of the source and of the destination, ``(1, heads, channels)`` each; GATv2: one."""
    symbol = "attention"
    moves = True

    @property
    def averages(self) -> bool:
        """Whether the result is a mean over several heads, and not their rows themselves."""
        return not self.concat and self.heads > 1

    def parameters(self) -> tuple[nn.Parameter, ...]:
        """What it learns."""
        return self.vectors

    def details(self) -> str:
        """What to print after the inputs."""
        joined = "side by side" if self.concat else "mean"
        return f"{self.kind}, {self.heads} heads of {self.channels} ({joined})"


@dataclass(frozen=True, kw_only=True)
class Normalise(Op):
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
class Module(Op):
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
class Hoisted(Op):
    """A value that no parameter reaches, computed once when the engine is made."""

    adjacency: Adjacency
    symbol = "constant"
    moves = True

    def details(self) -> str:
        """What to print after the inputs."""
        return f"aggregate {self.adjacency}, computed once"


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """What a lowering pass did, and why: what ``explain()`` prints."""

    name: str
    """The pass."""
    taken: bool
    what: str
    """The choice, as a sentence."""
    saves: str = ""
    """What it saves, in seconds or bytes."""
    instead_of: str = ""
    """What it was chosen over, with its cost."""


@dataclass(frozen=True, kw_only=True)
class Program:
    """Operations in the order they run; the last one's result is the output."""

    ops: tuple[Op, ...]
    in_channels: int
    decisions: tuple[Decision, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What passes decided that is no operation: ``input_path``."""

    def __post_init__(self) -> None:
        check(self)

    @property
    def output(self) -> str:
        """Name of the value the model returns."""
        return self.ops[-1].out if self.ops else INPUT

    @property
    def input_path(self) -> str:
        """How the first weights multiply the features: ``dense``, ``sparse`` or ``binary``."""
        return str(self.settings.get("input_path", "dense"))

    def producer(self, value: str) -> Op | None:
        """The operation that makes a value; None for the input."""
        return next((op for op in self.ops if op.out == value), None)

    def consumers(self, value: str) -> list[Op]:
        """The operations that read a value."""
        return [op for op in self.ops if value in op.inputs]

    def level(self, value: str) -> int:
        """The level whose nodes a value has a row for."""
        op = self.producer(value)
        return 0 if op is None else self.level(op.inputs[0]) + op.moves

    def ends_in_epilogue(self, value: str) -> bool:
        """Whether an epilogue makes a value, alone or after another operation: its backward reads it."""
        op = self.producer(value)
        return isinstance(op, Epilogue) or (isinstance(op, Following) and op.after is not None)

    @property
    def num_levels(self) -> int:
        """Levels of the program, the input's included."""
        return self.level(self.output) + 1

    def width(self, value: str) -> int:
        """Columns of a value."""
        op = self.producer(value)
        if op is None:
            return self.in_channels
        if isinstance(op, Linear):
            return int(op.weight.shape[0])
        if isinstance(op, Attention):
            return op.heads * op.channels if op.concat else op.channels
        if isinstance(op, Module) and op.width_out is not None:
            return op.width_out
        return self.width(op.inputs[0])

    def learns(self, value: str) -> bool:
        """Whether a parameter reaches a value, so that a gradient flows into it."""
        op = self.producer(value)
        return op is not None and (bool(op.parameters()) or any(self.learns(i) for i in op.inputs))

    def parameters(self) -> Iterator[nn.Parameter]:
        """All parameters, each once."""
        seen: set[int] = set()
        for op in self.ops:
            for parameter in op.parameters():
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield parameter

    def rewritten(self, ops: tuple[Op, ...], *decisions: Decision, **settings: Any) -> Program:
        """This program with other operations, and what was decided."""
        return replace(
            self, ops=ops, decisions=self.decisions + decisions, settings={**self.settings, **settings}
        )

    def __str__(self) -> str:
        lines = [f"{INPUT}: ({self.in_channels} columns)"]
        for op in self.ops:
            details = op.details()
            lines.append(
                f"{op.out} = {op.symbol}({', '.join(op.inputs)}){': ' + details if details else ''}"
                f"  [level {self.level(op.out)}, {self.width(op.out)} columns]"
            )
        return "\n".join(lines)


def check(program: Program) -> None:
    """Raise ValueError unless each value is made once, before it is read, and levels and widths agree."""
    made = {INPUT}
    for op in program.ops:
        if missing := [i for i in op.inputs if i not in made]:
            raise ValueError(f"{op.out} reads {missing[0]}, which is not made before it")
        if op.out in made:
            raise ValueError(f"{op.out} is made twice")
        made.add(op.out)
    for op in program.ops:
        if isinstance(op, Linear) and op.weight.shape[1] != program.width(op.inputs[0]):
            raise ValueError(
                f"{op.out} multiplies {program.width(op.inputs[0])} columns by a weight of "
                f"{op.weight.shape[1]}"
            )
        if isinstance(op, Normalise) and op.channels != program.width(op.inputs[0]):
            raise ValueError(
                f"{op.out} normalises {program.width(op.inputs[0])} columns with a module for {op.channels}"
            )
        if isinstance(op, Add | Aggregate | Linear) and len(op.inputs) == 2:
            first, second = op.inputs
            expected = (program.level(op.out), program.width(op.out))
            if (program.level(second), program.width(second)) != expected:
                raise ValueError(
                    f"{op.out} adds {second}, whose level or width is not that of {first}'s result"
                )


__all__ = [
    "INPUT",
    "Add",
    "Adjacency",
    "Aggregate",
    "Attention",
    "Decision",
    "Epilogue",
    "Following",
    "Hoisted",
    "Linear",
    "Maximum",
    "Module",
    "Normalise",
    "Op",
    "Own",
    "Program",
    "Scale",
    "UnitRows",
    "check",
]
