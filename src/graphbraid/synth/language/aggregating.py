"""Own layers: a function with two nested ``forall`` loops becomes the steps of one message."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, cast

from graphbraid.ops.message_programs import fits_kernel
from graphbraid.ops.message_steps import MOST_MATRICES, MOST_STEPS, MessageOp, MessageStep
from graphbraid.synth.language import syntax
from graphbraid.synth.language.syntax import MODELS, Place, ProgramError, hint_of, word_of

REDUCTIONS = ("Sum", "Mean", "Max", "Min")
FUNCTIONS: dict[str, MessageOp] = {
    "relu": MessageOp.RELU,
    "leaky_relu": MessageOp.LEAKY_RELU,
    "sigmoid": MessageOp.SIGMOID,
    "tanh": MessageOp.TANH,
    "exp": MessageOp.EXP,
    "abs": MessageOp.ABS,
}
_OPERATORS = {"+": MessageOp.ADD, "-": MessageOp.SUBTRACT, "*": MessageOp.MULTIPLY, "/": MessageOp.DIVIDE}
_SHAPE = "forall (v in g.nodes()) { forall (u in g.neighbors(v)) { v.out += u.x; } }"


@dataclass(frozen=True, slots=True)
class OwnAggregation:
    """``out[v] = reduction over u (message(rows of u, rows of v, weight)) + added rows of v``."""

    name: str
    sources: tuple[str, ...]
    """Properties whose row of ``u`` the message reads. The steps name them by their positions here."""
    destinations: tuple[str, ...]
    """Properties whose row of ``v`` the message reads, in the same way."""
    added: tuple[str, ...]
    """Properties whose row of ``v`` is added to the reduced messages."""
    steps: tuple[MessageStep, ...]
    reduction: Literal["sum", "mean", "max", "min"]

    @property
    def properties(self) -> tuple[str, ...]:
        """The properties that are read, each once."""
        return tuple(dict.fromkeys((*self.sources, *self.destinations, *self.added)))

    @property
    def reads_weights(self) -> bool:
        """Whether the message reads the weights of edges."""
        return any(step.op is MessageOp.WEIGHT for step in self.steps)


def aggregation_of(function: syntax.Function) -> OwnAggregation:
    """Check an own layer and return its aggregation; ProgramError at its first mistake."""
    return _Layer(function).aggregation()


class _Layer:
    """Walks an own layer in the order of its text."""

    def __init__(self, function: syntax.Function) -> None:
        self._function = function
        if word_of(function.name, MODELS) is not None:
            _refuse(function.place, f'"{function.name}" is the name of a model', "rename the function")
        names = [parameter.name for parameter in function.parameters]
        for number, parameter in enumerate(function.parameters):
            if parameter.type != ("propNode<float>" if number else "Graph"):
                hint = "it begins as function Name(Graph g, propNode<float> x, ..., propNode<float> out)"
                _refuse(parameter.place, f"{parameter.type} in the layer {function.name}", hint)
            if parameter.name in names[:number]:
                _refuse(parameter.place, f'"{parameter.name}" is declared already', "rename one")
        if len(names) < 3:
            hint = "it needs one to read, and the last one is the result"
            _refuse(function.place, f'the layer "{function.name}" has too few properties', hint)
        self._graph, *self._read, self._out = names
        self._nodes: list[str] = []
        self._rows: dict[str, int] = {}
        self._of = {MessageOp.SOURCE: list[str](), MessageOp.DESTINATION: list[str]()}
        self._steps: list[MessageStep] = []

    def aggregation(self) -> OwnAggregation:
        outer = self._forall(self._function.body, self._function.place, "nodes")
        inner = self._forall(outer.body[:1], outer.place, "neighbors")
        *declared, last = inner.body or (None,)
        if not isinstance(last, syntax.Put):
            _refuse((last or inner).place, "the block has no message", f"end it with v.{self._out} += ...")
        for statement in cast("Iterable[syntax.Statement]", declared):
            if not isinstance(statement, syntax.Declare) or statement.type != "float":
                _refuse(statement.place, "not a statement of a message", "write float name = ...;")
            self._declare(statement.name)
            self._rows[statement.name.name] = self._value(statement.value)
        reduction, message = self._reduced(last)
        made = self._value(message)
        if made != len(self._steps) - 1:  # the kernel returns the last step, so 0 is added to make one
            self._entered(MessageOp.ADD, made, self._entered(MessageOp.NUMBER))
        sources, destinations = (tuple(self._of[op]) for op in self._of)
        if not sources and not destinations:
            _refuse(last.place, "the message reads no property", f"as in u.{self._read[0]}")
        if not fits_kernel(self._steps, (), cast("Any", reduction)):
            hint = f"at most {MOST_STEPS} are possible"
            _refuse(last.place, f"a message of {len(self._steps)} steps", hint)
        self._nodes.pop()  # the neighbour
        found = OwnAggregation(
            name=self._function.name,
            sources=sources,
            destinations=destinations,
            added=tuple(self._own_row(statement) for statement in outer.body[1:]),
            steps=tuple(self._steps),
            reduction=cast("Any", reduction),
        )
        for parameter in self._function.parameters[1:-1]:
            if parameter.name not in found.properties:
                _refuse(parameter.place, f'the property "{parameter.name}" is not read', "take it out")
        return found

    # ---- statements

    def _forall(self, body: tuple[syntax.Statement, ...], place: Place, method: str) -> syntax.Forall:
        arguments = self._nodes[:]
        shown = f"{self._graph}.{method}({''.join(arguments)})"
        if len(body) != 1 or not isinstance(body[0], syntax.Forall):
            at = next((one.place for one in body if not isinstance(one, syntax.Forall)), place)
            _refuse(at, f"a layer is one forall over {shown}", f"as in {_SHAPE}")
        loop = body[0]
        if not self._calls_graph(loop.over, method, arguments):
            _refuse(loop.over.place, f"forall over something else than {shown}", f"as in {_SHAPE}")
        self._declare(loop.name)
        self._nodes.append(loop.name.name)
        return loop

    def _declare(self, name: syntax.Name) -> None:
        if name.name in (self._graph, self._out, *self._read, *self._nodes, *self._rows):
            _refuse(name.place, f'"{name.name}" is declared already', "rename one")

    def _calls_graph(self, call: syntax.Call, method: str, nodes: list[str]) -> bool:
        given = [one.name if isinstance(one, syntax.Name) else "" for one in call.arguments]
        return (call.receiver.name, call.method.name, given) == (self._graph, method, nodes)

    def _is_out(self, row: syntax.Property) -> bool:
        return (row.node.name, row.name.name) == (self._nodes[0], self._out)

    def _put_to(self, statement: syntax.Put) -> None:
        to = statement.to
        if not self._is_out(to):
            hint = f"only {self._nodes[0]}.{self._out} is written"
            _refuse(to.place, f"{to.node.name}.{to.name.name} is changed", hint)

    def _own_row(self, statement: syntax.Statement) -> str:
        match statement:
            case syntax.Put(operator="+", value=syntax.Property() as row):
                self._put_to(statement)
                self._side(row)
                return row.name.name
        hint = f"{self._nodes[0]}.{self._out} += {self._nodes[0]}.{self._read[0]};"
        return _refuse(statement.place, "after the neighbours only own rows can be added", f"write {hint}")

    def _reduced(self, last: syntax.Put) -> tuple[str, syntax.Expression]:
        self._put_to(last)
        match last:
            case syntax.Put(operator="+"):
                return "sum", last.value
            case syntax.Put(operator="", value=syntax.Apply(function=name, arguments=given) as how):
                if name not in REDUCTIONS:
                    _refuse(how.place, f'unknown reduction "{name}"', hint_of(name, REDUCTIONS))
                if len(given) == 2 and isinstance(given[0], syntax.Property) and self._is_out(given[0]):
                    return name.lower(), given[1]
        out = f"{self._nodes[0]}.{self._out}"
        hint = f"write {out} += ...; or {out} = Max({out}, ...);"
        return _refuse(last.place, "not a reduction of a message", hint)

    # ---- the message

    def _value(self, value: syntax.Expression) -> int:  # noqa: PLR0911 - one for each kind of node
        """Return the number of the step that computes an expression."""
        match value:
            case syntax.Literally(value=int() | float() as number) if not isinstance(number, bool):
                return self._entered(MessageOp.NUMBER, number=float(number))
            case syntax.Name(name=name):
                if name not in self._rows:
                    known = (f"{node}.{each}" for node in self._nodes for each in self._read)
                    hint = f"known are {', '.join((*self._rows, *known))}"
                    _refuse(value.place, f'unknown name "{name}"', hint)
                return self._rows[name]
            case syntax.Property():
                op = self._side(value)
                names = self._of[op]
                if value.name.name not in names:
                    if len(names) == MOST_MATRICES:
                        hint = f"at most {MOST_MATRICES} are possible"
                        _refuse(value.place, "a message reads too many properties of one end", hint)
                    names.append(value.name.name)
                return self._entered(op, names.index(value.name.name))
            case syntax.Call():
                v, u = self._nodes
                if not self._calls_graph(value, "weight", [u, v]):
                    hint = f"the edge's weight is {self._graph}.weight({u}, {v})"
                    _refuse(value.place, "not a call of a message", hint)
                return self._entered(MessageOp.WEIGHT)
            case syntax.Apply():
                return self._applied(value)
            case syntax.Unary(operator="+"):
                return self._value(value.operand)
            case syntax.Unary(operator="-"):
                minus = self._entered(MessageOp.NUMBER, number=-1.0)
                return self._entered(MessageOp.MULTIPLY, self._value(value.operand), minus)
            case syntax.Binary(operator=operator) if operator in _OPERATORS:
                left, right = self._value(value.left), self._value(value.right)
                return self._entered(_OPERATORS[operator], left, right)
        hint = f"a message has numbers, rows, {' '.join(_OPERATORS)} and {', '.join(FUNCTIONS)}"
        return _refuse(value.place, "not a value of a message", hint)

    def _applied(self, call: syntax.Apply) -> int:
        op = FUNCTIONS.get(call.function)
        if op is None:
            _refuse(call.place, f'unknown function "{call.function}"', hint_of(call.function, FUNCTIONS))
        slope = call.arguments[1] if op is MessageOp.LEAKY_RELU and len(call.arguments) == 2 else None
        has_slope = isinstance(slope, syntax.Literally) and type(slope.value) in (int, float)
        if len(call.arguments) != 1 and not has_slope:
            hint = "a slope may follow, as a number" if op is MessageOp.LEAKY_RELU else "it takes one value"
            _refuse(call.place, f"{call.function} of {len(call.arguments)} values", hint)
        x = self._value(call.arguments[0])
        number = float(cast("syntax.Literally", slope).value) if slope is not None else 0.01
        return self._entered(op, x, number=number if op is MessageOp.LEAKY_RELU else 0.0)

    def _side(self, row: syntax.Property) -> MessageOp:
        node, name = row.node.name, row.name.name
        if node not in self._nodes:
            _refuse(row.node.place, f'unknown node "{node}"', hint_of(node, self._nodes))
        if name == self._out:
            _refuse(row.name.place, f'the result "{name}" is read', "messages have no fixed order")
        if name not in self._read:
            _refuse(row.name.place, f'unknown property "{name}"', hint_of(name, self._read))
        return MessageOp.DESTINATION if node == self._nodes[0] else MessageOp.SOURCE

    def _entered(self, op: MessageOp, first: int = 0, second: int = 0, number: float = 0.0) -> int:
        self._steps.append(MessageStep(op, first, second, number))
        return len(self._steps) - 1


def _refuse(place: Place, message: str, hint: str) -> NoReturn:
    raise ProgramError(place, message, hint)
