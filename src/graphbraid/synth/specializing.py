"""Specialising: statements that describe layers run now; those that depend on training remain.

A loop over layers runs here, and its calls become one forward or backward pass of all layers. Statements
that read the loss, an accuracy or the epoch stay as they are: :mod:`graphbraid.synth.training` runs them in
this process, and :mod:`graphbraid.synth.emit.control` writes them in C++.
"""

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from graphbraid.synth.language import syntax
from graphbraid.synth.language.aggregating import aggregation_of
from graphbraid.synth.language.syntax import (
    AT_RUN_TIME,
    TOTAL_EPOCHS,
    ProgramError,
    assigned_in,
    declared_in,
    leaves_loop,
    names_in,
    walk,
)
from graphbraid.synth.recipe import ModelRecipe, Recipe, Recorder, Script
from graphbraid.synth.running import MOST_ROUNDS, Interpreter, Number, checked_setting, speaking

USUAL_EPOCHS = 200
_COUNTED_ROUNDS = 1000
"""Rounds that :meth:`_Specializer._check_ends` counts one by one."""


def specialize(
    function: syntax.Function, layers: Sequence[int], settings: Mapping[str, Number]
) -> tuple[ModelRecipe, Recipe]:
    """Return the model and the recipe of a checked program; ProgramError at a call that these values forbid.

    Args:
        function: the program.
        layers: entries of its container: columns of the features, of each hidden layer and of the output.
        settings: values of its ``int``, ``float`` and ``bool`` parameters, and of ``totalEpoch``.
    """
    values = _given(function, layers, settings)
    own = {layer.name: aggregation_of(layer) for layer in function.layers}
    specializer = _Specializer(function, Recorder(function.name, tuple(layers), own), values)
    statements = specializer.block(function.body)
    reads_total = TOTAL_EPOCHS in names_in(statements)
    if reads_total and values[TOTAL_EPOCHS] < 1:
        raise ProgramError(function.place, "the program trains nothing", f"{TOTAL_EPOCHS} is at least 1")
    numbers = {name: value for name, value in values.items() if isinstance(value, int | float)}
    script = Script(
        statements=statements,
        helpers=function.helpers,
        values={name: value for name, value in numbers.items() if name != TOTAL_EPOCHS},
        gnn=next(each.name for each in function.parameters if each.type == "GNN"),
        reads_total=reads_total,
        is_written=True,
    )
    model, recipe = specializer.recorder.recipe(function.place)
    return model, replace(recipe, epochs=values[TOTAL_EPOCHS], script=script)


def _given(
    function: syntax.Function, layers: Sequence[int], settings: Mapping[str, Number]
) -> dict[str, Any]:
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


