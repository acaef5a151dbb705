"""Stages: ``(stage, hardware) -> operator``. A new accelerator is a few registered operators, nothing else.

A mini-batch goes through three stages. *Batching* samples and gathers it, on the CPU's threads (route 0) or
on the device itself (route 1). *Transfer* moves what the CPU prepared to the device. *Model* is the caller's
training step; its operator only marks where it begins and ends. An operator is made for one loader by the
factory registered for its stage and hardware, and held to its stage's protocol (``protocols.py``) when it is
made; ``docs/collective.md`` registers one step by step.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch

from graphbraid.collective.run.lookahead import RowBuffer
from graphbraid.collective.run.protocols import (
    BatchDevice,
    Batching,
    BatchingAhead,
    CompletesRows,
    CountsSeconds,
    Model,
    PlacesParts,
    Transfer,
)
from graphbraid.errors import ConfigError, did_you_mean
from graphbraid.graph import SparseFeatures
from graphbraid.sampling.config import SamplerConfig
from graphbraid.sampling.minibatch import MiniBatch
from graphbraid.sampling.schedule import SeedSchedule
from graphbraid.sampling.source import BatchSource
from graphbraid.signatures import typed

StageName = Literal["batching", "transfer", "model"]
STAGE_NAMES: tuple[StageName, ...] = ("batching", "transfer", "model")
COUNTED = ("sample", "gather", "batches")
"""What an operator that counts its seconds tells."""


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Context:
    """What operators are made from: one loader's batches and the device they go to."""

    source: BatchSource
    sampler: SamplerConfig
    schedule: SeedSchedule
    device: BatchDevice
    workers: int = 1
    """Threads that prepare batches on the CPU at the same time."""
    gather: bool = True
    """Gather dense features while sampling."""
    hot_bytes: int | None = None
    """Device memory for graph and features where the device prepares batches; None: half of what is free."""
    lookahead: bool = False
    """Leave out of copies what earlier ones brought, where the operators can (:mod:`.lookahead`)."""
    row_buffer: RowBuffer | None = None
    """What operators share for that; given by :meth:`Operators.of`."""

    @property
    def hardware(self) -> str:
        """The name operators of the device are registered under."""
        return self.device.type if isinstance(self.device, torch.device) else self.device.hardware

    @property
    def host(self) -> str:
        """The name the CPU's batching is registered under."""
        return "cpu" if isinstance(self.device, torch.device) else self.device.host

    @property
    def gathered_rows(self) -> torch.Tensor | None:
        """The features where they are gathered while sampling; else None."""
        x = self.source.graph.x
        if not self.gather or isinstance(x, SparseFeatures | None):
            return None
        return x if x.ndim == 2 and x.is_contiguous() else None


Factory = Callable[[Context], Any]
F = TypeVar("F", bound=Factory)

_factories: dict[tuple[StageName, str], Factory] = {}
_MODULES = {
    "cpu": "graphbraid.collective.hardware.cpu",
    "cuda": "graphbraid.collective.hardware.cuda",
    "emulated": "graphbraid.collective.hardware.emulated",
    "emulated-cpu": "graphbraid.collective.hardware.emulated",
}
"""Modules that register a hardware's operators, imported when it is asked for or given another operator."""


@typed
def register(stage: StageName, hardware: str) -> Callable[[F], F]:
    """Register the factory of an operator: ``@register("transfer", "npu")``.

    A later registration replaces an earlier one, so a better operator needs no other name.

    Args:
        stage: ``batching``, ``transfer`` or ``model``.
        hardware: ``cpu``, ``cuda``, or a name of the caller's, as :attr:`Accelerator.hardware` gives it.

    Raises:
        ConfigError: there is no such stage.
    """
    if stage not in STAGE_NAMES:
        raise ConfigError(
            f"stage must be one of {', '.join(STAGE_NAMES)}; got {stage!r}.{did_you_mean(stage, STAGE_NAMES)}"
        )

    def keep(factory: F) -> F:
        _import_own(hardware)  # else ours would come later and replace the caller's
        _factories[stage, hardware] = factory
        return factory

    return keep


def find(stage: StageName, hardware: str) -> Factory | None:
    """The factory registered for a stage on a hardware; None where there is none."""
    _import_own(hardware)
    return _factories.get((stage, hardware))


def _import_own(hardware: str) -> None:
    """Register graphbraid's operators for a hardware, if there are any."""
    if hardware in _MODULES:
        importlib.import_module(_MODULES[hardware])


def make_operator(stage: StageName, hardware: str, context: Context) -> Any:
    """Make an operator for one loader.

    Raises:
        ConfigError: none is registered, and says which hardware has one; or what the factory made is none.
    """
    factory = find(stage, hardware)
    if factory is None:
        known = sorted(name for of_stage, name in _factories if of_stage == stage)
        raise ConfigError(
            f"no operator is registered for stage {stage!r} on {hardware!r}; there are some on "
            f"{', '.join(known)}. Add one with graphbraid.collective.register({stage!r}, {hardware!r})."
        )
    return _made(stage, hardware, factory, context)


