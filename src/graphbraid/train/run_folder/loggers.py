"""The log files of a run: ``steps.jsonl``, ``metrics.csv`` and, if requested, TensorBoard events.

A checkpoint holds the sizes of both text files at the time it was written (:meth:`RunLog.position`). A
resumed run truncates them to these sizes, so that no step is missing or repeated, however the last run ended.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import io
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from graphbraid.errors import DataError, MissingPackageError, ResourceError
from graphbraid.files.opening import open_descriptor
from graphbraid.files.writing import atomic_write, resource_error
from graphbraid.train.callbacks import Callback, EpochRecord, RunResult, StepRecord

if TYPE_CHECKING:
    from graphbraid.train.trainer import Trainer

STEPS = "steps.jsonl"
METRICS = "metrics.csv"


class RunLog:
    """The text logs, with a line per step and a row per epoch; readers always see complete lines."""

    def __init__(
        self, folder: Path, columns: Sequence[str], *, position: dict[str, int] | None = None
    ) -> None:
        """Start new files, or with ``position`` continue from a checkpoint."""
        self._columns = list(columns)
        self._steps = _LineFile(folder / STEPS, None if position is None else position[STEPS])
        try:
            self._metrics = _LineFile(folder / METRICS, None if position is None else position[METRICS])
        except BaseException:
            self._steps.close()
            raise
        if position is None:
            self._metrics.write(_csv_line(self._columns))

    def step(self, record: StepRecord) -> None:
        """Write a step; its loss reads back with the same bits."""
        line = {key: value for key, value in dataclasses.asdict(record).items() if value is not None}
        self._steps.write(json.dumps(line) + "\n")

    def epoch(self, record: EpochRecord) -> None:
        """Write an epoch."""
        row = record.row()
        self._metrics.write(_csv_line([row.get(name, "") for name in self._columns]))

    def position(self) -> dict[str, int]:
        """Flush the files to the disk and return their sizes in bytes."""
        return {STEPS: self._steps.sync(), METRICS: self._metrics.sync()}

    def close(self) -> None:
        """Close the files."""
        self._steps.close()
        self._metrics.close()


class _LineFile:
    """An append-only text file that can be truncated."""

    def __init__(self, path: Path, size: int | None) -> None:
        self._path = path
        try:
            if size is None:
                with atomic_write(path):  # an empty file of its own
                    pass
            self._file: BinaryIO = os.fdopen(open_descriptor(path, os.O_RDWR), "r+b", buffering=0)
        except FileNotFoundError:
            raise DataError(
                f"{path} is missing, but the checkpoint to resume from counts on it; restore it, or start "
                "anew with overwrite=True."
            ) from None
        except OSError as error:
            raise ResourceError(f"cannot write {path}: {error.strerror}; choose another out_dir.") from error
        if size is not None:
            self._cut_back(size)

    def _cut_back(self, size: int) -> None:
        there = self._file.seek(0, os.SEEK_END)
        if there < size:
            self._file.close()
            raise DataError(
                f"{self._path} has {there} bytes, but when the checkpoint was written it had {size}; it was "
                "changed since. Restore it, or start anew with overwrite=True."
            )
        self._file.truncate(size)
        self._file.seek(size)

    def write(self, text: str) -> None:
        """Append text unbuffered, so that a killed process does not lose a finished line."""
        with self._disk_errors():
            self._file.write(text.encode())

    def sync(self) -> int:
        """Flush the file to the disk and return its size in bytes."""
        with self._disk_errors():
            os.fsync(self._file.fileno())
            return self._file.tell()

    @contextlib.contextmanager
    def _disk_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise resource_error(error, self._path) or error from error

    def close(self) -> None:
        self._file.close()


def _csv_line(values: Sequence[Any]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(values)
    return text.getvalue()


class TensorBoard(Callback):
    """A callback that writes losses, metrics and stage times as TensorBoard events."""

    def __init__(self, folder: Path) -> None:
        """Check that the package is installed.

        Raises:
            MissingPackageError: ``tensorboard`` is not installed.
        """
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise MissingPackageError(
                "tensorboard=True needs the package tensorboard: pip install 'graphbraid[tensorboard]'"
            ) from error
        self._make: Any = SummaryWriter
        self._folder = folder
        self._writer: Any = None

    def on_fit_start(self, trainer: Trainer) -> None:
        """Open the writer; a resumed run hides the events past its checkpoint."""
        self._writer = self._make(str(self._folder), purge_step=trainer.progress.global_step)

    def on_step_end(self, trainer: Trainer, record: StepRecord) -> None:
        """Write a step's loss and learning rate."""
        self._writer.add_scalar("train/loss", record.loss, record.global_step)
        self._writer.add_scalar("train/learning_rate", record.learning_rate, record.global_step)

    def on_epoch_end(self, trainer: Trainer, record: EpochRecord) -> None:
        """Write an epoch's metrics and times at its last step."""
        for name, value in record.val.items():
            self._writer.add_scalar(f"val/{name}", value, record.global_step - 1)
        for name, value in record.seconds.items():
            self._writer.add_scalar(f"seconds/{name}", value, record.global_step - 1)
        self._writer.flush()

    def on_fit_end(self, trainer: Trainer, result: RunResult) -> None:
        """Close the writer."""
        self._close()

    def on_exception(self, trainer: Trainer, error: BaseException) -> None:
        """Close the writer."""
        self._close()

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
