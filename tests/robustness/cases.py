"""The table of bad inputs: what each case is, how it is provoked, and the error that must come.

The cases stand in ``bad_*.py``; ``python -m tests.robustness.errors_page`` makes ``docs/errors.md`` of them.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from graphbraid.errors import GraphbraidError


@dataclass(frozen=True, kw_only=True)
class Case:
    """One bad input."""

    kind: str
    """Section of the table."""
    what: str
    """The mistake, as the documentation says it."""
    code: int
    """Exit code of the command."""
    error: type[GraphbraidError] | None
    """What the Python call raises; None for a command."""
    says: tuple[str, ...]
    """Texts that must all be in the message: what was wrong, where, what would be right."""
    provoke: Callable[..., Any]
    """Takes a Workplace. A command's returns its arguments, a Python case makes the call that raises."""

    @property
    def id(self) -> str:
        return re.sub(r"\W+", "-", self.what.lower()).strip("-")


CASES: list[Case] = []


def command(kind: str, code: int, *says: str) -> Callable[..., Any]:
    """Register a function that returns the arguments of a ``graphbraid`` command that must fail.

    A decorator of a function whose docstring is the mistake, or called with the mistake and the function.
    """
    return _register(kind, code, None, says)


def call(kind: str, error: type[GraphbraidError], *says: str) -> Callable[..., Any]:
    """Register in the same ways a function whose body must raise ``error``."""
    return _register(kind, error.exit_code, error, says)


def _register(
    kind: str, code: int, error: type[GraphbraidError] | None, says: tuple[str, ...]
) -> Callable[..., Any]:
    def register(what: str | Callable[..., Any], provoke: Callable[..., Any] | None = None) -> Any:
        if not isinstance(what, str):
            provoke, what = what, (what.__doc__ or "").removesuffix(".")
        assert provoke and what, f"{provoke}: its docstring is the mistake, as the page says it"
        assert says, f"{what}: a case must say what its message holds"
        assert all((kind, what) != (case.kind, case.what) for case in CASES), f"{what} is there twice"
        CASES.append(Case(kind=kind, what=what, code=code, error=error, says=says, provoke=provoke))
        return provoke

    return register
