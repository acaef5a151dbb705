"""Reading a program: a text or file becomes a syntax tree. Its names, types and calls are checked here."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from graphbraid.arguments import check_choice
from graphbraid.errors import DataError
from graphbraid.files.opening import read_text
from graphbraid.signatures import typed
from graphbraid.synth.language import syntax
from graphbraid.synth.language.aggregating import aggregation_of
from graphbraid.synth.language.parsing import MOST_CHARACTERS, parse
from graphbraid.synth.language.syntax import (
    METHODS,
    MODELS,
    MOST_SHOWN,
    OF_MODEL,
    TOTAL_EPOCHS,
    USUAL,
    Argument,
    Function,
    Method,
    Place,
    ProgramError,
    Type,
    assigned_in,
    hint_of,
    is_endless,
    leaves_loop,
    names_in,
    word_of,
)

_NUMBERS = ("int", "float")
_VARIABLES = ("int", "float", "bool")
_OF_LAYERS = "only own layers have rows of nodes", "a function with propNode<float> parameters is one"
_LITERALS: dict[type, Type] = {bool: "bool", int: "int", float: "float", str: "String"}
_ONCE = ("Graph", "GNN", "container<int>", "String")


def check(function: syntax.Function) -> None:
    """Check the names, types and calls of a program; raises ProgramError at the first mistake."""
    helpers: dict[str, Function] = {}
    names = [helper.name for helper in function.helpers]
    for helper in function.helpers:
        _Checker(helpers, helper.returns, below=names[len(helpers) :]).helper(helper)
        helpers[helper.name] = helper
    layers: list[str] = []
    for layer in function.layers:
        aggregation_of(layer)
        if layer.name.lower() in (*(name.lower() for name in layers), *helpers):
            raise ProgramError(layer.place, f'a second function "{layer.name}"', "rename one")
        layers.append(layer.name)
    checker = _Checker(helpers, layers=tuple(layers))
    checker.parameters(function)
    checker.block(function.body)


class _Checker:
    """Walks a function in the order of its text, and keeps the variables that are known at each place.

    It cannot call the functions ``below``: itself, and those further down in the text.
    """

    def __init__(
        self,
        helpers: dict[str, Function],
        returns: Type | None = None,
        layers: tuple[str, ...] = (),
        below: Sequence[str] = (),
    ) -> None:
        self._scopes: list[dict[str, tuple[Type, Place | None]]] = [{TOTAL_EPOCHS: ("int", None)}]
        self._fixed = {TOTAL_EPOCHS}
        self._num_loops = 0
        self._helpers, self._returns, self._layers = helpers, returns, layers
        self._below = below

    def helper(self, helper: Function) -> None:
        if helper.name in self._helpers:
            raise ProgramError(helper.place, f'a second function "{helper.name}"', "rename one")
        self._scopes = [{}, {}]
        for part, kind in ((helper, helper.returns), *((p, p.type) for p in helper.parameters)):
            if kind not in _VARIABLES:
                hint = f"a function that gives a value works with {', '.join(_VARIABLES)}"
                raise ProgramError(part.place, f"{kind} in the function {helper.name}", hint)
        for parameter in helper.parameters:
            self._declare(parameter.name, parameter.type, parameter.place)
        self.block(helper.body)
        if not _always_gives(helper.body):
            hint = "end it with return, in every branch"
            raise ProgramError(helper.place, f'"{helper.name}" may end without a value', hint)

    def parameters(self, function: syntax.Function) -> None:
        taken: dict[Type, str] = {}
        self._scopes.append({})
        for parameter in function.parameters:
            if parameter.type in taken and parameter.type in _ONCE:
                message = f'a second {parameter.type} parameter, after "{taken[parameter.type]}"'
                raise ProgramError(parameter.place, message, "a program has one")
            taken[parameter.type] = parameter.name
            if (parameter.name, parameter.type) == (TOTAL_EPOCHS, "int"):
                continue  # every program knows it
            self._declare(parameter.name, parameter.type, parameter.place)
            self._fixed.add(parameter.name)
        for needed in ("Graph", "GNN"):
            if needed not in taken:
                hint = "it begins as function Name(Graph g, GNN gnn, ...)"
                raise ProgramError(function.place, f'"{function.name}" has no {needed} parameter', hint)

    # ---- statements

    def block(self, statements: Iterable[syntax.Statement]) -> None:
        self._scopes.append({})
        for statement in statements:
            self._statement(statement)
        self._scopes.pop()

    def _statement(self, statement: syntax.Statement) -> None:  # noqa: PLR0912 - one for each kind of node
        match statement:
            case syntax.Declare():
                self._declaration(statement)
            case syntax.Assign():
                self._assignment(statement)
            case syntax.Call(method=called):
                returned = self._call(statement)
                if returned is not None and called.name != "evaluate":  # evaluate also prints its value
                    raise ProgramError(called.place, f"the value of {called.name} is not used")
            case syntax.For():
                self._loop(statement)
            case syntax.If():
                for condition, body in statement.branches:
                    self._condition(condition)
                    self.block(body)
                self.block(statement.otherwise)
            case syntax.Leave():
                if self._num_loops == 0:
                    hint = "write it in the block of a loop"
                    raise ProgramError(statement.place, f'"{statement.word}" outside of a loop', hint)
            case syntax.Give():
                if self._returns is None:
                    hint = "leave a loop with break"
                    raise ProgramError(statement.place, "return in the function that trains", hint)
                self._fits(statement.value, self._returns, "the value")
            case syntax.Forall() | syntax.Put():
                raise ProgramError(statement.place, *_OF_LAYERS)
            case syntax.Say():
                for value in statement.values:
                    is_text = isinstance(value, syntax.Literally) and isinstance(value.value, str)
                    if not is_text and (kind := self._type(value)) not in _VARIABLES:
                        hint = f"it prints texts, {', '.join(_VARIABLES)}"
                        raise ProgramError(value.place, f"print of {kind}", hint)

    def _loop(self, loop: syntax.For) -> None:
        self._scopes.append({})
        if loop.first is not None:
            self._statement(loop.first)
        if loop.condition is not None:
            self._condition(loop.condition)
        if loop.step is not None:
            self._assignment(loop.step)
        if self._returns is not None and not leaves_loop(loop.body):
            reads = names_in(loop.condition)
            if is_endless(loop):
                raise ProgramError(loop.place, "the loop never ends", "no break and no return leaves it")
            if reads and not reads & assigned_in((loop.body, loop.step)):
                hint = "nothing in it changes its condition; leave it by break or return"
                raise ProgramError(loop.place, "the loop never ends once it begins", hint)
        self._num_loops += 1
        self.block(loop.body)
        self._num_loops -= 1
        self._scopes.pop()

    def _declaration(self, declared: syntax.Declare) -> None:
        if declared.type not in _VARIABLES:
            message = f"a variable of type {declared.type}"
            raise ProgramError(declared.place, message, f"variables are {', '.join(_VARIABLES)}")
        self._fits(declared.value, declared.type)
        if declared.name.name in self._helpers:
            message = f'"{declared.name.name}" is the name of a function'
            raise ProgramError(declared.name.place, message, "rename one")
        self._declare(declared.name.name, declared.type, declared.name.place)

    def _assignment(self, assigned: syntax.Assign) -> None:
        name = assigned.name.name
        kind = self._variable(assigned.name)
        if name in self._fixed:
            raise ProgramError(assigned.place, f'"{name}" cannot be changed', "declare a variable of its own")
        self._fits(assigned.new, kind)

    def _condition(self, condition: syntax.Expression) -> None:
        if (kind := self._type(condition)) != "bool":
            raise ProgramError(condition.place, f"a condition must be bool; this is {kind}", "compare it")

    # ---- names

    def _declare(self, name: str, kind: Type, place: Place) -> None:
        for scope in self._scopes:
            if name in scope:
                before = scope[name][1]
                where = "in every program" if before is None else f"at line {before.line}"
                raise ProgramError(place, f'"{name}" is declared already, {where}', "rename one")
        self._scopes[-1][name] = kind, place

    def _variable(self, name: syntax.Name) -> Type:
        for scope in reversed(self._scopes):
            if name.name in scope:
                return scope[name.name][0]
        known = [known for scope in self._scopes for known in scope]
        raise ProgramError(name.place, f'unknown name "{name.name}"', hint_of(name.name, known))

    # ---- expressions

    def _fits(self, value: syntax.Expression, wanted: Type, what: str = "") -> None:
        kind = self._type(value)
        if kind == wanted or (wanted == "float" and kind == "int"):
            return
        of = f"{what} must be {wanted}" if what else f"{wanted} is needed here"
        raise ProgramError(value.place, f"{of}; this is {kind}")

    def _type(self, value: syntax.Expression) -> Type:  # noqa: PLR0911 - one for each kind of node
        match value:
            case syntax.Literally(value=known):
                return _LITERALS[type(known)]
            case syntax.Name():
                return self._variable(value)
            case syntax.Item():
                kind = self._variable(value.container)
                if kind != "container<int>":
                    raise ProgramError(value.place, f'"{value.container.name}" is {kind}, not a container')
                self._fits(value.index, "int", "an index")
                return "int"
            case syntax.Call():
                returned = self._call(value)
                if returned is None:
                    message = f"{value.method.name} gives no value"
                    raise ProgramError(value.method.place, message, "call it in a statement of its own")
                return returned
            case syntax.Apply():
                return self._applied(value)
            case syntax.Property():
                raise ProgramError(value.place, *_OF_LAYERS)
            case syntax.Unary(operator=operator):
                kind = self._type(value.operand)
                if (kind != "bool") if operator == "!" else (kind not in _NUMBERS):
                    hint = f"it takes {'bool' if operator == '!' else 'int or float'}"
                    raise ProgramError(value.place, f'"{operator}" of {kind}', hint)
                return kind
            case syntax.Binary():
                return self._binary(value)

    def _binary(self, value: syntax.Binary) -> Type:
        operator = value.operator
        left, right = (self._operand(side, operator) for side in (value.left, value.right))
        if operator in ("&&", "||"):
            allowed, result = left == right == "bool", "bool"
        elif operator in ("==", "!="):
            allowed, result = left == right == "bool" or (left in _NUMBERS and right in _NUMBERS), "bool"
        else:
            among = ("int",) if operator == "%" else _NUMBERS
            allowed = left in among and right in among
            result = "bool" if operator[0] in "<>" else "float" if "float" in (left, right) else "int"
        if not allowed:
            numbers = "two int" if operator == "%" else "int and float"
            takes = "two bool" if operator in ("&&", "||") else numbers
            hint = f"it joins {takes}{', or two bool' if operator in ('==', '!=') else ''}"
            raise ProgramError(value.place, f'"{operator}" between {left} and {right}', hint)
        return result  # type: ignore[return-value]

    def _operand(self, value: syntax.Expression, operator: str) -> Type:
        """Return the type of an operand. A container stands for the number of layers, an ``int``."""
        kind = self._type(value)
        return "int" if kind == "container<int>" and operator not in ("&&", "||") else kind

    # ---- calls

    def _call(self, call: syntax.Call) -> Type | None:
        method = self._method(call)
        names = [argument.name for argument in method.arguments]
        _check_count(call, call.method.place, call.method.name, names, method.least)
        for value, argument in zip(call.arguments, method.arguments, strict=False):
            if argument.choices:
                self._choice(value, argument)
            elif argument.type == "String" and isinstance(value, syntax.Literally):
                hint = "write the name of the String parameter"
                raise ProgramError(value.place, f"the {argument.name} is an argument of the program", hint)
            else:
                self._fits(value, argument.type, f"the {argument.name}")
        if call.method.name == "forwardPass":
            _check_aggregation(call)
        return method.returns

    def _method(self, call: syntax.Call) -> Method:
        kind = self._variable(call.receiver)
        methods = METHODS.get(kind)
        if methods is None:
            raise ProgramError(call.place, f'"{call.receiver.name}" is {kind}, which has no methods')
        method = methods.get(call.method.name)
        if method is None:
            message = f'unknown method "{call.method.name}" of {kind}'
            raise ProgramError(call.method.place, message, hint_of(call.method.name, methods))
        return method

    def _applied(self, call: syntax.Apply) -> Type:
        helper = self._helpers.get(call.function)
        if helper is None and call.function in self._below:
            hint = "a function can call those above it, and not itself"
            raise ProgramError(call.place, f'"{call.function}" is not known yet', hint)
        if helper is None:
            hint = hint_of(call.function, self._helpers) if self._helpers else "the program has none"
            raise ProgramError(call.place, f'unknown function "{call.function}"', hint)
        _check_count(call, call.place, call.function, [each.name for each in helper.parameters])
        for value, parameter in zip(call.arguments, helper.parameters, strict=True):
            self._fits(value, parameter.type, parameter.name)
        assert helper.returns is not None
        return helper.returns

    def _choice(self, value: syntax.Expression, argument: Argument) -> None:
        choices = argument.choices + (self._layers if argument.name == "model" else ())
        if not isinstance(value, syntax.Literally) or not isinstance(value.value, str):
            hint = "as in " + f'"{argument.choices[0]}"'
            raise ProgramError(value.place, f"the {argument.name} must be written here as a text", hint)
        if word_of(value.value, choices) is None:
            message = f'unknown {argument.name} "{value.value[:MOST_SHOWN]}"'
            raise ProgramError(value.place, message, hint_of(value.value, choices))


def _check_count(
    call: syntax.Call | syntax.Apply, place: Place, name: str, known: list[str], least: int | None = None
) -> None:
    """Check the number of a call's arguments. All must be given, or at least ``least``."""
    given, most = len(call.arguments), len(known)
    if (most if least is None else least) <= given <= most:
        return
    needed = f"{most}" if least is None else f"{least} to {most}"
    message = f"{name} takes {needed} argument{'' if needed == '1' else 's'}; {given} given"
    raise ProgramError(place, message, f"they are {', '.join(known)}" if known else "")


