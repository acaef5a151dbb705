"""Braces and lengths, looked at before a program is parsed: what is never closed, too deep or too long.

The program that the language is modelled on (docs/synthesis.md) is printed with the brace of a loop missing:
its loop over the layers is followed, still open, by another over the same variable. Two loops inside each
other cannot share their variable here, so that the place of the brace is known, and it is supplied.
"""

from __future__ import annotations

from collections.abc import Sequence

from lark import Token

from graphbraid.synth.language.mistake import Place, ProgramError

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


__all__ = ["MOST_NESTED", "MOST_WORDS", "Notes", "closed", "place_of"]
