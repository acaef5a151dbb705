"""The table of bad inputs: what each case is, how it is provoked, and the error that must come.

The cases stand in ``bad_*.py``; ``python -m tests.robustness.errors_page`` makes ``docs/errors.md`` of them.
"""

from __future__ import annotations

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
    """The mistake, as the documentation says it: the docstring of ``provoke``."""
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
        return self.provoke.__name__


CASES: list[Case] = []


def command(kind: str, code: int, *says: str) -> Callable[..., Any]:
    """Register a function that returns the arguments of a ``graphbraid`` command that must fail."""
    return _register(kind, code, None, says)


def call(kind: str, error: type[GraphbraidError], *says: str) -> Callable[..., Any]:
    """Register a function whose body must raise ``error``."""
    return _register(kind, error.exit_code, error, says)


def _register(
    kind: str, code: int, error: type[GraphbraidError] | None, says: tuple[str, ...]
) -> Callable[..., Any]:
    def register(provoke: Callable[..., Any]) -> Callable[..., Any]:
        assert says, f"{provoke.__name__}: a case must say what its message holds"
        assert all(case.id != provoke.__name__ for case in CASES), f"{provoke.__name__} is there twice"
        assert provoke.__doc__, f"{provoke.__name__}: its docstring is the mistake, as the page says it"
        what = provoke.__doc__.removesuffix(".")
        CASES.append(Case(kind=kind, what=what, code=code, error=error, says=says, provoke=provoke))
        return provoke

    return register