class _Specializer:
    """Walks a program once, in the order of its text.

    A variable is settled if its value depends neither on training nor on ``totalEpoch``, an option of the
    written program. A variable that is not settled may still have a value here, by which the rounds of loops
    are counted.
    """

    def __init__(self, function: syntax.Function, recorder: Recorder, values: dict[str, Any]) -> None:
        self.recorder = recorder
        self._completed: list[syntax.Statement] = []
        self._interpreter = Interpreter(self, function.helpers, values)
        self._values = self._interpreter.values
        self._speakers = speaking(function.helpers)
        self._open = {TOTAL_EPOCHS}  # names that are not settled
        self._depth = 0  # number of enclosing loops and conditions that are not settled
        self._at_loop: list[Any] = []  # the recorder's progress at the beginning of each enclosing loop

    def block(self, statements: Sequence[syntax.Statement]) -> tuple[syntax.Statement, ...]:
        return tuple(left for statement in statements for left in self._statement(statement))

    def _statement(self, statement: syntax.Statement) -> list[syntax.Statement]:
        match statement:
            case syntax.Declare() | syntax.Assign():
                rest = replace(statement, value=self._rest(statement.value))
                self._learn(statement)
                return [rest]
            case syntax.Call():
                return self._do(statement)
            case syntax.For():
                return self._loop(statement)
            case syntax.If():
                return self._choice(statement)
            case syntax.Leave():
                # A loop that begins between epochs may be left anywhere: the next forward pass begins a new
                # epoch. A loop that begins within an epoch must be left where that epoch stood then.
                if self._at_loop and self._at_loop[-1] not in (_BETWEEN_EPOCHS, self.recorder.progress):
                    message = f"{statement.word} after passes of an epoch that began before the loop"
                    hint = "leave the loop before these passes, or begin the epoch in it"
                    raise ProgramError(statement.place, message, hint)
            case syntax.Say(values=values):
                return [replace(statement, values=tuple(self._rest(value) for value in values))]
        return [statement]

    def _learn(self, statement: syntax.Declare | syntax.Assign) -> None:
        name, value = statement.name.name, statement.value
        if isinstance(statement, syntax.Declare):
            self._interpreter.types[name] = statement.type
        else:
            value = statement.new
        is_open = bool(names_in(value) & self._open)
        if not self._value_of(value):
            self._forget({name})
            return
        try:
            self._interpreter.statement(statement)
        except ProgramError:
            if self._depth == 0:
                raise
            self._forget({name})  # the statement may never run
            return
        (self._open.add if is_open else self._open.discard)(name)

    def _forget(self, names: set[str]) -> None:
        self._open |= names
        for name in names:
            self._values.pop(name, None)

    def _value_of(self, value: syntax.Expression) -> bool:
        return not self._at_run_time(value) and names_in(value) <= self._values.keys()

    def _at_run_time(self, part: object, *, alone: bool = False) -> bool:
        """Return whether a part acts, or has a value, only while the program trains.

        With ``alone``, nodes inside it do not count.
        """
        return any(
            isinstance(node, syntax.Say)
            or (isinstance(node, syntax.Apply) and node.function in self._speakers)
            or (isinstance(node, syntax.Call) and node.method.name in AT_RUN_TIME)
            for node in ([part] if alone else walk(part))
        )

    # ---- calls

    def call(self, call: syntax.Call, arguments: tuple[Any, ...]) -> Any:
        """Take a call that describes layers, from a loop that the interpreter runs."""
        if call.method.name == "getLayers":
            return self.recorder.num_layers
        self._completed += self.recorder.call(call, arguments)
        return None

    def train(self, step: syntax.Train, rate: float) -> None:
        raise AssertionError("no pass runs before training")

    def say(self, text: str) -> None:
        raise AssertionError("nothing is printed before training")

    def _do(self, call: syntax.Call) -> list[syntax.Statement]:
        method = call.method.name
        if method in AT_RUN_TIME:
            if method != "optimizer":
                return [self._rest(call)]  # type: ignore[list-item]
            settings = [float(self._settled(value)) for value in call.arguments[2:]]
            rate = call.arguments[1]
            known = float(self._interpreter.value(rate)) if self._value_of(rate) else 0.0
            self.recorder.update(call, self._interpreter.value(call.arguments[0]), known, settings)
            return [syntax.Train(call.place, "update", self._rest(rate))]
        arguments = tuple(self._settled(value) for value in call.arguments)
        return self.recorder.call(call, arguments, is_looped=self._depth > 0)

    def _settled(self, value: syntax.Expression) -> Any:
        """Return the value of an expression; refuse one that is known only while the program trains."""
        self._require_settled(value)
        return self._interpreter.value(value)

    def _require_settled(self, part: object, inside: Collection[str] = ()) -> None:
        for node in walk(part):
            message, hint = "", "values that describe the layers must be known before training"
            if isinstance(node, syntax.Name) and node.name in self._open and node.name not in inside:
                message = f'"{node.name}" is known only while the program trains'
            elif self._at_run_time(node, alone=True):
                name = node.function if isinstance(node, syntax.Apply) else "print"
                name = node.method.name if isinstance(node, syntax.Call) else name
                message = f'"{name}" runs only while the program trains'
                hint = "a loop over layers runs before training"
            if message:
                raise ProgramError(node.place, message, hint)

    def _rest(self, value: syntax.Expression, *, repeats: bool = False) -> syntax.Expression:
        """Return an expression in which the number of layers and entries of the container are filled in.

        Refuses a loss before a forward pass, and an accuracy before an epoch. With ``repeats`` it is a loop's
        condition: its part after ``&&`` or ``||`` may be computed for the first time in a later round, when
        there is a loss.
        """
        joined = [node for node in walk(value) if isinstance(node, syntax.Binary)]
        rests = [each.right for each in joined if each.operator in ("&&", "||")]
        later = {id(node) for rest in rests for node in walk(rest)} if repeats else set[int]()
        for node in walk(value):
            if isinstance(node, syntax.Call) and node.method.name in AT_RUN_TIME:
                self.recorder.require_begun(node, is_looped=bool(self._at_loop) or id(node) in later)
        filled: syntax.Expression = self._filled(value)
        return filled

    def _filled(self, value: Any) -> Any:  # noqa: PLR0911 - one for each kind of node
        match value:
            case syntax.Item() | syntax.Call(method=syntax.Name(name="getLayers" | "size")):
                self._require_settled(value)
                return syntax.Literally(value.place, self._interpreter.value(value))
            case syntax.Name() if isinstance(self._values.get(value.name), tuple):
                return syntax.Literally(value.place, len(self._values[value.name]) - 1)
            case syntax.Call(method=syntax.Name(name="evaluate"), arguments=(syntax.Literally() as split,)):
                return replace(value, arguments=(replace(split, value=str(split.value).lower()),))
            case syntax.Call() | syntax.Literally() | syntax.Name():
                return value
            case syntax.Node():
                filled = {f.name: self._filled(getattr(value, f.name)) for f in dataclasses.fields(value)}
                return type(value)(**filled)
            case tuple():
                return tuple(self._filled(each) for each in value)
        return value

    # ---- conditions and loops

    def _choice(self, choice: syntax.If) -> list[syntax.Statement]:
        branches: list[tuple[syntax.Expression | None, tuple[syntax.Statement, ...]]] = []
        for condition, body in choice.branches:
            if not branches and self._value_of(condition) and not names_in(condition) & self._open:
                if self._interpreter.value(condition):
                    return [syntax.If(choice.place, (), self.block(body))]
                continue
            branches.append((condition, body))
        if not branches:
            return [syntax.If(choice.place, (), self.block(choice.otherwise))] if choice.otherwise else []
        before, values, is_open = self.recorder.progress, dict(self._values), set(self._open)
        rest: list[tuple[Any, tuple[syntax.Statement, ...]]] = []
        branches.append((None, choice.otherwise))
        for asked, body in branches:
            filled = None if asked is None else self._rest(asked)
            with self._unsettled():
                rest.append((filled, self.block(body)))
            self._restore(values)
            self._open = set(is_open)
            if self.recorder.progress != before:
                message = "a condition that is known only while the program trains changes the layers"
                raise ProgramError((asked or choice).place, message, "every epoch runs them all alike")
        self._forget(assigned_in(tuple(body for _, body in branches)))
        return [syntax.If(choice.place, tuple(rest[:-1]), rest[-1][1])]

    def _restore(self, values: dict[str, Any]) -> None:
        self._values.clear()
        self._values.update(values)

    @contextmanager
    def _unsettled(self) -> Iterator[None]:
        self._depth += 1
        yield
        self._depth -= 1

    def _loop(self, loop: syntax.For) -> list[syntax.Statement]:
        inside = declared_in(loop)
        if not self._at_run_time(loop):
            is_settled = not (names_in(loop) - inside) & self._open
            if is_settled:
                kept = dict(self._values)
                try:
                    return self._run(loop)
                except ProgramError:
                    if self._depth == 0 or _describes(loop):
                        raise
                self._restore(kept)  # the loop may never run
            if _calls(loop, "forwardPass") and _calls(loop, "backPropagation"):
                raise ProgramError(loop.place, *_UNFINISHED)
            if _describes(loop):
                self._require_settled(loop, inside)
        elif isinstance(loop.first, syntax.Declare) and _numbers_layers(loop.body, loop.first.name.name):
            self._require_settled(loop, inside)
        first = None if loop.first is None else self._statement(loop.first)[0]
        self._check_ends(loop)
        self._forget(assigned_in((loop.body, loop.step)))
        condition = None if loop.condition is None else self._rest(loop.condition, repeats=True)
        before = self.recorder.progress
        self._at_loop.append(before)
        with self._unsettled():
            body = self.block(loop.body)
        self._at_loop.pop()
        if self.recorder.progress != before:
            raise ProgramError(loop.place, *_UNFINISHED)
        self._forget(assigned_in((loop.body, loop.step)))  # the loop may have run no round
        step = None if loop.step is None else replace(loop.step, value=self._rest(loop.step.value))
        return [syntax.For(loop.place, first, condition, step, body)]  # type: ignore[arg-type]

    def _run(self, loop: syntax.For) -> list[syntax.Statement]:
        """Run a loop now; return the passes that it completes, and the new values of variables."""
        self._completed.clear()
        self._interpreter.statement(loop)
        left, place = list(self._completed), loop.place
        for name in sorted(assigned_in(loop) & self._values.keys()):
            value = syntax.Literally(place, self._values[name])
            left.append(syntax.Assign(place, syntax.Name(place, name), "", value))
        return left

    def _check_ends(self, loop: syntax.For) -> None:
        """Refuse a loop whose condition and step show that it never ends."""
        asked, reads = loop.condition, names_in(loop.condition)
        trains = _calls(loop.body, "forwardPass")
        if leaves_loop(loop.body) or (
            "earlyStop" in self.recorder.once and trains and _calls(loop, "evaluate")
        ):
            return
        if reads & assigned_in(loop.body):  # not predictable: an endless one is stopped while it runs
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
            if rounds == _COUNTED_ROUNDS and loop.condition is not None:
                # The other rounds are not counted one by one: each is taken to change the values as the last
                # one did. If the condition still holds after all of them, the loop is too long.
                for name, value in before.items():
                    self._values[name] += (MOST_ROUNDS - rounds) * (self._values[name] - value)
                if self._interpreter.value(loop.condition):
                    message = f"the loop has more than {MOST_ROUNDS:,} rounds"
                    raise ProgramError(loop.place, message, "does it end?")
        self._restore(kept)


_BETWEEN_EPOCHS = (0, 0, ())
_UNFINISHED = "the loop ends in the middle of an epoch", "call the optimizer in it"


def _numbers_layers(body: object, name: str) -> bool:
    """Return whether calls that describe layers have the variable in their arguments."""
    calls = (node for node in walk(body) if isinstance(node, syntax.Call))
    return any(name in names_in(call.arguments) for call in calls if call.method.name not in AT_RUN_TIME)


def _describes(loop: syntax.For) -> bool:
    """Return whether a loop calls methods that describe layers, for one that does nothing in training."""
    calls = (node.method.name for node in walk(loop) if isinstance(node, syntax.Call))
    return any(name not in ("getLayers", "size") for name in calls)


def _calls(part: object, method: str) -> bool:
    return any(isinstance(node, syntax.Call) and node.method.name == method for node in walk(part))
