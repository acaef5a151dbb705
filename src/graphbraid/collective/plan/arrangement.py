"""Arrangement: a division of the cores of a machine without a device; TimedArrangement: its measured time.

``cores.py`` chooses between them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pydantic import ConfigDict

from graphbraid.collective.plan.records import STRICT
from graphbraid.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class Arrangement:
    """A division of the cores between preparing batches and training."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    workers: int
    """Number of threads that prepare batches."""
    threads: int
    """Number of threads of the model's operators; if ``turns``, while the workers rest."""
    turns: bool = False
    """Whether the model uses only those cores on which no worker is busy."""

    def __post_init__(self) -> None:
        if self.workers < 1 or self.threads < 1:
            raise ConfigError(
                f"workers and threads must be at least 1; got workers={self.workers}, threads={self.threads}"
            )

    @property
    def name(self) -> str:
        """Description of the arrangement in words."""
        turns = ", in turns" if self.turns else ""
        return f"{self.workers} sampling, {self.threads} training{turns}"


@dataclass(frozen=True, kw_only=True, slots=True)
class TimedArrangement:
    """An arrangement and the measured time of a mini-batch with it."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    cores: Arrangement
    seconds: float
    """Seconds per step, from preparing the batch to training on it."""