def _always_gives(body: tuple[syntax.Statement, ...]) -> bool:
    last = body[-1] if body else None
    if isinstance(last, syntax.For):
        return is_endless(last) and not leaves_loop(last.body, by_return=False)
    if isinstance(last, syntax.If):
        return all(_always_gives(block) for block in (*(b for _, b in last.branches), last.otherwise))
    return isinstance(last, syntax.Give)


def _check_aggregation(call: syntax.Call) -> None:
    if len(call.arguments) < 3:
        return
    place = call.arguments[2].place
    layer, word = (str(each.value) for each in call.arguments[1:3] if isinstance(each, syntax.Literally))
    model = word_of(layer, MODELS)
    if model is None:
        hint = "its function says how messages are reduced"
        raise ProgramError(place, f"an aggregation of the layer {layer}", hint)
    if word_of(word, OF_MODEL[model]) is None:
        hint = f"it has {', '.join(OF_MODEL[model])}"
        raise ProgramError(place, f'{model} has no aggregation "{word}"', hint)


@typed
def parse_program(text: str, *, source: str = "program") -> Function:
    """Parse a program's text and check its names, types and calls.

    Args:
        text: the program; ``docs/synthesis.md`` describes the language.
        source: name of the text in errors.

    Returns:
        The syntax tree. Its ``notes`` say where the parser added a missing brace.

    Raises:
        ProgramError: the program has a mistake. The message gives its line, its column and a hint.
    """
    try:
        function = parse(text)
        check(function)
    except ProgramError as error:
        raise error.within(source, text) from None
    return replace(function, source=source, text=text)


