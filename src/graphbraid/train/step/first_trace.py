"""FirstTrace: the timeline of the first epoch that a plan ran, written once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from graphbraid.loader.batch_loader import BatchLoader


class FirstTrace:
    """The trace of the first epoch that a loader prepares by a plan, or of the part of it that it does.

    Args:
        path: file to write. If None, none is written.
        loader: the loader; one without a plan has no timeline.
    """

    def __init__(self, path: Path | None, loader: BatchLoader) -> None:
        self._path, self._loader = (path if loader.plan is not None else None), loader

    def write(self, num_batches: int) -> None:
        """Write the latest iteration's timeline, unless one was written before.

        Args:
            num_batches: batches in an epoch.
        """
        executor = self._loader.executor
        if self._path is None or executor is None:
            return
        from graphbraid.collective.run.trace import write_trace

        write_trace(self._path, executor.ops, executor.plan, num_batches=num_batches)
        self._path = None
