"""The operations of a program: typed, plain data that can be printed, compared and rewritten.

A value is a matrix with one row per node of its *level*. Level 0 holds the input's nodes and the last level
those whose outputs are needed; an aggregation leads from one level to the next. Before pruning, every level
holds all nodes. After pruning, each holds only the nodes that the next one reads, destinations first, so that
a level's nodes are a prefix of those of the level before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from graphbraid.graph.types import ONLY_NODE_TYPE, Relation

# ---- the matrices of linear operations: an adjacency, or a view of a parameter


@dataclass(frozen=True, kw_only=True, slots=True)
class AdjacencyMatrix:
    """The kind of an aggregation; together with the graph's edges and weights it is a matrix."""

    kind: str
    """``sum``; ``mean``; ``gcn``, symmetrically normalised by degrees; or ``laplacian``, ``laplacian sym`` or
    ``laplacian rw``, scaled to eigenvalues between -1 and 1 for Chebyshev polynomials."""
    loop_scale: float = 0.0
    """Factor of a node's own row: ``1 + eps`` in GIN; 1 in GCN, or 2 if ``improved``; 0 for no self-loops."""
    weighted: bool = False
    """Whether the graph's edge weights are used."""
    scale: float = 1.0
    """Factor of the whole map."""
    relation: Relation | None = None
    """The relation whose edges it has, in a graph with types; None for all edges of a graph of one."""

    def __str__(self) -> str:
        loops = f" + {self.loop_scale:g} I" if self.loop_scale else ""
        over = "" if self.relation is None else f" over {name_of(self.relation)}"
        name = f"{self.kind}{' weighted' if self.weighted else ''}{loops}{over}"
        return name if self.scale == 1 else f"{self.scale:g} ({name})"


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """The matrix of a linear map made from a parameter: ``identity I + scale P``, with P a part of it."""

    at: tuple[int, ...] = ()
    """Indices into the parameter's first dimensions that select a matrix."""
    turned: bool = False
    """Whether the parameter is stored transposed, as ``(in_channels, out_channels)``."""
    columns: tuple[int, int] | None = None
    """Range of input channels that belong to one of several concatenated values; None for all."""
    scale: float = 1.0
    identity: float = 0.0

    def matrix(self, parameter: Tensor) -> Tensor:
        """Return the ``(out_channels, in_channels)`` matrix, in the parameter's memory if it can."""
        part = self._part(parameter)
        if self.scale != 1:
            part = part * self.scale
        if self.identity:
            part = part + self.identity * torch.eye(len(part), dtype=part.dtype, device=part.device)
        return part.contiguous()

    def add_gradient(self, grad: Tensor, whole: Tensor) -> None:
        """Add ``grad``, the gradient of :meth:`matrix`, to the parameter's part of ``whole``."""
        self._part(whole).add_(grad, alpha=self.scale)

    def shape(self, parameter: Tensor) -> tuple[int, int]:
        """Return the shape of :meth:`matrix`."""
        rows, columns = parameter.shape[-2:]
        if self.turned:
            rows, columns = columns, rows
        first, last = self.columns or (0, columns)
        return int(rows), int(last - first)

    def _part(self, parameter: Tensor) -> Tensor:
        part = parameter[self.at] if self.at else parameter
        part = part.t() if self.turned else part
        return part if self.columns is None else part[:, slice(*self.columns)]


WHOLE = View()
"""The view of a parameter as it is."""


def name_of(relation: Relation) -> str:
    """Return a relation's name for people; the ends' types are left out where nodes have only one."""
    source, name, destination = relation.edge_type
    return name if source == destination == ONLY_NODE_TYPE else f"{source} {name} {destination}"


# ---- operations

INPUT = "x"
"""Name of the value that holds the node features."""