@typed
def read_program(path: str | os.PathLike[str]) -> Function:
    """Read a program's file like :func:`parse_program`.

    Raises:
        ProgramError: the program has a mistake.
        DataError: the file cannot be read, or is not text in UTF-8.
    """
    file = Path(path)
    try:
        if file.stat().st_size > 4 * MOST_CHARACTERS:
            raise DataError(f"{file} is too large for a program: {file.stat().st_size:,} bytes")
        text = read_text(file).removeprefix("\ufeff")  # the byte order mark of files from Windows
    except UnicodeDecodeError as error:
        what = f"byte {error.start} belongs to no character"
        raise DataError(f"{file} is not text in UTF-8: {what}") from error
    except OSError as error:
        raise DataError(f"cannot read the program {file}: {error.strerror or error}") from error
    return parse_program(text, source=file.name)


_TEXT = """\
function {kind}(Graph g, GNN gnn, container<int>& layers, String dataset) {{
  gnn.load(g, dataset);
  gnn.initializeLayers(layers, "xavier");
  for (int epoch = 0; epoch < totalEpoch; epoch++) {{
    for (int l = 0; l < gnn.getLayers(); l++) {{
      gnn.forwardPass(l, "{kind}", "{aggregation}");
    }}
    for (int l = gnn.getLayers() - 1; l >= 0; l--) {{
      gnn.backPropagation(l);
    }}
    gnn.optimizer("adam", 0.01);
  }}
}}
"""


@typed
def standard_program(model: str) -> Function:
    """Return the program that trains a kind of model by Adam, without dropout. Its ``text`` is the source.

    Args:
        model: ``gcn``, ``sage``, ``gin``, ``gat`` or ``gatv2``.

    Raises:
        ConfigError: there is no such model.
    """
    check_choice(model, "model", [kind.lower() for kind in MODELS])
    kind = word_of(model, MODELS) or ""
    return parse_program(_TEXT.format(kind=kind, aggregation=USUAL[kind]), source=model)
