"""Running a program's loops and conditions, which decides what it trains before anything is trained."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from graphbraid.synth.language.parsing import MOST
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
    Place,
    ProgramError,
    Statement,
    Unary,
)
from graphbraid.synth.language.words import TOTAL_EPOCHS
from graphbraid.synth.recipe import ModelRecipe, Recipe
from graphbraid.synth.recording import Recorder

MOST_STATEMENTS = 1_000_000
"""Statements that a program may run: more than any that ends needs."""
USUAL_EPOCHS = 200
Number = int | float | bool
_Left = Literal["", "break", "continue"]


def run(
    function: Function, layers: Sequence[int], settings: Mapping[str, Number]
) -> tuple[ModelRecipe, Recipe]:
    """Run a checked program and return what it trains.

    Args:
        function: the program.
        layers: what its container holds: columns of the features, of each hidden layer and of the output.
        settings: values of its ``int``, ``float`` and ``bool`` parameters, and of ``totalEpoch``.

    Raises:
        ProgramError: the program asks for what cannot be done, or does not end.
    """
    runner = _RunningProgram(Recorder(function.name, tuple(layers)), tuple(layers))
    runner.give(function, settings)
    runner.block(function.body)
    return runner.recorder.recipe(function.place)


class _RunningProgram:
    """The variables of a running program; no name is declared twice, so one table holds them all."""

    def __init__(self, recorder: Recorder, layers: tuple[int, ...]) -> None:
        self.recorder = recorder
        self._layers = layers
        self._values: dict[str, Any] = {TOTAL_EPOCHS: USUAL_EPOCHS}
        self._types: dict[str, str] = {}
        self._num_run = 0

    def give(self, function: Function, settings: Mapping[str, Number]) -> None:
        """Give the parameters their values."""
        kinds: dict[str, str] = {p.name: p.type for p in function.parameters}
        open_kinds = {TOTAL_EPOCHS: "int"} | {n: k for n, k in kinds.items() if k in ("int", "float", "bool")}
        for name, value in settings.items():
            if name not in open_kinds:
                known = ", ".join(open_kinds)
                raise ProgramError(None, f'the program has no setting "{name}"', f"its settings are {known}")
            self._values[name] = _as(open_kinds[name], name, value)
        for parameter in function.parameters:
            if parameter.name in open_kinds and parameter.name not in self._values:
                raise ProgramError(
                    parameter.place, f'"{parameter.name}" has no value', "give it as a setting"
                )
            self._values.setdefault(parameter.name, None)
            if parameter.type == "container<int>":
                self._values[parameter.name] = self._layers

    # ---- statements

    def block(self, statements: Sequence[Statement]) -> _Left:
        """Run statements; return how the block was left."""
        for statement in statements:
            self._num_run += 1
            if self._num_run > MOST_STATEMENTS:
                message = f"the program has run {MOST_STATEMENTS:,} statements and goes on"
                raise ProgramError(statement.place, message, "does its loop end?")
            if left := self._statement(statement):
                return left
        return ""

    def _statement(self, statement: Statement) -> _Left:
        match statement:
            case Declare():
                self._types[statement.name.name] = statement.type
                self._set(statement.name.name, self._value(statement.value))
            case Assign():
                self._assign(statement)
            case Do(call=call):
                self.recorder.call(call, tuple(self._value(argument) for argument in call.arguments))
            case For():
                return self._loop(statement)
            case If():
                for condition, body in statement.branches:
                    if self._value(condition):
                        return self.block(body)
                return self.block(statement.otherwise)
            case Leave():
                return statement.word
        return ""

    def _loop(self, loop: For) -> _Left:
        if loop.first is not None:
            self._statement(loop.first)
        while loop.condition is None or self._value(loop.condition):
            self._num_run += 1
            if self._num_run > MOST_STATEMENTS:
                message = f"the loop has run {MOST_STATEMENTS:,} statements and goes on"
                raise ProgramError(loop.place, message, "does it end?")
            if self.block(loop.body) == "break":
                break
            if loop.step is not None:
                self._assign(loop.step)
        return ""

    def _assign(self, assigned: Assign) -> None:
        value = self._value(assigned.value)
        name = assigned.name.name
        if assigned.operator:
            value = _joined(assigned.operator, self._values[name], self._number(value), assigned.place)
        self._set(name, value)

    def _set(self, name: str, value: Any) -> None:
        self._values[name] = float(value) if self._types.get(name) == "float" else value

    # ---- expressions

    def _value(self, value: Expression) -> Any:
        match value:
            case Literally():
                return value.value
            case Name():
                return self._values[value.name]
            case Item():
                return self._item(value)
            case Call():  # getLayers and size, the only methods with a value
                return self.recorder.num_layers + (value.method.name == "size")
            case Unary():
                inner = self._value(value.operand)
                return not inner if value.operator == "!" else -inner if value.operator == "-" else inner
            case Binary():
                return self._binary(value)

    def _item(self, item: Item) -> int:
        index: int = self._value(item.index)
        if not 0 <= index < len(self._layers):
            message = f'"{item.container.name}" has no entry {index}'
            raise ProgramError(item.place, message, f"it has 0 to {len(self._layers) - 1}")
        return self._layers[index]

    def _binary(self, value: Binary) -> Any:
        left = self._value(value.left)
        if value.operator in ("&&", "||"):
            return (
                left and self._value(value.right)
                if value.operator == "&&"
                else left or self._value(value.right)
            )
        return _joined(
            value.operator, self._number(left), self._number(self._value(value.right)), value.place
        )

    def _number(self, value: Any) -> Any:
        """Return a container's number of layers; any other value as it is."""
        return len(value) - 1 if isinstance(value, tuple) else value


_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {"+": operator.add, "-": operator.sub, "*": operator.mul}


def _joined(symbol: str, left: Any, right: Any, place: Place) -> Any:
    if symbol in _COMPARE:
        return _COMPARE[symbol](left, right)
    if symbol in _ARITHMETIC:
        found = _ARITHMETIC[symbol](left, right)
    elif right == 0:
        raise ProgramError(place, "division by zero")
    elif isinstance(left, int) and isinstance(right, int):
        quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)  # as in C: towards zero
        found = quotient if symbol == "/" else left - quotient * right
    else:
        found = left / right
    if isinstance(found, int) and abs(found) > MOST:
        raise ProgramError(place, "the integer is too large", f"at most {MOST}")
    return found


def _as(kind: str, name: str, value: Number) -> Number:
    is_right = {
        "bool": isinstance(value, bool),
        "int": isinstance(value, int) and not isinstance(value, bool) and abs(value) <= MOST,
        "float": isinstance(value, int | float) and not isinstance(value, bool),
    }
    if not is_right[kind]:
        raise ProgramError(None, f'the setting "{name}" must be {kind}; got {value!r}')
    return float(value) if kind == "float" else value


__all__ = ["MOST_STATEMENTS", "run"]
