"""Stage operators for CUDA devices: pinned host buffers, a copy stream, events, the Triton sampler.

DeviceBatching is batching on the device itself by the Triton sampler (route 1). Topology, labels and features
reside on the device if they fit; those that do not are in page-locked host memory, which the device reads
over the link without the CPU (UVA). If features or topology do not fit, the device keeps their most read rows
and lists, which ``device_resident.py`` chooses. The batches equal those of the CPU bit for bit. Streams and
free memory, which need a real device, are in CudaBatching.

The module is imported only when a CUDA device is requested. It was written on machines without one and has
not been run on one yet. The device can prepare batches itself if Triton is installed; otherwise plans let the
CPU prepare all of them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.util
import logging
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from graphbraid.collective.hardware.device_resident import (
    PARTS,
    PartPlacement,
    Placed,
    Resident,
    part_bytes_of,
    placed_source,
    resident_in,
    shown,
)
from graphbraid.collective.run.stages import Context, DeviceMemoryError, register
from graphbraid.graph import ScaledFeatures
from graphbraid.ops.gather import TierTable
from graphbraid.sampling.gpu import make_gpu_pipeline
from graphbraid.sampling.minibatch.mini_batch import MiniBatch
from graphbraid.sampling.rows.device_cache import tier_of
from graphbraid.sampling.source import BatchSource

if TYPE_CHECKING:
    from graphbraid.sampling.triton.sampler import TritonPipeline


_log = logging.getLogger(__name__)


class DeviceBatching:
    """Batching by the Triton sampler, one step at a time, on the caller's stream.

    The graph is placed when the first batch is requested and stays placed for the lifetime of the loader,
    whose profiling and epochs share it.

    Args:
        context: context of the loader; its device may be of any kind.
        device: torch device of the batches. The CPU, on which Triton interprets the kernels, is for tests.
        room: function that returns the bytes of device memory for graph, labels and features.
        place: function of a table and a placement that returns the table where the device can read it.
        make_pipeline: function that makes the sampler, with the arguments of
            :func:`graphbraid.sampling.gpu.make_gpu_pipeline`.
    """

    def __init__(
        self,
        context: Context,
        device: torch.device,
        *,
        room: Callable[[], int],
        place: Callable[[Tensor, str], Tensor],
        make_pipeline: Callable[..., TritonPipeline] = make_gpu_pipeline,
    ) -> None:
        self.context = context
        self._device, self._room, self._place = device, room, place
        self._make_pipeline = make_pipeline
        self._begun: _Begun | None = None

    def begin(self, epoch: int, step: int) -> None:
        """Launch the sampling of the step that is likely to be requested next, without waiting.

        Another step may still be requested. Does nothing before the first batch, which places the graph, and
        if the device has no room: the call for the step then raises the error.
        """
        placed = _PLACED.get(self.context.source, {}).get(self._key)
        if placed is not None:
            with contextlib.suppress(torch.OutOfMemoryError):
                launched = placed.pipeline.launch(self.context.schedule, epoch, step)
                self._begun = _Begun((epoch, step), launched)

    def __call__(self, epoch: int, step: int) -> MiniBatch:
        """Prepare the mini-batch of a step on the device, ready in the order of the current stream.

        Waits for the device once, to read the batch's sizes; after :meth:`begin` the wait is short.

        Raises:
            DeviceMemoryError: the device has no memory left for it.
        """
        context = self.context
        try:
            placed = self._placed()
            begun, self._begun = self._begun, None
            if begun is None or begun.of != (epoch, step):
                begun = _Begun((epoch, step), placed.pipeline.launch(context.schedule, epoch, step))
            prepared = placed.pipeline.finish(begun.launched)
        except torch.OutOfMemoryError as error:
            raise DeviceMemoryError(f"step {step}: {error}") from error
        placed.count(prepared.sampled, context.sampler.layout)
        return MiniBatch(placed.source, prepared, layout=context.sampler.layout, epoch=epoch)

    @property
    def placement(self) -> PartPlacement:
        """Placement of each part."""
        return self._placed().resident.placement

    def explain(self) -> str:
        """Describe the parts, rows and lists on the device, the reasons, and the reads from each memory.

        Waits for the device. Empty before the first batch.
        """
        placed = _PLACED.get(self.context.source, {}).get(self._key)
        return "" if placed is None else placed.explain(part_bytes_of(self.context))

    def stage_seconds(self) -> dict[str, float]:
        """Return the seconds per stage by the device's clock and the number of ``batches``; waits for it."""
        return self._placed().pipeline.stage_seconds()

    def _placed(self) -> Placed:
        kept = _PLACED.setdefault(self.context.source, {})
        if self._key not in kept:
            kept[self._key] = self._make()
        return kept[self._key]

    @property
    def _key(self) -> tuple[object, ...]:
        """Key that distinguishes the placed graphs of one source."""
        return self._device, self.context.sampler, self.context.gather, self.context.hot_bytes

    def _make(self) -> Placed:
        """Place the parts that fit; if the device has less memory than it reported, leave all on the host."""
        resident = resident_in(self._room(), self.context)
        if resident.reason:
            _log.info("%s", resident.reason)
        try:
            return self._make_with(resident)
        except torch.OutOfMemoryError:
            if resident.is_empty:
                raise
            what = shown(resident.placement, part_bytes_of(self.context)) or "rows and lists"
            _log.warning("the device has no memory for %s: they stay on the host", what)
            return self._make_with(Resident(placement=dict.fromkeys(PARTS, "host")))

    def _make_with(self, resident: Resident) -> Placed:
        context, placement, hot = self.context, resident.placement, resident.rows
        source = placed_source(context, placement, self._place)
        x: Tensor | TierTable | None = None  # where there is none: made of each batch's ids, on the host
        if isinstance(source.graph.x, Tensor | ScaledFeatures) and source.rows is None:
            own = source.graph.x
            if hot is not None and placement["features"] == "host":
                x = hot.tier_table(hot.table_on(self._device), own)
            elif isinstance(own, ScaledFeatures):
                x = TierTable([tier_of(own)], device=self._device)
            else:
                x = own
            if isinstance(x, TierTable):
                source = dataclasses.replace(source, table=x)
        gathers = context.gather and (
            isinstance(x, TierTable) or (x is not None and x.ndim == 2 and x.is_contiguous())
        )
        pipeline = self._make_pipeline(
            source.graph.csc,
            context.sampler,
            x if gathers else None,
            device=self._device,
            topology=placement["topology"],
            features=placement["features"],
            hot_lists=resident.lists,
        )
        in_table = isinstance(x, TierTable) and hot is not None and placement["features"] == "host"
        placed = Placed(
            source=source, pipeline=pipeline, resident=resident, gathers_table=gathers and in_table
        )
        placed.watch_lists()
        return placed


class _Begun(NamedTuple):
    of: tuple[int, int]
    launched: Any


_PLACED: weakref.WeakKeyDictionary[BatchSource, dict[tuple[object, ...], Placed]] = (
    weakref.WeakKeyDictionary()
)


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
