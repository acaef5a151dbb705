"""Readers: they get the call of a module or function and append its operations to a writer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from typing import Any, TypeVar

from torch import fx, nn

from graphbraid.fullgraph import program as ir
from graphbraid.fullgraph.reading.exact import Known, anything, check, is_from, python_value
from graphbraid.graph import Graph
from graphbraid.graph.types import Relation
from graphbraid.ops.epilogue import LEAKY_SLOPE

# ---- writer: collects the operations of a program from its readers

_FUSED: dict[tuple[str, tuple[float | str, ...]], str] = {
    ("elu", (1.0, 1.0, 1.0)): "elu",
    ("leaky_relu", (LEAKY_SLOPE,)): "leaky_relu",
}
"""Epilogue activations by the functions that they are equal to."""


class Writer:
    """Collects operations and names their values in order.

    Args:
        widths: number of columns of each input.
        node_types: number of the node type of each input, where there are types.
    """

    def __init__(self, widths: Mapping[str, int], node_types: Mapping[str, int] | None = None) -> None:
        self.ops: list[ir.Operation] = []
        self._widths = dict(widths)
        self._levels: dict[str, int] = {}
        self._node_types = dict(node_types or {})
        self._made: dict[Hashable, str] = {}

    def add(self, make: type[ir.Operation], *inputs: str, **fields: Any) -> str:
        """Append an operation, unless an equal combination exists already, and return its value's name."""
        fields = {name: python_value(value) for name, value in fields.items()}  # of a user's attributes
        is_shared = make in (ir.DestinationRows, ir.Combine, ir.ColumnRange)
        key = (make, inputs, *fields.items()) if is_shared else None
        if key in self._made:
            return self._made[key]
        out = f"v{len(self.ops)}"
        self.ops.append(make(out=out, inputs=inputs, **fields))
        if key is not None:
            self._made[key] = out
        self._levels[out] = self.level(inputs[0]) + self.ops[-1].num_blocks()
        self._widths[out] = ir.width_of(self.ops[-1], self.width)
        walked = self.ops[-1].walks
        self._node_types[out] = self.node_type(inputs[0]) if walked is None else walked.destination
        return out

    def state(self) -> int:
        """Return the state that :meth:`put_back` needs."""
        return len(self.ops)

    def put_back(self, state: int) -> None:
        """Forget the operations appended since :meth:`state`."""
        dropped = {op.out for op in self.ops[state:]}
        del self.ops[state:]
        self._made = {key: out for key, out in self._made.items() if out not in dropped}

    def level(self, value: str) -> int:
        """Return the level of a value: the number of aggregations before it."""
        return self._levels.get(value, 0)

    def width(self, value: str) -> int:
        """Return the number of columns of a value."""
        return self._widths[value]

    def node_type(self, value: str) -> int:
        """Return the number of the node type for whose nodes a value has rows."""
        return self._node_types.get(value, 0)

    def rows_at(self, value: str, level: int) -> str:
        """Return a value's rows for the nodes of a later level; the value itself if that is its level."""
        while self.level(value) < level:
            value = self.add(ir.DestinationRows, value)
        return value

    def on_one_level(self, *values: str) -> list[str]:
        """Return the values' rows for the nodes of the latest of their levels."""
        level = max(self.level(value) for value in values)
        return [self.rows_at(value, level) for value in values]

    def sum(self, first: str, second: str) -> str:
        """Append ``first + second``, of values at any two levels."""
        return self.add(ir.Add, *self.on_one_level(first, second))

    def combine(self, *terms: tuple[float, str]) -> str:
        """Append the sum of values, at any levels, times constant factors."""
        factors: dict[str, float] = {}
        for value, (factor, _) in zip(self.on_one_level(*(v for _, v in terms)), terms, strict=True):
            factors[value] = factors.get(value, 0.0) + factor
        if set(factors.values()) == {1.0} and len(factors) <= 2:
            return self.sum(*factors) if len(factors) == 2 else next(iter(factors))
        return self.add(ir.Combine, *factors, factors=tuple(factors.values()))

    def product(self, first: str, second: str) -> str:
        """Append ``first * second``, at any levels; one may have a single column for all of the other's.

        Raises:
            NotLoweredError: their columns do not fit.
        """
        widths = self.width(first), self.width(second)
        if widths[0] != widths[1] and 1 not in widths:
            raise ir.NotLoweredError("mul", f"it multiplies {widths[0]} columns by {widths[1]}")
        if widths[0] < widths[1]:
            first, second = second, first
        return self.add(ir.Product, *self.on_one_level(first, second))

    def by_row(self, x: str, row: ir.SmallTensor, *, adds: bool = False) -> str:
        """Append ``x * row`` or ``x + row``, of a number or a row computed of parameters.

        Raises:
            NotLoweredError: it is no row for the columns of ``x``.
        """
        shape, width = row.tensor().shape, self.width(x)
        if not (shape.numel() in (1, width) and len(shape) <= 2 and (len(shape) < 2 or shape[0] == 1)):
            what = f"a parameter of shape {tuple(shape)} is no row for {width} columns"
            raise ir.NotLoweredError("add" if adds else "mul", what, "one number, or one for each column")
        parameter = row.args[0].tensor if row.function is ir.itself else None
        if adds and isinstance(parameter, nn.Parameter) and shape == (width,):
            return self.epilogue(x, bias=parameter)  # which the kernel before it may add
        return self.add(ir.RowOfParameters, x, row=row, adds=adds)

    def beside(self, *values: str) -> str:
        """Append the concatenation of the columns of values at any levels."""
        return values[0] if len(values) == 1 else self.add(ir.Concat, *self.on_one_level(*values))

    def columns(self, x: str, first: int, last: int) -> str:
        """Append columns ``[first, last)`` of a value."""
        are_all = (first, last) == (0, self.width(x))
        return x if are_all else self.add(ir.ColumnRange, x, first=first, last=last)

    def largest(self, *values: str) -> str:
        """Append the elementwise maximum of values at any levels."""
        return values[0] if len(values) == 1 else self.add(ir.Largest, *self.on_one_level(*values))

    def function(self, x: str, kind: str, *arguments: float | str) -> str:
        """Append a function of rows; as an epilogue where possible, so that it can be fused."""
        if (act := _FUSED.get((kind, arguments))) is not None:
            return self.epilogue(x, act=act)
        return self.add(ir.RowFunction, x, kind=kind, arguments=arguments)

    def module(self, x: str, module: nn.Module, *, width: int | None = None, couples_rows: bool) -> str:
        """Append a call of a module that PyTorch runs; ``width`` is that of its result, if it is another."""
        name = str(module).splitlines()[0]
        call = ir.WrittenCall(target=module, args=(ir.FromInput(0),), kwargs={}, name=name)
        columns = self.width(x) if width is None else width
        return self.add(ir.Break, x, calls=(call,), width_out=columns, couples_rows=couples_rows)

    def epilogue(
        self, x: str, *, bias: Any = None, bias_at: tuple[int, ...] = (), act: str = "none", p: float = 0.0
    ) -> str:
        """Append bias, activation and dropout, each as an operation of its own if it is there."""
        if bias is not None:
            x = self.add(ir.Epilogue, x, bias=bias, bias_at=bias_at)
        if act != "none":
            x = self.add(ir.Epilogue, x, act=act)
        return self.add(ir.Epilogue, x, p=p) if p > 0 else x

    def linear(self, x: str, module: Any) -> str:
        """Append a linear layer."""
        return self.epilogue(self.add(ir.Linear, x, weight=module.weight), bias=module.bias)


