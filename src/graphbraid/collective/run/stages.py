"""Stage operators: their protocols, and the registry ``(stage, hardware) -> operator``.

A mini-batch goes through three stages. *Batching* samples and gathers it, on the CPU's threads (route 0) or
on the device itself (route 1). *Transfer* moves a batch prepared on the CPU to the device. *Model* is the
caller's training step; its operator only marks its beginning and end. The factory registered for a stage and
hardware makes one operator per loader. A new accelerator only registers its own; ``docs/collective.md`` shows
how, step by step.

An operator needs no base class: it is checked against its stage's protocol by its attributes. Optional
abilities stand in the protocols' docstrings; they are used if an operator, or an accelerator, has them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

import torch

from graphbraid.collective.run.lookahead import RowBuffer
from graphbraid.errors import ConfigError, ResourceError, did_you_mean
from graphbraid.graph import ScaledFeatures, SparseFeatures
from graphbraid.sampling.config import SamplerConfig, SeedSchedule
from graphbraid.sampling.minibatch.mini_batch import MiniBatch
from graphbraid.sampling.rows.by_id import bytes_of
from graphbraid.sampling.rows.device_cache import DeviceCache
from graphbraid.sampling.source import BatchSource
from graphbraid.signatures import typed


class DeviceMemoryError(ResourceError):
    """A device has no memory left for a batch; the executor goes on with fewer buffers."""


class WorkerDiedError(ResourceError):
    """A worker that prepares batches is gone, such as a killed process; the executor uses the other route."""


@runtime_checkable
class Accelerator(Protocol):
    """A device unknown to torch; it names the hardware of its operators."""

    hardware: str
    """Hardware name of the operators for transfer, model and batching on the device."""
    host: str
    """Hardware name of the operator for batching on the CPU: ``"cpu"`` except for emulations."""


@runtime_checkable
class ReportsMemory(Accelerator, Protocol):
    """Optional protocol of an accelerator that says how much memory it has free, and its link's rate.

    From these ``tiers="auto"`` of a Trainer chooses how many feature rows stay on it.
    """

    link_bytes_per_second: float | None
    """Rate at which batches are copied; None if it is not known."""

    def free_bytes(self) -> int | None:
        """Return the bytes of free memory; None if that is not known."""
        ...


@runtime_checkable
class SharesMemory(ReportsMemory, Protocol):
    """Optional protocol of an accelerator whose memory other processes of the machine read by handles.

    Ranks that train together then keep hot rows between their devices.
    """

    memory_device: torch.device
    """Device of the tensors in its memory, as torch names it."""
    peer_bytes_per_second: float | None
    """Rate at which it reads the memory of another; None if it is not known."""


BatchDevice = torch.device | Accelerator
"""Device on which a loader yields its batches."""


@runtime_checkable
class Batching(Protocol):
    """An operator that prepares batches; called by several threads at once on the CPU, by one on a device.

    Attributes that are used if it has them. On the CPU: ``stage_seconds()``, a dict of the seconds in
    ``sample`` and ``gather``, summed over threads, and the count ``batches``. On a device:

    - ``begin(epoch, step)`` starts a step's batch without waiting for it. It is called on the training thread
      after a step's work was queued on the device; another step may still be requested.
    - ``placement``, a mapping, is ``device`` or ``host`` for each part of the graph. If all are ``device``,
      ``T_uva`` has no link time.
    - ``explain()`` says in words what the device holds, why, and what was read from it. It may wait for the
      device, and is empty before the first batch.
    """

    def __call__(self, epoch: int, step: int) -> MiniBatch:
        """Prepare the mini-batch of a step on the CPU or the device, as a pure function of the arguments.

        Raises:
            DeviceMemoryError: the device has no memory for it.
            WorkerDiedError: this operator will not deliver any more batches.
        """
        ...


@runtime_checkable
class Transfer(Protocol):
    """An operator that moves prepared batches to the device, one at a time, on a thread of its own.

    It supports look-ahead (:mod:`.lookahead`) if its *factory* has ``completes_rows = True``, since the row
    buffer is made before the operator. It then calls its context's ``row_buffer``, if there is one: ``admit``
    before a batch's copy and ``complete`` after it.
    """

    def __call__(self, batch: MiniBatch) -> MiniBatch:
        """Move a batch to the device and return it.

        Raises:
            DeviceMemoryError: the device has no memory for it.
        """
        ...

    def free(self, batch: MiniBatch) -> None:
        """Free the device memory of a batch that was trained or dropped."""
        ...


@runtime_checkable
class Model(Protocol):
    """An operator that is called on the caller's thread at the beginning and end of each training step."""

    def begin(self, batch: MiniBatch) -> MiniBatch:
        """Return the batch once the training step may read it."""
        ...

    def end(self, batch: MiniBatch) -> None:
        """Take note that the batch's training step has been queued on the device."""
        ...


