"""What graphbraid raises. Each class also is the built-in error a caller expects; both can be caught."""

import difflib
from collections.abc import Iterable


class GraphbraidError(Exception):
    """Base of every error graphbraid raises on purpose; ``exit_code`` is what the command line ends with."""

    exit_code = 1


class ConfigError(GraphbraidError, ValueError):
    """An option or argument that cannot be meant: says the option, the value and what would be right."""

    exit_code = 2


class DataError(GraphbraidError, ValueError):
    """Input data that is broken or does not fit together: says where, what was found and what is needed."""

    exit_code = 3


class ResourceError(GraphbraidError, RuntimeError):
    """Too little memory or disk, or a place that cannot be written."""

    exit_code = 4


class MissingPackageError(GraphbraidError, ImportError):
    """An optional package is needed: names it and the command that installs it."""

    exit_code = 5


class KernelError(GraphbraidError, RuntimeError):
    """A kernel variant was asked for that this installation or processor does not have."""

    exit_code = 6


class TrainingError(GraphbraidError, RuntimeError):
    """Training cannot go on, as with a loss that is not finite: says epoch and step."""

    exit_code = 7


def did_you_mean(name: object, known: Iterable[str], *, joined: bool = False) -> str:
    """A question that names the known name nearest to ``name``, whatever its case, or nothing.

    A sentence of its own, for the end of a message; ``joined`` makes it go on after a semicolon instead.
    """
    by_lower = {one.lower(): one for one in known}
    near = difflib.get_close_matches(str(name).lower(), by_lower, n=1)
    if not near:
        return ""
    return f"{'; did' if joined else ' Did'} you mean {by_lower[near[0]]!r}?"
