"""What is said of a part of a model that has no lowered form."""

from __future__ import annotations

from torch import nn


class NotLoweredError(Exception):
    """A part of a model that no operation stands for.

    Attributes:
        part: the module or call, by name.
        reason: why, as a clause.
        needed: what would have to be otherwise for it to be lowered, as a clause; may be empty.
    """

    def __init__(self, part: str, reason: str, needed: str = "") -> None:
        super().__init__(f"{part}: {reason}")
        self.part, self.reason, self.needed = part, reason, needed


def failed(model: nn.Module, error: Exception) -> NotLoweredError:
    """The refusal of a model that could not be read or lowered for a reason nobody foresaw."""
    lines = str(error).strip().splitlines()
    what = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return NotLoweredError(type(model).__name__, f"lowering it failed ({what})", "a report of this message")


def explained(why: NotLoweredError) -> str:
    """A refusal in words."""
    needed = f" Needed: {why.needed}." if why.needed else ""
    return f"Runs uncompiled. {why.part}: {why.reason}.{needed}"


__all__ = ["NotLoweredError", "explained", "failed"]
