"""Arrangement: who has the cores of a machine without a device; Trial: how fast it was (see ``cores.py``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pydantic import ConfigDict

from graphbraid.collective.plan.records import STRICT
from graphbraid.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class Arrangement:
    """Who has the cores."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    workers: int
    """Threads that prepare batches."""
    threads: int
    """Threads of the model's operators; where they take turns, while the workers rest."""
    turns: bool = False
    """The model has only those cores that no worker is busy on."""

    def __post_init__(self) -> None:
        if self.workers < 1 or self.threads < 1:
            raise ConfigError(
                f"workers and threads must be at least 1; got workers={self.workers}, threads={self.threads}"
            )

    @property
    def name(self) -> str:
        """For readers."""
        turns = ", in turns" if self.turns else ""
        return f"{self.workers} sampling, {self.threads} training{turns}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """An arrangement and what a mini-batch took with it."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    cores: Arrangement
    seconds: float
    """Of an epoch's steps, per step: prepared and trained."""
