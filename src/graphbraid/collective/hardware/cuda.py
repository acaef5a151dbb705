"""Stage operators for CUDA devices: pinned host buffers, a copy stream, events, the Triton sampler.

The module is imported only when a CUDA device is requested. It was written on machines without one and has
not been run on one yet. The device can prepare batches itself if Triton is installed; otherwise plans let the
CPU prepare all of them.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable

import torch
from torch import Tensor

from graphbraid.collective.hardware.device_batching import DeviceBatching
from graphbraid.collective.run.stages import Context, register
from graphbraid.sampling.minibatch.mini_batch import MiniBatch


class CudaBatching(DeviceBatching):
    """Batching by the Triton sampler on a stream beside the model's, so that it samples while that trains."""

    def __init__(self, context: Context) -> None:
        device = _device_of(context)
        super().__init__(context, device, room=lambda: _room(context), place=_placing_on(device))
        self._stream = _sampling_stream(device)
        # What the current stream is still computing may be features that the sampler reads in place.
        self._stream.wait_stream(torch.cuda.current_stream(device))

    def begin(self, epoch: int, step: int) -> None:
        """Launch the sampling of a step beside the work already queued on the compute stream."""
        with torch.cuda.stream(self._stream):
            super().begin(epoch, step)

    def __call__(self, epoch: int, step: int) -> MiniBatch:
        """Prepare the mini-batch of a step on the device and wait until it is complete.

        Raises:
            DeviceMemoryError: the device has no memory left for it.
        """
        with torch.cuda.stream(self._stream):
            batch = super().__call__(epoch, step)
            # The executor, like the simulator, assumes that link and device are free when this returns.
            self._stream.synchronize()
        return batch


if importlib.util.find_spec("triton") is not None:
    register("batching", "cuda")(CudaBatching)


@register("transfer", "cuda")
class CudaTransfer:
    """Transfer by copies from pinned memory on a stream of its own."""

    completes_rows = True

    def __init__(self, context: Context) -> None:
        self._device, self._rows, self._context = _device_of(context), context.row_buffer, context
        self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]

    def __call__(self, batch: MiniBatch) -> MiniBatch:
        """Copy the batch to the device and wait for the copy.

        The pool of pinned buffers is torch's caching host allocator, which reuses a buffer once the event
        recorded after its copy has passed.
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
        # The executor, like the simulator, assumes that the link is free when this returns.
        copied.synchronize()
        self._context.count_travelling(pinned)
        return moved

    def free(self, batch: MiniBatch) -> None:
        """Do nothing: the allocator reuses the memory in stream order."""


@register("model", "cuda")
class CudaModel:
    """The model stage, which runs on the compute stream and uses memory that the copy stream allocated."""

    def __init__(self, context: Context) -> None:
        self._device = _device_of(context)

    def begin(self, batch: MiniBatch) -> MiniBatch:
        """Record that the compute stream uses the batch's memory, and return the batch."""
        batch.record_stream(torch.cuda.current_stream(self._device))
        return batch

    def end(self, batch: MiniBatch) -> None:
        """Wait for the step, so that the time from begin to end is the device's."""
        torch.cuda.current_stream(self._device).synchronize()


def _device_of(context: Context) -> torch.device:
    assert isinstance(context.device, torch.device)
    return torch.empty(0, device=context.device).device  # resolves "cuda" to the current device


@functools.cache
def _sampling_stream(device: torch.device) -> torch.cuda.Stream:
    """Return a device's stream for batching: runs share a sampler, whose table of ids serves one stream."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _room(context: Context) -> int:
    """Return the bytes for graph and features: the loader's ``hot_bytes``, or half of the free memory."""
    if context.hot_bytes is not None:
        return context.hot_bytes
    free, _ = torch.cuda.mem_get_info(_device_of(context))
    return free // 2


def _placing_on(device: torch.device) -> Callable[[Tensor, str], Tensor]:
    def placed(table: Tensor, placement: str) -> Tensor:
        from graphbraid.sampling.triton.topology import place  # imports triton

        return place(table.detach(), placement, device)

    return placed


def _pinned(batch: MiniBatch) -> MiniBatch:
    """Return the batch in pinned memory, with everything that training reads."""
    _ = batch.seed_y  # computed now, in the copying thread, so that it is copied along
    if batch.row_part is None:
        _ = batch.x
    return batch.pin_memory()
