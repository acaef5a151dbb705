"""Builder: makes the syntax tree, bottom up while the parser runs, from its rules."""

from __future__ import annotations

from typing import Any, Literal, cast

from lark import Token, Transformer, v_args

from graphbraid.synth.language.braces import place_of
from graphbraid.synth.language.mistake import ProgramError
from graphbraid.synth.language.syntax import (
    Assign,
    Binary,
    Call,
    Declare,
    Do,
    Expression,
    For,
    Function,
    If,
    Item,
    Leave,
    Literally,
    Name,
    Parameter,
    Statement,
    Type,
    Unary,
)

MOST = 2**63 - 1
"""Largest integer of the language."""
Statements = tuple[Statement, ...]


@v_args(inline=True)
class Builder(Transformer[Token, Any]):
    """Makes a node of each rule of the grammar."""

    def start(self, function: Function) -> Function:
        """Return the program."""
        return function

    def function(self, word: Token, name: Token, *parts: Any) -> Function:
        """Make the program of its parameters and block."""
        *parameters, body = parts
        return Function(place_of(word), str(name), tuple(p for p in parameters if p is not None), body)

    def parameter(self, kind: tuple[Token, Type], name: Token) -> Parameter:
        """Make a parameter."""
        return Parameter(place_of(name), kind[1], str(name))

    def plain_type(self, word: Token) -> tuple[Token, Type]:
        """Return a type of one word."""
        return word, _type(word)

    def container_type(self, word: Token) -> tuple[Token, Type]:
        """Return a container's type."""
        if word != "int":
            raise ProgramError(place_of(word), f"a container of {word}", "containers hold int")
        return word, "container<int>"

    def block(self, *statements: Statement) -> Statements:
        """Return the statements of a block."""
        return statements

    def do(self, call: Call) -> Do:
        """Make a call for its effect."""
        return Do(call.place, call)

    def leave(self, word: Token) -> Leave:
        """Make a jump out of a loop's body."""
        return Leave(place_of(word), cast("Literal['break', 'continue']", str(word)))

    def declaration(self, kind: Token, name: Token, value: Expression) -> Declare:
        """Make a declaration."""
        return Declare(place_of(kind), _type(kind), _name(name), value)

    def assign(self, name: Token, operator: Token, value: Expression) -> Assign:
        """Make an assignment that joins the old value with another."""
        return Assign(place_of(name), _name(name), operator[0], value)

    def set(self, name: Token, value: Expression) -> Assign:
        """Make an assignment."""
        return Assign(place_of(name), _name(name), "", value)

    def step_after(self, name: Token, step: Token) -> Assign:
        """Make ``i++`` or ``i--``."""
        return Assign(place_of(name), _name(name), step[0], Literally(place_of(step), 1))

    def step_before(self, step: Token, name: Token) -> Assign:
        """Make ``++i`` or ``--i``."""
        return self.step_after(name, step)

    def loop(
        self,
        word: Token,
        first: Declare | Assign | None,
        condition: Expression | None,
        step: Assign | None,
        body: Statements,
    ) -> For:
        """Make a loop."""
        return For(place_of(word), first, condition, step, body)

    def choice(self, word: Token, condition: Expression, body: Statements, *others: Any) -> If:
        """Make a chain of branches."""
        *branches, otherwise = others
        return If(place_of(word), ((condition, body), *branches), otherwise or ())

    def other_if(self, _: Token, condition: Expression, body: Statements) -> tuple[Expression, Statements]:
        """Return a further branch."""
        return condition, body

    def otherwise(self, body: Statements) -> Statements:
        """Return the last branch."""
        return body

    def order(self, word: Token) -> Token:
        """Return an operator."""
        return word

    def binary(self, left: Expression, operator: Token, right: Expression) -> Binary:
        """Make a node of two values."""
        return Binary(place_of(operator), str(operator), left, right)

    def unary(self, operator: Token, operand: Expression) -> Unary:
        """Make a node of one value."""
        return Unary(place_of(operator), str(operator), operand)

    def integer(self, word: Token) -> Literally:
        """Make an integer."""
        digits = word.lstrip("0") or "0"
        if len(digits) > len(str(MOST)) or int(digits) > MOST:
            raise ProgramError(place_of(word), f"the integer is too large: at most {MOST}")
        return Literally(place_of(word), int(digits))

    def decimal(self, word: Token) -> Literally:
        """Make a decimal number."""
        return Literally(place_of(word), float(word))

    def text(self, word: Token) -> Literally:
        """Make a text."""
        return Literally(place_of(word), str(word)[1:-1])

    def truth(self, word: Token) -> Literally:
        """Make a truth value."""
        return Literally(place_of(word), word == "true")

    def name(self, word: Token) -> Name:
        """Make a variable's value."""
        return _name(word)

    def item(self, container: Token, index: Expression) -> Item:
        """Make an entry of a container."""
        return Item(place_of(container), _name(container), index)

    def call(self, receiver: Token, method: Token, *arguments: Expression | None) -> Call:
        """Make a call."""
        given = tuple(argument for argument in arguments if argument is not None)
        return Call(place_of(receiver), _name(receiver), _name(method), given)


def _name(word: Token) -> Name:
    return Name(place_of(word), str(word))


def _type(word: Token) -> Type:
    return "float" if word == "double" else cast("Type", str(word))


__all__ = ["MOST", "Builder"]
