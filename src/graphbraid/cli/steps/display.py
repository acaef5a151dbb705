"""Output of ``graphbraid train``: its options, a line per epoch over a progress bar, and the results."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from graphbraid.cli.common import facts, say, table
from graphbraid.cli.run.settings import ResolvedRun
from graphbraid.train import Callback, EpochRecord, RunResult, StepRecord

if TYPE_CHECKING:
    from graphbraid.train import Trainer

# Label and note of each stage's clock; see graphbraid.train.step.step. Sampling overlaps with the model.
_STAGES = {
    "sample": ("sampling", "in the sampling threads, beside the model"),
    "gather": ("gathering", "in the sampling threads, beside the model"),
    "wait": ("waiting", "the model waited for a batch"),
    "model": ("model", "forward, backward and the optimizer's step"),
    "evaluate": ("evaluation", "validation"),
    "checkpoint": ("checkpoints", "writing them"),
    "epoch": ("all epochs", "on the wall"),
}


def show_plan(console: Console, run: ResolvedRun, about: Mapping[str, str]) -> None:
    """Print the resolved options, each with its source, and the facts about data, model and machine."""
    columns = {"option": "cyan", "value": "left", "from": "dim"}
    console.print(table(columns, run.rows(), "options"))
    console.print(facts(about.items()))
    console.print()


class EpochLines(Callback):
    """A callback that prints a line per epoch and, below, a progress bar over the current epoch's steps."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._widths: dict[str, int] | None = None
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[loss]}", markup=False),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task: TaskID | None = None

    def on_fit_start(self, trainer: Trainer) -> None:
        """Print whether the run is uncompiled or resumed, then show the bar."""
        if trainer.uncompiled_reason:
            say(self._console, "[yellow]uncompiled[/]  {}", trainer.uncompiled_reason)
        if trainer.progress.global_step:
            progress = trainer.progress
            say(self._console, "[green]resumed[/] at epoch {}, step {}", progress.epoch, progress.step)
        self._progress.start()

    def on_epoch_start(self, trainer: Trainer, epoch: int) -> None:
        """Restart the bar."""
        if self._task is not None:
            self._progress.remove_task(self._task)
        self._task = self._progress.add_task(
            f"epoch {epoch}", total=trainer.steps_per_epoch, completed=trainer.progress.step, loss=""
        )

    def on_step_end(self, trainer: Trainer, record: StepRecord) -> None:
        """Advance the bar."""
        if self._task is not None:
            self._progress.update(self._task, completed=record.step + 1, loss=f"loss {record.loss:.4f}")

    def on_evaluate_start(self, trainer: Trainer, split: str) -> None:
        """Show that an evaluation is running."""
        if self._task is not None:
            self._progress.update(self._task, loss=f"evaluating {split}")

    def on_epoch_end(self, trainer: Trainer, record: EpochRecord) -> None:
        """Print the epoch's line."""
        cells = _epoch_cells(record, trainer.monitored[0])
        if self._widths is None:
            self._widths = {name: max(len(name), 6) for name in cells}
            heading = "  ".join(f"{name:>{width}}" for name, width in self._widths.items())
            say(self._console, "[bold]{}[/]", heading)
        line = "  ".join(f"{cells.get(name, ''):>{width}}" for name, width in self._widths.items())
        say(self._console, "{}  [green]best[/]" if record.is_best else "{}", line)

    def on_fit_end(self, trainer: Trainer, result: RunResult) -> None:
        """Remove the bar, and print how rows travelled between ranks, if that was found."""
        self._progress.stop()
        if trainer.exchange:
            say(self._console, "[green]exchange[/]  {}", trainer.exchange)

    def on_exception(self, trainer: Trainer, error: BaseException) -> None:
        """Remove the bar."""
        self._progress.stop()


def _epoch_cells(record: EpochRecord, monitor: str) -> dict[str, str]:
    """Return the text of each column; times are in seconds."""
    cells = {"epoch": str(record.epoch), "loss": f"{record.train_loss:.4f}"}
    shown = {"val loss": "loss", f"val {monitor}": monitor}
    cells |= {title: f"{record.val[name]:.4f}" for title, name in shown.items() if name in record.val}
    seconds = record.seconds
    cells |= {f"{stage} s": f"{seconds.get(stage, 0.0):.2f}" for stage in ("sample", "gather")}
    cells["model s"] = f"{_model_seconds(seconds):.2f}"
    cells["epoch s"] = f"{seconds.get('epoch', 0.0):.2f}"
    return cells


def _model_seconds(seconds: Mapping[str, float]) -> float:
    return seconds.get("forward", 0.0) + seconds.get("backward", 0.0)


def stage_seconds(result: RunResult) -> dict[str, float]:
    """Return the seconds of each stage, summed over the run's epochs; with the checkpoint that ended it."""

    def total(stage: str) -> float:
        return sum(float(row.get(f"{stage}_seconds") or 0.0) for row in result.history)

    seconds = {stage: total(stage) for stage in _STAGES if stage != "model"}
    seconds["checkpoint"] += result.last_checkpoint_seconds
    seconds["model"] = total("forward") + total("backward")
    return {stage: seconds[stage] for stage in _STAGES}


def show_result(console: Console, result: RunResult, run_dir: Path) -> None:
    """Print the time per stage, the metrics and the run's files."""
    console.print()
    taken = stage_seconds(result).items()
    rows = [(_STAGES[stage][0], f"{seconds:.2f}", _STAGES[stage][1]) for stage, seconds in taken]
    console.print(table({"stage": "cyan", "seconds": "right", "": "dim"}, rows, "time per stage"))
    console.print()
    seconds = f"{result.seconds:.1f}"
    say(console, "[bold]{}[/] after {} epochs in {} s", result.status, result.num_epochs, seconds)
    if result.best_epoch is not None and result.best_value is not None:
        best = f"{result.best_value:.4f}"
        say(console, "best epoch {}: validation {} {}", result.best_epoch, result.monitor, best)
    if result.test:
        tests = (part for name, value in result.test.items() for part in (name, f"{value:.4f}"))
        say(console, "test " + ", ".join(["{} [bold]{}[/]"] * len(result.test)), *tests)
    say(console, "files in [bold]{}[/]: {}", run_dir, ", ".join(run_files(run_dir)))


def run_files(run_dir: Path) -> list[str]:
    """Return the names of the run's files, relative to its folder."""
    files = (path for path in run_dir.rglob("*") if path.is_file() and not path.name.startswith("."))
    return sorted(str(path.relative_to(run_dir)) for path in files)


def result_json(run: ResolvedRun, result: RunResult, run_dir: Path) -> dict[str, Any]:
    """Return what ``--json`` prints."""
    return {
        "run_dir": str(run_dir),
        "files": run_files(run_dir),
        "options": run.saved(),
        "stage_seconds": stage_seconds(result),
        "result": result.to_json(),
    }
