"""ProgramError: a mistake in a program's text, with its place and a hint."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from graphbraid.errors import ConfigError, nearest_name


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A place in a program's text, both numbers counted from 1."""

    line: int
    column: int


class ProgramError(ConfigError):
    """A mistake in a program.

    Args:
        place: where it is; None if the program is not at fault alone, but what was given with it.
        message: what is wrong.
        hint: what would be right; empty if the message says it.
    """

    def __init__(self, place: Place | None, message: str, hint: str = "") -> None:
        self.place, self.message, self.hint = place, message, hint
        self.source = ""
        """Name of the program's file."""
        self.text = ""
        """The line of the program, as it is written."""
        super().__init__(message)

    def within(self, source: str, text: str) -> ProgramError:
        """Return this error with the name of the file and the line it is in."""
        self.source = source
        if self.place is not None:
            lines = text.splitlines()
            self.text = lines[self.place.line - 1] if self.place.line <= len(lines) else ""
        return self

    def __str__(self) -> str:
        said = f"{self.message}: {self.hint}" if self.hint else self.message
        if self.place is None:
            return said
        head = f"{self.source or 'program'}:{self.place.line}:{self.place.column}: {said}"
        if not self.text.strip():
            return head
        pad = "".join("\t" if c == "\t" else " " for c in self.text[: self.place.column - 1])
        return f"{head}\n  {self.text}\n  {pad}^"


def hint_of(name: str, known: Iterable[str]) -> str:
    """Return a hint: the known name nearest to ``name``, or else all that are known."""
    names = list(known)
    near = nearest_name(name, names)
    return f"known are {', '.join(names)}" if near is None else f"did you mean {near}?"


__all__ = ["Place", "ProgramError", "hint_of"]