# ---- calls of functions

NEEDED = object()
"""Marks parameters without a default value."""


@dataclass(frozen=True)
class FunctionCall:
    """One call of a function in a model's ``forward``.

    Attributes:
        writer: the writer that collects operations.
        name: name of the function.
        arguments: arguments by parameter. A matrix of node rows is a :class:`NodeRows`, and a tensor computed
            of parameters is a :class:`.SmallTensor`. A reader's result stands as it is. Any other computed
            value is an object that no reader accepts.
    """

    writer: Writer
    name: str
    arguments: Mapping[str, Any]

    def rows(self, key: str) -> str:
        """Return the name of the value of an argument that is a matrix of node rows.

        Raises:
            NotLoweredError: it is something else.
        """
        given = self.arguments[key]
        if isinstance(given, NodeRows):
            return given.value
        shown = key if is_dataclass(given) else given  # views of rows, as Heads, have no name of their own
        what = f"its argument {shown} is not a matrix of node rows"
        raise ir.NotLoweredError(self.name, what, code="argument")

    def constant(self, key: str, allowed: Callable[[Any], bool]) -> Any:
        """Return an argument that must be a constant accepted by ``allowed``.

        Raises:
            NotLoweredError: it is computed, or not accepted.
        """
        given = self.arguments[key]
        if not allowed(given):
            code = "argument" if isinstance(given, NodeRows | fx.Node) else "no-operation"
            what = f"with {key}={given} it has no lowered form"
            raise ir.NotLoweredError(self.name, what, f"another {key}", code=code)
        return given


@dataclass(frozen=True)
class NodeRows:
    """A matrix of node rows among the arguments of a call, by the name of its value."""

    value: str


@dataclass(frozen=True)
class Stacked:
    """Matrices of node rows stacked along a new dimension, by the names of their values."""

    values: tuple[str, ...]
    dim: int = 0
    """The new dimension."""


