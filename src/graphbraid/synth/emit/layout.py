"""Layout: statements of C++ in lines of at most :data:`WIDTH` columns, as clang-format lays them out.

The machine that writes a program may have no clang-format. So these functions follow the project's
``.clang-format`` for calls and declarations with one structure in braces, for comments, and for the program's
own statements.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
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


# ---- the program's own statements

_LOOSEST_FIRST = ("; ", ", ", r" \|\| ", " && ", " [!=]= ", " [<>]=? ", " [-+] ", " [*/%] ")
"""Separators behind which a long line is broken: the first of these that it has."""
_TEXT = r'"(?:[^"\\]|\\.)*"'
_HEAD = re.compile(r'return |[^"(]* = ')


def broken(lines: Iterable[str], margin: int = 0) -> list[str]:
    """Return lines of code; a line that is too long becomes several.

    The code has statements without structures and comments, and is later moved ``margin`` columns to the
    right.
    """
    found = []
    for line in lines:
        indent = len(line) - len(line.lstrip())
        found += [" " * indent + part for part in _laid(line.strip(), margin + indent, "")]
    return found


def _laid(text: str, column: int, behind: str, more: int = 0) -> list[str]:
    """Return the lines of a part of a statement; further ones begin below the first.

    Args:
        text: the part.
        column: the column it begins at.
        behind: the text that follows it on its last line.
        more: further columns of indentation for lines after the first, if it is broken at an operator.
    """
    if column + len(text) + len(behind) <= WIDTH:
        return [text]
    if found := re.fullmatch(rf"({_TEXT})(,?)", text):
        lines = _pieces(found[1][1:-1], WIDTH - column - 2, len(found[2] + behind))
        return [*lines[:-1], lines[-1] + found[2]]
    if head := _HEAD.match(text):
        return _below(head[0], text[head.end() :], column, behind)
    for separator in _LOOSEST_FIRST:
        parts = _split(text, separator)
        if len(parts) > 1:
            return _filled(parts, column, behind, more if separator[0] == " " else 0)
    begin = text.find("(") + 1
    if begin == 0 or '"' in text[:begin]:
        return [text]
    end = text.rindex(")")
    lines = _below(text[:begin], text[begin:end], column, text[end:] + behind)
    return [*lines[:-1], lines[-1] + text[end:]]


def _below(head: str, text: str, column: int, behind: str) -> list[str]:
    """Return the lines of a head and of the text behind it, whose further lines begin below its first one."""
    more = 4 if head[-1] == "(" and len(_split(text, ", ")) > 1 else 0
    lines = _laid(text, column + len(head), behind, more)
    return [head + lines[0], *(" " * len(head) + line for line in lines[1:])]


def _split(text: str, separator: str) -> list[str]:
    """Return the parts of a text, each with its separator. Those in brackets and in quotes do not count."""
    parts, begin, depth = [], 0, 0
    for found in re.finditer(rf"{_TEXT}|[(\[]|[)\]]|{separator}", text):
        depth += (found[0] in ("(", "[")) - (found[0] in (")", "]"))
        if depth == 0 and re.fullmatch(separator, found[0]):
            parts.append(text[begin : found.end()].rstrip())
            begin = found.end()
    return [*parts, text[begin:]]


def _filled(parts: list[str], column: int, behind: str, more: int) -> list[str]:
    """Return parts in as few lines as possible. A part that takes several lines shares none of them."""
    lines: list[str] = []
    is_whole = False  # whether the last part is on one line
    for number, part in enumerate(parts, 1):
        after = behind if number == len(parts) else ""
        if is_whole and column + len(lines[-1]) + 1 + len(part) + len(after) <= WIDTH:
            lines[-1] += f" {part}"
            continue
        indent = more if lines else 0
        laid = _laid(part, column + indent, after, 4)
        is_whole = len(laid) == 1
        lines += [" " * indent + line for line in laid]
    return lines


def _pieces(text: str, room: int, behind: int) -> list[str]:
    """Return a quoted text as several, broken behind blanks."""
    lines = [""]
    for word in re.findall(r"[^ ]* *", text):
        if lines[-1] and len(lines[-1] + word) > room:
            lines.append("")
        lines[-1] += word
    # The last piece leaves room for what follows it; if it cannot, its last word moves to a further piece.
    if len(lines[-1]) + behind > room and " " in lines[-1].rstrip():
        head, _, word = lines[-1].rstrip().rpartition(" ")
        lines[-1:] = [f"{head} ", word + lines[-1][len(lines[-1].rstrip()) :]]
    return [f'"{line}"' for line in lines]
