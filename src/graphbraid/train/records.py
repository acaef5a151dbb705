"""Where a run stands, and what its steps, epochs and end report."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Status = Literal["finished", "early-stopped", "stopped", "interrupted"]


@dataclass(kw_only=True, slots=True)
class Progress:
    """The position of a run, kept in every checkpoint: what comes next, and what is known so far."""

    epoch: int = 0
    """The epoch under way, from 0."""
    step: int = 0
    """Steps of this epoch that are done."""
    global_step: int = 0
    """Steps of the whole run that are done."""
    loss_sum: float = 0.0
    """Sum over this epoch's seed nodes of their loss."""
    num_seeds: int = 0
    """Seed nodes of this epoch so far."""
    best_value: float | None = None
    """Best monitored value so far."""
    best_epoch: int | None = None
    """Epoch of the best value."""
    evaluations_since_best: int = 0
    """Evaluations since then."""
    history: list[dict[str, Any]] = field(default_factory=list)
    """One entry per finished epoch: what ``metrics.csv`` holds."""

    def add_step(self, loss_sum: float, num_seeds: int) -> None:
        """Go to the next step, after one over ``num_seeds`` seed nodes whose losses make ``loss_sum``."""
        self.step += 1
        self.global_step += 1
        self.loss_sum += loss_sum
        self.num_seeds += num_seeds

    def start_next_epoch(self) -> None:
        """Go to the first step of the next epoch."""
        self.epoch += 1
        self.step, self.loss_sum, self.num_seeds = 0, 0.0, 0

    def note(self, value: float, maximize: bool) -> bool:
        """Take in a monitored value of this epoch; True if it is the best so far (NaN never is)."""
        better = not math.isnan(value) and (
            self.best_value is None or (value > self.best_value if maximize else value < self.best_value)
        )
        if better:
            self.best_value, self.best_epoch, self.evaluations_since_best = value, self.epoch, 0
        else:
            self.evaluations_since_best += 1
        return better

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a checkpoint."""
        return dataclasses.asdict(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class StepRecord:
    """One optimizer step."""

    epoch: int
    """Epoch, from 0."""
    step: int
    """Step within the epoch, from 0."""
    global_step: int
    """Step within the run, from 0."""
    loss: float
    """Mean loss over the step's seed nodes."""
    num_seeds: int
    """Seed nodes of the step."""
    learning_rate: float
    """Learning rate of the step (first parameter group)."""
    grad_norm: float | None = None
    """L2 norm of all gradients together, before clipping."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochRecord:
    """One finished epoch."""

    epoch: int
    """Epoch, from 0."""
    global_step: int
    """Steps of the run that are done."""
    train_loss: float
    """Mean loss over the epoch's seed nodes, each at the step that used it."""
    learning_rate: float
    """Learning rate at the epoch's end."""
    val: dict[str, float]
    """Validation loss and metrics; empty where this epoch was not evaluated."""
    seconds: dict[str, float]
    """Seconds per stage (see ``clock.py``), of the part of the epoch that this process ran."""
    is_best: bool
    """Whether the monitored metric is the best so far."""

    def row(self) -> dict[str, Any]:
        """Flat form for ``metrics.csv``."""
        row: dict[str, Any] = {
            "epoch": self.epoch,
            "global_step": self.global_step,
            "train_loss": self.train_loss,
        }
        row |= {f"val_{name}": value for name, value in self.val.items()}
        row |= {"learning_rate": self.learning_rate, "is_best": self.is_best}
        return row | {f"{name}_seconds": value for name, value in self.seconds.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class RunResult:
    """How a run ended."""

    status: Status
    """``finished``: all epochs; ``early-stopped``: patience ran out; ``stopped``: a callback asked for it;
    ``interrupted``: Ctrl-C or SIGTERM."""
    num_epochs: int
    """Epochs that are done."""
    global_step: int
    """Steps that are done."""
    monitor: str
    """Name of the validation metric that says which epoch is best."""
    best_epoch: int | None
    """Epoch with the best monitored metric; None if no epoch was evaluated."""
    best_value: float | None
    """Its value."""
    test: dict[str, float]
    """Loss and metrics of the test split with the weights the model now holds; empty if not evaluated."""
    history: list[dict[str, Any]]
    """One entry per finished epoch: what ``metrics.csv`` holds."""
    seconds: float
    """Seconds this call of ``fit`` took."""
    out_dir: Path | None
    """Folder of the run's files."""

    def to_json(self) -> dict[str, Any]:
        """Plain values for ``result.json``."""
        return dataclasses.asdict(self) | {"out_dir": None if self.out_dir is None else str(self.out_dir)}
