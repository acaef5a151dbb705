"""Parsing: the text of a program becomes its syntax tree, bottom up while the parser runs.

Braces and lengths are looked at before: what is never closed, too deep or too long. The program that the
language is modelled on (docs/synthesis.md) is printed with the brace of a loop missing: its loop over the
layers is followed, still open, by another over the same variable. Two loops inside each other cannot share
their variable here, so the place of the brace is known, and it is supplied.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import replace
from importlib import resources
from typing import Any, Literal, cast

from lark import Lark, Token, Transformer, UnexpectedCharacters, UnexpectedToken, v_args

from graphbraid.errors import did_you_mean
from graphbraid.synth.language import syntax as ast
from graphbraid.synth.language.syntax import MOST_SHOWN, Place, ProgramError, Type

MOST_NESTED = 50
"""Brackets that may be open at once."""
MOST_WORDS = 200
"""Words between two semicolons or braces."""
_CLOSES = {"RPAR": "LPAR", "RSQB": "LSQB", "RBRACE": "LBRACE"}

Notes = tuple[tuple[Place, str], ...]


def place_of(token: Token) -> Place:
    """Return the place at which a token begins."""
    return Place(token.line or 1, token.column or 1)


def closed(tokens: Sequence[Token]) -> tuple[list[Token], Notes]:
    """Return a program's tokens with a missing brace supplied where its place is known, and a note if it was.

    Raises:
        ProgramError: a bracket is not closed, or the program is nested too deeply or too long.
    """
    _check_lengths(tokens)
    unclosed = _unclosed(tokens)
    if len(unclosed) != 1 or unclosed[0].type != "LBRACE":
        if unclosed:
            raise ProgramError(place_of(unclosed[-1]), f'"{unclosed[-1]}" is never closed')
        return list(tokens), ()
    found = _loop_over_the_same(tokens)
    if found is None:
        raise ProgramError(place_of(unclosed[0]), '"{" is never closed')
    outer, inner = found
    brace = Token.new_borrow_pos("RBRACE", "}", tokens[inner])
    outer_line, inner_line = tokens[outer].line, tokens[inner].line
    note = (
        f'the loop over "{tokens[inner + 3]}" at line {outer_line} is not closed; it is taken to end '
        f"before the next loop over it, at line {inner_line}"
    )
    return [*tokens[:inner], brace, *tokens[inner:]], ((place_of(tokens[outer]), note),)


def _check_lengths(tokens: Sequence[Token]) -> None:
    depth = words = 0
    for token in tokens:
        words = 0 if token.type in ("SEMICOLON", "LBRACE", "RBRACE") else words + 1
        if token.type in _CLOSES.values():
            depth += 1
        elif token.type in _CLOSES:
            depth -= 1
        if depth > MOST_NESTED:
            raise ProgramError(place_of(token), f"brackets are nested more than {MOST_NESTED} deep")
        if token.type == "NAME" and len(token) > MOST_SHOWN:
            message = f"a name of {len(token):,} characters"
            raise ProgramError(place_of(token), message, f"at most {MOST_SHOWN} are possible")
        if words > MOST_WORDS:
            raise ProgramError(place_of(token), f"a statement of more than {MOST_WORDS} words", "divide it")


def _unclosed(tokens: Sequence[Token]) -> list[Token]:
    """Return the brackets that nothing closes; what closes none is left to the parser."""
    is_open: list[Token] = []
    for token in tokens:
        if token.type in _CLOSES.values():
            is_open.append(token)
        elif token.type in _CLOSES and is_open and is_open[-1].type == _CLOSES[token.type]:
            is_open.pop()
    return is_open


def _loop_over_the_same(tokens: Sequence[Token]) -> tuple[int, int] | None:
    """Return the positions of a loop and of another inside it over a new variable of the same name."""
    is_open: list[tuple[str, int] | None] = []
    pending: tuple[str, int] | None = None
    for at, token in enumerate(tokens):
        if token.type == "FOR" and at + 3 < len(tokens) and tokens[at + 2].type == "TYPE":
            name = str(tokens[at + 3])
            if is_open and is_open[-1] is not None and is_open[-1][0] == name:
                return is_open[-1][1], at
            pending = name, at
        elif token.type == "LBRACE":
            is_open.append(pending)
            pending = None
        elif token.type == "RBRACE" and is_open:
            is_open.pop()
    return None


MOST = 2**63 - 1
"""Largest integer of the language."""
Statements = tuple[ast.Statement, ...]


@v_args(inline=True)
class Builder(Transformer[Token, Any]):
    """Makes a node of each rule of the grammar."""

    def start(self, *functions: ast.Function | ast.Helper) -> ast.Function:
        """Return the program."""
        helpers = tuple(each for each in functions if isinstance(each, ast.Helper))
        layers = tuple(
            each
            for each in functions
            if isinstance(each, ast.Function) and any(p.type == "propNode<float>" for p in each.parameters)
        )
        others = [each for each in functions if isinstance(each, ast.Function) and each not in layers]
        if len(others) != 1:
            hint = "one begins as function Name(Graph g, GNN gnn, ...)"
            if not others:
                raise ProgramError(functions[-1].place, "no function trains", hint)
            raise ProgramError(others[1].place, "a second function that trains", "a program has one")
        return replace(others[0], helpers=helpers, layers=layers)

    def helper(self, _: Token, kind: Token, name: Token, *parts: Any) -> ast.Helper:
        """Make a function of numbers."""
        *parameters, body = parts
        given = tuple(p for p in parameters if p is not None)
        return ast.Helper(place_of(name), _type(kind), str(name), given, body)

    def function(self, word: Token, name: Token, *parts: Any) -> ast.Function:
        """Make the program of its parameters and block."""
        *parameters, body = parts
        return ast.Function(place_of(word), str(name), tuple(p for p in parameters if p is not None), body)

    def parameter(self, kind: tuple[Token, Type], name: Token) -> ast.Parameter:
        """Make a parameter."""
        return ast.Parameter(place_of(name), kind[1], str(name))

    def plain_type(self, word: Token) -> tuple[Token, Type]:
        """Return a type of one word."""
        return word, _type(word)

    def container_type(self, word: Token) -> tuple[Token, Type]:
        """Return a container's type."""
        if word != "int":
            raise ProgramError(place_of(word), f"a container of {word}", "containers hold int")
        return word, "container<int>"

    def property_type(self, word: Token) -> tuple[Token, Type]:
        """Return the type of a property."""
        if _type(word) != "float":
            raise ProgramError(place_of(word), f"a property of {word}", "properties hold float")
        return word, "propNode<float>"

    def block(self, *statements: ast.Statement) -> Statements:
        """Return the statements of a block."""
        return statements

    def do(self, call: ast.Call) -> ast.Do:
        """Make a call for its effect."""
        return ast.Do(call.place, call)

    def leave(self, word: Token) -> ast.Leave:
        """Make a jump out of a loop's body."""
        return ast.Leave(place_of(word), cast("Literal['break', 'continue']", str(word)))

    def give(self, word: Token, value: ast.Expression) -> ast.Give:
        """Make a function's return."""
        return ast.Give(place_of(word), value)

    def say(self, word: Token, *values: ast.Expression | None) -> ast.Say:
        """Make a line of output."""
        return ast.Say(place_of(word), tuple(value for value in values if value is not None))

    def declaration(self, kind: Token, name: Token, value: ast.Expression) -> ast.Declare:
        """Make a declaration."""
        return ast.Declare(place_of(kind), _type(kind), _name(name), value)

    def assign(self, name: Token, operator: Token, value: ast.Expression) -> ast.Assign:
        """Make an assignment that joins the old value with another."""
        return ast.Assign(place_of(name), _name(name), operator[0], value)

    def set(self, name: Token, value: ast.Expression) -> ast.Assign:
        """Make an assignment."""
        return ast.Assign(place_of(name), _name(name), "", value)

    def step_after(self, name: Token, step: Token) -> ast.Assign:
        """Make ``i++`` or ``i--``."""
        return ast.Assign(place_of(name), _name(name), step[0], ast.Literally(place_of(step), 1))

    def step_before(self, step: Token, name: Token) -> ast.Assign:
        """Make ``++i`` or ``--i``."""
        return self.step_after(name, step)

    def loop(
        self,
        word: Token,
        first: ast.Declare | ast.Assign | None,
        condition: ast.Expression | None,
        step: ast.Assign | None,
        body: Statements,
    ) -> ast.For:
        """Make a loop."""
        return ast.For(place_of(word), first, condition, step, body)

    def forall(self, word: Token, name: Token, over: ast.Call, body: Statements) -> ast.Forall:
        """Make a block for each node."""
        return ast.Forall(place_of(word), _name(name), over, body)

    def property(self, node: Token, name: Token) -> ast.Property:
        """Make a node's row."""
        return ast.Property(place_of(node), _name(node), _name(name))

    def put(self, to: ast.Property, operator: Token, value: ast.Expression) -> ast.Put:
        """Make a new row of a node."""
        return ast.Put(to.place, to, operator.rstrip("="), value)

    def while_loop(self, word: Token, condition: ast.Expression, body: Statements) -> ast.For:
        """Make a loop of a condition alone."""
        return ast.For(place_of(word), None, condition, None, body)

    def choice(self, word: Token, condition: ast.Expression, body: Statements, *others: Any) -> ast.If:
        """Make a chain of branches."""
        *branches, otherwise = others
        return ast.If(place_of(word), ((condition, body), *branches), otherwise or ())

    def other_if(
        self, _: Token, condition: ast.Expression, body: Statements
    ) -> tuple[ast.Expression, Statements]:
        """Return a further branch."""
        return condition, body

    def otherwise(self, body: Statements) -> Statements:
        """Return the last branch."""
        return body

    def order(self, word: Token) -> Token:
        """Return an operator."""
        return word

    def binary(self, left: ast.Expression, operator: Token, right: ast.Expression) -> ast.Binary:
        """Make a node of two values."""
        return ast.Binary(place_of(operator), str(operator), left, right)

    def unary(self, operator: Token, operand: ast.Expression) -> ast.Unary:
        """Make a node of one value."""
        return ast.Unary(place_of(operator), str(operator), operand)

    def integer(self, word: Token) -> ast.Literally:
        """Make an integer."""
        digits = word.lstrip("0") or "0"
        if len(digits) > len(str(MOST)) or int(digits) > MOST:
            raise ProgramError(place_of(word), f"the integer is too large: at most {MOST}")
        return ast.Literally(place_of(word), int(digits))

    def decimal(self, word: Token) -> ast.Literally:
        """Make a decimal number."""
        if math.isinf(float(word)):
            raise ProgramError(place_of(word), "the number is too large", "at most 1.797e308")
        return ast.Literally(place_of(word), float(word))

    def text(self, word: Token) -> ast.Literally:
        """Make a text."""
        if "\0" in word:
            raise ProgramError(place_of(word), "a text with the character of number 0")
        return ast.Literally(place_of(word), str(word)[1:-1])

    def truth(self, word: Token) -> ast.Literally:
        """Make a truth value."""
        return ast.Literally(place_of(word), word == "true")

    def name(self, word: Token) -> ast.Name:
        """Make a variable's value."""
        return _name(word)

    def apply(self, function: Token, *arguments: ast.Expression | None) -> ast.Apply:
        """Make a call of one of the program's functions."""
        given = tuple(argument for argument in arguments if argument is not None)
        return ast.Apply(place_of(function), str(function), given)

    def item(self, container: Token, index: ast.Expression) -> ast.Item:
        """Make an entry of a container."""
        return ast.Item(place_of(container), _name(container), index)

    def call(self, receiver: Token, method: Token, *arguments: ast.Expression | None) -> ast.Call:
        """Make a call."""
        given = tuple(argument for argument in arguments if argument is not None)
        return ast.Call(place_of(receiver), _name(receiver), _name(method), given)


