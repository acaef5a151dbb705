"""What a training run tells its listeners, and early stopping."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphbraid.signatures import typed
from graphbraid.train.state import EpochRecord, RunResult, StepRecord

if TYPE_CHECKING:
    from graphbraid.train.trainer import Trainer


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

    def on_fit_start(self, trainer: Trainer) -> None:
        """Stop at once if a resumed run had run out of patience."""
        self._check(trainer)

    def on_epoch_end(self, trainer: Trainer, record: EpochRecord) -> None:
        """Stop when patience has run out."""
        self._check(trainer)

    def _check(self, trainer: Trainer) -> None:
        if trainer.progress.evaluations_since_best >= self.patience:
            trainer.request_stop("early-stopped")


class CallbackList(Callback):
    """Calls several callbacks in order."""

    def __init__(self, callbacks: Iterable[Callback]) -> None:
        self._callbacks = list(callbacks)

    def on_fit_start(self, trainer: Trainer) -> None:
        """Tell all."""
        for callback in self._callbacks:
            callback.on_fit_start(trainer)

    def on_epoch_start(self, trainer: Trainer, epoch: int) -> None:
        """Tell all."""
        for callback in self._callbacks:
            callback.on_epoch_start(trainer, epoch)

    def on_step_end(self, trainer: Trainer, record: StepRecord) -> None:
        """Tell all."""
        for callback in self._callbacks:
            callback.on_step_end(trainer, record)

    def on_evaluate_start(self, trainer: Trainer, split: str) -> None:
        """Tell all."""
        for callback in self._callbacks:
            callback.on_evaluate_start(trainer, split)

    def on_epoch_end(self, trainer: Trainer, record: EpochRecord) -> None:
        """Tell all."""
        for callback in self._callbacks:
            callback.on_epoch_end(trainer, record)

    def on_checkpoint(self, trainer: Trainer, path: Path) -> None:
        """Tell all."""
        for callback in self._callbacks:
            callback.on_checkpoint(trainer, path)

    def on_fit_end(self, trainer: Trainer, result: RunResult) -> None:
        """Tell all."""
        for callback in self._callbacks:
            callback.on_fit_end(trainer, result)

    def on_exception(self, trainer: Trainer, error: BaseException) -> None:
        """Tell all."""
        for callback in self._callbacks:
            callback.on_exception(trainer, error)

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
