"""Callbacks: hooks into a training run, and early stopping."""

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
    """The part of a Trainer that the callbacks of this package use."""

    @property
    def config(self) -> TrainConfig:
        """Configuration of the run."""
        ...

    @property
    def progress(self) -> Progress:
        """Position of the run."""
        ...

    @property
    def steps_per_epoch(self) -> int | None:
        """Number of optimizer steps per epoch; None before it is known."""
        ...

    @property
    def monitored(self) -> tuple[str, bool]:
        """Metric that decides which epoch is best, and whether larger is better."""
        ...

    def request_stop(self, status: Status = ...) -> None:
        """End the run after the current step or epoch."""
        ...


class Callback:
    """Base class of callbacks, whose methods do nothing until overridden.

    A callback may read the trainer (``trainer.progress``, ``trainer.model``, ``trainer.config``) and call
    ``trainer.request_stop()``, which ends the run after the current step. An error in a callback ends the
    run.
    State that must survive a resume goes through :meth:`state_dict` and :meth:`load_state_dict`.
    """

    def on_fit_start(self, trainer: Trainer) -> None:
        """Called before the first step, after all checks and the loading of a checkpoint, if any."""

    def on_epoch_start(self, trainer: Trainer, epoch: int) -> None:
        """Called when an epoch starts or, after a resume, continues at ``trainer.progress.step``."""

    def on_step_end(self, trainer: Trainer, record: StepRecord) -> None:
        """Called after an optimizer step."""

    def on_evaluate_start(self, trainer: Trainer, split: str) -> None:
        """Called when an evaluation of a split starts."""

    def on_epoch_end(self, trainer: Trainer, record: EpochRecord) -> None:
        """Called after the steps and the evaluation of an epoch."""

    def on_checkpoint(self, trainer: Trainer, path: Path) -> None:
        """Called after a checkpoint was written to ``path``."""

    def on_fit_end(self, trainer: Trainer, result: RunResult) -> None:
        """Called when the run has ended, having finished or been stopped."""

    def on_exception(self, trainer: Trainer, error: BaseException) -> None:
        """Called when the run ends with an error, which is raised again afterwards."""

    def state_dict(self) -> dict[str, Any]:
        """Return tensors and plain values to keep in checkpoints."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned."""


@typed
class EarlyStopping(Callback):
    """A callback that stops the run after ``patience`` evaluations without a better monitored metric.

    The count is part of ``trainer.progress``, so a resumed run stops where an uninterrupted one would.
    """

    def __init__(self, patience: int) -> None:
        self.patience = patience

    def on_fit_start(self, trainer: RunView) -> None:
        """Stop at once if a resumed run has run out of patience already."""
        self._check(trainer)

    def on_epoch_end(self, trainer: RunView, record: EpochRecord) -> None:
        """Stop when patience has run out."""
        self._check(trainer)

    def _check(self, trainer: RunView) -> None:
        if trainer.progress.evaluations_since_best >= self.patience:
            trainer.request_stop("early-stopped")


class Listeners:
    """The callbacks of one run of a Trainer, called in order."""

    def __init__(self, trainer: Trainer, callbacks: Iterable[Callback]) -> None:
        self._trainer, self._callbacks = trainer, list(callbacks)

    def add(self, callback: Callback) -> None:
        """Add a callback after the others."""
        self._callbacks.append(callback)

    def on_fit_start(self) -> None:
        """Call every callback's ``on_fit_start``."""
        for callback in self._callbacks:
            callback.on_fit_start(self._trainer)

    def on_epoch_start(self, epoch: int) -> None:
        """Call every callback's ``on_epoch_start``."""
        for callback in self._callbacks:
            callback.on_epoch_start(self._trainer, epoch)

    def on_step_end(self, record: StepRecord) -> None:
        """Call every callback's ``on_step_end``."""
        for callback in self._callbacks:
            callback.on_step_end(self._trainer, record)

    def on_evaluate_start(self, split: str) -> None:
        """Call every callback's ``on_evaluate_start``."""
        for callback in self._callbacks:
            callback.on_evaluate_start(self._trainer, split)

    def on_epoch_end(self, record: EpochRecord) -> None:
        """Call every callback's ``on_epoch_end``."""
        for callback in self._callbacks:
            callback.on_epoch_end(self._trainer, record)

    def on_checkpoint(self, path: Path) -> None:
        """Call every callback's ``on_checkpoint``."""
        for callback in self._callbacks:
            callback.on_checkpoint(self._trainer, path)

    def on_fit_end(self, result: RunResult) -> None:
        """Call every callback's ``on_fit_end``."""
        for callback in self._callbacks:
            callback.on_fit_end(self._trainer, result)

    def on_exception(self, error: BaseException) -> None:
        """Call every callback's ``on_exception``."""
        for callback in self._callbacks:
            callback.on_exception(self._trainer, error)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of each callback that has one, by position and class."""
        return {_key(i, c): state for i, c in enumerate(self._callbacks) if (state := c.state_dict())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of each callback; one without a saved state stays as it is."""
        for i, callback in enumerate(self._callbacks):
            if (key := _key(i, callback)) in state:
                callback.load_state_dict(state[key])


def _key(position: int, callback: Callback) -> str:
    return f"{position}:{type(callback).__qualname__}"
