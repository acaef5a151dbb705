"""What a case is: its name, the random numbers that the name alone decides, and what came of it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

FINDINGS = ("signal", "hang", "raw", "differs", "lost", "broken")
"""Statuses that fail the fuzz; ``ok`` and ``refused`` (by a clear error) do not.

``lost`` is a file of the user's, ``broken`` a fault of the fuzz itself.
"""


@dataclass(frozen=True)
class Name:
    """``kind:seed:number``: enough to run a case again."""

    kind: str
    seed: int
    number: int

    @classmethod
    def parse(cls, text: str) -> Name:
        kind, seed, number = text.split(":")
        return cls(kind, int(seed), int(number))

    def __str__(self) -> str:
        return f"{self.kind}:{self.seed}:{self.number}"

    def random(self) -> random.Random:
        """The case's own numbers: the same in every process and Python (strings are hashed with SHA-512)."""
        return random.Random(str(self))


@dataclass(frozen=True)
class Verdict:
    """What came of a case."""

    status: str
    """``ok``, ``refused`` or one of :data:`FINDINGS`."""
    cause: str = ""
    """Where it came from, without the case's own values: equal for the cases that one mend will mend."""
    detail: str = ""

    def plain(self) -> dict[str, str]:
        return asdict(self)


@dataclass(frozen=True)
class Planned:
    """A case, ready to run: what it does in words, and the doing."""

    text: str
    run: Callable[[], Verdict]


class Kind(Protocol):
    """A kind of cases: a module of this package."""

    def prepare(self, folder: Path) -> None:
        """Make, once, in a process of its own, what its cases start from."""

    def plan(self, numbers: random.Random, number: int, folder: Path) -> Planned:
        """A case, to be run in the working directory, which is its own."""


def shorten(value: Any, limit: int = 160) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= limit else text[: limit - 3] + "..."
