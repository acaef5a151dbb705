"""Interpreter: runs statements of a program. A host takes their calls of the model."""

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any, Literal, Protocol

from graphbraid.synth.language import syntax
from graphbraid.synth.language.parsing import MOST
from graphbraid.synth.language.syntax import Place, ProgramError, trains_in, walk

MOST_STATEMENTS = 1_000_000
"""Most statements that may run before training. A program that runs more is taken to be endless."""
MOST_ROUNDS = 1_000_000
"""Most rounds of a counted loop, and of loops without training between two forward passes."""
Number = int | float | bool
_Left = Literal["", "break", "continue", "return"]


class CallHost(Protocol):
    """The receiver of a program's calls: the recorder of its layers, or the engine that trains them."""

    def call(self, call: syntax.Call, arguments: tuple[Any, ...]) -> Any:
        """Take a call with the values of its arguments; return its value."""

    def train(self, step: syntax.Train, rate: float) -> None:
        """Run a pass or an update."""

    def say(self, text: str) -> None:
        """Take a printed line."""


class Interpreter:
    """Runs statements. One table holds all variables, since no visible name is declared twice.

    Calls go to ``host``. A container in ``values`` is the tuple of its entries. At most ``limit`` statements
    run.
    """

    def __init__(
        self,
        host: CallHost,
        helpers: Sequence[syntax.Function],
        values: Mapping[str, Any],
        limit: int | None = MOST_STATEMENTS,
    ) -> None:
        self._host, self._helpers, self._limit = host, {helper.name: helper for helper in helpers}, limit
        self.values: dict[str, Any] = dict(values)
        self.types: dict[str, str] = {}
        self._num_run = 0
        self._num_rounds = 0  # of loops without training, since the latest forward pass
        self._given: Number = 0

    # ---- statements

    def block(self, statements: Sequence[syntax.Statement]) -> _Left:
        """Run statements; return how the block was left."""
        for statement in statements:
            if left := self.statement(statement):
                return left
        return ""

    def statement(self, statement: syntax.Statement) -> _Left:
        """Run a statement; return how it was left."""
        self._count(statement.place, "program")
        match statement:
            case syntax.Declare():
                self.types[statement.name.name] = statement.type
                self._set(statement.name.name, self.value(statement.value))
            case syntax.Assign():
                self.assign(statement)
            case syntax.Call():
                self.value(statement)
            case syntax.For():
                return self._loop(statement)
            case syntax.If():
                for condition, body in statement.branches:
                    if self.value(condition):
                        return self.block(body)
                return self.block(statement.otherwise)
            case syntax.Leave():
                return statement.word
            case syntax.Give():
                self._given = self.value(statement.value)
                return "return"
            case syntax.Say():
                self._host.say(" ".join(shown(self.value(value)) for value in statement.values))
            case syntax.Train():
                if statement.what == "forward":
                    self._num_rounds = 0
                rate = 0.0 if statement.rate is None else float(self.value(statement.rate))
                self._host.train(statement, rate)
        return ""

    def _count(self, place: Place, what: str) -> None:
        self._num_run += 1
        if self._limit is not None and self._num_run > self._limit:
            message = f"the {what} has run {self._limit:,} statements and goes on"
            raise ProgramError(place, message, "does it end?" if what == "loop" else "does its loop end?")

    def _loop(self, loop: syntax.For) -> _Left:
        if loop.first is not None:
            self.statement(loop.first)
        trains = trains_in(loop.body)
        while loop.condition is None or self.value(loop.condition):
            self._count(loop.place, "loop")
            self._num_rounds += not trains
            if self._num_rounds > MOST_ROUNDS:
                message = f"the loop goes on after {MOST_ROUNDS:,} rounds without training"
                raise ProgramError(loop.place, message, "does it end?")
            if (left := self.block(loop.body)) == "break":
                break
            if left == "return":
                return left
            if loop.step is not None:
                self.assign(loop.step)
        return ""

    def assign(self, assigned: syntax.Assign) -> None:
        """Give a variable a new value."""
        self._set(assigned.name.name, self.value(assigned.new))

    def _set(self, name: str, value: Any) -> None:
        self.values[name] = float(value) if self.types.get(name) == "float" else value

    # ---- expressions

    def value(self, value: syntax.Expression) -> Any:  # noqa: PLR0911 - one for each kind of node
        """Return the value of an expression."""
        match value:
            case syntax.Literally():
                return value.value
            case syntax.Name():
                return self.values[value.name]
            case syntax.Item():
                return self._item(value)
            case syntax.Call():
                container = self.values.get(value.receiver.name)
                if isinstance(container, tuple):  # size, the only method of containers
                    return len(container)
                return self._host.call(value, tuple(self.value(argument) for argument in value.arguments))
            case syntax.Apply():
                return self._applied(value)
            case syntax.Unary():
                inner = self.value(value.operand)
                return not inner if value.operator == "!" else -inner if value.operator == "-" else inner
            case syntax.Binary():
                return self._binary(value)

    def _applied(self, call: syntax.Apply) -> Number:
        helper = self._helpers[call.function]
        inside = copy(self)  # the same host, functions, counts and limit
        inside.values, inside.types = {}, {}
        for parameter, argument in zip(helper.parameters, call.arguments, strict=True):
            inside.types[parameter.name] = parameter.type
            inside._set(parameter.name, self._number(self.value(argument)))
        try:
            inside.block(helper.body)
        except RecursionError:
            raise ProgramError(call.place, "functions call each other too deeply") from None
        self._num_run, self._num_rounds = inside._num_run, inside._num_rounds
        return float(inside._given) if helper.returns == "float" else inside._given

    def _item(self, item: syntax.Item) -> int:
        container, index = self.values[item.container.name], self.value(item.index)
        if not 0 <= index < len(container):
            message = f'"{item.container.name}" has no entry {index}'
            raise ProgramError(item.place, message, f"it has 0 to {len(container) - 1}")
        entry: int = container[index]
        return entry

    def _binary(self, value: syntax.Binary) -> Any:
        left = self.value(value.left)
        if value.operator == "&&":
            return left and self.value(value.right)
        if value.operator == "||":
            return left or self.value(value.right)
        right = self._number(self.value(value.right))
        return _joined(value.operator, self._number(left), right, value.place)

    def _number(self, value: Any) -> Any:
        """Return the number of layers for a container, and any other value as it is."""
        return len(value) - 1 if isinstance(value, tuple) else value


