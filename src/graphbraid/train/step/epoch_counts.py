"""EpochCounts: notes what an epoch of training read, in the tiers that report it."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class NotesEpochs(Protocol):
    """Optional protocol of sources of rows and of lists that report what an epoch has read."""

    @property
    def counts(self) -> Any:
        """What was read so far."""
        ...

    def note_epoch(self, before: Any) -> None:
        """Take what was read since ``before``, ``counts`` then, as an epoch."""
        ...


class EpochCounts:
    """What tiers had read when an epoch began.

    Args:
        tiers: sources of rows and of lists; others than :class:`NotesEpochs` are left out.
    """

    def __init__(self, *tiers: object) -> None:
        self._before = [(tier, tier.counts) for tier in tiers if isinstance(tier, NotesEpochs)]

    def end(self) -> None:
        """Note the epoch, which was trained to its end."""
        for tier, before in self._before:
            tier.note_epoch(before)
