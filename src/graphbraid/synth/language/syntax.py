"""The syntax tree of a program: frozen nodes with their places; errors at a place; the language's words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Literal

from graphbraid.errors import ConfigError, nearest_name

MOST_SHOWN = 100
"""Characters of a line that an error shows."""


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A place in a program's text, both numbers counted from 1."""

    line: int
    column: int


class ProgramError(ConfigError):
    """A mistake in a program.

    Args:
        place: where it is. None if a setting is wrong, which has no place in the text.
        message: what is wrong.
        hint: what would be right; empty if the message says it.
    """

    def __init__(self, place: Place | None, message: str, hint: str = "") -> None:
        self.place, self.message, self.hint = place, message, hint
        self.source = ""
        """Name of the program's file."""
        self.text = ""
        """The line of the program, as it is written."""
        super().__init__(message)

    def within(self, source: str, text: str) -> ProgramError:
        """Return this error with the name of the file and the line it is in."""
        self.source = source
        if self.place is not None:
            lines = text.split("\n")  # as the parser counts them
            self.text = lines[self.place.line - 1].rstrip("\r") if self.place.line <= len(lines) else ""
        return self

    def __str__(self) -> str:
        said = f"{self.message}: {self.hint}" if self.hint else self.message
        if self.place is None:
            return said
        head = f"{self.source or 'program'}:{self.place.line}:{self.place.column}: {said}"
        if not self.text.strip():
            return head
        at = self.place.column - 1
        begin = max(0, at - MOST_SHOWN // 2) if len(self.text) > MOST_SHOWN else 0
        shown, left_out = self.text[begin : begin + MOST_SHOWN], "..." if begin else ""
        pad = "".join("\t" if c == "\t" else " " for c in left_out + shown[: at - begin])
        more = "..." if begin + MOST_SHOWN < len(self.text) else ""
        return f"{head}\n  {left_out}{shown}{more}\n  {pad}^"


def hint_of(name: str, known: Iterable[str]) -> str:
    """Return a hint: the known name nearest to ``name``. If none is near, all known names."""
    names = list(known)
    near = nearest_name(name, names)
    return f"known are {', '.join(names)}" if near is None else f"did you mean {near}?"


Type = Literal["int", "float", "bool", "String", "Graph", "GNN", "container<int>", "propNode<float>"]
"""The types of the language; ``double`` is read as ``float``."""


@dataclass(frozen=True, slots=True)
class Node:
    """Part of a program."""

    place: Place


# ---- expressions


@dataclass(frozen=True, slots=True)
class Literally(Node):
    """A number, truth value or text as it is written."""

    value: int | float | bool | str


@dataclass(frozen=True, slots=True)
class Name(Node):
    """The value of a variable or parameter."""

    name: str


@dataclass(frozen=True, slots=True)
class Item(Node):
    """An entry of a container."""

    container: Name
    index: Expression


@dataclass(frozen=True, slots=True)
class Call(Node):
    """A call of a method, ``receiver.method(arguments)``."""

    receiver: Name
    method: Name
    arguments: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Unary(Node):
    """``-x``, ``+x`` or ``!x``."""

    operator: str
    operand: Expression


@dataclass(frozen=True, slots=True)
class Binary(Node):
    """Two values joined by an operator. Its place is that of the operator."""

    operator: str
    left: Expression
    right: Expression


@dataclass(frozen=True, slots=True)
class Apply(Node):
    """A call of one of the program's own functions, ``function(arguments)``."""

    function: str
    arguments: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Property(Node):
    """A node's row of a property, ``u.x``."""

    node: Name
    name: Name


Expression = Literally | Name | Item | Call | Apply | Unary | Binary | Property


# ---- statements


@dataclass(frozen=True, slots=True)
class Declare(Node):
    """A new variable with its first value."""

    type: Type
    name: Name
    value: Expression


@dataclass(frozen=True, slots=True)
class Assign(Node):
    """A new value of a variable, as in ``x = 3`` or ``x += 3``."""

    name: Name
    operator: str
    """``""`` for ``=``, else ``+``, ``-``, ``*``, ``/`` or ``%``."""
    value: Expression

    @property
    def new(self) -> Expression:
        """The new value. With an operator, it is computed from the old value."""
        return Binary(self.place, self.operator, self.name, self.value) if self.operator else self.value


@dataclass(frozen=True, slots=True)
class For(Node):
    """A loop; ``while`` has neither a first statement nor a step."""

    first: Declare | Assign | None
    condition: Expression | None
    step: Assign | None
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class If(Node):
    """Branches: the first whose condition holds runs. Without branches, ``otherwise`` is a plain block."""

    branches: tuple[tuple[Expression, tuple[Statement, ...]], ...]
    otherwise: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Leave(Node):
    """``break`` or ``continue``."""

    word: Literal["break", "continue"]


@dataclass(frozen=True, slots=True)
class Give(Node):
    """``return`` with the value of a function."""

    value: Expression


@dataclass(frozen=True, slots=True)
class Say(Node):
    """``print``: texts and numbers on one line."""

    values: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Train(Node):
    """The calls of all layers together: a forward pass, a backward pass, or an update of the weights."""

    what: Literal["forward", "backward", "update"]
    rate: Expression | None = None
    """The update's learning rate."""


@dataclass(frozen=True, slots=True)
class Forall(Node):
    """A block for each node that a method of the graph gives. The nodes have no fixed order."""

    name: Name
    over: Call
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Put(Node):
    """A new row of a node's property, as in ``v.out = u.x`` or ``v.out += u.x``."""

    to: Property
    operator: str
    """As in :class:`Assign`."""
    value: Expression


Statement = Declare | Assign | Call | For | If | Leave | Give | Say | Train | Forall | Put


# ---- the program


@dataclass(frozen=True, slots=True)
class Parameter(Node):
    """A parameter of the function."""

    type: Type
    name: str


@dataclass(frozen=True, slots=True)
class Function(Node):
    """A function. The function that trains is the whole program: it holds the other functions, too."""

    returns: Type | None
    """Type of its value; None if it trains, or is an own layer."""
    name: str
    parameters: tuple[Parameter, ...]
    body: tuple[Statement, ...]
    helpers: tuple[Function, ...] = ()
    """The functions of numbers."""
    layers: tuple[Function, ...] = ()
    """The functions of node properties, each an own layer."""
    notes: tuple[tuple[Place, str], ...] = ()
    """Notes on braces that the parser added, each with its place."""
    source: str = "program"
    """Name of the text in errors."""
    text: str = ""


def walk(part: object) -> Iterator[Node]:
    """Yield a node and all nodes inside it; of a tuple, those of each entry. Methods' names are left out."""
    if isinstance(part, Call):
        inside: Iterable[object] = (part.receiver, part.arguments)
    elif isinstance(part, Node):
        inside = (getattr(part, field.name) for field in fields(part))
    elif isinstance(part, tuple):
        inside = part
    else:
        return
    if isinstance(part, Node):
        yield part
    for each in inside:
        yield from walk(each)


def names_in(part: object) -> set[str]:
    """Return the variables that a part reads or changes."""
    return {node.name for node in walk(part) if isinstance(node, Name)}


def declared_in(part: object) -> set[str]:
    """Return the variables that a part declares."""
    return {node.name.name for node in walk(part) if isinstance(node, Declare)}


def assigned_in(part: object) -> set[str]:
    """Return the variables that a part changes but does not declare."""
    return {node.name.name for node in walk(part) if isinstance(node, Assign)} - declared_in(part)


def trains_in(part: object) -> bool:
    """Return whether a part of a script runs a pass or an update."""
    return any(isinstance(node, Train) for node in walk(part))


def leaves_loop(body: tuple[Statement, ...], *, by_return: bool = True) -> bool:
    """Return whether a ``break`` or ``return`` in this body leaves the loop.

    A ``break`` of a loop inside the body leaves that inner loop, so it does not count.
    """
    for statement in body:
        match statement:
            case Leave(word="break"):
                return True
            case If():
                blocks = [*(block for _, block in statement.branches), statement.otherwise]
                if any(leaves_loop(block, by_return=by_return) for block in blocks):
                    return True
            case Give() | For() if by_return and any(isinstance(node, Give) for node in walk(statement)):
                return True
    return False


def is_endless(loop: For) -> bool:
    """Return whether a loop has no condition, or the condition ``true``."""
    return loop.condition is None or (isinstance(loop.condition, Literally) and bool(loop.condition.value))


MODELS = ("GCN", "SAGE", "GIN", "GAT", "GATv2")
ATTENTION = ("GAT", "GATv2")
"""The models that have attention heads."""
AGGREGATIONS = ("Sum", "Mean", "Max")
OF_MODEL: dict[str, tuple[str, ...]] = dict.fromkeys(MODELS, ("Sum",)) | {"SAGE": AGGREGATIONS}
"""The aggregations of each model: GCN's sum is weighted by degrees, GAT's and GATv2's by attention."""
USUAL = dict.fromkeys(MODELS, "Sum") | {"SAGE": "Mean"}
"""The aggregation of each model where a program names none."""
INITIALISERS = ("xavier", "kaiming", "uniform")
OPTIMIZERS = ("sgd", "adam", "adamw")
ACTIVATIONS = ("relu", "elu", "leaky_relu", "none")
NORMALIZATIONS = ("batch", "layer", "none")
LOSSES = ("cross entropy", "binary cross entropy", "mean squared")
SPLITS = ("train", "val", "test")
SPELLINGS = {"xaviers": "xavier", "leakyrelu": "leaky_relu", "add": "sum"}
"""Other spellings of known words, in lower case."""

TOTAL_EPOCHS = "totalEpoch"
"""Name of the number of epochs; every program knows it."""


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of a method."""

    name: str
    """Its name in errors."""
    type: Type
    choices: tuple[str, ...] = ()
    """The words to choose from; empty if it may be any text."""
    bounds: range = range(0)
    """The possible integers; empty if it may be any."""


@dataclass(frozen=True, slots=True)
class Method:
    """A method of an object."""

    arguments: tuple[Argument, ...] = ()
    least: int | None = None
    """Number of arguments that must be given; None for all."""
    returns: Type | None = None
    """Type of its value; None if it is called for its effect alone."""


_LAYER = Argument("layer", "int")
_SPLIT = Argument("split", "String", SPLITS)
_GNN = {
    "load": Method((Argument("graph", "Graph"), Argument("dataset", "String"))),
    "initializeLayers": Method(
        (Argument("layers", "container<int>"), Argument("initialiser", "String", INITIALISERS))
    ),
    "getLayers": Method(returns="int"),
    "seed": Method((Argument("seed", "int", bounds=range(2**32)),)),
    "heads": Method((Argument("heads", "int", bounds=range(1, 1025)),)),
    "trainOn": Method((_SPLIT,)),
    "minimize": Method((Argument("loss", "String", LOSSES),)),
    "earlyStop": Method((_SPLIT, Argument("patience", "int", bounds=range(1, 2**31)))),
    "forwardPass": Method(
        (_LAYER, Argument("model", "String", MODELS), Argument("aggregation", "String", AGGREGATIONS)), 2
    ),
    "normalization": Method((_LAYER, Argument("normalization", "String", NORMALIZATIONS))),
    "activation": Method((_LAYER, Argument("activation", "String", ACTIVATIONS))),
    "dropout": Method((_LAYER, Argument("probability", "float"))),
    "backPropagation": Method((_LAYER,)),
    "optimizer": Method(
        (
            Argument("optimizer", "String", OPTIMIZERS),
            Argument("learning rate", "float"),
            *(Argument("setting", "float") for _ in range(3)),
        ),
        2,
    ),
    "loss": Method(returns="float"),
    "evaluate": Method((_SPLIT,), returns="float"),
}
AT_RUN_TIME = ("optimizer", "loss", "evaluate")
"""The methods of GNN that have an effect or a value only while the program trains."""
METHODS: dict[Type, dict[str, Method]] = {"GNN": _GNN, "container<int>": {"size": Method(returns="int")}}


def word_of(text: str, choices: tuple[str, ...]) -> str | None:
    """Return the choice that a text spells, in upper or lower case; None if it spells none."""
    lower = SPELLINGS.get(text.lower(), text.lower())
    return next((choice for choice in choices if choice.lower() == lower), None)
