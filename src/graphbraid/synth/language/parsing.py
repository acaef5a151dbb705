"""Parsing: a program's text becomes its syntax tree."""

from __future__ import annotations

import functools
from importlib import resources

from lark import Lark, Token, UnexpectedCharacters, UnexpectedToken

from graphbraid.errors import did_you_mean
from graphbraid.synth.language.braces import closed, place_of
from graphbraid.synth.language.build import Builder
from graphbraid.synth.language.mistake import Place, ProgramError
from graphbraid.synth.language.syntax import Function

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
_KEYWORDS = ("function", "for", "if", "else", "break", "continue", "container")
_TYPES = ("int", "float", "bool", "String", "Graph", "GNN", "container")


def parse(text: str) -> Function:
    """Parse a program without checking what its names and types mean.

    Raises:
        ProgramError: the text does not follow the grammar; the message says where and what would be right.
    """
    if len(text) > MOST_CHARACTERS:
        raise ProgramError(None, f"a program of more than {MOST_CHARACTERS:,} characters")
    tokens, notes = closed(_tokens(text))
    if not tokens:
        raise ProgramError(Place(1, 1), "the program is empty", 'it begins with "function"')
    parser = _parser().parse_interactive()
    try:
        for token in tokens:
            parser.feed_token(token)
        found: Function = parser.feed_eof(tokens[-1])  # type: ignore[no-untyped-call]
    except UnexpectedToken as error:
        raise _unexpected(error, text, tokens[-1]) from None
    return Function(found.place, found.name, found.parameters, found.body, notes)


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
        raise ProgramError(place, f"unexpected character {found!r}") from None


def _unexpected(error: UnexpectedToken, text: str, last: Token) -> ProgramError:
    token, expected = error.token, set(error.expected)
    if token.type == "$END":
        return ProgramError(
            place_of(last), f'the text ends after "{last}"', f"{_wanted(expected)} is missing"
        )
    place = place_of(token)
    if text.startswith("/*", token.start_pos):
        return ProgramError(place, "a comment is never closed")
    if expected == {"$END"}:
        return ProgramError(place, f'unexpected "{token}" after the function', "a program is one function")
    hint = f"{_wanted(expected)} is missing"
    if token.type == "NAME":
        known = _TYPES if "TYPE" in expected and "FOR" not in expected else _KEYWORDS
        near = did_you_mean(str(token), known)
        hint = near.strip().replace("Did", "did").replace("'", "") or hint
    return ProgramError(place, f'unexpected "{token}"', hint)


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


__all__ = ["parse"]
