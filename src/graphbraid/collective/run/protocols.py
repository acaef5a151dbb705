"""What operators are: the protocol of each stage, what one may have beside it, and the errors it raises.

An operator needs no base class of ours: it is held to these protocols by what it has. Those marked *optional*
add an ability, which is used where an operator has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import torch

from graphbraid.errors import ResourceError
from graphbraid.sampling.minibatch import MiniBatch


class DeviceMemoryError(ResourceError):
    """A device has no memory left for a batch: the executor goes on with fewer buffers."""


class WorkerDiedError(ResourceError):
    """Who prepares batches is gone for good, such as a killed process: the executor takes the other route."""


@runtime_checkable
class Accelerator(Protocol):
    """A device that is not torch's, such as the emulated one: names the hardware its operators are under."""

    hardware: str
    """Of transfer, model and the device's own batching."""
    host: str
    """Of the CPU's batching: ``"cpu"`` but for emulations."""


BatchDevice = torch.device | Accelerator
"""Where a loader gives its batches."""


@runtime_checkable
class Batching(Protocol):
    """Prepares batches; called by several threads at once on the CPU, by one on a device."""

    def __call__(self, epoch: int, step: int) -> MiniBatch:
        """The mini-batch of a step, on the CPU or on the device: a pure function of its arguments.

        Raises:
            DeviceMemoryError: the device has no memory for it.
            WorkerDiedError: no batch will come from here any more.
        """
        ...


@runtime_checkable
class BatchingAhead(Batching, Protocol):
    """Optional, of a device's batching: begins the batch that will be asked for next."""

    def begin(self, epoch: int, step: int) -> None:
        """Start a step's batch without waiting for it.

        Called in the training thread after a step's work was given to the device. Any step may be asked for
        all the same.
        """
        ...


@runtime_checkable
class CountsSeconds(Batching, Protocol):
    """Optional, of the CPU's batching: tells where its time went."""

    def stage_seconds(self) -> dict[str, float]:
        """Seconds in ``sample`` and ``gather`` since the start, summed over threads, and ``batches`` made."""
        ...


@runtime_checkable
class PlacesParts(Batching, Protocol):
    """Optional, of a device's batching: tells where it reads topology, labels and features."""

    @property
    def placement(self) -> Mapping[str, str]:
        """``device`` or ``host`` by part. Where all say ``device`` the link has no part in T_uva."""
        ...


@runtime_checkable
class Transfer(Protocol):
    """Moves prepared batches to the device, one at a time, in a thread of its own."""

    def __call__(self, batch: MiniBatch) -> MiniBatch:
        """The batch on the device.

        Raises:
            DeviceMemoryError: the device has no memory for it.
        """
        ...

    def free(self, batch: MiniBatch) -> None:
        """The batch was trained or dropped: its device memory may go to another."""
        ...


@runtime_checkable
class CompletesRows(Protocol):
    """Optional, of a transfer's *factory*: its operators can look ahead (:mod:`.lookahead`).

    Such an operator calls its context's ``row_buffer``, where there is one: ``admit`` before a batch's copy
    and ``complete`` after it. The factory says so, since the buffer is made before the operator.
    """

    completes_rows: bool


@runtime_checkable
class Model(Protocol):
    """Marks where the caller's training step begins and ends, in the caller's thread."""

    def begin(self, batch: MiniBatch) -> MiniBatch:
        """The batch, when the training step may read it."""
        ...

    def end(self, batch: MiniBatch) -> None:
        """The training step of the batch was given to the device."""
        ...
