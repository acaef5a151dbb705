"""Protocols of the stage operators, required and optional, and the errors that operators raise.

An operator needs no base class: it is checked against these protocols by its attributes. Protocols marked
*optional* add an ability, which is used if an operator has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import torch

from graphbraid.errors import ResourceError
from graphbraid.sampling.minibatch.mini_batch import MiniBatch


class DeviceMemoryError(ResourceError):
    """A device has no memory left for a batch; the executor goes on with fewer buffers."""


class WorkerDiedError(ResourceError):
    """A worker that prepares batches is gone, such as a killed process; the executor uses the other route."""


@runtime_checkable
class Accelerator(Protocol):
    """A device unknown to torch, such as the emulated one; it names the hardware of its operators."""

    hardware: str
    """Hardware name of the operators for transfer, model and batching on the device."""
    host: str
    """Hardware name of the operator for batching on the CPU: ``"cpu"`` except for emulations."""


@runtime_checkable
class ReportsMemory(Accelerator, Protocol):
    """Optional protocol of an accelerator that says how much memory it has free, and its link's rate.

    By these ``tiers="auto"`` of a Trainer chooses how many feature rows stay on it.
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
    """An operator that prepares batches; called by several threads at once on the CPU, by one on a device."""

    def __call__(self, epoch: int, step: int) -> MiniBatch:
        """Prepare the mini-batch of a step on the CPU or the device, as a pure function of the arguments.

        Raises:
            DeviceMemoryError: the device has no memory for it.
            WorkerDiedError: this operator will not deliver any more batches.
        """
        ...


@runtime_checkable
class BatchingAhead(Batching, Protocol):
    """Optional protocol of a device's batching that can begin the batch that will be requested next."""

    def begin(self, epoch: int, step: int) -> None:
        """Start preparing a step's batch without waiting for it.

        Called on the training thread after a step's work was queued on the device. Another step may still be
        requested.
        """
        ...


@runtime_checkable
class CountsSeconds(Batching, Protocol):
    """Optional protocol of the CPU's batching that reports where its time went."""

    def stage_seconds(self) -> dict[str, float]:
        """Return the seconds in ``sample`` and ``gather``, summed over threads, and the count ``batches``."""
        ...


@runtime_checkable
class PlacesParts(Batching, Protocol):
    """Optional protocol of a device's batching that reports where it reads topology, labels and features."""

    @property
    def placement(self) -> Mapping[str, str]:
        """Placement of each part, ``device`` or ``host``; if all are ``device``, T_uva has no link time."""
        ...


@runtime_checkable
class ExplainsPlacement(Batching, Protocol):
    """Optional protocol of a device's batching that says what it holds, why, and what was read of it."""

    def explain(self) -> str:
        """Return it in words; empty before the first batch. May wait for the device."""
        ...


@runtime_checkable
class Transfer(Protocol):
    """An operator that moves prepared batches to the device, one at a time, on a thread of its own."""

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
class CompletesRows(Protocol):
    """Optional protocol of a transfer's *factory* whose operators support look-ahead (:mod:`.lookahead`).

    Such an operator calls its context's ``row_buffer``, if there is one: ``admit`` before a batch's copy and
    ``complete`` after it. The attribute is the factory's, since the buffer is made before the operator.
    """

    completes_rows: bool


@runtime_checkable
class Model(Protocol):
    """An operator that is called on the caller's thread at the beginning and end of each training step."""

    def begin(self, batch: MiniBatch) -> MiniBatch:
        """Return the batch once the training step may read it."""
        ...

    def end(self, batch: MiniBatch) -> None:
        """Take note that the batch's training step has been queued on the device."""
        ...
