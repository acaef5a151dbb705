"""What is said of a part of a model that has no lowered form."""

from __future__ import annotations


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


__all__ = ["NotLoweredError"]
