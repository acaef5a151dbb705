"""LearningRateSchedule: a learning-rate scheduler by name or function, advanced by steps or by epochs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer, lr_scheduler

from graphbraid.errors import ConfigError, did_you_mean
from graphbraid.train.config import TrainConfig

PER_STEP = frozenset({"cosine", "linear", "onecycle"})
"""Schedulers that advance with every step; the others advance with every epoch."""
SCHEDULERS = (*sorted(PER_STEP), "plateau")


class LearningRateSchedule:
    """An optimizer's learning rate over a run, advanced every step, every epoch, or by the monitored metric.

    Args:
        config: options of the run, of which ``scheduler``, ``warmup_steps`` and ``eval_every`` matter.
        optimizer: optimizer whose parameter groups hold the rate.
        total_steps: number of steps of the whole run, which a named curve spans.
        maximize: whether a larger monitored metric is better.

    Raises:
        ConfigError: the name is unknown, or the function does not return a scheduler.
    """

    def __init__(
        self, config: TrainConfig, optimizer: Optimizer, *, total_steps: int, maximize: bool
    ) -> None:
        self._optimizer = optimizer
        self._kind = config.scheduler
        self._scheduler = _make_scheduler(config, optimizer, total_steps, maximize)

    @property
    def learning_rate(self) -> float:
        """Current learning rate of the first parameter group."""
        return float(self._optimizer.param_groups[0]["lr"])

    def after_step(self) -> None:
        """Advance a scheduler that goes by steps."""
        if self._scheduler is not None and self._kind in PER_STEP:
            self._scheduler.step()

    def after_epoch(self, monitored: float | None) -> None:
        """Advance a scheduler that goes by epochs, with the validation metric if there was one."""
        if self._scheduler is None or self._kind in PER_STEP:
            return
        if isinstance(self._scheduler, lr_scheduler.ReduceLROnPlateau):
            if monitored is not None:
                self._scheduler.step(monitored)
        else:
            self._scheduler.step()

    def state_dict(self) -> dict[str, Any]:
        """Return the state to keep in a checkpoint."""
        return {} if self._scheduler is None else self._scheduler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state from a checkpoint."""
        if self._scheduler is not None:
            self._scheduler.load_state_dict(state)


def _make_scheduler(config: TrainConfig, optimizer: Optimizer, total_steps: int, maximize: bool) -> Any:
    choice = config.scheduler
    if choice is None:
        return None
    if not isinstance(choice, str):
        made = choice(optimizer)
        if not callable(getattr(made, "step", None)):
            raise ConfigError(
                f"scheduler as a function must return a scheduler with step(); got {type(made).__name__}."
            )
        return made
    if choice == "onecycle":
        highest = [group["lr"] for group in optimizer.param_groups]
        return lr_scheduler.OneCycleLR(optimizer, max_lr=highest, total_steps=total_steps + 1)
    if choice == "plateau":
        if config.eval_every == 0:
            raise ConfigError(
                "scheduler='plateau' follows the validation metric, but eval_every=0 never evaluates."
            )
        return lr_scheduler.ReduceLROnPlateau(
            optimizer, mode="max" if maximize else "min", factor=0.5, patience=5
        )
    if choice in ("cosine", "linear"):
        return lr_scheduler.LambdaLR(optimizer, _ramp(choice, config.warmup_steps, total_steps))
    raise ConfigError(
        f"scheduler must be one of {', '.join(SCHEDULERS)}, a function or None; got {choice!r}."
        + did_you_mean(choice, SCHEDULERS)
    )


def _ramp(shape: str, warmup: int, total: int) -> Callable[[int], float]:
    """Return the learning rate's factor by step, which rises over ``warmup`` steps and then falls to zero."""

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / (warmup + 1)
        done = min(1.0, (step - warmup) / max(1, total - warmup))
        return 0.5 * (1.0 + math.cos(math.pi * done)) if shape == "cosine" else 1.0 - done

    return factor
