"""Callbacks: hooks into a training run, the records of steps and epochs that they get, and early stopping."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from graphbraid.signatures import typed

if TYPE_CHECKING:
    from graphbraid.collective import Plan
    from graphbraid.train.trainer import Trainer  # so that users' callbacks may call all of its methods


Status = Literal["finished", "early-stopped", "stopped", "interrupted"]


@dataclass(frozen=True, kw_only=True, slots=True)
class StepRecord:
    """The result of one optimizer step."""

    epoch: int
    """Index of the epoch, from 0."""
    step: int
    """Index of the step within the epoch, from 0."""
    global_step: int
    """Index of the step within the run, from 0."""
    loss: float
    """Mean loss over the step's seeds."""
    num_seeds: int
    """Number of seeds of the step."""
    learning_rate: float
    """Learning rate of the step (first parameter group)."""
    grad_norm: float | None = None
    """L2 norm of all gradients together, before clipping."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochRecord:
    """The result of one epoch."""

    epoch: int
    """Index of the epoch, from 0."""
    global_step: int
    """Number of steps done in the run."""
    train_loss: float
    """Mean loss over the epoch's seeds, each computed at the step that used it."""
    learning_rate: float
    """Learning rate at the epoch's end."""
    val: dict[str, float]
    """Validation loss and metrics; empty if this epoch was not evaluated."""
    seconds: dict[str, float]
    """Seconds per stage (``STAGES`` in ``step/step.py``) of the part of the epoch that this process ran."""
    is_best: bool
    """Whether the monitored metric is the best so far."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Resources:
    """Resources that a run has used; for several ranks, only those of the first."""

    host_peak_bytes: int | None
    """Most memory that this process has held since it began, with pages of mapped files; None if unknown."""
    device_peak_bytes: int | None
    """Most memory that PyTorch has taken of the device since this process began; None without one."""
    placement: str
    """Where rows and lists lay, and why, as :meth:`Trainer.explain` says it."""
    reads: dict[str, int]
    """Reads of feature rows by tier, with those of evaluations, named as in ``TierCounts``; may be empty."""
    plan: Plan | None
    """Plan by which mini-batches were prepared; None without one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunResult:
    """The result of a run."""

    status: Status
    """How the run ended: ``finished`` (all epochs done), ``early-stopped`` (patience ran out), ``stopped`` (a
    callback requested it) or ``interrupted`` (Ctrl-C or SIGTERM)."""
    num_epochs: int
    """Number of epochs done."""
    global_step: int
    """Number of steps done."""
    monitor: str
    """Name of the validation metric that decides which epoch is best."""
    best_epoch: int | None
    """Index of the epoch with the best monitored metric; None if no epoch was evaluated."""
    best_value: float | None
    """Best value of the monitored metric; None if no epoch was evaluated."""
    test: dict[str, float]
    """Loss and metrics of the test split with the weights the model now holds; empty if not evaluated."""
    threshold: float | None
    """Probability from which on class 1 of two, or the only label, is predicted; None for one half."""
    history: list[dict[str, Any]]
    """One entry per finished epoch, with the columns of ``metrics.csv``."""
    seconds: float
    """Seconds that this call of ``fit`` took."""
    last_checkpoint_seconds: float
    """Seconds to save the run's position after the last row of ``history``."""
    out_dir: Path | None
    """Folder of the run's files; None if nothing was written."""
    resources: Resources
    """Resources of the run: peaks of memory, tiers of rows, and the plan of its mini-batches."""

    def to_json(self) -> dict[str, Any]:
        """Return plain values for ``result.json``."""
        return dataclasses.asdict(self) | {"out_dir": None if self.out_dir is None else str(self.out_dir)}

    def _repr_html_(self) -> str:
        from graphbraid.figures import epoch_charts, figures, notebook, result_rows, table

        return notebook("RunResult", table(result_rows(self.to_json())), figures(epoch_charts(self.history)))


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
