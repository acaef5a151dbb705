"""Operators for CUDA devices: pinned host buffers, a copy stream, events, the Triton sampler.

Imported only when a CUDA device is asked for. Not yet proven on one: this was written on machines without.
The device prepares batches itself where Triton is installed; without it, plans let the CPU prepare all.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import torch
from torch import Tensor

from graphbraid.collective.hardware.device_batching import DeviceBatching
from graphbraid.collective.run.stages import Context, register
from graphbraid.sampling.minibatch import MiniBatch


class CudaBatching(DeviceBatching):
    """The Triton sampler on a stream of its own, so that it samples while the step before still trains."""

    def __init__(self, context: Context) -> None:
        device = _device_of(context)
        super().__init__(context, device, room=lambda: _room(context), place=_placing_on(device))
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def begin(self, epoch: int, step: int) -> None:
        """Have the device sample a step while it does what the compute stream holds."""
        with torch.cuda.stream(self._stream):
            super().begin(epoch, step)

    def __call__(self, epoch: int, step: int) -> MiniBatch:
        """The mini-batch of a step, on the device and complete.

        Raises:
            DeviceMemoryError: the device has no room for it.
        """
        with torch.cuda.stream(self._stream):
            batch = super().__call__(epoch, step)
            # The executor takes link and device to be free when this returns, as the simulator does.
            self._stream.synchronize()
        return batch


if importlib.util.find_spec("triton") is not None:
    register("batching", "cuda")(CudaBatching)


@register("transfer", "cuda")
class CudaTransfer:
    """Copies from pinned memory on a stream of its own; the batch carries the event of the copy's end."""

    completes_rows = True

    def __init__(self, context: Context) -> None:
        self._device, self._rows = _device_of(context), context.row_buffer
        self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]

    def __call__(self, batch: MiniBatch) -> MiniBatch:
        """The batch on the device, once its event has passed.

        torch's caching allocator for pinned memory is the pool: it gives a buffer out again when the event of
        its copy has passed.
        """
        if self._rows is not None:
            self._rows.admit(batch)
        pinned = _pinned(batch)
        with torch.cuda.stream(self._stream):
            moved = pinned.to(self._device, non_blocking=True)
            if self._rows is not None:
                self._rows.complete(moved)
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record(self._stream)
        # The executor takes the link to be free when this returns, as the simulator does.
        copied.synchronize()
        return moved

    def free(self, batch: MiniBatch) -> None:
        """Nothing to do: the allocator gives the memory to later batches of the same stream order."""


@register("model", "cuda")
class CudaModel:
    """Lets the compute stream own what the copy stream allocated."""

    def __init__(self, context: Context) -> None:
        self._device = _device_of(context)

    def begin(self, batch: MiniBatch) -> MiniBatch:
        """The batch, whose memory the compute stream now uses."""
        batch.record_stream(torch.cuda.current_stream(self._device))
        return batch

    def end(self, batch: MiniBatch) -> None:
        """Wait for the step: the time from begin to end is then the device's."""
        torch.cuda.current_stream(self._device).synchronize()


def _device_of(context: Context) -> torch.device:
    assert isinstance(context.device, torch.device)
    return torch.empty(0, device=context.device).device  # "cuda" is the device current now


def _room(context: Context) -> int:
    """Bytes for graph and features: as the loader says, else half of what is free; batches need the rest."""
    if context.hot_bytes is not None:
        return context.hot_bytes
    free, _ = torch.cuda.mem_get_info(_device_of(context))
    return free // 2


def _placing_on(device: torch.device) -> Callable[[Tensor, str], Tensor]:
    def placed(table: Tensor, placement: str) -> Tensor:
        from graphbraid.sampling.triton.placement import place  # imports triton

        return place(table.detach(), placement, device)

    return placed


def _pinned(batch: MiniBatch) -> MiniBatch:
    """The batch with what training reads in pinned memory."""
    _ = batch.seed_y  # made now, in the copying thread, so that it travels
    if batch.row_part is None:
        _ = batch.x
    return batch.pin_memory()
