"""Device, precision, random seeds and threads of a run, and the lock of a Trainer's calls."""

from __future__ import annotations

import contextlib
import logging
import random
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from graphbraid.errors import ConfigError, DataError
from graphbraid.fullgraph.device import Device, device_at
from graphbraid.sampling import rng
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
        np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, gauss))  # noqa: NPY002
        version, internal, gauss_next = state["python"]
        random.setstate((version, tuple(internal.tolist()), gauss_next))
    except (RuntimeError, ValueError) as error:
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


def nbytes(tensor: Tensor) -> int:
    """Return the bytes of a tensor's elements."""
    return tensor.numel() * tensor.element_size()


_LOOK_SECONDS = 0.05


class TrainerLock:
    """A lock by which threads wait for each other, except for a training run."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._training: int | None = None

    @contextlib.contextmanager
    def take(self, *, trains: bool = False) -> Iterator[None]:
        """Hold the lock during the ``with`` block; nested calls (from callbacks) may take it again.

        Args:
            trains: whether this is a training run, for which other threads do not wait.

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
