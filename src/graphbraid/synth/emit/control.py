"""Control: the statements that a program runs while it trains, written in C++."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from graphbraid.synth.emit.layout import WIDTH, broken
from graphbraid.synth.language import syntax
from graphbraid.synth.language.syntax import TOTAL_EPOCHS, declared_in, names_in, trains_in, walk
from graphbraid.synth.recipe import Script, split_of
from graphbraid.synth.running import shown, speaking

# The types of numbers have the names of Python's in the language too.
_TYPES = {"int": "Int", "float": "double", "bool": "bool"}
_LEVELS = {"||": 1, "&&": 2, "==": 3, "!=": 3, "<": 4, ">": 4, "<=": 4, ">=": 4, "+": 5, "-": 5}
_PRODUCT, _SIGNED, _ATOM = 6, 7, 8
_PLACED = {"+": "plus", "-": "minus", "*": "times", "/": "quotient", "%": "remainder"}
"""Operators -> functions of ``runtime/numbers.h`` that may fail: they are given a line, which errors name."""
_FAILS = re.compile(rf"({'|'.join(_PLACED.values())})\(")
_INT_BITS, _COUNTER_BITS = 63, 56
"""Most bits of an integer's magnitude; and of a variable that only counts. This one begins below 2^55, and no
program counts to another 2^55 within a year, so 56 bits hold it."""
_TAKEN = re.compile(
    r"""
    alignas | alignof | and | and_eq | asm | assert | auto | bitand | bitor | case | catch | char | char8_t |
    char16_t | char32_t | class | compl | concept | const | consteval | constexpr | constinit | const_cast |
    co_await | co_return | co_yield | decltype | default | delete | do | dynamic_cast | enum | errno |
    explicit | export | extern | friend | goto | inline | linux | long | minus | mutable | namespace | new |
    noexcept | not | not_eq | nullptr | operator | or | or_eq | plus | private | protected | public |
    quotient | real | register | reinterpret_cast | remainder | requires | say | short | shown | signed |
    sizeof | static | static_assert | static_cast | stderr | stdin | stdout | struct | switch | template |
    this | thread_local | throw | times | try | typedef | typeid | typename | union | unix | unsigned | using
    | virtual | void | volatile | wchar_t | xor | xor_eq | Int | Program | Training | count_round |
    follow | _.* | v_.* | [A-Z_0-9]+  # also names that macros may have, and numbers of lifted values
    """,
    re.VERBOSE,
)
"""Names that a variable may have in the language, and may not have in C++."""


_Part = TypeVar("_Part")


class _Text(NamedTuple):
    """An expression in C++."""

    code: str
    kind: str
    """Its type in the language."""
    level: int = _ATOM
    """How tightly its operator binds."""
    is_literal: bool = False
    bits: int = _INT_BITS
    """Bits that its magnitude has at most, if it is an integer."""


def script_lines(script: Script) -> dict[str, object]:
    """Return the template's values: the program's own functions, and the body of the one that trains."""
    writer = _Writer(script)
    return {
        "gnn": cpp_variable(script.gnn),
        "total": cpp_variable(TOTAL_EPOCHS),
        "helpers": [broken(writer.helper(helper)) for helper in script.helpers],
        "lines": broken(writer.main(), margin=2),
    }


def cpp_variable(name: str) -> str:
    """Return a variable's name in C++: its own, unless C++ or its headers might use it."""
    return f"v_{name}" if _TAKEN.fullmatch(name) else name