StageName = Literal["batching", "transfer", "model"]
STAGE_NAMES: tuple[StageName, ...] = ("batching", "transfer", "model")


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Context:
    """The arguments that operators are made from: one loader's batches and the device they go to."""

    source: BatchSource
    sampler: SamplerConfig
    schedule: SeedSchedule
    device: BatchDevice
    workers: int = 1
    """Number of threads that prepare batches on the CPU at the same time."""
    gather: bool = True
    """Whether to gather dense features while sampling."""
    hot_bytes: int | None = None
    """Memory for graph and features of a device that prepares batches. If None, half of its free memory."""
    lookahead: bool = False
    """Whether to leave out of copies the rows that earlier ones brought, if possible (:mod:`.lookahead`)."""
    row_buffer: RowBuffer | None = None
    """Rows that the device has, shared by the operators; set by :meth:`.operators.Operators.of`."""

    @property
    def hardware(self) -> str:
        """Name under which the operators of the device are registered."""
        return self.device.type if isinstance(self.device, torch.device) else self.device.hardware

    @property
    def host(self) -> str:
        """Name under which the CPU's batching is registered."""
        return "cpu" if isinstance(self.device, torch.device) else self.device.host

    @property
    def gathered_rows(self) -> torch.Tensor | None:
        """Features that the sampler's threads gather for each batch; None if they gather none."""
        x = None if self.source.rows is not None else self.source.graph.x
        if not self.gather or isinstance(x, SparseFeatures | ScaledFeatures | None):
            return None
        return x if x.ndim == 2 and x.is_contiguous() else None

    @property
    def gathers_rows(self) -> bool:
        """Whether dense feature rows are gathered for batches before they are trained on."""
        return self.gathered_rows is not None or (self.gather and self.source.rows is not None)

    @property
    def hot(self) -> DeviceCache | None:
        """Rows that the device keeps, by the features' tiers; None if there are none."""
        return None if self.source.rows is None or not self.gather else self.source.rows.hot

    def count_travelling(self, batch: MiniBatch) -> None:
        """Count the bytes that a transfer copied of a batch on the host, if the source counts transfers.

        These are all tensors of the batch: ids, edges, rows and labels.
        """
        if self.source.link is not None:
            self.source.link.add(bytes_of(batch))


Factory = Callable[[Context], Any]
F = TypeVar("F", bound=Factory)

_factories: dict[tuple[StageName, str], Factory] = {}
_MODULES = {
    "cpu": "graphbraid.collective.hardware.cpu",
    "cuda": "graphbraid.collective.hardware.cuda",
}
"""Modules that register the operators of a hardware, imported on its first lookup or registration."""


@typed
def register(stage: StageName, hardware: str) -> Callable[[F], F]:
    """Register the factory of an operator: ``@register("transfer", "npu")``.

    A later registration replaces an earlier one, so a better operator does not need another name.

    Args:
        stage: ``batching``, ``transfer`` or ``model``.
        hardware: ``cpu``, ``cuda``, or a name of the caller's choice, as in :attr:`Accelerator.hardware`.

    Raises:
        ConfigError: there is no such stage.
    """
    if stage not in STAGE_NAMES:
        raise ConfigError(
            f"stage must be one of {', '.join(STAGE_NAMES)}; got {stage!r}.{did_you_mean(stage, STAGE_NAMES)}"
        )

    def keep(factory: F) -> F:
        _import_own(hardware)  # otherwise ours would be registered later and replace the caller's
        _factories[stage, hardware] = factory
        return factory

    return keep


def find(stage: StageName, hardware: str) -> Factory | None:
    """Return the factory registered for a stage on a hardware, or None."""
    _import_own(hardware)
    return _factories.get((stage, hardware))


def _import_own(hardware: str) -> None:
    """Register graphbraid's operators for a hardware, if there are any."""
    if hardware in _MODULES:
        importlib.import_module(_MODULES[hardware])


def make_operator(stage: StageName, hardware: str, context: Context) -> Any:
    """Make an operator for one loader.

    Raises:
        ConfigError: none is registered (the message names the hardware that has one), or the factory's result
            does not satisfy the stage's protocol.
    """
    factory = find(stage, hardware)
    if factory is None:
        known = sorted(name for of_stage, name in _factories if of_stage == stage)
        raise ConfigError(
            f"no operator is registered for stage {stage!r} on {hardware!r}; there are some on "
            f"{', '.join(known)}. Add one with graphbraid.collective.register({stage!r}, {hardware!r})."
        )
    return made_by(factory, stage, hardware, context)


_WANTED: dict[StageName, tuple[type, str]] = {
    "batching": (Batching, "is called with an epoch and a step and returns the mini-batch"),
    "transfer": (
        Transfer,
        "is called with a mini-batch, returns it on the device, and has free(batch)",
    ),
    "model": (Model, "has begin(batch), which returns the mini-batch, and end(batch)"),
}


def made_by(factory: Factory, stage: StageName, hardware: str, context: Context) -> Any:
    """Make an operator and check it against its stage's protocol, optional attributes included.

    Raises:
        ConfigError: it does not satisfy the protocol.
    """
    operator = factory(context)
    what = f"the operator registered for stage {stage!r} on {hardware!r}, a {type(operator).__name__},"
    protocol, wanted = _WANTED[stage]
    if not isinstance(operator, protocol):
        raise ConfigError(f"{what} does not fit: an operator of this stage {wanted}")
    for name in ("begin", "stage_seconds") if stage == "batching" else ():
        if not callable(getattr(operator, name, int)):
            raise ConfigError(f"{what} has an attribute {name!r} that must be a method")
    if stage == "transfer" and completes_rows(operator) and not completes_rows(factory):
        raise ConfigError(
            f"{what} sets completes_rows, which is read from its factory: set it there too, as in "
            "factory.completes_rows = True, or register the class itself"
        )
    return operator


def completes_rows(of: object) -> bool:
    """Return whether a transfer, or its factory, completes rows that were left out of a copy."""
    return bool(getattr(of, "completes_rows", False))
