"""Parsing: the text of a program becomes its syntax tree. The parser makes nodes bottom up while it runs.

Brackets that are never closed, and programs that are too deep or too long, are refused first. The language is
modelled on a program that was printed with a brace missing (docs/synthesis.md): its loop over the layers is
not closed before the next loop over the same variable. Nested loops cannot share a variable here. So the
place of the missing brace is known, and the parser adds it.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from importlib import resources
from typing import Any, cast

from lark import Lark, Token, Transformer, Tree, UnexpectedCharacters, UnexpectedToken

from graphbraid.errors import nearest_name
from graphbraid.synth.language import syntax
from graphbraid.synth.language.syntax import MOST_SHOWN, Place, ProgramError, Type

MOST_NESTED = 50
"""Most brackets that may be open at once."""
MOST_WORDS = 200
"""Most words between two semicolons or braces."""
_CLOSES = {"RPAR": "LPAR", "RSQB": "LSQB", "RBRACE": "LBRACE"}

Notes = tuple[tuple[Place, str], ...]


def place_of(token: Token) -> Place:
    """Return the place at which a token begins."""
    return Place(token.line or 1, token.column or 1)


def closed(tokens: Sequence[Token]) -> tuple[list[Token], Notes]:
    """Return a program's tokens, and a note if a missing brace was added because its place is known.

    Raises:
        ProgramError: a bracket is not closed, brackets are nested too deeply, or a statement is too long.
    """
    depth = words = 0
    # Brackets that are not closed yet, each with the position of the loop whose body it opens.
    is_open: list[tuple[Token, int | None]] = []
    loop: int | None = None  # the position of the loop whose body comes next
    twice: tuple[int, int] | None = None  # positions of the first two nested loops over one name
    for at, token in enumerate(tokens):
        words = 0 if token.type in ("SEMICOLON", "LBRACE", "RBRACE") else words + 1
        depth += (token.type in _CLOSES.values()) - (token.type in _CLOSES)
        _check_length(token, depth, words)
        # "for", "(", type, name: the loop's variable is three tokens behind the word.
        if token.type == "FOR" and at + 3 < len(tokens) and tokens[at + 2].type == "TYPE":
            outer = is_open[-1][1] if is_open else None
            if twice is None and outer is not None and tokens[outer + 3] == tokens[at + 3]:
                twice = outer, at
            loop = at
        elif token.type in _CLOSES.values():
            is_open.append((token, loop if token.type == "LBRACE" else None))
            loop = None if token.type == "LBRACE" else loop
        elif token.type in _CLOSES and is_open and is_open[-1][0].type == _CLOSES[token.type]:
            is_open.pop()  # a closing bracket without an open one is left to the parser, which refuses it
    if not is_open:
        return list(tokens), ()
    if len(is_open) > 1 or twice is None or is_open[0][0].type != "LBRACE":
        raise ProgramError(place_of(is_open[-1][0]), f'"{is_open[-1][0]}" is never closed')
    outer, inner = twice
    note = (
        f'the loop over "{tokens[inner + 3]}" at line {tokens[outer].line} is not closed; it is taken to end '
        f"before the next loop over it, at line {tokens[inner].line}"
    )
    brace = Token.new_borrow_pos("RBRACE", "}", tokens[inner])
    return [*tokens[:inner], brace, *tokens[inner:]], ((place_of(tokens[outer]), note),)


def _check_length(token: Token, depth: int, words: int) -> None:
    if depth > MOST_NESTED:
        raise ProgramError(place_of(token), f"brackets are nested more than {MOST_NESTED} deep")
    if token.type == "NAME" and len(token) > MOST_SHOWN:
        message = f"a name of {len(token):,} characters"
        raise ProgramError(place_of(token), message, f"at most {MOST_SHOWN} are possible")
    if words > MOST_WORDS:
        raise ProgramError(place_of(token), f"a statement of more than {MOST_WORDS} words", "divide it")


MOST = 2**63 - 1
"""Largest integer of the language."""


def _name(word: Token) -> syntax.Name:
    return syntax.Name(place_of(word), str(word))


def _type(word: Token) -> Type:
    return "float" if word == "double" else cast("Type", str(word))


def _function(word: Token, kind: Token | None, name: Token, *parts: Any) -> syntax.Function:
    place, returns = (place_of(word), None) if kind is None else (place_of(name), _type(kind))
    return syntax.Function(place, returns, str(name), _given(parts[:-1]), parts[-1])


def _program(*functions: syntax.Function) -> syntax.Function:
    helpers = tuple(each for each in functions if each.returns is not None)
    others = [each for each in functions if each.returns is None]
    layers = tuple(each for each in others if any(p.type == "propNode<float>" for p in each.parameters))
    trains = [each for each in others if each not in layers]
    if not trains:
        hint = "one begins as function Name(Graph g, GNN gnn, ...)"
        raise ProgramError(functions[-1].place, "no function trains", hint)
    if len(trains) > 1:
        for each in trains:
            if all(parameter.type != "GNN" for parameter in each.parameters):
                hint = f"one that gives a value has its type, as in function int {each.name}(...)"
                raise ProgramError(each.place, f'the function "{each.name}" trains nothing', hint)
        raise ProgramError(trains[1].place, "a second function that trains", "a program has one")
    return replace(trains[0], helpers=helpers, layers=layers)


def _holder(type_: Type, what: str, known: str, word: Token) -> Type:
    """Return the type of a container or property; refuse one whose values are of another type."""
    if f"<{_type(word)}>" not in type_:
        raise ProgramError(place_of(word), f"a {what} of {word}", known)
    return type_


def _step(name: Token, step: Token) -> syntax.Assign:
    return syntax.Assign(place_of(name), _name(name), step[0], syntax.Literally(place_of(step), 1))


def _integer(word: Token) -> syntax.Literally:
    digits = word.lstrip("0") or "0"
    if len(digits) > len(str(MOST)) or int(digits) > MOST:
        raise ProgramError(place_of(word), f"the integer is too large: at most {MOST}")
    return syntax.Literally(place_of(word), int(digits))


def _decimal(word: Token) -> syntax.Literally:
    if math.isinf(float(word)):
        raise ProgramError(place_of(word), "the number is too large", "at most 1.797e308")
    return syntax.Literally(place_of(word), float(word))


def _text(word: Token) -> syntax.Literally:
    if "\0" in word:
        raise ProgramError(place_of(word), "a text has the NUL character")
    return syntax.Literally(place_of(word), str(word)[1:-1])


def _given(parts: Sequence[Any]) -> tuple[Any, ...]:
    """Return the parts without None. The parser puts None where an optional part is missing."""
    return tuple(part for part in parts if part is not None)


_NODES: dict[str, Callable[..., Any]] = {
    "start": _program,
    "function": _function,
    "parameter": lambda kind, name: syntax.Parameter(place_of(name), kind, str(name)),
    "plain_type": _type,
    "container_type": partial(_holder, "container<int>", "container", "containers hold int"),
    "property_type": partial(_holder, "propNode<float>", "property", "properties hold float"),
    "block": lambda *statements: statements,
    "leave": lambda word: syntax.Leave(place_of(word), str(word)),  # type: ignore[arg-type]
    "give": lambda word, value: syntax.Give(place_of(word), value),
    "say": lambda word, *values: syntax.Say(place_of(word), _given(values)),
    "declaration": lambda kind, name, value: syntax.Declare(place_of(kind), _type(kind), _name(name), value),
    "assign": lambda name, sign, value: syntax.Assign(place_of(name), _name(name), sign.rstrip("="), value),
    "step_after": _step,
    "step_before": lambda step, name: _step(name, step),
    "loop": lambda word, *parts: syntax.For(place_of(word), *parts),
    "while_loop": lambda word, condition, body: syntax.For(place_of(word), None, condition, None, body),
    "forall": lambda word, name, over, body: syntax.Forall(place_of(word), _name(name), over, body),
    "property": lambda node, name: syntax.Property(place_of(node), _name(node), _name(name)),
    "put": lambda to, sign, value: syntax.Put(to.place, to, sign.rstrip("="), value),
    "choice": lambda word, condition, body, *others: syntax.If(
        place_of(word), ((condition, body), *others[:-1]), others[-1] or ()
    ),
    "other_if": lambda _, condition, body: (condition, body),
    "binary": lambda left, sign, right: syntax.Binary(place_of(sign), str(sign), left, right),
    "unary": lambda sign, operand: syntax.Unary(place_of(sign), str(sign), operand),
    "integer": _integer,
    "decimal": _decimal,
    "text": _text,
    "truth": lambda word: syntax.Literally(place_of(word), word == "true"),
    "name": _name,
    "apply": lambda name, *arguments: syntax.Apply(place_of(name), str(name), _given(arguments)),
    "item": lambda container, index: syntax.Item(place_of(container), _name(container), index),
    "call": lambda receiver, method, *arguments: syntax.Call(
        place_of(receiver), _name(receiver), _name(method), _given(arguments)
    ),
}
"""Rules of ``grammar.lark`` -> functions that take a rule's tokens and nodes in order and return its node."""


