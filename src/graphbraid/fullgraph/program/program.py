"""Program: a model over a whole graph as a short list of operations on node matrices.

A model is read into a program (:func:`graphbraid.fullgraph.reading.read.read_model`), lowered to the cheapest
equivalent one (:mod:`graphbraid.fullgraph.lowering.passes`) and run (:mod:`graphbraid.fullgraph.engine`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple, Self

from torch import Tensor, nn

from graphbraid.fullgraph.program.edge_operations import (
    Aggregate,
    Attention,
    Gine,
    Messages,
    ReadRows,
    RelationAttention,
)
from graphbraid.fullgraph.program.graph_break import Break, LoweredLayer, Returned, WrittenCall
from graphbraid.fullgraph.program.operations import (
    INPUT,
    Add,
    AlongRow,
    ColumnRange,
    Combine,
    Concat,
    DestinationRows,
    Epilogue,
    Following,
    Hoisted,
    Largest,
    Learned,
    Linear,
    Normalise,
    Operation,
    Prelu,
    Product,
    RowOfParameters,
)


class NotLoweredError(Exception):
    """Raised for a part of a model that has no lowered form.

    Attributes:
        part: name of the module or call.
        reason: why it has none, as a clause.
        needed: a replacement that could be lowered, as a clause; may be empty.
        code: a short name of the kind of reason, which stays from version to version
            (``docs/fullgraph.md``).
        where: file and line of the user's code that makes the call; empty if unknown.
    """

    def __init__(
        self, part: str, reason: str, needed: str = "", *, code: str = "no-operation", where: str = ""
    ) -> None:
        super().__init__(part, reason, needed)
        self.part, self.reason, self.needed, self.code, self.where = part, reason, needed, code, where

    @classmethod
    def of_failure(cls, model: nn.Module, error: Exception) -> NotLoweredError:
        """Return the error for a model that could not be read or lowered for an unforeseen reason."""
        lines = str(error).strip().splitlines()
        what = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
        return cls(type(model).__name__, f"lowering it failed ({what})", "a report of this message")

    def kept(self) -> Self:
        """Return the error without the frames that raised it, which hold the tensors of a call."""
        self.__cause__ = self.__context__ = None
        return self.with_traceback(None)

    def explained(self) -> str:
        """Return the text of the error, as ``explain()`` prints it."""
        return f"Runs uncompiled. {self}."

    def __str__(self) -> str:
        at = f" ({self.where})" if self.where else ""
        needed = f". Needed: {self.needed}" if self.needed else ""
        return f"{self.part}: {self.reason}{at} [{self.code}]{needed}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """A change that a lowering pass made or left, and why, as ``explain()`` prints it."""

    name: str
    """Name of the pass."""
    taken: bool
    what: str
    """The choice, as a sentence."""
    saves: str = ""
    """Time or bytes that it saves, as text."""
    instead_of: str = ""
    """The alternatives, with their costs."""


class LevelNodes(NamedTuple):
    """The nodes for which a value has rows: the nodes of one type at one level."""

    level: int
    node_type: int = 0
    """Number of the node type; 0 in a graph of one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeType:
    """The nodes of one type, where there are types."""

    name: str
    """Name of the type."""
    input: str
    """Name of the value that holds the type's features."""
    channels: int
    """Number of feature columns; 0 without features."""


