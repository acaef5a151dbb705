"""ProgressDisplay: shows a run on the terminal, with a line per epoch and, on a TTY, a progress bar."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from graphbraid.train.callbacks import Callback, EpochRecord, RunResult, StepRecord

if TYPE_CHECKING:
    from graphbraid.train.trainer import Trainer

_STAGES = (
    ("sample", ("sample",)),
    ("gather", ("gather",)),
    ("wait", ("wait",)),
    ("model", ("forward", "backward")),
    ("eval", ("evaluate",)),
    ("epoch", ("epoch",)),
)
_REFRESH_SECONDS = 0.1


class ProgressDisplay(Callback):
    """A callback that shows loss, validation metric and seconds per stage of every epoch.

    On a terminal, a progress bar below shows the current epoch, the latest loss and the time left for the
    run; elsewhere (a file, a CI log) only the lines are written.

    Args:
        console: console to write to. If None, standard error.
        quiet: whether to write nothing.
    """

    def __init__(self, console: Console | None = None, *, quiet: bool = False) -> None:
        self._console = console or Console(stderr=True, markup=False, emoji=False)
        self._quiet = quiet
        self._bar: Progress | None = None
        self._shown_at = 0.0

    def on_fit_start(self, trainer: Trainer) -> None:
        """Write the heading and, for a resumed run, where it continues."""
        if self._quiet:
            return
        progress, config = trainer.progress, trainer.config
        if progress.global_step:
            self._write(
                f"resuming at epoch {progress.epoch + 1} of {config.epochs}, step {progress.step + 1}"
            )
        self._write(_heading(trainer.monitored[0]), style="bold")
        if self._console.is_terminal:
            self._start_bar(trainer)

    def on_epoch_start(self, trainer: Trainer, epoch: int) -> None:
        """Show the epoch in the bar."""
        if self._bar is not None:
            self._bar.update(
                self._bar.task_ids[0], what=f"epoch {epoch + 1}/{trainer.config.epochs}", refresh=True
            )

    def on_step_end(self, trainer: Trainer, record: StepRecord) -> None:
        """Advance the bar, at most ten times a second."""
        if self._bar is not None and time.monotonic() - self._shown_at > _REFRESH_SECONDS:
            self._shown_at = time.monotonic()
            self._bar.update(
                self._bar.task_ids[0], completed=record.global_step + 1, note=f"loss {record.loss:.4f}"
            )

    def on_evaluate_start(self, trainer: Trainer, split: str) -> None:
        """Show the evaluation in the bar."""
        if self._bar is not None:
            self._bar.update(
                self._bar.task_ids[0], completed=trainer.progress.global_step, note=f"evaluating {split}"
            )

    def on_epoch_end(self, trainer: Trainer, record: EpochRecord) -> None:
        """Write the epoch's line."""
        if not self._quiet:
            self._write(_line(record, trainer.config.epochs, trainer.monitored[0]))

    def on_fit_end(self, trainer: Trainer, result: RunResult) -> None:
        """Write how the run ended."""
        self._stop_bar()
        if not self._quiet:
            for line in summary(result):
                self._write(line)

    def on_exception(self, trainer: Trainer, error: BaseException) -> None:
        """Remove the bar, which leaves the terminal as it was."""
        self._stop_bar()

    def _start_bar(self, trainer: Trainer) -> None:
        columns = (
            TextColumn("{task.fields[what]}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            TimeElapsedColumn(),
            TextColumn("left", markup=False),
            TimeRemainingColumn(),
        )
        self._bar = Progress(*columns, console=self._console, transient=True, speed_estimate_period=120.0)
        total = trainer.config.epochs * (trainer.steps_per_epoch or 1)
        self._bar.add_task("run", total=total, completed=trainer.progress.global_step, what="", note="")
        self._bar.start()

    def _stop_bar(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _write(self, text: str, style: str = "") -> None:
        self._console.print(Text(text, style=style), soft_wrap=True)


def _heading(monitor: str) -> str:
    stages = "".join(f"{name:>9}" for name, _ in _STAGES)
    return f"{'epoch':>9} {'loss':>9} {'val ' + monitor:>14}  {stages}   (seconds)"


def _line(record: EpochRecord, epochs: int, monitor: str) -> str:
    val = f"{record.val[monitor]:.4f}{'*' if record.is_best else ' '}" if monitor in record.val else "- "
    stages = "".join(f"{sum(record.seconds[part] for part in parts):9.2f}" for _, parts in _STAGES)
    return f"{f'{record.epoch + 1}/{epochs}':>9} {record.train_loss:9.4f} {val:>15} {stages}"


def summary(result: RunResult) -> list[str]:
    """Return a few lines on how a run ended."""
    lines = [
        f"{result.status} after {result.num_epochs} epochs, {result.global_step} steps, "
        f"{result.seconds:.1f} s"
    ]
    if result.best_epoch is not None and result.best_value is not None:
        lines.append(f"best epoch {result.best_epoch + 1}: val {result.monitor} {result.best_value:.4f}")
    if result.test:
        lines.append("test: " + ", ".join(f"{name} {value:.4f}" for name, value in result.test.items()))
    if result.out_dir is not None:
        lines.append(f"files: {Path(result.out_dir)}")
        if result.status == "interrupted":
            lines.append("go on with resume=True")
    return lines
