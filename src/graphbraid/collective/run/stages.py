"""Registry of stage operators, ``(stage, hardware) -> operator``; a new accelerator only registers its own.

A mini-batch goes through three stages. *Batching* samples and gathers it, on the CPU's threads (route 0) or
on the device itself (route 1). *Transfer* moves a batch prepared on the CPU to the device. *Model* is the
caller's training step; its operator only marks its beginning and end. The factory registered for a stage and
hardware makes one operator per loader, which is then checked against the stage's protocol (``protocols.py``);
``docs/collective.md`` shows how to register one, step by step.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch

from graphbraid.collective.run.lookahead import KEPT_BATCHES, RowBuffer
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
from graphbraid.collective.run.rows_ahead import RowsAhead
from graphbraid.errors import ConfigError, did_you_mean
from graphbraid.graph import ScaledFeatures, SparseFeatures
from graphbraid.sampling.config import SamplerConfig
from graphbraid.sampling.hot import HotRows
from graphbraid.sampling.minibatch import MiniBatch
from graphbraid.sampling.schedule import SeedSchedule
from graphbraid.sampling.source import BatchSource
from graphbraid.signatures import typed

StageName = Literal["batching", "transfer", "model"]
STAGE_NAMES: tuple[StageName, ...] = ("batching", "transfer", "model")
COUNTED = ("sample", "gather", "batches")
"""Keys of the counts that an operator with ``stage_seconds`` returns."""


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
    """Bytes of device memory for graph and features if the device prepares batches. If None, half of what is
    free."""
    lookahead: bool = False
    """Whether to leave out of copies the rows that earlier ones brought, if possible (:mod:`.lookahead`)."""
    row_buffer: RowBuffer | None = None
    """Rows that the device has, shared by the operators; set by :meth:`Operators.of`."""

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
        """Features that are gathered by whoever samples, while sampling; None if they are not."""
        x = None if self.source.rows is not None else self.source.graph.x
        if not self.gather or isinstance(x, SparseFeatures | ScaledFeatures | None):
            return None
        return x if x.ndim == 2 and x.is_contiguous() else None

    @property
    def gathers_rows(self) -> bool:
        """Whether dense feature rows are gathered for batches before they are trained on."""
        return self.gathered_rows is not None or (self.gather and self.source.rows is not None)

    @property
    def hot(self) -> HotRows | None:
        """Rows that the device keeps, by the features' tiers; None if there are none."""
        return None if self.source.rows is None or not self.gather else self.source.rows.hot


Factory = Callable[[Context], Any]
F = TypeVar("F", bound=Factory)