@dataclass(frozen=True)
class Heads:
    """A matrix of node rows seen as ``(num_rows, heads, channels)``."""

    value: str
    heads: int


@dataclass(frozen=True)
class Column:
    """A matrix of one column seen as a vector."""

    value: str


@dataclass(frozen=True)
class MappedEdges:
    """The features of edges, mapped by a linear layer."""

    linear: Any
    target: str
    """Target of the placeholder of the features."""


class NumRows:
    """The number of rows of all matrices of nodes of one type."""


@dataclass(frozen=True)
class FunctionReader:
    """Reader of the calls of one function.

    Attributes:
        read: appends the operations and returns the name of the result, or an object that is none by itself,
            such as a :class:`Stacked` or a tuple of :class:`NodeRows`, for the readers of the calls that take
            it.
        takes: the function's parameters in order, with their defaults (:data:`NEEDED` if there is none).
        in_place: whether it always overwrites its first argument; an argument ``inplace`` may also say so.
        by_name: keyword-only parameters.
        views: whether the result may share its memory with the first argument.
    """

    read: Callable[[FunctionCall], Any]
    takes: Mapping[str, Any]
    in_place: bool = False
    by_name: Collection[str] = ()
    views: bool = False


# ---- interface of readers of graph layers and of modules that map rows to rows


@dataclass(frozen=True)
class Edges:
    """The edges that a layer is called with."""

    weighted: bool = False
    """Whether the layer receives edge weights."""
    sparse: bool = False
    """Whether the edges are a sparse matrix, whose values are the weights."""
    channels: int | None = None
    """Number of edge features that the layer receives; None if it receives none."""
    encoder: Any = None
    """The linear layer that maps the edge features before the layer receives them; None if none does."""
    graph: Graph | None = field(default=None, compare=False)
    """The graph that the edges belong to, for checks that must look at them."""
    relations: tuple[Relation, ...] = ()
    """The relations with edges, for a layer that receives the relation of each edge."""
    relation: Relation | None = None
    """The relation whose edges they are, in a graph with types."""


@dataclass(frozen=True)
class LayerCall:
    """One call of a module.

    Attributes:
        writer: the writer that collects operations.
        name: name of the module in the model.
        layer: the module, already checked against its reader's :class:`Known`.
        x: name of the value of its input rows.
        edges: the edges that a graph layer is called with.
        given: its other arguments that are not None, by name; a matrix of node rows is a :class:`NodeRows`.
        several: names of the values, if its first argument is a list of matrices; of a graph layer a pair,
            the sources' rows and the destinations'.
    """

    writer: Writer
    name: str
    layer: Any
    x: str
    edges: Edges = field(default_factory=Edges)
    given: Mapping[str, Any] = field(default_factory=dict)
    several: tuple[str, ...] = ()

    @property
    def own(self) -> str:
        """Name of the value with a graph layer's destinations' rows: its input, or the second of two."""
        return self.several[1] if self.several else self.x

    def rows(self, key: str) -> str:
        """Return the name of the value of another argument that is a matrix of node rows.

        Raises:
            NotLoweredError: it is something else.
        """
        given = self.given.get(key)
        if isinstance(given, NodeRows):
            return given.value
        raise self.refuse(f"with a {key!r} that is not a matrix of node rows has no lowered form")

    def refuse(self, reason: str, needed: str = "") -> ir.NotLoweredError:
        """Return the error to raise if this call has no lowered form; ``reason`` follows the class's name."""
        return ir.NotLoweredError(self.name, f"{type(self.layer).__name__} {reason}", needed)


@dataclass(frozen=True)
class Reader:
    """Reader of the instances of one class.

    Attributes:
        read: appends the operations and returns the name of the result.
        known: the attributes that an instance may hold.
        takes: names of ``forward``'s parameters in order. The first receives the rows; ``edge_index`` or
            ``csc`` of a graph layer receives the edges. The others must be None, unless ``gives`` names them.
        gives: parameters that ``read`` handles itself.
        relates: whether ``read`` handles the edges of one relation between two node types, with a pair of
            matrices, and a pair in a graph of one type.
        encodes: whether ``read`` handles edge features that a linear layer has mapped.
    """

    read: Callable[[LayerCall], str]
    known: Known
    takes: tuple[str, ...] = ("x",)
    gives: tuple[str, ...] = ()
    relates: bool = False
    encodes: bool = False

    @property
    def edges(self) -> str | None:
        """The parameter that receives the edges; None for a module that maps rows to rows."""
        return next((key for key in self.takes if key in ("edge_index", "csc")), None)