class _Writer:
    def __init__(self, script: Script) -> None:
        self._script = script
        self._helpers = {helper.name: helper for helper in script.helpers}
        self._speakers = speaking(script.helpers)
        self._kinds = dict[str, str]()  # of the function that is being written
        self._read = set[str]()
        self._counters = set[str]()  # its variables that only count
        self._num_lifted = 0

    def main(self) -> Iterator[str]:
        """Yield the lines of the function that trains. Its parameters are constants."""
        self._kinds = {TOTAL_EPOCHS: "int"}
        self._read, self._counters = _read(self._script.statements), self._counted(self._script.statements)
        for name, value in self._script.values.items():
            self._kinds[name] = type(value).__name__
            if name in self._read:
                yield f"const {_TYPES[self._kinds[name]]} {cpp_variable(name)} = {_number(value)};"
        yield from self.block(self._script.statements)

    def helper(self, helper: syntax.Function) -> list[str]:
        self._kinds, self._read, self._counters = {}, _read(helper.body), self._counted(helper.body)
        given = ", ".join(self._declared(p.type, p.name) for p in helper.parameters)
        returns = helper.returns or ""
        head = f"[[maybe_unused]] {_TYPES[returns]} {cpp_variable(helper.name)}({given}) {{"
        body = list(self._inside(helper.body, returns))
        line = " ".join([head, *(text.strip() for text in body), "}"])
        return [line] if len(body) == 1 and len(line) <= WIDTH else [head, *body, "}"]

    def _counted(self, part: object) -> set[str]:
        """Return the variables that only count: they are set to small numbers, and go up or down by 1."""
        others = set[str]()
        for node in walk(part):
            if isinstance(node, syntax.Declare) or (isinstance(node, syntax.Assign) and not _is_step(node)):
                is_joined = isinstance(node, syntax.Assign) and node.operator
                if is_joined or names_in(node.value) or self._text(node.value).bits >= _COUNTER_BITS:
                    others.add(node.name.name)
        return declared_in(part) - others

    def _declared(self, kind: str, name: str) -> str:
        self._kinds[name] = kind
        return f"{'' if name in self._read else '[[maybe_unused]] '}{_TYPES[kind]} {cpp_variable(name)}"

    def block(self, statements: Sequence[syntax.Statement], returns: str = "") -> Iterator[str]:
        for statement in statements:
            yield from self._statement(statement, returns)

    def _inside(self, statements: Sequence[syntax.Statement], returns: str) -> Iterator[str]:
        return (f"  {line}" for line in self.block(statements, returns))

    def _statement(self, statement: syntax.Statement, returns: str) -> Iterator[str]:
        match statement:
            case syntax.For():
                yield from self._loop(statement, returns)
            case syntax.If():
                yield from self._choice(statement, returns)
            case _:
                before, statement = self._lifted(statement)
                yield from before
                yield f"{self._simple(statement, returns)};"

    def _simple(  # noqa: PLR0911 - one for each kind of node
        self, statement: syntax.Statement | None, returns: str = ""
    ) -> str:
        """Return a statement of one line, without its semicolon."""
        gnn = cpp_variable(self._script.gnn)
        match statement:
            case syntax.Declare():
                declared = self._declared(statement.type, statement.name.name)
                return f"{declared} = {self._as(statement.value, statement.type)}"
            case syntax.Assign():
                return self._assigned(statement)
            case syntax.Call():
                return self._call(statement)
            case syntax.Give():
                return f"return {self._as(statement.value, returns)}"
            case syntax.Leave():
                return statement.word
            case syntax.Say():
                return f"say({', '.join(self._printed(value) for value in statement.values)})"
            case syntax.Train(what="update", rate=rate) if rate is not None:
                return f"{gnn}.optimizer({self._placed(statement, self._as(rate, 'float'))})"
            case syntax.Train(what="forward"):
                return f"{gnn}.forward_pass({self._placed(statement)})"
            case syntax.Train():
                return f"{gnn}.back_propagation()"
        return ""

    def _assigned(self, assigned: syntax.Assign) -> str:
        name, kind = cpp_variable(assigned.name.name), self._kinds[assigned.name.name]
        if kind == "int" and _is_step(assigned) and assigned.name.name in self._counters:
            return f"{assigned.operator * 2}{name}"
        return f"{name} = {self._as(assigned.new, kind)}"

    def _loop(self, loop: syntax.For, returns: str) -> Iterator[str]:
        first = self._simple(loop.first)
        before, condition = self._lifted(loop.condition)
        asked = "" if condition is None else self._text(condition).code
        if first or loop.step or before or not asked:
            yield f"for ({first};{f' {asked}' if asked and not before else ''};{self._step(loop)}) {{"
        else:
            yield f"while ({asked}) {{"
        if before:
            yield from (f"  {line}" for line in (*before, f"if (!({asked})) break;"))
        if not trains_in(loop.body):
            yield f"  count_round({loop.place.line});"
        yield from self._inside(loop.body, returns)
        yield "}"

    def _step(self, loop: syntax.For) -> str:
        if loop.step is None:
            return ""
        before, step = self._lifted(loop.step)
        code = self._simple(step)
        return f" [&] {{ {' '.join(before)} {code}; }}()" if before else f" {code}"

    def _choice(self, choice: syntax.If, returns: str) -> Iterator[str]:
        if not choice.branches:
            yield from ("{", *self._inside(choice.otherwise, returns), "}")
            return
        (condition, body), *others = choice.branches
        before, condition = self._lifted(condition)
        yield from (*before, f"if ({self._text(condition).code}) {{", *self._inside(body, returns))
        rest = list(self._choice(replace(choice, branches=tuple(others)), returns))
        if rest == ["{", "}"]:
            yield "}"
        elif rest[0] == "{" or rest[0].startswith("if ("):
            yield f"}} else {rest[0]}"
            yield from rest[1:]
        else:
            yield from ("} else {", *(f"  {line}" for line in rest), "}")

    # ---- expressions

    def _as(self, value: syntax.Expression, wanted: str) -> str:
        """Return an expression of a wanted type. An integer is converted if a float is wanted."""
        return _converted(self._text(value), wanted).code

    def _printed(self, value: syntax.Expression) -> str:
        """Return a value to print. A number that is written in the program is printed as its text."""
        if isinstance(value, syntax.Literally):
            return _quoted(shown(value.value))
        text = self._text(value)
        return f"Int({text.code})" if text.is_literal and text.kind == "int" else text.code

    def _acts(self, value: object) -> bool:
        """Return whether computing a value prints lines or may end the training. If so, order matters."""
        return any(
            (isinstance(node, syntax.Call) and node.method.name == "evaluate")
            or (isinstance(node, syntax.Apply) and node.function in self._speakers)
            for node in walk(value)
        )

    def _is_risky(self, node: object) -> bool:
        if isinstance(node, syntax.Binary):
            return _FAILS.match(self._binary(node).code) is not None
        return isinstance(node, syntax.Apply) or (isinstance(node, syntax.Call) and self._acts(node))

    def _lifted(self, part: _Part) -> tuple[list[str], _Part]:
        """Return statements to run first, and the rest of the part.

        C++ does not fix the order in which the values inside one statement are computed. If the order of two
        of them matters, each value that acts or may fail is computed by a statement of its own.
        """
        lines: list[str] = []
        risky = [node for node in walk(part) if self._is_risky(node)]
        matters = len(risky) > 1 and any(map(self._acts, risky))
        return lines, self._lift(part, lines) if matters else part

    def _lift(self, part: Any, lines: list[str]) -> Any:  # noqa: PLR0911 - one for each kind of node
        match part:
            case tuple():
                return tuple(self._lift(each, lines) for each in part)
            case syntax.Declare() | syntax.Assign() | syntax.Give():
                return replace(part, value=self._lift(part.value, lines))
            case syntax.Say():
                return replace(part, values=self._lift(part.values, lines))
            case syntax.Train():
                return replace(part, rate=self._lift(part.rate, lines))
            case syntax.Binary(operator="&&" | "||") as joined:
                left = self._lift(joined.left, lines)
                if not any(map(self._is_risky, walk(joined.right))):
                    return replace(joined, left=left)
                # The right side's statements run only if the left side leaves the result open.
                value, inside = self._named("bool", self._text(left).code, lines, joined), list[str]()
                right, name = self._as(self._lift(joined.right, inside), "bool"), cpp_variable(value.name)
                sign = "" if joined.operator == "&&" else "!"
                lines.append(f"if ({sign}{name}) {{")
                lines += [f"  {line}" for line in (*inside, f"{name} = {right};")]
                lines.append("}")
                return value
            case syntax.Binary():
                part = replace(part, left=self._lift(part.left, lines), right=self._lift(part.right, lines))
            case syntax.Unary():
                return replace(part, operand=self._lift(part.operand, lines))
            case syntax.Apply():
                part = replace(part, arguments=self._lift(part.arguments, lines))
        if not self._is_risky(part):
            return part
        text = self._text(part)
        return self._named(text.kind, text.code, lines, part)

    def _named(self, kind: str, code: str, lines: list[str], value: syntax.Node) -> syntax.Name:
        """Add a statement that declares a variable with a value; return the variable."""
        name = str(self._num_lifted)
        self._num_lifted += 1
        self._kinds[name] = kind
        lines.append(f"{'' if kind == 'bool' else 'const '}{_TYPES[kind]} {cpp_variable(name)} = {code};")
        return syntax.Name(value.place, name)

    def _text(self, value: syntax.Expression) -> _Text:
        match value:
            case syntax.Literally(value=number):
                assert not isinstance(number, str)
                kind = type(number).__name__
                level = _SIGNED if _number(number)[0] == "-" else _ATOM
                bits = number.bit_length() if isinstance(number, int) else 0
                return _Text(_number(number), kind, level, True, bits)
            case syntax.Name():
                bits = _COUNTER_BITS if value.name in self._counters else _INT_BITS
                return _Text(cpp_variable(value.name), self._kinds[value.name], bits=bits)
            case syntax.Call():
                return _Text(self._call(value), "float")
            case syntax.Apply():
                helper = self._helpers[value.function]
                pairs = zip(value.arguments, helper.parameters, strict=True)
                given = ", ".join(self._as(argument, parameter.type) for argument, parameter in pairs)
                return _Text(f"script::{cpp_variable(helper.name)}({given})", helper.returns or "")
            case syntax.Unary():
                inner = self._text(value.operand)
                code = inner.code if inner.level == _ATOM else f"({inner.code})"
                return _Text(f"{value.operator}{code}", inner.kind, _SIGNED, inner.is_literal, inner.bits)
            case syntax.Binary():
                return self._binary(value)
        raise AssertionError(value)

    def _call(self, call: syntax.Call) -> str:
        gnn = cpp_variable(call.receiver.name)
        if call.method.name == "loss":
            return f"{gnn}.loss({self._placed(call)})"
        split = split_of(call)
        given = self._placed(call, _quoted(split), f"&Program::split_{split}")
        return f"{gnn}.evaluate({given})"

    def _placed(self, node: syntax.Node, *given: str) -> str:
        """Return arguments. The last one is the node's line, which errors name, if there is a text."""
        return ", ".join((*given, str(node.place.line)) if self._script.is_written else given)

    def _binary(self, value: syntax.Binary) -> _Text:
        left, right, sign = self._text(value.left), self._text(value.right), value.operator
        if "float" in {left.kind, right.kind}:
            left, right = _converted(left, "float"), _converted(right, "float")
        level = _LEVELS.get(sign, _PRODUCT)
        joins = level >= _LEVELS["+"]
        if joins and left.kind == "int" and left.is_literal and right.is_literal:
            left = _Text(f"Int({left.code})", "int")  # two literals would be joined in the 32 bits of int
        # A sum at most doubles the larger side. A quotient or remainder is not larger than the left side.
        most = {"+": max(left.bits, right.bits) + 1, "*": left.bits + right.bits}
        bits = most.get("+" if sign == "-" else sign, left.bits) if left.kind == "int" else 0
        may_be_zero = not (isinstance(value.right, syntax.Literally) and value.right.value)
        # A function checks what may divide by zero or overflow; the operator alone does for other numbers.
        if may_be_zero if sign in {"/", "%"} else joins and bits > _INT_BITS:
            code = f"{_PLACED[sign]}({self._placed(value, left.code, right.code)})"
            return _Text(code, left.kind, bits=min(bits, _INT_BITS))
        sides = [
            f"({part.code})" if _needs_brackets(part.level, level, side) else part.code
            for side, part in enumerate((left, right))
        ]
        return _Text(f" {sign} ".join(sides), left.kind if joins else "bool", level, bits=bits)


