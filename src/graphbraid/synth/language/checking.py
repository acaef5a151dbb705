"""Checks of what a program's names and types mean, before it runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from graphbraid.synth.language import syntax as ast
from graphbraid.synth.language.aggregating import aggregation_of
from graphbraid.synth.language.syntax import (
    MOST_SHOWN,
    Place,
    ProgramError,
    Type,
    assigned_in,
    hint_of,
    is_endless,
    leaves_loop,
    names_in,
)
from graphbraid.synth.language.words import METHODS, MODELS, OF_MODEL, TOTAL_EPOCHS, Argument, Method, word_of

_NUMBERS = ("int", "float")
_VARIABLES = ("int", "float", "bool")
_OF_LAYERS = "rows of nodes are those of an own layer", "a function with propNode<float> parameters is one"
_ONCE = ("Graph", "GNN", "container<int>", "String")


def check(function: ast.Function) -> None:
    """Check the names, types and calls of a program.

    Raises:
        ProgramError: the first mistake.
    """
    helpers: dict[str, ast.Helper] = {}
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
    """Walks a function in the order of its text with the variables that are known there.

    Args:
        helpers: the functions that it can call, by name.
        returns: type of its value; None for the function that trains.
        layers: names of the own layers.
        below: names of the functions that are not known yet, its own among them.
    """

    def __init__(
        self,
        helpers: dict[str, ast.Helper],
        returns: Type | None = None,
        layers: tuple[str, ...] = (),
        below: Sequence[str] = (),
    ) -> None:
        self._scopes: list[dict[str, tuple[Type, Place | None]]] = [{TOTAL_EPOCHS: ("int", None)}]
        self._fixed = {TOTAL_EPOCHS}
        self._num_loops = 0
        self._helpers, self._returns, self._layers = helpers, returns, layers
        self._below = below

    def helper(self, helper: ast.Helper) -> None:
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

    def parameters(self, function: ast.Function) -> None:
        taken: dict[Type, str] = {}
        self._scopes.append({})
        for parameter in function.parameters:
            if parameter.type in taken and parameter.type in _ONCE:
                message = f'a second {parameter.type} parameter, after "{taken[parameter.type]}"'
                raise ProgramError(parameter.place, message, "a program has one")
            taken[parameter.type] = parameter.name
            self._declare(parameter.name, parameter.type, parameter.place)
            self._fixed.add(parameter.name)
        for needed in ("Graph", "GNN"):
            if needed not in taken:
                message = f'"{function.name}" has no {needed} parameter'
                raise ProgramError(
                    function.place, message, "it begins as function Name(Graph g, GNN gnn, ...)"
                )

    # ---- statements

    def block(self, statements: Iterable[ast.Statement]) -> None:
        self._scopes.append({})
        for statement in statements:
            self._statement(statement)
        self._scopes.pop()

    def _statement(self, statement: ast.Statement) -> None:  # noqa: PLR0912 - one for each kind of node
        match statement:
            case ast.Declare():
                self._declaration(statement)
            case ast.Assign():
                self._assignment(statement)
            case ast.Do(call=call):
                returned = self._call(call)
                if returned is not None and not self._method(call).has_effect:
                    message = f"the value of {call.method.name} is not used"
                    raise ProgramError(call.method.place, message)
            case ast.For():
                self._loop(statement)
            case ast.If():
                for condition, body in statement.branches:
                    self._condition(condition)
                    self.block(body)
                self.block(statement.otherwise)
            case ast.Leave():
                if self._num_loops == 0:
                    raise ProgramError(statement.place, f'"{statement.word}" outside of a loop')
            case ast.Give():
                if self._returns is None:
                    hint = "leave a loop with break"
                    raise ProgramError(statement.place, "return in the function that trains", hint)
                self._fits(statement.value, self._returns, "the value")
            case ast.Forall() | ast.Put():
                raise ProgramError(statement.place, *_OF_LAYERS)
            case ast.Say():
                for value in statement.values:
                    is_text = isinstance(value, ast.Literally) and isinstance(value.value, str)
                    if not is_text and (kind := self._type(value)) not in _VARIABLES:
                        hint = f"it prints texts, {', '.join(_VARIABLES)}"
                        raise ProgramError(value.place, f"print of {kind}", hint)

    def _loop(self, loop: ast.For) -> None:
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

    def _declaration(self, declared: ast.Declare) -> None:
        if declared.type not in _VARIABLES:
            message = f"a variable of type {declared.type}"
            raise ProgramError(declared.place, message, f"variables are {', '.join(_VARIABLES)}")
        self._fits(declared.value, declared.type)
        if declared.name.name in self._helpers:
            message = f'"{declared.name.name}" is the name of a function'
            raise ProgramError(declared.name.place, message, "rename one")
        self._declare(declared.name.name, declared.type, declared.name.place)

    def _assignment(self, assigned: ast.Assign) -> None:
        name = assigned.name.name
        kind = self._variable(assigned.name)
        if name in self._fixed:
            raise ProgramError(assigned.place, f'"{name}" cannot be changed', "declare a variable of its own")
        if assigned.operator:
            joined = ast.Binary(assigned.place, assigned.operator, assigned.name, assigned.value)
            self._fits(joined, kind)
        else:
            self._fits(assigned.value, kind)

    def _condition(self, condition: ast.Expression) -> None:
        if (kind := self._type(condition)) != "bool":
            raise ProgramError(condition.place, f"a condition must be bool; this is {kind}", "compare it")

    # ---- names

    def _declare(self, name: str, kind: Type, place: Place) -> None:
        for scope in self._scopes[1:]:
            if name in scope and (before := scope[name][1]) is not None:
                raise ProgramError(
                    place, f'"{name}" is declared already, at line {before.line}', "rename one"
                )
        self._scopes[-1][name] = kind, place

    def _variable(self, name: ast.Name) -> Type:
        for scope in reversed(self._scopes):
            if name.name in scope:
                return scope[name.name][0]
        known = [known for scope in self._scopes for known in scope]
        raise ProgramError(name.place, f'unknown name "{name.name}"', hint_of(name.name, known))

    # ---- expressions

    def _fits(self, value: ast.Expression, wanted: Type, what: str = "") -> None:
        kind = self._type(value)
        if kind == wanted or (wanted == "float" and kind == "int"):
            return
        of = f"{what} must be {wanted}" if what else f"{wanted} is needed here"
        raise ProgramError(value.place, f"{of}; this is {kind}")

    def _type(self, value: ast.Expression) -> Type:  # noqa: PLR0911 - one for each kind of node
        match value:
            case ast.Literally():
                return _type_of(value)
            case ast.Name():
                return self._variable(value)
            case ast.Item():
                kind = self._variable(value.container)
                if kind != "container<int>":
                    raise ProgramError(value.place, f'"{value.container.name}" is {kind}, not a container')
                self._fits(value.index, "int", "an index")
                return "int"
            case ast.Call():
                returned = self._call(value)
                if returned is None:
                    message = f"{value.method.name} gives no value"
                    raise ProgramError(value.method.place, message, "call it in a statement of its own")
                return returned
            case ast.Apply():
                return self._applied(value)
            case ast.Property():
                raise ProgramError(value.place, *_OF_LAYERS)
            case ast.Unary():
                return self._unary(value)
            case ast.Binary():
                return self._binary(value)

    def _unary(self, value: ast.Unary) -> Type:
        kind = self._type(value.operand)
        if (kind != "bool") if value.operator == "!" else (kind not in _NUMBERS):
            raise ProgramError(value.place, f'"{value.operator}" of {kind}')
        return kind

    def _binary(self, value: ast.Binary) -> Type:
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
            raise ProgramError(value.place, f'"{operator}" between {left} and {right}')
        return result  # type: ignore[return-value]

    def _operand(self, value: ast.Expression, operator: str) -> Type:
        """Return the type of an operand; a container counts as its number of layers."""
        kind = self._type(value)
        return "int" if kind == "container<int>" and operator not in ("&&", "||") else kind

    # ---- calls

    def _call(self, call: ast.Call) -> Type | None:
        method = self._method(call)
        self._arguments(call, method)
        return method.returns

    def _method(self, call: ast.Call) -> Method:
        kind = self._variable(call.receiver)
        methods = METHODS.get(kind)
        if methods is None:
            raise ProgramError(call.place, f'"{call.receiver.name}" is {kind}, which has no methods')
        method = methods.get(call.method.name)
        if method is None:
            message = f'unknown method "{call.method.name}" of {kind}'
            raise ProgramError(call.method.place, message, hint_of(call.method.name, methods))
        return method

    def _applied(self, call: ast.Apply) -> Type:
        helper = self._helpers.get(call.function)
        if helper is None and call.function in self._below:
            hint = "a function can call those above it, and not itself"
            raise ProgramError(call.place, f'"{call.function}" is not known yet', hint)
        if helper is None:
            hint = hint_of(call.function, self._helpers) if self._helpers else "the program has none"
            raise ProgramError(call.place, f'unknown function "{call.function}"', hint)
        given, needed = len(call.arguments), len(helper.parameters)
        if given != needed:
            message = f"{helper.name} takes {needed} argument{'' if needed == 1 else 's'}; {given} given"
            raise ProgramError(
                call.place, message, f"they are {', '.join(p.name for p in helper.parameters)}"
            )
        for value, parameter in zip(call.arguments, helper.parameters, strict=True):
            self._fits(value, parameter.type, parameter.name)
        return helper.returns

    def _arguments(self, call: ast.Call, method: Method) -> None:
        given, most = len(call.arguments), len(method.arguments)
        if not method.required <= given <= most:
            needed = str(most) if method.required == most else f"{method.required} to {most}"
            names = ", ".join(argument.name for argument in method.arguments)
            plural = "" if needed == "1" else "s"
            message = f"{call.method.name} takes {needed} argument{plural}; {given} given"
            raise ProgramError(call.method.place, message, f"they are {names}" if names else "")
        for value, argument in zip(call.arguments, method.arguments, strict=False):
            if argument.choices:
                self._choice(value, argument)
            elif argument.type == "String" and isinstance(value, ast.Literally):
                hint = "write the name of the String parameter"
                raise ProgramError(value.place, f"the {argument.name} is what the program is given", hint)
            else:
                self._fits(value, argument.type, f"the {argument.name}")
        if call.method.name == "forwardPass":
            _check_aggregation(call)

    def _choice(self, value: ast.Expression, argument: Argument) -> None:
        choices = argument.choices + (self._layers if argument.name == "model" else ())
        if not isinstance(value, ast.Literally) or not isinstance(value.value, str):
            hint = "as in " + f'"{argument.choices[0]}"'
            raise ProgramError(value.place, f"the {argument.name} must be written here as a text", hint)
        if word_of(value.value, choices) is None:
            message = f'unknown {argument.name} "{value.value[:MOST_SHOWN]}"'
            raise ProgramError(value.place, message, hint_of(value.value, choices))


def _always_gives(body: tuple[ast.Statement, ...]) -> bool:
    """Return whether every way through a block meets a return."""
    last = body[-1] if body else None
    if isinstance(last, ast.For):
        return is_endless(last) and not leaves_loop(last.body, by_return=False)
    if isinstance(last, ast.If):
        return all(_always_gives(block) for block in (*(b for _, b in last.branches), last.otherwise))
    return isinstance(last, ast.Give)


def _check_aggregation(call: ast.Call) -> None:
    if len(call.arguments) < 3:
        return
    words = [argument.value for argument in call.arguments[1:3] if isinstance(argument, ast.Literally)]
    model = word_of(str(words[0]), MODELS)
    if model is None:
        hint = "its function says how messages are reduced"
        raise ProgramError(call.arguments[2].place, f"an aggregation of the layer {words[0]}", hint)
    allowed = OF_MODEL[model]
    if word_of(str(words[1]), allowed) is None:
        raise ProgramError(
            call.arguments[2].place,
            f'{model} has no aggregation "{words[1]}"',
            f"it has {', '.join(allowed)}",
        )


def _type_of(value: ast.Literally) -> Type:
    names: dict[type, Type] = {bool: "bool", int: "int", float: "float", str: "String"}
    return names[type(value.value)]