READERS: dict[tuple[str, str], Reader] = {}
"""The readers of modules, by the module and name of their class, which need not be imported."""
FUNCTIONS: dict[Any, FunctionReader] = {}
"""The readers of functions."""
METHODS: dict[str, FunctionReader] = {}
"""The readers of a tensor's methods, by name; the first argument is the tensor."""
_Read = TypeVar("_Read", bound=Callable[..., str])
_ReadCall = TypeVar("_ReadCall", bound=Callable[[FunctionCall], Any])


def reads(*classes: str, **fields: Any) -> Callable[[_Read], _Read]:
    """Enter a function as the reader of ``classes``, each ``module.name``, with fields of :class:`Reader`."""

    def enter(read: _Read) -> _Read:
        for name in classes:
            home, _, kind = name.rpartition(".")
            READERS[home, kind] = Reader(read, **fields)
        return read

    return enter


def reads_calls(
    *functions: Any, methods: Collection[str] = (), **fields: Any
) -> Callable[[_ReadCall], _ReadCall]:
    """Enter a function as the reader of calls, with fields of :class:`FunctionReader`."""

    def enter(read: _ReadCall) -> _ReadCall:
        reader = FunctionReader(read, **fields)
        FUNCTIONS.update(dict.fromkeys(functions, reader))
        METHODS.update(dict.fromkeys(methods, reader))
        return read

    return enter


def reader_of(kind: type) -> Reader | None:
    """Return the reader of exactly this class; None if there is none."""
    reader = READERS.get((kind.__module__, kind.__name__))
    return reader if reader is not None and is_from(kind, kind.__module__) else None


def checked_reader(name: str, module: nn.Module, *, rows_only: bool = False) -> Reader:
    """Return the reader of a module, after checking that it handles all the module's attributes.

    Raises:
        NotLoweredError: there is no reader, or one of a graph layer and ``rows_only`` are wanted, or the
            module holds something else.
    """
    reader = reader_of(type(module))
    if reader is None or (rows_only and reader.edges is not None):
        raise no_reader(name, module)
    check(name, module, reader.known)
    return reader


def bound_arguments(
    name: str, takes: Sequence[str], args: Sequence[Any], kwargs: Any
) -> Iterator[tuple[str, Any]]:
    """Yield arguments by the names of their parameters."""
    if len(args) > len(takes):
        raise ir.NotLoweredError(name, f"it takes {args[len(takes)]} too")
    yield from zip(takes, args, strict=False)
    for key, value in kwargs.items():
        if key not in takes[len(args) :]:
            raise ir.NotLoweredError(name, f"it takes {key!r} too", f"a call without {key}")
        yield key, value


def no_reader(name: str, module: nn.Module) -> ir.NotLoweredError:
    """Return the error for a module whose exact class has no reader."""
    kind = type(module)
    what = kind.__name__
    if not kind.__module__.startswith(("torch.", "torch_geometric.", "graphbraid.")):
        what += f" of {kind.__module__}"
    return ir.NotLoweredError(name, f"no operation stands for {what}", "a layer of docs/lowered_models.md")


# ---- linear layers, which most readers of other layers hold

AFFINE = ("weight", "bias")


@reads(
    "torch.nn.modules.linear.Linear",
    known=Known({"in_features": anything, "out_features": anything}, AFFINE),  # known from the weight
    takes=("input",),
)
@reads(
    "graphbraid.nn.linear.Linear",
    known=Known({"in_features": anything, "out_features": anything, "init": anything}, AFFINE),
)
@reads(
    "torch_geometric.nn.dense.linear.Linear",
    known=Known(
        dict.fromkeys(("in_channels", "out_channels", "weight_initializer", "bias_initializer"), anything),
        AFFINE,
    ),
)
def _linear(call: LayerCall) -> str:
    return call.writer.linear(call.x, call.layer)


def as_linear(name: str, module: nn.Module) -> Any:
    """Return the module if it is a plain linear layer; None for any other class.

    Raises:
        NotLoweredError: it is a linear layer, but holds something that is not handled.
    """
    reader = reader_of(type(module))
    if reader is None or reader.read is not _linear:
        return None
    check(name, module, reader.known)
    return module


def checked_linear(call: LayerCall, key: str, *, has_bias: bool | None = None) -> Any:
    """Return the linear layer that a layer holds under a name.

    Raises:
        NotLoweredError: there is none, or something else.
    """
    module = call.layer._modules.get(key)
    if module is None:
        raise call.refuse(f"without a linear layer {key!r} has no lowered form")
    linear = as_linear(f"{call.name}.{key}", module)
    if linear is None:
        raise no_reader(f"{call.name}.{key}", module)
    if has_bias is not None and (linear.bias is not None) != has_bias:
        raise call.refuse(f"with a bias of its own in {key!r} has no lowered form")
    return linear
