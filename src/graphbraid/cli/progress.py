"""Bars of long work on a terminal: how much is done, for how long, and the time left."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

from graphbraid.files.progress import Advance, listening
from graphbraid.files.writing import printable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress

LEAST_SECONDS = 0.5
"""A shorter stage has no bar."""


def shown(console: Console, *, quiet: bool) -> AbstractContextManager[None]:
    """Show the long stages of a block on a terminal; elsewhere, or if ``quiet``, do nothing."""
    return nullcontext() if quiet or not console.is_terminal else listening(Bars(console).stage)


class Bars:
    """A bar for each stage that is under way. They vanish with their stages."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress: Progress | None = None

    @contextmanager
    def stage(self, name: str, total: float | None) -> Generator[Advance]:
        """Show a stage until its block ends."""
        is_first = self._progress is None
        progress = self._progress = self._progress or self._started()
        task = progress.add_task(printable(name), total=total)
        try:
            yield lambda amount: progress.advance(task, amount)
        finally:
            progress.remove_task(task)
            if is_first:
                progress.stop()
                self._progress = None

    def _started(self) -> Progress:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        class Long(Progress):
            """The bars of stages that take long."""

            def get_renderables(self) -> Iterable[RenderableType]:
                yield self.make_tasks_table(
                    [task for task in self.tasks if (task.elapsed or 0.0) >= LEAST_SECONDS]
                )

        found = Long(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TimeElapsedColumn(),
            TextColumn("left", markup=False),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
        )
        found.start()
        return found
