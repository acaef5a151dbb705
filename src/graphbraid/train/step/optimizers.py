"""Making of optimizers by name, by function or from an instance."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from graphbraid.errors import ConfigError, did_you_mean
from graphbraid.train.config import TrainConfig

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
