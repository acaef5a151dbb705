"""Layout: statements of C++ in lines of at most :data:`WIDTH` columns, as clang-format lays them out.

The machine that writes a program may have no clang-format. So these functions follow the project's
``.clang-format`` for calls and declarations with one structure in braces, and for comments. Statements of
the program itself stay on one line each.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import TypeAlias

WIDTH = 110
"""Columns of a line at most, as in ``.clang-format``."""
_SHORT, _MANY = 2, 4
"""A call with at most :data:`_SHORT` fields stays on one line if it fits there. An inner structure that does
not fit behind its name moves to the next line if it has at least :data:`_MANY` fields and fits there. Else
each of its fields gets a line."""

Fields: TypeAlias = "dict[str, str | Fields]"
"""The fields of a structure by name, in their order; a field may be a structure itself."""


@dataclass(frozen=True, slots=True)
class CppStatement:
    """A statement: a text, or a text with a structure inside."""

    begin: str
    """The text without the semicolon; with a structure, the text before its brace."""
    fields: Fields | None = None
    end: str = ")"
    """The text after the structure."""


def lines_of(statement: CppStatement, indent: int) -> list[str]:
    """Return the lines of a statement that begins at a column."""
    space, fields = " " * indent, statement.fields
    if fields is None:
        return [f"{space}{statement.begin};"]
    line = f"{space}{statement.begin}{_in_a_line(fields)}{statement.end};"
    if len(fields) <= _SHORT and len(line) <= WIDTH:
        return [line]
    inside = [
        f"{space}    {text}"
        for name, value in fields.items()
        for text in _field(name, value, indent + 4, ",")
    ]
    return [f"{space}{statement.begin}{{", *inside, f"{space}}}{statement.end};"]


def comment_lines(text: str, indent: int = 0) -> list[str]:
    """Return a comment in as many lines as it needs."""
    begin = " " * indent + "// "
    inside = " " * (len(text) - len(text.lstrip()))
    return textwrap.wrap(
        text.lstrip(),
        WIDTH,
        initial_indent=begin + inside,
        subsequent_indent=f"{begin}{inside}  ",
        break_long_words=False,
        break_on_hyphens=False,
    ) or [begin.rstrip()]


def aligned(pairs: list[tuple[str, str]]) -> list[str]:
    """Return lines of code, each with a comment; the comments begin at one column."""
    width = max((len(code) for code, _ in pairs), default=0)
    return [f"{code:<{width}}  // {comment}" for code, comment in pairs]


def _in_a_line(fields: Fields) -> str:
    shown = (
        f".{name} = {value if isinstance(value, str) else _in_a_line(value)}"
        for name, value in fields.items()
    )
    return f"{{{', '.join(shown)}}}"


def _field(name: str, value: str | Fields, column: int, end: str) -> list[str]:
    """Return the lines of a field that begins at a column; ``end`` follows it."""
    whole = value if isinstance(value, str) else _in_a_line(value)
    if column + len(f".{name} = {whole}{end}") <= WIDTH:
        return [f".{name} = {whole}{end}"]
    if isinstance(value, str) or (len(value) >= _MANY and column + 4 + len(whole) + len(end) <= WIDTH):
        return [f".{name} =", f"    {whole}{end}"]
    begin, lines, last = f".{name} = {{", list[str](), len(value) - 1
    for number, (inner, of_inner) in enumerate(value.items()):
        after = f"}}{end}" if number == last else ","
        lines += _field(inner, of_inner, column + len(begin), after)
    return [begin + lines[0], *(" " * len(begin) + line for line in lines[1:])]
