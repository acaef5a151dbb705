"""What graphbraid raises. Each class also derives from the built-in error that a caller would expect."""

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class GraphbraidError(Exception):
    """Base class of every error that graphbraid raises on purpose; ``exit_code`` is the command line's."""

    exit_code = 1


class ConfigError(GraphbraidError, ValueError):
    """An invalid option or argument: the message names it, its value and what would be right."""

    exit_code = 2


class DataError(GraphbraidError, ValueError):
    """Broken or inconsistent input data: the message says where, what was found and what is needed."""

    exit_code = 3


class ResourceError(GraphbraidError, RuntimeError):
    """Too little memory or disk space, or a path that cannot be written."""

    exit_code = 4


class MissingPackageError(GraphbraidError, ImportError):
    """An optional package is missing: the message names it and the command that installs it."""

    exit_code = 5


class KernelError(GraphbraidError, RuntimeError):
    """A kernel variant was requested that this installation or processor does not have."""

    exit_code = 6


class TrainingError(GraphbraidError, RuntimeError):
    """Training cannot continue, for example after a loss that is not finite: the message names the step."""

    exit_code = 7


class RankError(GraphbraidError, RuntimeError):
    """A rank was lost, has stalled or has failed, so the job ends: the message names it and the cause."""

    exit_code = 8


class RunsAsWrittenWarning(UserWarning):
    """A compiled model, or a part of it, has no lowered form and runs as it is written: it lists which."""


@contextmanager
def needing(message: str) -> Iterator[None]:
    """Raise MissingPackageError with ``message`` where an import fails."""
    try:
        yield
    except ImportError as error:
        raise MissingPackageError(message) from error


def did_you_mean(name: object, known: Iterable[str], *, joined: bool = False) -> str:
    """Return a question that suggests the known name nearest to ``name``, ignoring case, or an empty string.

    It is a sentence of its own, to be put at the end of a message; with ``joined`` it follows a semicolon.
    """
    near = nearest_name(name, known)
    return "" if near is None else f"{'; did' if joined else ' Did'} you mean {near!r}?"


def nearest_name(name: object, known: Iterable[str]) -> str | None:
    """Return the known name nearest to ``name``, ignoring case; None if none is near."""
    by_lower = {one.lower(): one for one in known}
    near = difflib.get_close_matches(str(name).lower(), by_lower, n=1)
    return by_lower[near[0]] if near else None
