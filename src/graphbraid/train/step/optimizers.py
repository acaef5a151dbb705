"""Optimizers by name, by function or from an instance, and the schedules of their learning rate."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer, lr_scheduler

from graphbraid.errors import ConfigError, did_you_mean
from graphbraid.train.config import TrainConfig

PER_STEP = frozenset({"cosine", "linear", "onecycle"})
"""Schedulers that advance with every step; the others advance with every epoch."""
SCHEDULERS = (*sorted(PER_STEP), "plateau")


class LearningRateSchedule:
    """An optimizer's learning rate over a run, advanced every step, every epoch, or by the monitored metric.

    Args:
        config: options of the run; ``scheduler``, ``warmup_steps`` and ``eval_every`` matter.
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


# These need a closure, sparse gradients or other care that the trainer does not provide.
_UNFIT = frozenset({"optimizer", "lbfgs", "sparseadam"})
# Optimizers with a fused kernel in PyTorch, and the devices that have it.
_FUSED = {"adam": ("cpu", "cuda"), "adamw": ("cpu", "cuda"), "sgd": ("cpu", "cuda"), "adagrad": ("cpu",)}

_WRAPPED = ("add_param_group", "load_state_dict", "state_dict", "zero_grad")


def make_optimizer(config: TrainConfig, model: nn.Module) -> Optimizer:
    """Make the optimizer that ``config`` describes, over the model's parameters that require gradients.

    Raises:
        ConfigError: the name is unknown, the function does not return an optimizer, or an optimizer that was
            given does not hold the model's parameters.
    """
    params = [p for p in model.parameters() if p.requires_grad]
    if not params:
        raise ConfigError("the model has no parameter that requires gradients; there is nothing to train.")
    choice = config.optimizer
    if isinstance(choice, Optimizer):
        return _checked_ready(choice, params)
    if isinstance(choice, str):
        return _named_optimizer(choice, params, config)
    made = choice(params)
    if not isinstance(made, Optimizer):
        raise ConfigError(
            f"optimizer as a function must return a torch.optim.Optimizer; got {type(made).__name__}."
        )
    return made


def _named_optimizer(name: str, params: list[nn.Parameter], config: TrainConfig) -> Optimizer:
    known = {
        key.lower(): kind
        for key, kind in vars(torch.optim).items()
        if inspect.isclass(kind) and issubclass(kind, Optimizer) and key.lower() not in _UNFIT
    }
    if name.lower() not in known:
        raise ConfigError(
            f"optimizer must be one of {', '.join(sorted(known))}, a function or an optimizer; got {name!r}."
            + did_you_mean(name, known)
        )
    kind = known[name.lower()]
    takes = inspect.signature(kind).parameters
    options: dict[str, Any] = {"lr": config.lr, "weight_decay": config.weight_decay}
    if config.weight_decay and "weight_decay" not in takes:
        raise ConfigError(f"optimizer={name!r} has no weight_decay; got weight_decay={config.weight_decay}.")
    if "fused" in takes and _can_fuse(name.lower(), params):
        options["fused"] = True
    return _without_compiler(kind)(params, **{key: value for key, value in options.items() if key in takes})


def _without_compiler(kind: type[Optimizer]) -> type[Optimizer]:
    """Return the same class of optimizers, whose methods do not import torch's compiler.

    PyTorch wraps them so that ``torch.compile`` passes them over, and the first call of one imports the
    compiler, which takes longer than many a run. A run's optimizer is not compiled.
    """
    unwrapped = {name: inspect.unwrap(getattr(kind, name)) for name in _WRAPPED}
    step = torch.no_grad()(inspect.unwrap(kind.step))  # PyTorch's own wrapper does this beside the import
    return type(kind.__name__, (kind,), {**unwrapped, "step": step})


def _can_fuse(name: str, params: Iterable[nn.Parameter]) -> bool:
    """Return whether PyTorch's fused kernel supports all of these parameters."""
    devices = _FUSED.get(name, ())
    return all(p.is_floating_point() and p.device.type in devices for p in params)


def _checked_ready(optimizer: Optimizer, params: Iterable[nn.Parameter]) -> Optimizer:
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    if not any(id(p) in held for p in params):
        raise ConfigError(
            "the optimizer holds none of the model's parameters; make it from model.parameters() of the "
            "model given to the Trainer, after moving it to its device."
        )
    return optimizer
