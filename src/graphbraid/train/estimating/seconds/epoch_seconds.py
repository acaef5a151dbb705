"""EpochSeconds: how long a run's epochs take, part by part, and what comes once in a run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from graphbraid.estimates.trial import PartSeconds
from graphbraid.machine.contention import is_disturbed


def _times(seconds: float | None, factor: float) -> float | None:
    return None if seconds is None else seconds * factor


NOTHING = PartSeconds(None, "")
"""The time of a part that the run does not have."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochSeconds:
    """How long an epoch takes, and what a run takes once."""

    train: float
    """Seconds of its training steps."""
    evaluate: float | None = None
    """Seconds of its share of a validation (``eval_every``); None if there is none, or it is not known."""
    floor: float | None = None
    """Least seconds of its compiled step by the machine's rates; None for mini-batches."""
    how: str = ""
    """Where the times are from."""
    others: float | None = None
    """Share of the cores that other programs used while steps were tried; None if it is not known."""
    evaluate_how: str = ""
    """How the validation was tried, or why its time is not known; empty if there is none."""
    checkpoint: float | None = None
    """Seconds of the checkpoints that an epoch writes, but for that of a best one; None without a folder."""
    checkpoint_how: str = ""
    """What was written, or why nothing is known; empty without a folder."""
    first: float = 0.0
    """Seconds that the first epoch takes longer: memory is taken, pages of files are read."""
    test: float | None = None
    """Seconds of the test at the end; None if there is none, or it is not known."""
    test_how: str = ""
    """How it was tried, or why its time is not known; empty if there is none."""
    train_spread: float | None = None
    """Seconds by which the farthest of several tries lies off ``train``; None without tries to compare."""
    evaluate_spread: float | None = None
    """Likewise of ``evaluate``."""
    test_spread: float | None = None
    """Likewise of ``test``."""

    @property
    def explained(self) -> str:
        """Where the times are from, and whether other programs made them longer."""
        if not is_disturbed(self.others):
            return self.how
        return f"{self.how}, while other programs used {self.others:.0%} of the cores; alone, a run is faster"

    @property
    def total(self) -> float:
        """Seconds of an epoch: training, its share of a validation, and its checkpoints."""
        return self.train + (self.evaluate or 0.0) + (self.checkpoint or 0.0)

    @property
    def spread(self) -> float | None:
        """Seconds by which an epoch may lie off, as the tries of its parts did; None if that is not known."""
        if self.train_spread is None or (self.evaluate is not None and self.evaluate_spread is None):
            return None
        return self.train_spread + (self.evaluate_spread or 0.0)

    def of_run(self, epochs: int) -> float:
        """Return the seconds of a run of so many epochs, with what comes once."""
        return self.first + epochs * self.total + (self.test or 0.0)

    def parts(self) -> Iterator[tuple[str, PartSeconds]]:
        """Yield each part with its name; those of an epoch first."""
        yield "training", PartSeconds(self.train, self.explained, self.train_spread)
        if self.evaluate_how:
            yield "validation", PartSeconds(self.evaluate, self.evaluate_how, self.evaluate_spread)
        if self.checkpoint_how:
            yield "checkpoints", PartSeconds(self.checkpoint, self.checkpoint_how)
        if self.first:
            yield "(first epoch)", PartSeconds(self.first, "longer: memory is taken, pages of files are read")
        if self.test_how:
            yield "(test)", PartSeconds(self.test, f"once, at the end; {self.test_how}", self.test_spread)

    def writing(self, checkpoints: PartSeconds) -> EpochSeconds:
        """Return the times of a run that writes checkpoints."""
        return replace(self, checkpoint=checkpoints.seconds, checkpoint_how=checkpoints.how)

    def scaled(self, factor: float, why: str) -> EpochSeconds:
        """Return the times on hardware where they are ``factor`` times as long; a disk's stay."""
        return replace(
            self,
            train=self.train * factor,
            evaluate=_times(self.evaluate, factor),
            floor=_times(self.floor, factor),
            first=self.first * factor,
            test=_times(self.test, factor),
            train_spread=_times(self.train_spread, factor),
            evaluate_spread=_times(self.evaluate_spread, factor),
            test_spread=_times(self.test_spread, factor),
            how=f"{self.how}; {why}",
        )

    def with_tiers(self, seconds: float, how: str) -> EpochSeconds:
        """Return the times of a run that trains ``seconds`` an epoch with its rows in tiers.

        Its evaluations are taken to slow down as its training does.
        """
        slower = max(seconds / self.train, 1.0) if self.train else 1.0
        return replace(
            self,
            train=seconds,
            evaluate=_times(self.evaluate, slower),
            test=_times(self.test, slower),
            how=how,
            train_spread=None,  # of another training
            evaluate_spread=_times(self.evaluate_spread, slower),
            test_spread=_times(self.test_spread, slower),
        )


class Pace(NamedTuple):
    """The seconds of an epoch's training, by its reads that a disk serves."""

    points: tuple[tuple[float, float], ...]
    """Reads of the disk and the seconds with so many, both ascending; the first with none."""
    how: str
    """How they are known."""

    def seconds(self, disk_reads: float) -> float:
        """Return the seconds of an epoch with ``disk_reads``."""
        reads, seconds = zip(*self.points, strict=True)
        return float(np.interp(disk_reads, reads, seconds))