class _Builder(Transformer[Token, Any]):
    def __default__(self, data: str, children: list[Any], meta: object) -> Any:
        # Rules that are not in the table are Lark's own, for repetitions. Lark expects a tree of each.
        return _NODES[data](*children) if data in _NODES else Tree(data, children)


MOST_CHARACTERS = 1 << 20
_WORDS = (
    *("SEMICOLON", "LBRACE", "RPAR", "RSQB", "LPAR", "EQUAL", "DOT", "COMMA", "RBRACE"),
    *("FUNCTION", "LESSTHAN", "MORETHAN", "IF"),
)
"""The tokens that an error may call missing, the likeliest first."""
_MARKS = {
    "?:": "write if (...) { ... } else { ... }",
    "'": 'a text is written "..."',
    "#": "a comment begins with //",
    "&|^~": "operators are + - * / % ! && || and comparisons",
}
"""Characters of other languages -> hints."""
_IN_C = {"and": "&&", "or": "||", "not": "!", "&": "&&"}
_BEGIN_VALUES = {"INTEGER", "TEXT", "TRUTH"}
_KEYWORDS = (
    *("function", "for", "forall", "while", "if", "else", "break", "continue", "return", "print"),
    "container",
)
_LEAST_LIKE = 3
"""Letters that a word needs at least, so that an error may propose another word."""
_TYPES = ("int", "float", "bool", "String", "Graph", "GNN", "container", "propNode")