@dataclass(frozen=True, kw_only=True)
class Program:
    """A list of operations in the order they run; the last one's result is the output."""

    ops: tuple[Operation, ...]
    node_types: tuple[NodeType, ...]
    """The node types, at least one, with the features of each."""
    by_relation: bool = False
    """Whether it reads the edges of one relation at a time, and not all of them together."""
    decisions: tuple[Decision, ...] = ()
    returned: Returned | None = None
    """The model's output around the program's; None if the program's output is the model's."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Decisions of passes that are not expressed as operations: ``input_path``, or ``input_paths``."""
    _producers: dict[str, Operation] = field(init=False, default_factory=dict, repr=False, compare=False)
    _places: dict[str, LevelNodes] = field(init=False, default_factory=dict, repr=False, compare=False)
    _widths: dict[str, int] = field(init=False, default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Backwards: of two that make a value, which check() refuses, the first is found.
        self._producers.update((op.out, op) for op in reversed(self.ops))
        check(self)

    @property
    def output(self) -> str:
        """Name of the value the model returns."""
        return self.ops[-1].out if self.ops else INPUT

    @property
    def input_path(self) -> str:
        """How the first weights multiply the features: ``dense``, ``sparse``, ``binary`` or ``streamed``."""
        return str(self.settings.get("input_path", "dense"))

    @property
    def inputs(self) -> dict[str, int]:
        """Names of the values that hold features, with their numbers of columns."""
        return {one.input: one.channels for one in self.node_types}

    def path_of(self, value: str) -> str:
        """Return how weights multiply a value; what holds no features, or their dropout, is dense."""
        if not self.by_relation and value == INPUT:
            return self.input_path
        return str(self.settings.get("input_paths", {}).get(value, "dense"))

    def is_compact(self, value: str) -> bool:
        """Return whether weights multiply a value in a form that no other operation reads: sparse or bits."""
        return self.path_of(value) in {"sparse", "binary"}

    def producer(self, value: str) -> Operation | None:
        """Return the operation that computes a value; None for the input."""
        return self._producers.get(value)

    def consumers(self, value: str) -> list[Operation]:
        """Return the operations that read a value."""
        return [op for op in self.ops if value in op.inputs]

    def level(self, value: str) -> int:
        """Return the level for whose nodes a value has rows."""
        return self.place(value).level

    def node_type(self, value: str) -> int:
        """Return the number of the node type for whose nodes a value has rows."""
        return self.place(value).node_type

    def place(self, value: str) -> LevelNodes:
        """Return the nodes for which a value has rows."""
        if (place := self._places.get(value)) is None:
            place = self._places[value] = self._place(value)
        return place

    def _place(self, value: str) -> LevelNodes:
        op = self.producer(value)
        if op is None:
            return LevelNodes(0, next((i for i, one in enumerate(self.node_types) if one.input == value), 0))
        read = self.place(op.inputs[0])
        steps = op.of if isinstance(op, Hoisted) else (op,)
        walks = next((step.walks for step in reversed(steps) if step.walks is not None), None)
        return LevelNodes(
            read.level + op.num_blocks(), read.node_type if walks is None else walks.destination
        )

    def ends_in_epilogue(self, value: str) -> bool:
        """Return whether a value is an epilogue's result, alone or fused, so that its backward reads it."""
        op = self.producer(value)
        return isinstance(op, Epilogue) or (isinstance(op, Following) and op.after is not None)

    @property
    def num_levels(self) -> int:
        """Number of levels of the program, including the input's."""
        return self.level(self.output) + 1

    def width(self, value: str) -> int:
        """Return the number of columns of a value."""
        if (width := self._widths.get(value)) is None:
            width = self._widths[value] = self._width(value)
        return width

    def _width(self, value: str) -> int:
        op = self.producer(value)
        return self.inputs[value] if op is None else width_of(op, self.width)

    def learns(self, value: str) -> bool:
        """Return whether a value depends on a parameter, so that a gradient flows into it."""
        op = self.producer(value)
        return op is not None and (bool(op.parameters()) or any(self.learns(i) for i in op.inputs))

    def first_uses(self) -> dict[str, tuple[nn.Parameter, ...]]:
        """Return, by value, the parameters to learn that its operation is the first to use.

        Operations go back in reverse, so their gradients are whole once that one has.
        """
        seen: set[int] = set()
        found = {}
        for op in self.ops:
            new = [p for p in op.parameters() if p.requires_grad and id(p) not in seen]
            found[op.out] = tuple({id(p): p for p in new}.values())
            seen |= {id(p) for p in new}
        return found

    @property
    def reads_edges(self) -> bool:
        """Whether any operation reads edge features."""
        return any(op.reads_edges for op in self.ops)

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yield all parameters, each once."""
        seen: set[int] = set()
        for op in self.ops:
            for parameter in op.parameters():
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield parameter

    def rewritten(self, ops: tuple[Operation, ...], *decisions: Decision, **settings: Any) -> Program:
        """Return this program with other operations, and with decisions and settings added."""
        return replace(
            self, ops=ops, decisions=self.decisions + decisions, settings={**self.settings, **settings}
        )

    def replaced(self, new: Mapping[str, Operation], without: str | None = None) -> Program:
        """Replace the operations that make the named values, and drop the one that makes ``without``."""
        return self.rewritten(self._in_order(new.get(op.out, op) for op in self.ops if op.out != without))

    def decided(
        self,
        name: str,
        taken: bool,
        what: str,
        *,
        saves: str = "",
        instead_of: str = "",
        ops: tuple[Operation, ...] | None = None,
        **settings: Any,
    ) -> Program:
        """Return the program after a pass, with new ``ops`` or its own, and the pass's decision appended."""
        saves = saves if taken else ""
        decision = Decision(name=name, taken=taken, what=what, saves=saves, instead_of=instead_of)
        return self.rewritten(self.ops if ops is None else self._in_order(ops), decision, **settings)

    def _in_order(self, ops: Iterable[Operation]) -> tuple[Operation, ...]:
        """Sort operations so that each value is made before it is read, and otherwise keep their order."""
        made, rest, out = set(self.inputs), list(ops), list[Operation]()
        while rest:
            op = next(op for op in rest if all(i in made for i in op.inputs))
            rest.remove(op)
            made.add(op.out)
            out.append(op)
        return tuple(out)

    def __str__(self) -> str:
        lines = [f"{name}: ({channels} columns)" for name, channels in self.inputs.items()]
        for op in self.ops:
            details = op.details()
            lines.append(
                f"{op.out} = {op.symbol}({', '.join(op.inputs)}){': ' + details if details else ''}"
                f"  [level {self.level(op.out)}, {self.width(op.out)} columns]"
            )
        return "\n".join(lines)


def needed_for(ops: Iterable[Operation], out: str) -> tuple[Operation, ...]:
    """Return the operations that a value depends on, in their order."""
    wanted, kept = {out}, list[Operation]()
    for op in reversed([*ops]):
        if op.out in wanted:
            wanted.update(op.inputs)
            kept.append(op)
    return tuple(reversed(kept))


def maker_of(producer: Callable[[str], Operation | None], value: str) -> Operation | None:
    """Return the operation that computes a value's rows, of all nodes of their level."""
    op = producer(value)
    while isinstance(op, DestinationRows):
        op = producer(op.inputs[0])
    return op


def width_of(op: Operation, width: Callable[[str], int]) -> int:
    """Return the number of columns of an operation's result, given that of its inputs."""
    if isinstance(op, Linear | Learned):
        return op.shape[0] if isinstance(op, Linear) else int(op.table.shape[1])
    if isinstance(op, Concat):
        return sum(width(i) for i in op.inputs)
    if isinstance(op, Attention):
        return op.heads * op.channels if op.concat else op.channels
    if isinstance(known := getattr(op, "width_out", None), int):
        return known
    if isinstance(op, ColumnRange):
        return op.last - op.first
    return width(op.inputs[0])


def check(program: Program) -> None:
    """Raise ``ValueError`` unless each value is made once, before it is read, and levels and widths fit."""
    made = set(program.inputs)
    for op in program.ops:
        if missing := [i for i in op.inputs if i not in made]:
            raise ValueError(f"{op.out} reads {missing[0]}, which is not made before it")
        if op.out in made:
            raise ValueError(f"{op.out} is made twice")
        made.add(op.out)
    for op in program.ops:
        for what in shape_errors(program, op):
            raise ValueError(f"{op.out} {what}")


def shape_errors(program: Program, op: Operation) -> Iterator[str]:
    """Yield which inputs of an operation have another level or width than it reads.

    The texts are to be read after the name of the operation's result.
    """
    width = program.width(op.inputs[0])
    if isinstance(op, Linear) and op.shape[1] != width:
        yield f"multiplies {width} columns by a weight of {op.shape[1]}"
    if isinstance(op, Normalise) and op.channels != width:
        yield f"normalises {width} columns with a module for {op.channels}"
    if isinstance(op, Prelu) and op.slope.numel() not in (1, width):
        yield f"has {op.slope.numel()} slopes for {width} columns"
    if isinstance(op, AlongRow) and width % op.width_out:
        yield f"divides {width} columns into pieces of {op.width_out}"
    if isinstance(op, Messages):
        yield from _errors_of_messages(program, op)
    elif isinstance(op, ColumnRange | RowOfParameters | Product | RelationAttention):
        yield from _errors_of_operand(program, op, width)
    if isinstance(op, Gine):
        of_edges = op.edge_channels if op.weight is None else op.weight.shape[0]
        if of_edges != width:
            yield f"adds rows of {of_edges} edge features to rows of {width} columns"
    if op.walks is not None and program.node_type(op.inputs[0]) != op.walks.source:
        yield "reads rows of another type than the relation's sources have"
    if isinstance(op, Attention) and op.own_rows and program.place(op.inputs[1]) != program.place(op.out):
        yield "has its second input on other nodes than its result"
    for other in op.inputs[1:] if isinstance(op, _ADDING) else ():
        is_as_wide = isinstance(op, Concat | Break) or program.width(other) == program.width(op.out)
        # A break that calls nothing keeps rows of several types, to be returned.
        of_any_type = isinstance(op, Break) and not op.is_graph_break
        place = program.level if of_any_type else program.place
        if place(other) != place(op.out) or not is_as_wide:
            yield f"adds {other}, whose level or width is not that of {op.inputs[0]}'s result"


def _errors_of_messages(program: Program, op: Messages) -> Iterator[str]:
    """Yield which inputs have rows of other nodes than the edges' sources, or than the result's."""
    destinations = {place for _, role, place in op.reads if role is ReadRows.DESTINATION}
    first = program.place(op.inputs[0])
    for place, value in enumerate(op.inputs[1:], 1):
        found = program.place(value)
        if found != first and (place not in destinations or found != program.place(op.out)):
            yield f"reads {value}, whose rows are neither its sources' nor its result's"


def _errors_of_operand(
    program: Program, op: ColumnRange | RowOfParameters | Product | RelationAttention, width: int
) -> Iterator[str]:
    """Yield errors of operands that do not fit an operation's input of ``width`` columns."""
    if isinstance(op, RelationAttention):
        level = program.level(op.out) - 1
        for value, one in zip(op.inputs[1:], op.relations, strict=True):
            places = program.place(value), program.node_type(op.out)
            if places != (LevelNodes(level, one.source), one.destination):
                yield f"reads {value}, which has no rows of the sources of {one.edge_type}"
            if program.width(value) != 3 * width:
                yield f"has queries of {width} columns, and {program.width(value)} in {value}, not three each"
    elif isinstance(op, ColumnRange):
        if not 0 <= op.first < op.last <= width:
            yield f"takes columns {op.first} to {op.last} of {width}"
    elif isinstance(op, RowOfParameters):
        if (numbers := op.row.tensor().numel()) not in (1, width):
            yield f"has a row of {numbers} numbers for {width} columns"
    elif program.place(op.inputs[1]) != program.place(op.out):
        yield f"multiplies {op.inputs[1]}, whose level is not that of {op.inputs[0]}"
    elif program.width(op.inputs[1]) not in (1, width):
        yield f"multiplies {width} columns by {program.width(op.inputs[1])}"


_ADDING = (Add, Aggregate, Linear, Combine, Largest, Concat, Break)


def same_program(first: Program, second: Program) -> bool:
    """Return whether two programs are the same operations on the same parameters and modules."""
    is_alike = first.inputs == second.inputs and first.returned == second.returned
    return is_alike and _same(first.ops, second.ops)


def _same(first: Any, second: Any) -> bool:  # noqa: PLR0911 - one for each kind of value
    """Return whether two values are equal, comparing tensors and modules by identity."""
    if first is second:
        return True
    if type(first) is not type(second) or isinstance(first, Tensor | nn.Module):
        return False
    if isinstance(first, Program):
        return same_program(first, second)
    if isinstance(first, dict):
        return list(first) == list(second) and _same(tuple(first.values()), tuple(second.values()))
    if isinstance(first, tuple | list):
        return len(first) == len(second) and all(map(_same, first, second))
    if isinstance(first, Operation | WrittenCall | LoweredLayer):
        names = [field.name for field in fields(first)]
        return all(_same(getattr(first, name), getattr(second, name)) for name in names)
    return bool(first == second)
