"""Records of estimates: what a run holds in a memory, part by part, and the phase in which it holds most."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Mode = Literal["sampled", "full"]
"""How a run trains, once ``auto`` has chosen."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Need:
    """A part of what a run holds."""

    name: str
    nbytes: int
    why: str = ""
    """How it was counted."""
    mapped: bool = False
    """Whether these are pages of a file, which count as the process's memory until the system drops them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Needs:
    """What a run holds in one memory: parts for the whole run, and in each phase some more."""

    held: tuple[Need, ...]
    """Held from the first step to the last."""
    phases: tuple[Need, ...] = ()
    """What each phase (a step, a validation, the test) holds at its peak beside these, one at a time."""

    @property
    def nbytes(self) -> int:
        """Peak in bytes: what is held, and the most of a phase."""
        return sum(need.nbytes for need in self.held) + self.most

    @property
    def most(self) -> int:
        """Bytes of the phase that holds most."""
        return max((need.nbytes for need in self.phases), default=0)

    @property
    def must_bytes(self) -> int:
        """Peak without pages of files, which the system drops where memory is short."""
        return self.nbytes - sum(need.nbytes for need in self.held if need.mapped)

    def bytes_of(self, name: str) -> int:
        """Return the bytes of the parts of this name; 0 if there are none."""
        return sum(need.nbytes for need in (*self.held, *self.phases) if need.name == name)

    def rows(self) -> Iterator[tuple[str, int, str]]:
        """Yield name, bytes and reason of each part that takes some; phases are marked as such."""
        for need in self.held:
            if need.nbytes:
                yield need.name, need.nbytes, need.why + "; pages of a file" * need.mapped
        for need in self.phases:
            if need.nbytes:
                counts = "" if need.nbytes == self.most else "; a later or earlier phase holds more"
                yield f"({need.name})", need.nbytes, need.why + counts