def _is_step(assigned: syntax.Assign) -> bool:
    value = assigned.value
    return assigned.operator in {"+", "-"} and isinstance(value, syntax.Literally) and value.value == 1


def _needs_brackets(inner: int, outer: int, side: int) -> bool:
    """Return whether an operand needs brackets, or compilers would warn without them.

    Its operator has the level ``inner``; the one that joins it has ``outer``. The left ``side`` is 0.
    """
    if outer >= _LEVELS["+"]:  # C++ groups to the left: on the right, an equal level needs brackets, too
        return inner < outer + side
    return inner <= _LEVELS["<"] if outer > _LEVELS["&&"] else inner <= _LEVELS["&&"] and inner != outer


def _converted(text: _Text, wanted: str) -> _Text:
    if text.kind != "int" or wanted != "float":
        return text
    if re.fullmatch(r"[-+]?\d+", text.code):
        return _Text(f"{text.code}.0", "float", text.level, True)
    return _Text(f"real({text.code})", "float")


def _read(part: object) -> set[str]:
    """Return the variables whose values are read. One that is only assigned is not read."""
    names = [node.name for node in walk(part) if isinstance(node, syntax.Name)]
    for node in walk(part):
        if isinstance(node, syntax.Declare) or (isinstance(node, syntax.Assign) and not node.operator):
            names.remove(node.name.name)
    return set(names)


def _number(value: float) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return "NAN" if math.isnan(value) else "HUGE_VAL" if value > 0 else "-HUGE_VAL"
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _quoted(text: str) -> str:
    """Return a text of C++. Question marks are escaped, since two of them begin a trigraph."""
    escaped = re.sub(r'[\\"?]', lambda found: f"\\{found[0]}", text)
    plain = (c if " " <= c <= "~" else "".join(f"\\{byte:03o}" for byte in c.encode()) for c in escaped)
    return f'"{"".join(plain)}"'
