"""Specialising: what a program says of its layers is settled; what it decides while it trains is left.

A loop over layers runs here, and its calls become one forward or backward pass of all layers. Statements
that read the loss, an accuracy or the epoch stay as they are: :mod:`graphbraid.synth.training` runs them in
this process, and :mod:`graphbraid.synth.emit.control` writes them in C++.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from graphbraid.synth.language import syntax as ast
from graphbraid.synth.language.aggregating import aggregation_of
from graphbraid.synth.language.syntax import (
    ProgramError,
    assigned_in,
    declared_in,
    leaves_loop,
    names_in,
    walk,
)
from graphbraid.synth.language.words import METHODS, TOTAL_EPOCHS
from graphbraid.synth.recipe import ModelRecipe, Recipe, Script
from graphbraid.synth.recording import Recorder
from graphbraid.synth.running import MOST_ROUNDS, Interpreter, Number, checked_setting, speaking

USUAL_EPOCHS = 200
_COUNTED_ROUNDS = 1000
"""Rounds that are counted one by one."""


def specialize(
    function: ast.Function, layers: Sequence[int], settings: Mapping[str, Number]
) -> tuple[ModelRecipe, Recipe]:
    """Return what a checked program trains, and how.

    Args:
        function: the program.
        layers: what its container holds: columns of the features, of each hidden layer and of the output.
        settings: values of its ``int``, ``float`` and ``bool`` parameters, and of ``totalEpoch``.

    Raises:
        ProgramError: the program asks for what cannot be done, or does not end.
    """
    values = _given(function, layers, settings)
    own = {layer.name: aggregation_of(layer) for layer in function.layers}
    specializer = _Specializer(function, Recorder(function.name, tuple(layers), own), values)
    statements = specializer.block(function.body)
    reads_total = TOTAL_EPOCHS in names_in(statements)
    if reads_total and values[TOTAL_EPOCHS] < 1:
        raise ProgramError(function.place, "the program trains nothing", f"{TOTAL_EPOCHS} is at least 1")
    numbers = {name: value for name, value in values.items() if isinstance(value, int | float)}
    types = {parameter.name: parameter.type for parameter in function.parameters}
    script = Script(
        statements=statements,
        helpers=function.helpers,
        values={name: value for name, value in numbers.items() if name != TOTAL_EPOCHS},
        gnn=next(name for name, kind in types.items() if kind == "GNN"),
        reads_total=reads_total,
    )
    model, recipe = specializer.recorder.recipe(function.place)
    return model, replace(recipe, epochs=values[TOTAL_EPOCHS], script=script)


def _given(function: ast.Function, layers: Sequence[int], settings: Mapping[str, Number]) -> dict[str, Any]:
    """Return the values of a program's parameters and of ``totalEpoch``."""
    values: dict[str, Any] = {TOTAL_EPOCHS: USUAL_EPOCHS}
    kinds: dict[str, str] = {p.name: p.type for p in function.parameters}
    open_kinds = {TOTAL_EPOCHS: "int"} | {n: k for n, k in kinds.items() if k in ("int", "float", "bool")}
    for name, value in settings.items():
        if name not in open_kinds:
            known = ", ".join(open_kinds)
            raise ProgramError(None, f'the program has no setting "{name}"', f"its settings are {known}")
        values[name] = checked_setting(open_kinds[name], name, value)
    for parameter in function.parameters:
        if parameter.name in open_kinds and parameter.name not in values:
            raise ProgramError(parameter.place, f'"{parameter.name}" has no value', "give it as a setting")
        values.setdefault(parameter.name, tuple(layers) if parameter.type == "container<int>" else None)
    return values


class _Host:
    """Gives the interpreter the calls that describe layers, which a recorder takes."""

    def __init__(self, recorder: Recorder, completed: list[ast.Statement]) -> None:
        self._recorder, self._completed = recorder, completed

    def call(self, call: ast.Call, arguments: tuple[Any, ...]) -> Any:
        if call.method.name == "getLayers":
            return self._recorder.num_layers
        self._completed += self._recorder.call(call, arguments)
        return None

    def train(self, step: ast.Train, rate: float) -> None:
        raise AssertionError("no pass runs before training")

    def say(self, text: str) -> None:
        raise AssertionError("nothing is printed before training")