def _name(word: Token) -> ast.Name:
    return ast.Name(place_of(word), str(word))


def _type(word: Token) -> Type:
    return "float" if word == "double" else cast("Type", str(word))


MOST_CHARACTERS = 1 << 20
_WORDS = {
    "SEMICOLON": '";"',
    "LBRACE": '"{"',
    "RPAR": '")"',
    "RSQB": '"]"',
    "LPAR": '"("',
    "EQUAL": '"="',
    "DOT": '"."',
    "COMMA": '","',
    "RBRACE": '"}"',
    "FUNCTION": '"function"',
    "LESSTHAN": '"<"',
    "MORETHAN": '">"',
    "IF": '"if"',
}
"""The names of marks in errors, the likeliest to be missing first."""
_BEGIN_VALUES = {"INTEGER", "TEXT", "TRUTH"}
_KEYWORDS = (
    "function",
    "for",
    "forall",
    "while",
    "if",
    "else",
    "break",
    "continue",
    "return",
    "print",
    "container",
)
_TYPES = ("int", "float", "bool", "String", "Graph", "GNN", "container", "propNode")


def parse(text: str) -> ast.Function:
    """Parse a program without checking what its names and types mean.

    Raises:
        ProgramError: the text does not follow the grammar; the message says where and what would be right.
    """
    if len(text) > MOST_CHARACTERS:
        raise ProgramError(None, f"a program of more than {MOST_CHARACTERS:,} characters")
    tokens, notes = closed(_tokens(text))
    if not tokens:
        raise ProgramError(Place(1, 1), "the program is empty", 'it begins with "function"')
    parser, before = _parser().parse_interactive(), tokens[0]
    try:
        for token in tokens:
            parser.feed_token(token)
            before = token
        found: ast.Function = parser.feed_eof(tokens[-1])  # type: ignore[no-untyped-call]
    except UnexpectedToken as error:
        raise _unexpected(error, text, before) from None
    return replace(found, notes=notes)


