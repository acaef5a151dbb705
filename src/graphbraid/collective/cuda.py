"""Operators for CUDA devices: pinned host buffers, a copy stream, events.

Imported only when a CUDA device is asked for. Not yet proven on one: this was written on machines without.
The device's own batching registers itself where the GPU sampler is installed; without it a CUDA device takes
plans that prepare every batch on the CPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from graphbraid.collective.stages import Context, register
from graphbraid.sampling.minibatch import MiniBatch


@register("transfer", "cuda")
class CudaTransfer:
    """Copies from pinned memory on a stream of its own; the batch carries the event of the copy's end."""

    def __init__(self, context: Context) -> None:
        assert isinstance(context.device, torch.device)
        self._device = context.device
        self._stream = torch.cuda.Stream(context.device)  # type: ignore[no-untyped-call]

    def __call__(self, batch: MiniBatch) -> MiniBatch:
        """The batch on the device, once its event has passed.

        torch's caching allocator for pinned memory is the pool: it gives a buffer out again when the event of
        its copy has passed.
        """
        pinned = _pinned(batch)
        with torch.cuda.stream(self._stream):
            moved = pinned.to(self._device, non_blocking=True)
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
        assert isinstance(context.device, torch.device)
        self._device = context.device

    def begin(self, batch: MiniBatch) -> MiniBatch:
        """The batch, whose memory the compute stream now uses."""
        stream = torch.cuda.current_stream(self._device)
        for tensor in _tensors(batch):
            tensor.record_stream(stream)
        return batch

    def end(self, batch: MiniBatch) -> None:
        """Wait for the step: the time from begin to end is then the device's."""
        torch.cuda.current_stream(self._device).synchronize()


def _pinned(batch: MiniBatch) -> MiniBatch:
    """The batch with what training reads in pinned memory."""
    _ = batch.x, batch.seed_y  # made now, in the copying thread, so that they travel
    for name, value in list(batch._cache.items()):
        if isinstance(value, Tensor) and not value.is_pinned():
            batch._cache[name] = value.pin_memory()
    return batch


def _tensors(batch: MiniBatch) -> list[Tensor]:
    values: list[Any] = [*vars(batch).values(), *batch._cache.values()]
    return [value for value in values if isinstance(value, Tensor) and value.is_cuda]
