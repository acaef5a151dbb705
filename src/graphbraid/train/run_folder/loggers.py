"""The log files of a run: ``steps.jsonl``, ``metrics.csv`` and, if requested, TensorBoard or other loggers.

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
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from graphbraid.errors import ConfigError, DataError, ResourceError, needing
from graphbraid.files.opening import open_descriptor
from graphbraid.files.writing import atomic_write, resource_error
from graphbraid.signatures import typed
from graphbraid.train.callbacks import Callback, EpochRecord, RunResult, StepRecord
from graphbraid.train.config import TrainConfig

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

    def epoch(self, row: Mapping[str, Any]) -> None:
        """Write an epoch's row, by column."""
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


@typed
class LogTo(Callback):
    """A callback that writes to a logger of PyTorch Lightning or Fabric: W&B, MLflow, Comet, CSV and others.

    Example::

        from pytorch_lightning.loggers import WandbLogger

        trainer = Trainer(model, graph, callbacks=[LogTo(WandbLogger(project="shop", offline=True))])

    ``train/loss`` and ``train/learning_rate`` are written each step, ``val/...`` and ``seconds/...`` each
    epoch, ``test/...`` at the end, and the options of the run as its hyperparameters. Of several ranks the
    first one writes.

    Args:
        logger: object with ``log_metrics(metrics, step)``; ``log_hyperparams(params)``, ``save()`` and
            ``finalize(status)`` are called where it has them.

    Raises:
        ConfigError: ``logger`` has no ``log_metrics``.
    """

    def __init__(self, logger: Any) -> None:
        if not callable(getattr(logger, "log_metrics", None)):
            raise ConfigError(
                f"logger must have log_metrics, as Lightning's have; got {type(logger).__name__}"
            )
        self.logger, self._writes = logger, True

    def on_fit_start(self, trainer: Trainer) -> None:
        """Write the options that differ from the defaults, and ``info``."""
        self._writes = trainer.comm is None or trainer.comm.rank == 0
        plain, own = TrainConfig().to_json(), trainer.config.to_json()
        options = {name: value for name, value in own.items() if value != plain[name]}
        self._call("log_hyperparams", options | dict(trainer.info))

    def on_step_end(self, trainer: Trainer, record: StepRecord) -> None:
        """Write a step's loss and learning rate."""
        of_step = {"train/loss": record.loss, "train/learning_rate": record.learning_rate}
        self._write(of_step, record.global_step)

    def on_epoch_end(self, trainer: Trainer, record: EpochRecord) -> None:
        """Write an epoch's metrics and times at its last step."""
        of_epoch = {f"val/{name}": value for name, value in record.val.items()}
        of_epoch |= {f"seconds/{name}": value for name, value in record.seconds.items()}
        self._write(of_epoch, record.global_step - 1)

    def on_fit_end(self, trainer: Trainer, result: RunResult) -> None:
        """Write the test's metrics, and finish the logger's run."""
        of_test = {f"test/{name}": value for name, value in result.test.items()}
        self._write(of_test, max(result.global_step - 1, 0))
        self._call("save")
        self._call("finalize", "success" if result.status != "interrupted" else "aborted")

    def on_exception(self, trainer: Trainer, error: BaseException) -> None:
        """Finish the logger's run as failed."""
        self._call("finalize", "failed")

    def _write(self, values: dict[str, float], step: int) -> None:
        if self._writes and values:
            self.logger.log_metrics(values, step=step)

    def _call(self, name: str, *values: Any) -> None:
        if self._writes and callable(method := getattr(self.logger, name, None)):
            method(*values)


class _Events:
    """TensorBoard's writer as a logger."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def log_metrics(self, values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def finalize(self, _status: str) -> None:
        self._writer.close()


class TensorBoard(LogTo):
    """A callback that writes losses, metrics and stage times as TensorBoard events.

    Raises:
        MissingPackageError: ``tensorboard`` is not installed.
    """

    def __init__(self, folder: Path) -> None:
        with needing("tensorboard=True needs the package tensorboard: pip install 'graphbraid[tensorboard]'"):
            from torch.utils.tensorboard import SummaryWriter
        self._open: Any = SummaryWriter
        self._folder, self._writes = folder, False  # until there is a writer

    def on_fit_start(self, trainer: Trainer) -> None:
        """Open the writer; a resumed run hides the events past its checkpoint."""
        step = trainer.progress.global_step
        writer = self._open(str(self._folder), purge_step=step, flush_secs=10)
        self.logger, self._writes = _Events(writer), True
