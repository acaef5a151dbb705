"""Runs a command that compiles, and shows one line of progress instead of all it prints.

    python scripts/with_progress.py MESSAGE COMMAND ...

Ninja's ``[12/34]`` lines move a bar where standard error is a terminal, else each quarter is a line. What the
command printed is shown where it fails.
"""

from __future__ import annotations

import re
import subprocess
import sys

NINJA = re.compile(r"^\s*\[(\d+)/(\d+)\]")
BAR = 30
PARTS = 4
"""Lines that tell the progress where there is no terminal."""


class Progress:
    """The steps that are done, as a bar or as a few lines."""

    def __init__(self, message: str) -> None:
        self._message, self._is_terminal = message, sys.stderr.isatty()
        self._told = -1
        self._write(message, end="" if self._is_terminal else "\n")

    def show(self, done: int, total: int) -> None:
        """``done`` of ``total`` files are compiled."""
        if self._is_terminal:
            full = BAR * done // max(total, 1)
            self._write(f"\r{self._message} [{'#' * full}{'.' * (BAR - full)}] {done}/{total}", end="")
        elif (part := PARTS * done // max(total, 1)) > self._told:
            self._told = part
            self._write(f"{self._message} {done}/{total}")

    def close(self) -> None:
        """End the bar's line."""
        if self._is_terminal:
            self._write("")

    @staticmethod
    def _write(text: str, end: str = "\n") -> None:
        print(text, end=end, file=sys.stderr, flush=True)


def main() -> int:
    """Run the command; its exit status."""
    message, *command = sys.argv[1:]
    progress, printed = Progress(message), list[str]()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            printed.append(line)
            if step := NINJA.match(line):
                progress.show(int(step[1]), int(step[2]))
    progress.close()
    if process.returncode:
        sys.stderr.writelines(printed)
    return process.returncode


if __name__ == "__main__":
    sys.exit(main())
