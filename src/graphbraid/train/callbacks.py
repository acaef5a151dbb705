"""Callbacks: what a training run tells its listeners, and early stopping."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from graphbraid.signatures import typed
from graphbraid.train.config import TrainConfig
from graphbraid.train.records import EpochRecord, Progress, RunResult, Status, StepRecord

if TYPE_CHECKING:
    from graphbraid.train.trainer import Trainer  # so that users' callbacks may call all of its methods


class RunView(Protocol):
    """What the listeners of this package read of a Trainer, and ask of it."""

    @property
    def config(self) -> TrainConfig:
        """How it trains."""
        ...

    @property
    def progress(self) -> Progress:
        """Where the run stands."""
        ...

    @property
    def steps_per_epoch(self) -> int | None:
        """Optimizer steps of an epoch."""
        ...

    @property
    def monitored(self) -> tuple[str, bool]:
        """The metric that says which epoch is best, and whether larger is better."""
        ...

    def request_stop(self, status: Status = ...) -> None:
        """End the run after the step or epoch under way."""
        ...


class Callback:
    """Base of listeners: each method does nothing until overridden.

    A callback may read the trainer (``trainer.progress``, ``trainer.model``, ``trainer.config``) and call
    ``trainer.request_stop()``, which ends the run after the current step. An error in a callback ends the
    run.
    State that must survive a resume goes through :meth:`state_dict` and :meth:`load_state_dict`.
    """

    def on_fit_start(self, trainer: Trainer) -> None:
        """Everything is checked and a checkpoint, if any, is loaded; the first step comes next."""

    def on_epoch_start(self, trainer: Trainer, epoch: int) -> None:
        """An epoch starts, or goes on after a resume (``trainer.progress.step`` says where)."""

    def on_step_end(self, trainer: Trainer, record: StepRecord) -> None:
        """The optimizer made a step."""

    def on_evaluate_start(self, trainer: Trainer, split: str) -> None:
        """An evaluation starts."""

    def on_epoch_end(self, trainer: Trainer, record: EpochRecord) -> None:
        """An epoch's steps and its evaluation are done."""

    def on_checkpoint(self, trainer: Trainer, path: Path) -> None:
        """A checkpoint was written."""

    def on_fit_end(self, trainer: Trainer, result: RunResult) -> None:
        """The run ended, by itself or because it was told to stop."""

    def on_exception(self, trainer: Trainer, error: BaseException) -> None:
        """The run ends with an error, which is raised again after this."""

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain values to keep in checkpoints."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave."""


@typed
class EarlyStopping(Callback):
    """Stops the run after ``patience`` evaluations without a better monitored metric.

    The count lives in ``trainer.progress``, so a resumed run stops where an uninterrupted one would.
    """

    def __init__(self, patience: int) -> None:
        self.patience = patience

    def on_fit_start(self, trainer: RunView) -> None:
        """Stop at once if a resumed run had run out of patience."""
        self._check(trainer)

    def on_epoch_end(self, trainer: RunView, record: EpochRecord) -> None:
        """Stop when patience has run out."""
        self._check(trainer)

    def _check(self, trainer: RunView) -> None:
        if trainer.progress.evaluations_since_best >= self.patience:
            trainer.request_stop("early-stopped")


class Listeners:
    """The callbacks of one run of a Trainer, told in order."""

    def __init__(self, trainer: Trainer, callbacks: Iterable[Callback]) -> None:
        self._trainer, self._callbacks = trainer, list(callbacks)

    def add(self, callback: Callback) -> None:
        """Tell one more, after the others."""
        self._callbacks.append(callback)

    def on_fit_start(self) -> None:
        """Tell all."""
        for callback in self._callbacks:
            callback.on_fit_start(self._trainer)

    def on_epoch_start(self, epoch: int) -> None:
        """Tell all."""
        for callback in self._callbacks:
            callback.on_epoch_start(self._trainer, epoch)

    def on_step_end(self, record: StepRecord) -> None:
        """Tell all."""
        for callback in self._callbacks:
            callback.on_step_end(self._trainer, record)

    def on_evaluate_start(self, split: str) -> None:
        """Tell all."""
        for callback in self._callbacks:
            callback.on_evaluate_start(self._trainer, split)

    def on_epoch_end(self, record: EpochRecord) -> None:
        """Tell all."""
        for callback in self._callbacks:
            callback.on_epoch_end(self._trainer, record)

    def on_checkpoint(self, path: Path) -> None:
        """Tell all."""
        for callback in self._callbacks:
            callback.on_checkpoint(self._trainer, path)

    def on_fit_end(self, result: RunResult) -> None:
        """Tell all."""
        for callback in self._callbacks:
            callback.on_fit_end(self._trainer, result)

    def on_exception(self, error: BaseException) -> None:
        """Tell all."""
        for callback in self._callbacks:
            callback.on_exception(self._trainer, error)

    def state_dict(self) -> dict[str, Any]:
        """State of all, by position and class, where they have any."""
        return {_key(i, c): state for i, c in enumerate(self._callbacks) if (state := c.state_dict())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Give each its own state back; a callback that is new keeps its fresh state."""
        for i, callback in enumerate(self._callbacks):
            if (key := _key(i, callback)) in state:
                callback.load_state_dict(state[key])


def _key(position: int, callback: Callback) -> str:
    return f"{position}:{type(callback).__qualname__}"