@dataclass(frozen=True, kw_only=True)
class Operation:
    """An operation that computes the value ``out`` from the values ``inputs``."""

    out: str
    inputs: tuple[str, ...]
    symbol: ClassVar[str] = "op"
    moves: ClassVar[bool] = False
    """Whether the result belongs to the level after the inputs'."""
    learned: ClassVar[tuple[str, ...]] = ()
    """Names of the fields with parameters: each holds one, a tuple, an object that has any, or None."""
    shown: ClassVar[str] = ""
    """The text to print after the inputs, with fields of ``op`` in braces."""

    @property
    def reads_edges(self) -> bool:
        """Whether the operation reads edge features."""
        return False

    @property
    def walks(self) -> Relation | None:
        """The relation whose edges it reads; None if it reads all edges together, several, or none."""
        found: Relation | None = getattr(getattr(self, "adjacency", self), "relation", None)
        return found

    @property
    def relations_read(self) -> tuple[Relation, ...]:
        """All relations whose edges it reads, which lead to the level of its result."""
        return () if self.walks is None else (self.walks,)

    def parameters(self) -> tuple[nn.Parameter, ...]:
        """Return the parameters it learns."""
        return tuple(_parameters_in([getattr(self, name) for name in self.learned]))

    def details(self) -> str:
        """Return the text to print after the inputs."""
        return self._details()

    def _details(self) -> str:
        return self.shown.format(op=self)

    def num_blocks(self) -> int:
        """Return the number of levels from the first input to the result."""
        return int(self.moves)

    def renamed(self, names: dict[str, str]) -> Operation:
        """Return the same operation with values renamed."""
        return replace(
            self, out=names.get(self.out, self.out), inputs=tuple(names.get(i, i) for i in self.inputs)
        )


def _parameters_in(fields: Iterable[Any]) -> list[nn.Parameter]:
    found: list[nn.Parameter] = []
    for held in fields:
        if isinstance(held, Tensor):
            found.append(cast("nn.Parameter", held))
        elif held is not None:
            found += _parameters_in(held) if isinstance(held, tuple) else held.parameters()
    return found


@dataclass(frozen=True, kw_only=True)
class Epilogue(Operation):
    """``out = dropout(act(x + bias), p)``, each part optional; runs in place if nothing else reads ``x``.

    Either an operation of its own, or fused with another one (:class:`Following`), whose ``out`` it shares.
    """

    bias: nn.Parameter | None = None
    bias_at: tuple[int, ...] = ()
    """Indices into the bias's first dimensions, if only a part of it is added."""
    also: tuple[nn.Parameter, ...] = ()
    """Biases that are added to ``bias``, which then is whole."""
    act: str = "none"
    """Name of the activation, as in :func:`graphbraid.ops.bias_act_dropout`."""
    p: float = 0.0
    """Probability of dropping an element while training."""
    symbol = "epilogue"
    learned = ("bias", "also")

    def bias_of(self, whole: Tensor) -> Tensor:
        """Return a ``(width,)`` view of the part of the bias, or of its gradient, that is used."""
        part = whole[self.bias_at] if self.bias_at else whole
        return part if part.ndim == 1 else part.view(-1)

    def added(self) -> Tensor | None:
        """Return the ``(width,)`` sum of the biases, as autograd sees them; None if there is none."""
        return None if self.bias is None else sum(self.also, self.bias_of(self.bias))

    def bias_row(self) -> Tensor | None:
        """Return the detached ``(width,)`` bias that is added; None if there is none."""
        return None if self.bias is None else self.bias_of(self.bias.detach())

    def _details(self) -> str:
        parts = ["bias"] * (self.bias is not None) + [self.act] * (self.act != "none")
        return ", ".join(parts + [f"dropout {self.p:g}"] * (self.p > 0))


@dataclass(frozen=True, kw_only=True)
class Following(Operation):
    """An operation whose kernel can apply an epilogue to each row before the row leaves the cache."""

    after: Epilogue | None = None
    """The fused epilogue; None if there is none."""
    learned: ClassVar[tuple[str, ...]] = ("after",)

    def _details(self) -> str:
        return "" if self.after is None else f", then {self.after.details()}"