class _Specializer:
    """Walks a program once, in the order of its text.

    A variable is settled if its value does not depend on training or on ``totalEpoch``, which the written
    program can be given anew. Others may have a value here all the same, by which loops are counted.
    """

    def __init__(self, function: ast.Function, recorder: Recorder, values: dict[str, Any]) -> None:
        self.recorder = recorder
        self._completed: list[ast.Statement] = []
        self._interpreter = Interpreter(_Host(recorder, self._completed), function.helpers, values)
        self._values = self._interpreter.values
        self._speakers = speaking(function.helpers)
        self._open = {TOTAL_EPOCHS}  # names that are not settled
        self._depth = 0  # loops and conditions around that are not settled
        self._at_loop: list[Any] = []  # how far the epoch was where each loop around began

    def block(self, statements: Sequence[ast.Statement]) -> tuple[ast.Statement, ...]:
        """Return what is left of statements."""
        return tuple(left for statement in statements for left in self._statement(statement))

    def _statement(  # noqa: PLR0911 - one for each kind of node
        self, statement: ast.Statement
    ) -> list[ast.Statement]:
        match statement:
            case ast.Declare(name=name, value=value):
                rest = replace(statement, value=self._rest(value))
                self._learn(name.name, self._value_of(value), statement)
                return [rest]
            case ast.Assign(name=name, value=value):
                left = replace(statement, value=self._rest(value))
                known = self._value_of(value) and (not statement.operator or name.name in self._values)
                self._learn(name.name, known, statement)
                return [left]
            case ast.Do(call=call):
                return self._do(call)
            case ast.For():
                return self._loop(statement)
            case ast.If():
                return self._choice(statement)
            case ast.Leave():
                # A loop that begins between epochs may be left anywhere: the next forward pass begins anew.
                if self._at_loop and self._at_loop[-1] not in (_BETWEEN_EPOCHS, self.recorder.progress):
                    message = f"{statement.word} where an epoch is further than at the loop's beginning"
                    raise ProgramError(
                        statement.place, message, "leave the loop there, or begin an epoch in it"
                    )
            case ast.Say(values=values):
                return [replace(statement, values=tuple(self._rest(value) for value in values))]
        return [statement]

    def _learn(self, name: str, is_known: bool, statement: ast.Declare | ast.Assign) -> None:
        is_joined = isinstance(statement, ast.Assign) and bool(statement.operator)
        is_open = bool((names_in(statement.value) | ({name} if is_joined else set())) & self._open)
        if isinstance(statement, ast.Declare):
            self._interpreter.types[name] = statement.type
        if not is_known:
            self._forget({name})
            return
        try:
            self._interpreter.statement(statement)
        except ProgramError:
            if self._depth == 0:
                raise
            self._forget({name})  # it may never run
            return
        (self._open.add if is_open else self._open.discard)(name)

    def _forget(self, names: set[str]) -> None:
        self._open |= names
        for name in names:
            self._values.pop(name, None)

    def _value_of(self, value: ast.Expression) -> bool:
        """Return whether an expression has a value here."""
        return not self._at_run_time(value) and names_in(value) <= self._values.keys()

    def _at_run_time(self, part: object, *, alone: bool = False) -> bool:
        """Return whether a part, or anything in it, acts or has a value only while the program trains."""
        return any(
            isinstance(node, ast.Say)
            or (isinstance(node, ast.Apply) and node.function in self._speakers)
            or (isinstance(node, ast.Call) and METHODS["GNN"].get(node.method.name, _NONE).at_run_time)
            for node in ([part] if alone else walk(part))
        )

    # ---- calls

    def _do(self, call: ast.Call) -> list[ast.Statement]:
        method = call.method.name
        if METHODS["GNN"][method].at_run_time:
            if method != "optimizer":
                return [ast.Do(call.place, self._rest(call))]  # type: ignore[arg-type]
            settings = [float(self._settled(value)) for value in call.arguments[2:]]
            rate = call.arguments[1]
            known = self._interpreter.value(rate) if self._value_of(rate) else None
            kind = self._interpreter.value(call.arguments[0])
            self.recorder.update(call, kind, None if known is None else float(known), settings)
            return [ast.Train(call.place, "update", self._rest(rate))]
        arguments = tuple(self._settled(value) for value in call.arguments)
        return self.recorder.call(call, arguments, is_looped=self._depth > 0)

    def _settled(self, value: ast.Expression) -> Any:
        """Return the value of what must be known before training."""
        self._require_settled(value)
        return self._interpreter.value(value)

    def _require_settled(self, part: object, inside: Collection[str] = ()) -> None:
        for node in walk(part):
            message, hint = "", "what describes the layers must be known before"
            if isinstance(node, ast.Name) and node.name in self._open and node.name not in inside:
                message = f'"{node.name}" is known only while the program trains'
            elif self._at_run_time(node, alone=True):
                name = "print"
                if isinstance(node, ast.Call | ast.Apply):
                    name = node.function if isinstance(node, ast.Apply) else node.method.name
                message, hint = (
                    f'"{name}" runs only while the program trains',
                    "a loop over layers runs before",
                )
            if message:
                raise ProgramError(node.place, message, hint)

    def _require_training(self, value: ast.Expression) -> None:
        """Require that a value that training gives is read after a forward pass, or after an epoch."""
        for node in walk(value):
            if isinstance(node, ast.Call) and METHODS["GNN"].get(node.method.name, _NONE).at_run_time:
                self.recorder.require_begun(node, is_looped=bool(self._at_loop))

    def _rest(self, value: ast.Expression) -> ast.Expression:
        """Return an expression with the numbers of the layers in their places."""
        self._require_training(value)
        filled: ast.Expression = self._filled(value)
        return filled

    def _filled(self, value: Any) -> Any:  # noqa: PLR0911 - one for each kind of node
        match value:
            case ast.Item() | ast.Call(method=ast.Name(name="getLayers" | "size")):
                self._require_settled(value)
                return ast.Literally(value.place, self._interpreter.value(value))
            case ast.Name() if isinstance(self._values.get(value.name), tuple):
                return ast.Literally(value.place, len(self._values[value.name]) - 1)
            case ast.Call(method=ast.Name(name="evaluate"), arguments=(ast.Literally() as split,)):
                return replace(value, arguments=(replace(split, value=str(split.value).lower()),))
            case ast.Call() | ast.Literally() | ast.Name():
                return value
            case ast.Node():
                filled = {f.name: self._filled(getattr(value, f.name)) for f in dataclasses.fields(value)}
                return type(value)(**filled)
            case tuple():
                return tuple(self._filled(each) for each in value)
        return value

    # ---- conditions and loops

    def _choice(self, choice: ast.If) -> list[ast.Statement]:
        branches: list[tuple[ast.Expression, tuple[ast.Statement, ...]]] = []
        for condition, body in choice.branches:
            if not branches and self._value_of(condition) and not names_in(condition) & self._open:
                if self._interpreter.value(condition):
                    return [ast.If(choice.place, (), self.block(body))]
                continue
            branches.append((condition, body))
        if not branches:
            return [ast.If(choice.place, (), self.block(choice.otherwise))] if choice.otherwise else []
        before, values, is_open = self.recorder.progress, dict(self._values), set(self._open)
        rest: list[tuple[ast.Expression | None, tuple[ast.Statement, ...]]] = []
        otherwise: tuple[tuple[ast.Expression | None, tuple[ast.Statement, ...]]] = (
            (None, choice.otherwise),
        )
        for asked, body in (*branches, *otherwise):
            filled = None if asked is None else self._rest(asked)
            with self._unsettled():
                rest.append((filled, self.block(body)))
            self._values.clear()
            self._values.update(values)
            self._open = set(is_open)
            if self.recorder.progress != before:
                message = "a condition that is known only while the program trains changes the layers"
                raise ProgramError((asked or choice).place, message, "every epoch runs them all alike")
        self._forget(assigned_in((choice.otherwise, tuple(body for _, body in branches))))
        left = tuple((condition, body) for condition, body in rest if condition is not None)
        return [ast.If(choice.place, left, rest[-1][1])]

    @contextmanager
    def _unsettled(self) -> Iterator[None]:
        self._depth += 1
        yield
        self._depth -= 1

    def _loop(self, loop: ast.For) -> list[ast.Statement]:
        inside = declared_in(loop)
        if not self._at_run_time(loop):
            is_settled = not (names_in(loop) - inside) & self._open
            if is_settled:
                self._completed.clear()
                self._interpreter.statement(loop)
                changed = sorted(assigned_in(loop) & self._values.keys())
                place = loop.place
                values = [ast.Literally(place, self._values[name]) for name in changed]
                return [
                    *self._completed,
                    *(
                        ast.Assign(place, ast.Name(place, n), "", v)
                        for n, v in zip(changed, values, strict=True)
                    ),
                ]
            if _calls(loop, "forwardPass") and _calls(loop, "backPropagation"):
                raise ProgramError(loop.place, *_UNFINISHED)
            if any(isinstance(node, ast.Do) for node in walk(loop)):
                self._require_settled(loop, inside)
        elif isinstance(loop.first, ast.Declare) and _numbers_layers(loop.body, loop.first.name.name):
            self._require_settled(loop, inside)
        first = None if loop.first is None else self._statement(loop.first)[0]
        self._check_ends(loop)
        self._forget(assigned_in((loop.body, loop.step)))
        condition = None if loop.condition is None else self._rest(loop.condition)
        before = self.recorder.progress
        self._at_loop.append(before)
        with self._unsettled():
            body = self.block(loop.body)
        self._at_loop.pop()
        if self.recorder.progress != before:
            raise ProgramError(loop.place, *_UNFINISHED)
        self._forget(assigned_in((loop.body, loop.step)))  # it may have run no round
        step = None if loop.step is None else replace(loop.step, value=self._rest(loop.step.value))
        return [ast.For(loop.place, first, condition, step, body)]  # type: ignore[arg-type]

    def _check_ends(self, loop: ast.For) -> None:
        """Refuse a loop that cannot end, as far as its condition and its step tell."""
        asked, reads = loop.condition, names_in(loop.condition)
        trains = _calls(loop.body, "forwardPass")
        if leaves_loop(loop.body) or (self.recorder.stops_early and trains and _calls(loop, "evaluate")):
            return
        if reads & assigned_in(loop.body):  # if it does not end, it is stopped while it runs
            return
        if asked is not None and not self._value_of(asked):
            is_trained = trains and any(_calls(asked, method) for method in ("loss", "evaluate"))
            if not is_trained and not reads & assigned_in(loop.step):
                hint = "nothing in it changes its condition; train in it, or leave it by break"
                raise ProgramError(loop.place, "the loop never ends once it begins", hint)
            return
        kept, rounds = dict(self._values), 0
        while rounds < _COUNTED_ROUNDS and (
            loop.condition is None or self._interpreter.value(loop.condition)
        ):
            rounds += 1
            before = {name: self._values[name] for name in reads}
            if loop.step is not None and loop.step.name.name in reads:
                if not names_in(loop.step.value) <= self._values.keys() or self._at_run_time(loop.step.value):
                    break
                self._interpreter.assign(loop.step)
            if {name: self._values[name] for name in reads} == before:
                what = "it has no condition" if loop.condition is None else "nothing changes its condition"
                raise ProgramError(loop.place, "the loop never ends", f"{what}, and no break leaves it")
            if rounds == _COUNTED_ROUNDS and loop.condition is not None:  # the rest go on by the same steps
                for name, value in before.items():
                    self._values[name] += (MOST_ROUNDS - rounds) * (self._values[name] - value)
                if self._interpreter.value(loop.condition):
                    message = f"the loop has more than {MOST_ROUNDS:,} rounds"
                    raise ProgramError(loop.place, message, "does it end?")
        self._values.clear()
        self._values.update(kept)


_BETWEEN_EPOCHS = (0, 0, ())
_UNFINISHED = "the loop ends in the middle of an epoch", "call the optimizer in it"
_NONE = METHODS["container<int>"]["size"]


def _numbers_layers(body: object, name: str) -> bool:
    """Return whether calls that describe layers take a variable's value."""
    calls = (node for node in walk(body) if isinstance(node, ast.Call))
    return any(
        name in names_in(call.arguments)
        for call in calls
        if not METHODS["GNN"].get(call.method.name, _NONE).at_run_time
    )


def _calls(part: object, method: str) -> bool:
    return any(isinstance(node, ast.Call) and node.method.name == method for node in walk(part))
