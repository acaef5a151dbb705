"""ProgressDisplay: shows a run on the terminal, with a line per epoch and, on a TTY, a progress bar."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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

from graphbraid.files.writing import printable
from graphbraid.train.callbacks import Callback, EpochRecord, RunResult, StepRecord

if TYPE_CHECKING:
    from graphbraid.train.trainer import Trainer

_STAGES = {
    "sample": ("sample",),
    "gather": ("gather",),
    "wait": ("wait",),
    "model": ("forward", "backward"),
    "eval": ("evaluate",),
    "epoch": ("epoch",),
}
"""Columns of seconds, each with the stages of the clock (``graphbraid.train.step.step``) that it adds up."""


class ProgressDisplay(Callback):
    """A callback that shows loss, validation metric and seconds per stage of every epoch.

    On a terminal, a progress bar below shows the current epoch, the latest loss and the time left for the
    run; elsewhere (a file, a CI log) only the lines are written. Epochs count from 0, as in the run's files.

    Args:
        console: console to write to. If None, standard error.
        quiet: whether to write nothing.
    """

    def __init__(self, console: Console | None = None, *, quiet: bool = False) -> None:
        self._console = console or Console(stderr=True, markup=False, emoji=False)
        self._quiet = quiet
        self._bar: Progress | None = None

    def on_fit_start(self, trainer: Trainer) -> None:
        """Write whether the run is uncompiled or resumed, the baseline and the heading; show the bar."""
        progress = trainer.progress
        if trainer.uncompiled_reason:
            self._write(("uncompiled", "yellow"), f"  {trainer.uncompiled_reason}")
        if progress.global_step:
            self._write(("resumed", "green"), f" at epoch {progress.epoch}, step {progress.step}")
        if trainer.baseline:
            self._write(("baseline", "green"), f"  {trainer.baseline}")
        stages = "".join(f"{name:>8}" for name in _STAGES)
        metric = f"val {trainer.monitored[0]}"
        self._write((f"{'epoch':>5} {'loss':>9} {'val loss':>9} {metric:>13}{stages}   (seconds)", "bold"))
        if self._console.is_terminal and not self._quiet:
            self._bar = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[note]}", markup=False),
                TimeElapsedColumn(),
                TextColumn("left", markup=False),
                TimeRemainingColumn(),
                console=self._console,
                transient=True,
                speed_estimate_period=120.0,
            )
            total = trainer.config.epochs * (trainer.steps_per_epoch or 1)
            self._bar.add_task("run", total=total, completed=progress.global_step, note="")
            self._bar.start()

    def on_epoch_start(self, trainer: Trainer, epoch: int) -> None:
        """Show the epoch in the bar."""
        self._show(description=f"epoch {epoch} of {trainer.config.epochs}", refresh=True)

    def on_step_end(self, trainer: Trainer, record: StepRecord) -> None:
        """Advance the bar."""
        self._show(completed=record.global_step + 1, note=f"loss {record.loss:.4f}")

    def on_evaluate_start(self, trainer: Trainer, split: str) -> None:
        """Show the evaluation in the bar."""
        self._show(note=f"evaluating {split}")

    def on_epoch_end(self, trainer: Trainer, record: EpochRecord) -> None:
        """Write the epoch's line."""
        loss, metric = (
            f"{record.val[name]:.4f}" if name in record.val else "-"
            for name in ("loss", trainer.monitored[0])
        )
        seconds = "".join(f"{sum(record.seconds[part] for part in parts):8.2f}" for parts in _STAGES.values())
        line = f"{record.epoch:5} {record.train_loss:9.4f} {loss:>9} {metric:>13}{seconds}"
        self._write(line, ("  best" if record.is_best else "", "green"))

    def on_fit_end(self, trainer: Trainer, result: RunResult) -> None:
        """Write how rows travelled between ranks, if that was found, and how the run ended."""
        self._stop()
        if trainer.exchange:
            first, *others = trainer.exchange.splitlines()
            self._write(("exchange", "green"), f"  {first}")
            for line in others:
                self._write(f"          {line}")
        again = "; resume=True goes on" if result.status == "interrupted" and result.out_dir else ""
        steps = f"{result.num_epochs} epochs, {result.global_step} steps, {result.seconds:.1f} s"
        self._write((result.status, "bold"), f" after {steps}{again}")
        if result.best_epoch is not None and result.best_value is not None:
            best = f"{result.monitor} {result.best_value:.4f}"
            self._write(f"best epoch {result.best_epoch}: validation {best}")
        if result.threshold is not None:
            self._write(f"class 1 is predicted from a probability of {result.threshold:.4f} on")
        if result.test:
            self._write("test " + ", ".join(f"{name} {value:.4f}" for name, value in result.test.items()))
        if result.out_dir is not None:
            self._write("files in ", (str(result.out_dir), "bold"))

    def on_exception(self, trainer: Trainer, error: BaseException) -> None:
        """Remove the bar, which leaves the terminal as it was."""
        self._stop()

    def _show(self, **changes: Any) -> None:
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], **changes)

    def _stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _write(self, *parts: str | tuple[str, str]) -> None:
        """Write a line of texts, some of them with a style; none of them can control the terminal."""
        if self._quiet:
            return
        pairs = ((part, "") if isinstance(part, str) else part for part in parts)
        line = Text.assemble(*((printable(text), style) for text, style in pairs))
        self._console.print(line, highlight=False, soft_wrap=True)
