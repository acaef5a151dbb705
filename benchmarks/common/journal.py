"""What of a long benchmark is done already, kept in a file, so that it can be ended and begun again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.rows import put_rows, read_lines


class Journal:
    """Results by name, each with the command that it came from; kept beside what the commands made.

    Args:
        path: file of JSON lines; it is there with the first result.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def find(self, name: str, command: Sequence[str]) -> dict[str, Any] | None:
        """What a command gave under a name; None where that command was not run yet."""
        rows = (row for row in read_lines(self._path) if row["row"] == name)
        return next((row["found"] for row in rows if row["command"] == list(command[1:])), None)

    def keep(
        self, name: str, command: Sequence[str], found: dict[str, Any], *, voids: Iterable[str] = ()
    ) -> None:
        """Note what a command gave.

        Args:
            name: replaces what has it.
            command: its first word, the Python, is left out.
            found: the result.
            voids: names whose results came from an earlier one of this name, and count no more.
        """
        gone = set(voids)
        kept = [row for row in read_lines(self._path) if row["row"] not in gone]
        self._path.unlink(missing_ok=True)
        put_rows(self._path, [*kept, {"row": name, "command": list(command[1:]), "found": found}])
