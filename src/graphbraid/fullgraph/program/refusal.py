"""The error about a part of a model that has no lowered form."""

from __future__ import annotations

from torch import nn


class NotLoweredError(Exception):
    """Raised for a part of a model that has no lowered form.

    Attributes:
        part: name of the module or call.
        reason: why it has none, as a clause.
        needed: what would have to be in its place for it to be lowered, as a clause; may be empty.
    """

    def __init__(self, part: str, reason: str, needed: str = "") -> None:
        super().__init__(f"{part}: {reason}")
        self.part, self.reason, self.needed = part, reason, needed


def failed(model: nn.Module, error: Exception) -> NotLoweredError:
    """Return the error for a model that could not be read or lowered for an unforeseen reason."""
    lines = str(error).strip().splitlines()
    what = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return NotLoweredError(type(model).__name__, f"lowering it failed ({what})", "a report of this message")


def explained(why: NotLoweredError) -> str:
    """Return the text of the error, as ``explain()`` prints it."""
    needed = f" Needed: {why.needed}." if why.needed else ""
    return f"Runs uncompiled. {why.part}: {why.reason}.{needed}"


__all__ = ["NotLoweredError", "explained", "failed"]
