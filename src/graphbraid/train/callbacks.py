"""Callbacks: hooks into a training run, and early stopping."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphbraid.signatures import typed
from graphbraid.train.records import EpochRecord, RunResult, StepRecord

if TYPE_CHECKING:
    from graphbraid.train.trainer import Trainer  # so that users' callbacks may call all of its methods


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

    def on_fit_start(self, trainer: Trainer) -> None:
        """Stop at once if a resumed run has run out of patience already."""
        self._check(trainer)

    def on_epoch_end(self, trainer: Trainer, record: EpochRecord) -> None:
        """Stop when patience has run out."""
        self._check(trainer)

    def _check(self, trainer: Trainer) -> None:
        if trainer.progress.evaluations_since_best >= self.patience:
            trainer.request_stop("early-stopped")


class Listeners:
    """The callbacks of one run of a Trainer, called in order."""

    def __init__(self, trainer: Trainer, callbacks: Iterable[Callback]) -> None:
        self._trainer, self._callbacks = trainer, list(callbacks)

    def add(self, callback: Callback) -> None:
        """Add a callback after the others."""
        self._callbacks.append(callback)

    def call(self, method: Callable[..., None], *args: Any) -> None:
        """Call a method of :class:`Callback`, such as ``Callback.on_step_end``, of every callback."""
        for callback in self._callbacks:
            getattr(callback, method.__name__)(self._trainer, *args)

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