@functools.cache
def _parser() -> Lark:
    grammar = resources.files(__package__).joinpath("grammar.lark").read_text(encoding="utf-8")
    return Lark(grammar, parser="lalr", lexer="basic", transformer=Builder(), maybe_placeholders=True)


def _tokens(text: str) -> list[Token]:
    try:
        return list(_parser().lex(text))
    except UnexpectedCharacters as error:
        place, found = Place(error.line, error.column), text[error.pos_in_stream or 0]
        if found == '"':
            raise ProgramError(place, "a text is never closed", "it ends on its own line") from None
        hint = "write if (...) { ... } else { ... }" if found in "?:" else ""
        raise ProgramError(place, f"unexpected character {found!r}", hint) from None


def _unexpected(  # noqa: PLR0911 - one for each kind of mistake
    error: UnexpectedToken, text: str, before: Token
) -> ProgramError:
    """Return what is wrong with a token that the grammar does not allow behind the one ``before``."""
    token, expected = error.token, set(error.expected)
    if token.type == "$END":
        wanted = f"{_wanted(expected)} is missing"
        return ProgramError(place_of(before), f'the text ends after "{_cut(before)}"', wanted)
    place, is_type = place_of(token), "TYPE" in expected and "FOR" not in expected
    if text.startswith("/*", token.start_pos):
        return ProgramError(place, "a comment is never closed")
    if expected <= {"$END", "FUNCTION"} and before is not token:
        return ProgramError(
            place, f'unexpected "{_cut(token)}" after the function', "a program is made of functions"
        )
    if token.type == "NAME" and is_type:
        return _unknown("type", token, _TYPES, f"known are {', '.join(_TYPES)}")
    if token.type == "NAME" and before.type == "NAME" and "STEP" in expected:
        return _unknown("type", before, _TYPES, "variables are int, float, bool")
    if before == "do":
        return ProgramError(place_of(before), 'unknown word "do"', "write while (...) { ... }")
    if before.type == "NAME" and "DOT" in expected and did_you_mean(str(before), _KEYWORDS):
        return _unknown("word", before, _KEYWORDS, "")
    if token.type == "EQUAL" and "EQUALITY" in expected:
        return ProgramError(place, 'unexpected "="', 'a comparison is written "=="')
    hint = _near(token, _KEYWORDS) if token.type == "NAME" else ""
    return ProgramError(place, f'unexpected "{_cut(token)}"', hint or f"{_wanted(expected)} is missing")


def _unknown(what: str, word: Token, known: tuple[str, ...], hint: str) -> ProgramError:
    return ProgramError(place_of(word), f'unknown {what} "{_cut(word)}"', _near(word, known) or hint)


def _near(word: Token, known: tuple[str, ...]) -> str:
    return did_you_mean(str(word), known).strip().replace("Did", "did").replace("'", "")


def _cut(word: Token) -> str:
    """Return a word as errors show it: its beginning, if it is long."""
    return str(word) if len(word) <= MOST_SHOWN else f"{word[:MOST_SHOWN]}..."


def _wanted(expected: set[str]) -> str:
    if expected >= _BEGIN_VALUES:
        return "a value"
    if "FOR" in expected:
        return "a statement"
    for terminal, shown in _WORDS.items():
        if terminal in expected:
            return shown
    if "TYPE" in expected:
        return "a type"
    return "a name" if "NAME" in expected else "an operator"