def parse(text: str) -> syntax.Function:
    """Parse a program without checks of its names and types; ProgramError at the first wrong token."""
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
        found: syntax.Function = parser.feed_eof(tokens[-1])  # type: ignore[no-untyped-call]
    except UnexpectedToken as error:
        raise _unexpected(error, text, before) from None
    return replace(found, notes=notes)


@functools.cache
def _parser() -> Lark:
    grammar = resources.files(__package__).joinpath("grammar.lark").read_text(encoding="utf-8")
    return Lark(grammar, parser="lalr", lexer="basic", transformer=_Builder(), maybe_placeholders=True)


def _tokens(text: str) -> list[Token]:
    try:
        return list(_parser().lex(text))
    except UnexpectedCharacters as error:
        place, found = Place(error.line, error.column), text[error.pos_in_stream or 0]
        if found == '"':
            raise ProgramError(place, "a text is never closed", "it ends on its own line") from None
        hint = next((hint for marks, hint in _MARKS.items() if found in marks), "")
        if found.isalpha():
            hint = "names have the letters A to Z and a to z, digits and _"
        raise ProgramError(place, f"unexpected character {found!r}", hint) from None


def _unexpected(  # noqa: PLR0911 - one for each kind of mistake
    error: UnexpectedToken, text: str, before: Token
) -> ProgramError:
    """Return the error of a token that the grammar does not allow after ``before``."""
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
    if token.type in ("NAME", "TYPE") and before.type == "NAME" and "STEP" in expected:
        return _unknown("type", before, _TYPES, "variables are int, float, bool")
    if token.type == "NAME" and before.type == "NAME" and expected == {"LPAR"}:
        return _unknown("type", before, _TYPES, "functions give int, float, bool")
    if wrong := next((word for word in (token, before) if word in _IN_C), None):
        return ProgramError(place_of(wrong), f'unexpected "{wrong}"', f'it is written "{_IN_C[wrong]}"')
    if before == "do":
        return ProgramError(place_of(before), 'unknown word "do"', "write while (...) { ... }")
    if before.type == "NAME" and "DOT" in expected and nearest_name(before, _KEYWORDS):
        return _unknown("word", before, _KEYWORDS, "")
    if token.type == "LPAR" and before.type == "NAME":
        hint = "a value is used, as in x = f(...); a method has its object, as in gnn.load(...)"
        return ProgramError(place_of(before), f'the call "{_cut(before)}(" is no statement', hint)
    if token.type == "EQUAL" and "EQUALITY" in expected:
        return ProgramError(place, 'unexpected "="', 'a comparison is written "=="')
    hint = _near(token, _KEYWORDS) if token.type == "NAME" else ""
    return ProgramError(place, f'unexpected "{_cut(token)}"', hint or f"{_wanted(expected)} is missing")


def _unknown(what: str, word: Token, known: tuple[str, ...], hint: str) -> ProgramError:
    return ProgramError(place_of(word), f'unknown {what} "{_cut(word)}"', _near(word, known) or hint)


def _near(word: Token, known: tuple[str, ...]) -> str:
    near = nearest_name(word, known) if len(word) >= _LEAST_LIKE else None
    return "" if near is None else f"did you mean {near}?"


def _cut(word: Token) -> str:
    """Return a word as errors show it: a long one is cut."""
    return str(word) if len(word) <= MOST_SHOWN else f"{word[:MOST_SHOWN]}..."


def _wanted(expected: set[str]) -> str:
    if expected >= _BEGIN_VALUES:
        return "a value"
    if "FOR" in expected:
        return "a statement"
    for terminal in _WORDS:
        if terminal in expected:
            return f'"{_parser().get_terminal(terminal).pattern.value}"'
    if "NAME" in expected:
        return "a name"
    return "a type" if "TYPE" in expected else "an operator"