_factories: dict[tuple[StageName, str], Factory] = {}
_MODULES = {
    "cpu": "graphbraid.collective.hardware.cpu",
    "cuda": "graphbraid.collective.hardware.cuda",
    "emulated": "graphbraid.collective.hardware.emulated",
    "emulated-cpu": "graphbraid.collective.hardware.emulated",
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
    return _made(stage, hardware, factory, context)


_WANTED: dict[StageName, tuple[type, str]] = {
    "batching": (Batching, "is called with an epoch and a step and returns the mini-batch"),
    "transfer": (
        Transfer,
        "is called with a mini-batch, returns it on the device, and has free(batch)",
    ),
    "model": (Model, "has begin(batch), which returns the mini-batch, and end(batch)"),
}
_OPTIONAL: dict[StageName, tuple[str, ...]] = {
    "batching": ("begin", "stage_seconds"),
    "transfer": (),
    "model": (),
}
"""Optional methods of an operator."""


def _made(stage: StageName, hardware: str, factory: Factory, context: Context) -> Any:
    """Make an operator and check it against its stage's protocol, optional attributes included."""
    operator = factory(context)
    what = f"the operator registered for stage {stage!r} on {hardware!r}, a {type(operator).__name__},"
    protocol, wanted = _WANTED[stage]
    if not isinstance(operator, protocol):
        raise ConfigError(f"{what} does not fit: an operator of this stage {wanted}")
    for name in _OPTIONAL[stage]:
        if not callable(getattr(operator, name, int)):
            raise ConfigError(f"{what} has an attribute {name!r} that must be a method")
    if stage == "transfer" and _completes_rows(operator) and not _completes_rows(factory):
        raise ConfigError(
            f"{what} sets completes_rows, which is read from its factory: set it there too, as in "
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
    """Operator by which the device prepares batches; None if it cannot."""
    transfer: Transfer
    model: Model
    row_buffer: RowBuffer | None = None
    """Rows that the device has; None without hot rows and look-ahead."""
    rows_ahead: RowsAhead | None = None
    """What gathers the rows of batches whose features are not all in memory; None if they are."""

    @property
    def lookahead(self) -> int:
        """Number of steps after a claimed one that are worth naming."""
        return 0 if self.rows_ahead is None else self.rows_ahead.lookahead

    def claim(self, epoch: int, step: int, coming: Sequence[int] = ()) -> None:
        """Announce that the CPU is about to prepare a step; to be called in the order of the copies.

        Args:
            epoch: index of the epoch.
            step: the step.
            coming: up to :attr:`lookahead` steps that will be claimed after it.
        """
        if self.row_buffer is not None:
            self.row_buffer.claim(epoch, step)
        if self.rows_ahead is not None:
            self.rows_ahead.claim(epoch, step, coming)

    def forget(self) -> None:
        """Forget claimed steps that will not be prepared; to be called when no thread prepares one."""
        if self.rows_ahead is not None:
            self.rows_ahead.forget()

    def prepare(self, epoch: int, step: int) -> MiniBatch:
        """Prepare the mini-batch of a claimed step on the CPU."""
        if self.rows_ahead is not None:
            return self.rows_ahead.prepare(epoch, step)
        if self.row_buffer is None:
            return self.cpu_batching(epoch, step)
        with self.row_buffer.preparing(epoch, step):
            return self.cpu_batching(epoch, step)

    @property
    def batching_ahead(self) -> BatchingAhead | None:
        """The device's batching if it can begin a batch before it is requested; else None."""
        return self.device_batching if isinstance(self.device_batching, BatchingAhead) else None

    @property
    def is_resident(self) -> bool:
        """Whether the device prepares batches without using the link, as all it reads is in its memory.

        Meaningful once the device has prepared a batch; False if its operator does not report placements.
        """
        device = self.device_batching
        return isinstance(device, PlacesParts) and set(device.placement.values()) == {"device"}

    def stage_seconds(self) -> dict[str, float]:
        """Return the seconds of sampling and gathering on the CPU; 0 if its operator does not count them.

        Raises:
            ConfigError: the operator's counts lack one of ``COUNTED``.
        """
        if not isinstance(self.cpu_batching, CountsSeconds):
            return dict.fromkeys(COUNTED, 0.0)
        seconds = self.cpu_batching.stage_seconds()
        if not {*COUNTED} <= seconds.keys():
            raise ConfigError(
                f"stage_seconds() of {type(self.cpu_batching).__name__} must give 'sample', 'gather' and "
                f"'batches'; it gives {', '.join(map(repr, seconds)) or 'nothing'}"
            )
        if self.rows_ahead is not None:
            return seconds | {"gather": seconds["gather"] + self.rows_ahead.gather_seconds}
        return seconds

    @classmethod
    def of(cls, context: Context) -> Operators:
        """Make the operators registered for the context's device.

        Raises:
            ConfigError: a required operator is not registered or does not satisfy its protocol.
        """
        hardware = context.hardware
        context = dataclasses.replace(context, row_buffer=_row_buffer(context))
        own = None if hardware == "cpu" else find("batching", hardware)
        rows = context.source.rows if context.gather else None
        rows_ahead, on_host = None, context
        if rows is not None and rows.in_memory is None:
            on_host = dataclasses.replace(context, gather=False, row_buffer=None)
        cpu_batching = make_operator("batching", context.host, on_host)
        if rows is not None and rows.in_memory is None:
            rows_ahead = RowsAhead(rows, cpu_batching, None if context.row_buffer is None else rows.hot)
        return cls(
            cpu_batching=cpu_batching,
            rows_ahead=rows_ahead,
            device_batching=None if own is None else _made("batching", hardware, own, context),
            transfer=make_operator("transfer", hardware, context),
            model=make_operator("model", hardware, context),
            row_buffer=context.row_buffer,
        )


def can_look_ahead(context: Context) -> bool:
    """Return whether look-ahead is possible: dense features in memory are gathered, and the transfer fits."""
    rows = context.source.rows
    in_memory = context.gathered_rows is not None or (rows is not None and rows.in_memory is not None)
    return context.gather and in_memory and _completes_rows(find("transfer", context.hardware))


def _row_buffer(context: Context) -> RowBuffer | None:
    """Make what knows the rows that the device has; None if there are none that the transfer can use."""
    looks_ahead = context.lookahead and can_look_ahead(context)
    has_hot = context.hot is not None and _completes_rows(find("transfer", context.hardware))
    if not (looks_ahead or has_hot):
        return None
    x = context.source.graph.x if context.source.rows is None else context.source.rows
    assert x is not None
    assert not isinstance(x, SparseFeatures | ScaledFeatures), "rows of int8 have a source of their own"
    return RowBuffer(x, kept_batches=KEPT_BATCHES if looks_ahead else 0, hot=context.hot)
