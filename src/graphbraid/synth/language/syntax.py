"""The syntax tree of a program: frozen, typed nodes, each with its place in the text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from graphbraid.synth.language.mistake import Place

Type = Literal["int", "float", "bool", "String", "Graph", "GNN", "container<int>"]
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
    """Two values joined by an operator, at whose place the node is."""

    operator: str
    left: Expression
    right: Expression


Expression = Literally | Name | Item | Call | Unary | Binary


# ---- statements


@dataclass(frozen=True, slots=True)
class Declare(Node):
    """A new variable with its first value."""

    type: Type
    name: Name
    value: Expression


@dataclass(frozen=True, slots=True)
class Assign(Node):
    """A new value of a variable: ``=``, or an operator that joins it with the old one."""

    name: Name
    operator: str
    """``""`` for ``=``, else ``+``, ``-``, ``*``, ``/`` or ``%``."""
    value: Expression


@dataclass(frozen=True, slots=True)
class Do(Node):
    """A call for its effect."""

    call: Call


@dataclass(frozen=True, slots=True)
class For(Node):
    """A loop."""

    first: Declare | Assign | None
    condition: Expression | None
    step: Assign | None
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class If(Node):
    """Branches of which the first whose condition holds runs."""

    branches: tuple[tuple[Expression, tuple[Statement, ...]], ...]
    otherwise: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Leave(Node):
    """``break`` or ``continue``."""

    word: Literal["break", "continue"]


Statement = Declare | Assign | Do | For | If | Leave


# ---- the program


@dataclass(frozen=True, slots=True)
class Parameter(Node):
    """A parameter of the function."""

    type: Type
    name: str


@dataclass(frozen=True, slots=True)
class Function(Node):
    """A whole program."""

    name: str
    parameters: tuple[Parameter, ...]
    body: tuple[Statement, ...]
    notes: tuple[tuple[Place, str], ...] = ()
    """What was supplied that the text does not have, each with the place it concerns."""
    source: str = "program"
    """Name of the text in errors."""
    text: str = ""