def shown(value: str | Number) -> str:
    """Return a value as ``print`` shows it: a float as C's ``%.9g`` does."""
    if isinstance(value, bool):
        return str(value).lower()
    return format(value, ".9g") if isinstance(value, float) else str(value)


def speaking(helpers: Sequence[syntax.Function]) -> set[str]:
    """Return the names of the functions that print, or call one that does."""
    found = set[str]()
    for helper in helpers:  # a function can call only those before it, so one pass finds all
        if any(
            isinstance(n, syntax.Say) or (isinstance(n, syntax.Apply) and n.function in found)
            for n in walk(helper)
        ):
            found.add(helper.name)
    return found


_JOINED: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
}


def _joined(symbol: str, left: Any, right: Any, place: Place) -> Any:
    """Join numbers as C does: an integer and a float as two floats, integers in 64 bits."""
    if isinstance(left, float) or isinstance(right, float):
        left, right = float(left), float(right)
    if symbol in _JOINED:
        found = _JOINED[symbol](left, right)
    elif right == 0:
        raise ProgramError(place, "division by zero")
    elif isinstance(left, int):
        # C rounds towards zero, Python's // downwards: so the magnitudes are divided, then the sign is set.
        quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
        found = quotient if symbol == "/" else left - quotient * right
    else:
        found = left / right
    if isinstance(found, int) and abs(found) > MOST:
        raise ProgramError(place, "the integer is too large", f"at most {MOST}")
    return found


def checked_setting(kind: str, name: str, value: Number) -> Number:
    """Return the value of a setting in its type; ProgramError if it is of another."""
    types: dict[str, Any] = {"bool": bool, "int": int, "float": int | float}
    is_right = isinstance(value, types[kind]) and isinstance(value, bool) == (kind == "bool")
    if not is_right or (kind == "int" and abs(value) > MOST):
        raise ProgramError(None, f'the setting "{name}" must be {kind}; got {value!r}')
    if kind == "float" and not math.isfinite(value):
        raise ProgramError(None, f'the setting "{name}" must be a finite number; got {value!r}')
    return float(value) if kind == "float" else value