@dataclass(frozen=True, kw_only=True)
class Linear(Following):
    """``out = x matrixᵀ``, plus the second input if there is one; the matrix is a view of the weight."""

    weight: nn.Parameter
    view: View = WHOLE
    mixed: nn.Parameter | None = None
    """``(num_matrices, num_bases)``: the matrix is mixed from the ``num_bases`` that ``weight`` holds, by the
    row ``view.at`` of these coefficients. If None, it is a view of ``weight``."""
    also: tuple[nn.Parameter, ...] = ()
    """Weights that are added to ``weight``, which then is whole: rows are multiplied by the sum."""
    symbol = "linear"
    learned: ClassVar[tuple[str, ...]] = ("weight", "also", "mixed", "after")

    @property
    def shape(self) -> tuple[int, int]:
        """Shape ``(out_channels, in_channels)`` of the matrix."""
        return self.view.shape(self.weight)

    def matrix(self, *, learns: bool = False) -> Tensor:
        """Return the ``(out_channels, in_channels)`` matrix; detached unless ``learns``."""
        weight = self.weight if learns else self.weight.detach()
        if self.mixed is not None:
            coefficients = self.mixed[self.view.at] if learns else self._coefficients
            return self._of_base.matrix(torch.tensordot(coefficients, weight, 1))
        also: Iterable[Tensor] = self.also if learns else (one.detach() for one in self.also)
        return sum(also, weight) if self.view == WHOLE else self.view.matrix(weight)

    def mixed_gradients(self, grad: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of ``weight`` and ``mixed`` from the gradient of a mixed :meth:`matrix`."""
        assert self.mixed is not None
        bases = self.weight.detach()
        base = torch.zeros_like(bases[0])
        self._of_base.add_gradient(grad, base)
        of_mixed = torch.zeros_like(self.mixed)
        of_mixed[self.view.at] = torch.tensordot(bases, base, 2)
        return self._coefficients[:, None, None] * base, of_mixed

    @property
    def _coefficients(self) -> Tensor:
        assert self.mixed is not None
        return self.mixed.detach()[self.view.at]

    @property
    def _of_base(self) -> View:
        return replace(self.view, at=())

    def _details(self) -> str:
        out_channels, in_channels = self.shape
        return f"{in_channels} -> {out_channels}{super()._details()}"


@dataclass(frozen=True, kw_only=True)
class Learned(Operation):
    """A learned row for each node of a type; the input names the type, and its features are not read."""

    table: nn.Parameter
    """``(num_nodes, width)`` rows of the type's nodes."""
    symbol = "learned rows"
    learned = ("table",)


@dataclass(frozen=True, kw_only=True)
class DestinationRows(Operation):
    """The destinations' own rows, a prefix of the previous level's rows; a view, without any work."""

    blocks: int = 1
    """Number of levels from the input to the result; two where ranks exchange other rows on the way."""
    symbol = "own rows"
    moves = True

    def num_blocks(self) -> int:
        """Return the number of levels from the input to the result."""
        return self.blocks


@dataclass(frozen=True, kw_only=True)
class Add(Operation):
    """``out = a + b``, of the same level and width."""

    symbol = "add"


@dataclass(frozen=True, kw_only=True)
class Combine(Operation):
    """``out = factors[0] a + factors[1] b + ...``, of distinct values of the same level and width."""

    factors: tuple[float, ...]
    symbol = "combine"

    def _details(self) -> str:
        return "times " + ", ".join(f"{factor:g}" for factor in self.factors)


@dataclass(frozen=True, kw_only=True)
class Concat(Operation):
    """Concatenation of the values' columns."""

    symbol = "side by side"


@dataclass(frozen=True, kw_only=True)
class Largest(Operation):
    """``out = max(a, b, ...)`` element by element; the first of equal values receives the gradient."""

    symbol = "largest"


@dataclass(frozen=True, kw_only=True)
class RowFunction(Operation):
    """A function of each row without parameters, run by PyTorch's kernels."""

    kind: str
    """A name of :data:`graphbraid.fullgraph.step.operations.by_pytorch.FUNCTIONS`."""
    arguments: tuple[float | str, ...] = ()
    """Arguments of the function after the rows."""
    symbol = "function"

    def _details(self) -> str:
        return " ".join((self.kind, *map(str, self.arguments)))


@dataclass(frozen=True, kw_only=True)
class Prelu(Operation):
    """``out = x`` above zero, else ``slope x``, with one learned slope or one per column."""

    slope: nn.Parameter
    """``(1,)`` or ``(width,)``."""
    symbol = "prelu"
    learned = ("slope",)


@dataclass(frozen=True, kw_only=True)
class Scale(Operation):
    """``out = (1 + factor) x``."""

    factor: nn.Parameter
    """``(1,)``: GIN's learned epsilon."""
    symbol = "scale"
    learned = ("factor",)
    shown = "1 + a learned number"


@dataclass(frozen=True, kw_only=True)
class UnitRows(Operation):
    """``out = x / max(|x|, eps)`` by each row's Euclidean norm, as :func:`torch.nn.functional.normalize`."""

    eps: float = 1e-12
    symbol = "rows of length 1"


@dataclass(frozen=True, kw_only=True)
class Hoisted(Operation):
    """A value that depends on no parameter, computed once when the engine is made."""

    of: tuple[Operation, ...]
    """Aggregations, own rows and combinations that compute it from the features, in the order they run."""
    blocks: int | None = None
    """Number of levels from the features to the result. If None, those that its operations lead through."""
    symbol = "constant"

    def num_blocks(self) -> int:
        """Return the number of levels from the features to the result."""
        if self.blocks is not None:
            return self.blocks
        levels = {self.inputs[0]: 0}
        for op in self.of:
            levels[op.out] = levels[op.inputs[0]] + op.num_blocks()
        return levels[self.of[-1].out]

    def _details(self) -> str:
        steps = [op for op in self.of if not isinstance(op, DestinationRows)]
        return "; ".join(f"{op.symbol} {op.details()}".strip() for op in steps) + ", computed once"


# ---- operations by a module of the user's: normalisation by its parameters, or the module run by PyTorch


@dataclass(frozen=True, kw_only=True)
class Normalise(Operation):
    """``out = (x - mean) / sqrt(var + eps) * weight + bias`` of each row (layer) or column (batch)."""

    kind: str
    """``layer`` or ``batch``."""
    module: nn.Module
    """Module with ``eps``, ``weight`` and ``bias`` (or None), and for batches the running statistics of
    :class:`torch.nn.BatchNorm1d`."""
    channels: int
    symbol = "normalise"
    learned = ("module",)
    shown = "{op.kind}, eps {op.module.eps:g}"

    @property
    def couples_rows(self) -> bool:
        """Whether a row's result depends on other rows, so that no row may be left out."""
        return self.kind == "batch"

    @property
    def statistics(self) -> tuple[Tensor, ...]:
        """The running mean and variance, if it reads these now, and writes to them are counted."""
        norm: Any = self.module
        reads = self.kind == "batch" and not norm.training and norm.running_mean is not None
        held: tuple[Tensor, ...] = (norm.running_mean, norm.running_var) if reads else ()
        return tuple(one for one in held if not one.is_inference())


# ---- exchange: the rows of other ranks' nodes, where the nodes of a graph are divided among ranks


@dataclass(frozen=True, kw_only=True)
class Exchange(Operation):
    """The rank's own rows, then those of its halo, which their owners send.

    The block between its two levels says which rows travel. A gradient travels back: the owner of a
    row adds the other ranks' gradients of it to its own, in the order of the ranks.
    """

    symbol = "exchange"
    moves = True


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


def as_matrix(rows: Tensor) -> Tensor:
    """Return ``(num_rows, ...)`` rows as a matrix: heads side by side, and a vector as a column."""
    return rows.flatten(1) if rows.ndim > 1 else rows.unsqueeze(1)


def itself(tensor: Tensor) -> Tensor:
    """Return the tensor: the function of a small tensor that is one of the model's own as it is."""
    return tensor


def on_a_copy(x: Tensor, call: Any, *args: Any, **kwargs: Any) -> Tensor:
    """Return a copy of a tensor that an in-place function, or the method of a name, has written over."""
    x = x.clone()
    run_call(call, (x, *args), kwargs)
    return x


def run_call(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call a function or module, or the method of a name of the first argument, as nodes of traces do."""
    if isinstance(target, str):
        return getattr(args[0], target)(*args[1:], **kwargs)
    return target(*args, **kwargs)


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
    learned = ("row",)

    def _details(self) -> str:
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
    by_head: bool = False
    """Whether the numbers that become one stand side by side, as a head's do, and not one in each piece."""
    symbol = "along the row"
    shown = "{op.kind}, width {op.width_out}"

    def pieces(self, rows: Tensor) -> Tensor:
        """Return rows as ``(num_rows, pieces, width_out)``, a view."""
        pieces = rows.shape[1] // self.width_out
        if self.by_head:
            return rows.view(len(rows), self.width_out, pieces).transpose(1, 2)
        return rows.view(len(rows), pieces, self.width_out)
