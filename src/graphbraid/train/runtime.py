"""What a run sets up of PyTorch: device, precision, seeds, threads, optimizer; its signals and its lock."""

from __future__ import annotations

import contextlib
import inspect
import logging
import math
import random
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import FrameType
from typing import Any, Literal

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer, lr_scheduler

from graphbraid.errors import ConfigError, DataError, did_you_mean
from graphbraid.fullgraph.device import Device, device_at
from graphbraid.ops import rng
from graphbraid.train.config import TrainConfig

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ModelPlace:
    """Where and how a run's model computes."""

    device: torch.device
    precision: Literal["float32", "bfloat16"] = "float32"
    compiled: bool = True
    """Whether mini-batches run by graphbraid's operators where the model has a lowered form."""

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context of the precision, for forward pass and loss."""
        if self.precision == "float32":
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)


def place_of(config: TrainConfig) -> ModelPlace:
    """Return the place that a config names. ``cuda`` without a number is this rank's current device."""
    kind, _, index = config.device.partition(":")
    if kind == "auto":
        kind = "cuda" if torch.cuda.is_available() else "cpu"
    if kind == "cpu":
        place = torch.device("cpu")
    else:
        place = torch.device(kind, int(index or torch.cuda.current_device()))
    return ModelPlace(place, config.precision, config.compiled)


def device_named(name: str) -> Device:
    """Return the device for ``cpu``, ``cuda``, ``cuda:N`` or ``auto``, for counts of its memory."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return device_at(torch.device(name))


def warn_of_slow_precision(config: TrainConfig, device: torch.device) -> None:
    """Log a warning if the run's precision takes longer on its processor than float32."""
    if config.precision == "bfloat16" and device.type == "cpu" and not _computes_bfloat16():
        _log.warning(
            "precision bfloat16: this processor has no instructions for it (AVX-512 or AMX), so that matrix "
            "products take many times as long as in float32; leave precision out"
        )


def _computes_bfloat16() -> bool:
    """Return whether torch multiplies matrices of bfloat16 by this processor's own instructions."""
    supported = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
    return supported is None or bool(supported())


def seed_everything(seed: int) -> None:
    """Seed the global generators of torch, NumPy and Python."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 (a user's code may draw from the old global generator)
    random.seed(seed)


def seed_step(seed: int, epoch: int, step: int, rank: int, device: torch.device) -> None:
    """Seed the generators, which dropout draws from, of CPU and ``device`` for a rank's share of a step."""
    key = rng.mix(rng.batch_key(seed, epoch, step) ^ rng.mix(rank + 1)) >> 1
    if device.type == "cpu":
        torch.default_generator.manual_seed(key)
    else:  # which takes half a millisecond, also for devices that are not there
        torch.manual_seed(key)


def random_state() -> dict[str, Any]:
    """Return the state of every global generator, in a form that loads with ``weights_only``."""
    name, keys, position, has_gauss, gauss = np.random.get_state()  # noqa: NPY002
    version, internal, gauss_next = random.getstate()
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "numpy": [
            str(name),
            torch.from_numpy(np.asarray(keys).astype(np.int64)),
            int(position),
            int(has_gauss),
            float(gauss),
        ],
        "python": [version, torch.tensor(internal, dtype=torch.int64), gauss_next],
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def set_random_state(state: dict[str, Any]) -> None:
    """Restore the state of every global generator from the result of :func:`random_state`.

    Raises:
        DataError: the state was taken with another number of CUDA devices, or is not valid.
    """
    try:
        torch.set_rng_state(state["torch"].cpu())
        name, keys, position, has_gauss, gauss = state["numpy"]
        if not 0 <= position <= len(keys):  # NumPy would read beyond its words
            raise ValueError(f"a position of {position} among {len(keys)} words")
        np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, gauss))  # noqa: NPY002
        version, internal, gauss_next = state["python"]
        random.setstate((version, tuple(internal.tolist()), gauss_next))
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
        raise DataError(f"a generator does not take its state from the checkpoint: {error}") from None
    if "cuda" in state:
        if len(state["cuda"]) != torch.cuda.device_count():
            raise DataError(
                f"the checkpoint holds the random state of {len(state['cuda'])} CUDA devices; here are "
                f"{torch.cuda.device_count()}. Resume on a machine like the first."
            )
        torch.cuda.set_rng_state_all([part.cpu() for part in state["cuda"]])


@contextlib.contextmanager
def random_state_kept() -> Iterator[None]:
    """Restore every global generator after the ``with`` block, however it ends."""
    state = random_state()
    try:
        yield
    finally:
        set_random_state(state)


@contextlib.contextmanager
def torch_settings(config: TrainConfig) -> Iterator[None]:
    """Set torch's threads and determinism as the config says, and restore them after the ``with`` block."""
    threads, before = torch.get_num_threads(), _determinism()
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    if config.deterministic:
        torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        if before != _determinism():  # only then: setting it imports torch's compiler, which takes a second
            torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def _determinism() -> tuple[bool, bool]:
    enabled = torch.are_deterministic_algorithms_enabled()
    return enabled, torch.is_deterministic_algorithms_warn_only_enabled()


_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequested(Exception):  # noqa: N818 (it ends an evaluation and is not an error)
    """An evaluation was cut short by a signal; the trainer catches this."""


class SignalGuard:
    """A context manager that records the first SIGINT or SIGTERM in :attr:`signal` instead of raising.

    The second one raises ``KeyboardInterrupt``. Outside the main thread, where Python does not allow signal
    handlers to be set, the guard does nothing.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._former: dict[int, Any] = {}

    def __enter__(self) -> SignalGuard:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                self._former[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._former.items():
            # A handler that was not set from Python (None) cannot be restored from Python.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._former = {}

    def check(self) -> None:
        """Raise :class:`StopRequested` if a signal was received."""
        if self.signal is not None:
            raise StopRequested

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
            raise KeyboardInterrupt
        self.signal = number


_LOOK_SECONDS = 0.05


class TrainerLock:
    """A lock by which threads wait for each other, except for a training run."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._training: int | None = None

    @contextlib.contextmanager
    def take(self, *, trains: bool = False) -> Iterator[None]:
        """Hold the lock during the ``with`` block; nested calls (from callbacks) may take it again.

        Other threads do not wait for a run that ``trains``.

        Raises:
            ConfigError: another thread is training.
        """
        while not self._lock.acquire(timeout=_LOOK_SECONDS):
            if self._training is not None:
                raise ConfigError(
                    "another thread is in this Trainer's fit(); call it when fit() has returned, or from a "
                    "callback, which runs between two steps"
                )
        before = self._training
        try:
            self._training = threading.get_ident() if trains else before
            yield
        finally:
            self._training = before
            self._lock.release()


# ---- the optimizer and its learning rate

PER_STEP = frozenset({"cosine", "linear", "onecycle"})
"""Schedulers that advance with every step; the others advance with every epoch."""
SCHEDULERS = (*sorted(PER_STEP), "plateau")


class LearningRateSchedule:
    """An optimizer's learning rate over a run, advanced every step, every epoch, or by the monitored metric.

    A named curve spans ``total_steps``, those of the whole run. ``maximize`` says whether a larger monitored
    metric is better.

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
    """Make the optimizer that ``config`` describes, over the model's parameters that require gradients."""
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
    try:
        return _without_compiler(kind)(params, **{key: options[key] for key in options if key in takes})
    except ValueError as error:  # such as Muon's, which takes matrices alone
        raise ConfigError(f"optimizer={name!r} does not take the model's parameters: {error}") from error


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