_WANTED: dict[StageName, tuple[type, str]] = {
    "batching": (Batching, "is called with an epoch and a step and gives the mini-batch"),
    "transfer": (
        Transfer,
        "is called with a mini-batch, gives it on the device, and has free(batch)",
    ),
    "model": (Model, "has begin(batch), which gives the mini-batch, and end(batch)"),
}
_OPTIONAL: dict[StageName, tuple[str, ...]] = {
    "batching": ("begin", "stage_seconds"),
    "transfer": (),
    "model": (),
}
"""Methods that an operator need not have."""


def _made(stage: StageName, hardware: str, factory: Factory, context: Context) -> Any:
    """What a factory makes, once it has what its stage asks for: nothing an operator says is passed over."""
    operator = factory(context)
    what = f"the operator registered for stage {stage!r} on {hardware!r}, a {type(operator).__name__},"
    protocol, wanted = _WANTED[stage]
    if not isinstance(operator, protocol):
        raise ConfigError(f"{what} is none: one {wanted}")
    for name in _OPTIONAL[stage]:
        if not callable(getattr(operator, name, int)):
            raise ConfigError(f"{what} has an attribute {name!r} that must be a method")
    if stage == "transfer" and _completes_rows(operator) and not _completes_rows(factory):
        raise ConfigError(
            f"{what} says completes_rows, which is read of its factory: set it there too, as in "
            "factory.completes_rows = True, or register the class itself"
        )
    return operator


def _completes_rows(of: object) -> bool:
    return isinstance(of, CompletesRows) and of.completes_rows


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Operators:
    """The operators of one loader."""

    cpu_batching: Batching
    device_batching: Batching | None
    """None where the device cannot prepare batches."""
    transfer: Transfer
    model: Model
    row_buffer: RowBuffer | None = None
    """What look-ahead keeps; None without."""

    def claim(self, epoch: int, step: int) -> None:
        """Say that the CPU is about to prepare a step, in the order of the copies."""
        if self.row_buffer is not None:
            self.row_buffer.claim(epoch, step)

    def prepare(self, epoch: int, step: int) -> MiniBatch:
        """The mini-batch of a step that was claimed, by the CPU."""
        if self.row_buffer is None:
            return self.cpu_batching(epoch, step)
        with self.row_buffer.preparing(epoch, step):
            return self.cpu_batching(epoch, step)

    @property
    def batching_ahead(self) -> BatchingAhead | None:
        """The device's batching where it can begin a batch before it is asked for."""
        return self.device_batching if isinstance(self.device_batching, BatchingAhead) else None

    @property
    def is_resident(self) -> bool:
        """Whether the device prepares batches without the link: all they are cut from lies in its memory.

        Known once the device has prepared one; False where its operator does not tell.
        """
        device = self.device_batching
        return isinstance(device, PlacesParts) and set(device.placement.values()) == {"device"}

    def stage_seconds(self) -> dict[str, float]:
        """Seconds in sampling and gathering on the CPU; 0 where its operator does not count them.

        Raises:
            ConfigError: it counts, and leaves one out.
        """
        if not isinstance(self.cpu_batching, CountsSeconds):
            return dict.fromkeys(COUNTED, 0.0)
        seconds = self.cpu_batching.stage_seconds()
        if not {*COUNTED} <= seconds.keys():
            raise ConfigError(
                f"stage_seconds() of {type(self.cpu_batching).__name__} must give 'sample', 'gather' and "
                f"'batches'; it gives {', '.join(map(repr, seconds)) or 'nothing'}"
            )
        return seconds

    @classmethod
    def of(cls, context: Context) -> Operators:
        """Those registered for the context's device.

        Raises:
            ConfigError: one is missing that every device must have, or what was registered is none.
        """
        hardware = context.hardware
        if context.lookahead and can_look_ahead(context):
            x = context.source.graph.x
            assert isinstance(x, torch.Tensor)
            context = dataclasses.replace(context, row_buffer=RowBuffer(x))
        own = None if hardware == "cpu" else find("batching", hardware)
        return cls(
            cpu_batching=make_operator("batching", context.host, context),
            device_batching=None if own is None else _made("batching", hardware, own, context),
            transfer=make_operator("transfer", hardware, context),
            model=make_operator("model", hardware, context),
            row_buffer=context.row_buffer,
        )


def can_look_ahead(context: Context) -> bool:
    """Whether copies may leave rows out: dense features are gathered, and the device's operator can."""
    return context.gathered_rows is not None and _completes_rows(find("transfer", context.hardware))
