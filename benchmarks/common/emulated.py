"""An emulated accelerator: real threads and real batches, with given durations.

Its link and its compute units are locks, which are held for the given duration of a stage. Batches come from
the CPU sampler, so results are real. It lets plans, the executor and failures be run and tested on any
machine.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from graphbraid.collective.hardware.cpu import CpuBatching
from graphbraid.collective.plan.simulator import Stage
from graphbraid.collective.plan.times import StageTimes
from graphbraid.collective.run.stages import Context, DeviceMemoryError, register
from graphbraid.graph.csc import Csc, ranges
from graphbraid.sampling.config import SamplerConfig
from graphbraid.sampling.minibatch.mini_batch import MiniBatch
from graphbraid.sampling.rows.by_id import (
    SECTOR_BYTES,
    TierCounts,
    list_bytes_read,
    row_sectors,
    travelled,
    weight_bytes,
)
from graphbraid.sampling.sample import Sampled

Fault = Callable[[], BaseException]


class EmulatedAccelerator:
    """An accelerator whose stages take the given durations.

    Args:
        times: durations of the stages; ``cpu`` is that of an emulated core.
        memory_batches: number of batches that fit in its memory. If None, not limited.
        emulate_cpu: whether batches from the CPU take ``times.cpu``, as on a machine with other cores. If
            False, they take the time of the real cores.
        link_bytes_per_second: bandwidth of the link, from which copies take their time. If None, they take
            ``times.dma``.
        memory_bytes: free memory that it reports. If None, not known.
        peer_bytes_per_second: rate that it reports for reads of other such devices, by which rows are
            divided; the reads take no time. If None, not known.
        memory_name: name of its memory on this machine. Accelerators of the same name are one device that
            several processes use. If None, no other process uses it.
    """

    hardware = "emulated"

    def __init__(
        self,
        times: StageTimes,
        *,
        memory_batches: int | None = None,
        emulate_cpu: bool = True,
        link_bytes_per_second: float | None = None,
        memory_bytes: int | None = None,
        peer_bytes_per_second: float | None = None,
        memory_name: str | None = None,
    ) -> None:
        self.memory_name = memory_name
        self.memory_bytes, self.peer_bytes_per_second = memory_bytes, peer_bytes_per_second
        self.memory_device = torch.device("cpu")  # which processes share
        self.times, self.link_bytes_per_second = times, link_bytes_per_second
        self.host = "emulated-cpu" if emulate_cpu else "cpu"
        self.memory_batches = memory_batches
        self.link, self.compute = threading.Lock(), threading.Lock()
        self.link_rows = self.link_row_bytes = 0
        """Feature rows that travelled over the link so far, and their bytes."""
        self.link_bytes = 0
        """Bytes of all that travelled so far: rows, sampled lists, and labels."""
        self._held: set[int] = set()  # ids of batches in device memory
        self._memory = threading.Lock()
        self._slower: dict[Stage, float] = {}
        self._faults: dict[tuple[Stage, int], Fault] = {}

    def free_bytes(self) -> int | None:
        """Return ``memory_bytes``."""
        return self.memory_bytes

    def seconds(self, stage: Stage) -> float:
        """Return the seconds that a stage takes now."""
        duration = {
            "cpu": self.times.cpu,
            "dma": self.times.dma,
            "uva": self.times.uva,
            "model": self.times.model,
        }[stage]
        return 0.0 if duration is None else duration.seconds * self._slower.get(stage, 1.0)

    def copy_seconds(self, batch: MiniBatch) -> float:
        """Return the seconds that copying a batch takes now."""
        if self.link_bytes_per_second is None:
            return self.seconds("dma")
        return batch.travelling_bytes / self.link_bytes_per_second * self._slower.get("dma", 1.0)

    def slow_down(self, stage: Stage, factor: float) -> None:
        """Let the stage take ``factor`` times its given duration from now on."""
        self._slower[stage] = factor

    def fail(self, stage: Stage, step: int, fault: Fault) -> None:
        """Let a stage of a step raise the exception that ``fault`` returns, once."""
        self._faults[stage, step] = fault

    def check(self, stage: Stage, step: int) -> None:
        """Raise the fault set for a stage of a step, if there is one."""
        if fault := self._faults.pop((stage, step), None):
            raise fault()

    def count_rows(self, num_rows: int, num_bytes: int) -> None:
        """Count feature rows among what travels over the link."""
        with self._memory:
            self.link_rows += num_rows
            self.link_row_bytes += num_bytes

    def count_bytes(self, num_bytes: int) -> None:
        """Count bytes that travel over the link."""
        with self._memory:
            self.link_bytes += num_bytes

    def take_memory(self, batch: MiniBatch) -> None:
        """Add a batch to device memory.

        Raises:
            DeviceMemoryError: the memory is full.
        """
        with self._memory:
            if self.memory_batches is not None and len(self._held) >= self.memory_batches:
                raise DeviceMemoryError(
                    f"the emulated device holds {len(self._held)} batches and has memory for "
                    f"{self.memory_batches}"
                )
            self._held.add(id(batch))

    def free_memory(self, batch: MiniBatch) -> None:
        """Remove a batch from device memory."""
        with self._memory:
            self._held.discard(id(batch))

    @property
    def held_batches(self) -> int:
        """Number of batches in device memory."""
        return len(self._held)

    @contextmanager
    def taking(self, stage: Stage, seconds: float | None = None) -> Iterator[None]:
        """Make the ``with`` block last at least as long as the stage, or ``seconds`` if given."""
        until = time.perf_counter() + (self.seconds(stage) if seconds is None else seconds)
        yield
        sleep_until(until)


def sleep_until(moment: float) -> None:
    """Sleep until ``time.perf_counter()`` reaches ``moment``."""
    while (left := moment - time.perf_counter()) > 0:
        time.sleep(left)


@register("batching", "emulated-cpu")
class EmulatedCpuBatching:
    """Batching by the real sampler at the speed of an emulated core."""

    def __init__(self, context: Context) -> None:
        self._accelerator = _accelerator(context)
        self._prepare = CpuBatching(context)

    def __call__(self, epoch: int, step: int) -> MiniBatch:
        """Prepare the mini-batch of a step, which takes ``T_cpu``."""
        with self._accelerator.taking("cpu"):
            self._accelerator.check("cpu", step)
            return self._prepare(epoch, step)

    def stage_seconds(self) -> dict[str, float]:
        """Return the stage seconds of the real sampler."""
        return self._prepare.stage_seconds()


@register("batching", "emulated")
class EmulatedBatching:
    """Batching on the device, which holds both link and compute units for ``T_uva``."""

    def __init__(self, context: Context) -> None:
        self._accelerator, self._gathers = _accelerator(context), context.gathers_rows
        self._source, self._tiers = context.source, context.source.rows if context.gather else None
        self._sampler = context.sampler
        gathers = context.gather and self._tiers is None
        self._prepare = CpuBatching(dataclasses.replace(context, gather=gathers, row_buffer=None))

    def __call__(self, epoch: int, step: int) -> MiniBatch:
        """Prepare the mini-batch of a step in device memory."""
        accelerator = self._accelerator
        with accelerator.link, accelerator.compute, accelerator.taking("uva"):
            accelerator.check("uva", step)
            batch = self._prepare(epoch, step)
            if self._tiers is not None:
                batch.x = travelled(self._tiers, batch.n_id)
            accelerator.take_memory(batch)
        self._count_lists(batch)
        if self._gathers:
            self._count_rows(batch)
        return batch

    def _count_lists(self, batch: MiniBatch) -> None:
        """Count the lists and labels that a device without them would have read over the link."""
        source, labels = self._source, batch.seed_y
        csc = source.graph.csc
        nbytes = list_bytes_read(batch.sampled, batch.layout, csc.indices)
        nbytes += weight_bytes_read(batch.sampled, self._sampler, csc)
        self._accelerator.count_bytes(nbytes + (0 if labels is None else labels.nbytes))
        if source.link is not None:
            source.link.add(TierCounts(link_list_bytes=nbytes))
            if labels is not None:
                source.link.add_attribute("seed_y", labels)

    def _count_rows(self, batch: MiniBatch) -> None:
        """Count the rows that a device would have read over the link: those that are not hot."""
        x = batch.x
        assert x is not None
        hot = None if self._tiers is None else self._tiers.hot
        ids = batch.n_id if hot is None else batch.n_id[hot.split(batch.n_id)[0]]
        rows, table = len(ids), None if self._tiers is None else self._tiers.in_memory
        if table is not None and self._source.link is not None:  # a file's rows are copied
            moved = SECTOR_BYTES * int(row_sectors(table, ids).sum())
            self._source.link.add(TierCounts(link_sector_bytes=moved))
        self._accelerator.count_rows(rows, rows * x[:1].nbytes)
        self._accelerator.count_bytes(rows * x[:1].nbytes)


@register("transfer", "emulated")
class EmulatedTransfer:
    """Transfer, which holds the link for ``T_dma`` or for the time that the batch's bytes take."""

    completes_rows = True

    def __init__(self, context: Context) -> None:
        self._accelerator, self._rows, self._context = _accelerator(context), context.row_buffer, context

    def __call__(self, batch: MiniBatch) -> MiniBatch:
        """Copy the batch to device memory."""
        accelerator = self._accelerator
        if self._rows is not None:
            self._rows.admit(batch)
            if batch.row_part is None:
                _ = batch.x
        _ = batch.seed_y  # copied along
        with accelerator.link, accelerator.taking("dma", accelerator.copy_seconds(batch)):
            accelerator.check("dma", batch.step)
            accelerator.take_memory(batch)
            accelerator.count_bytes(batch.travelling_bytes)
            if self._context.gathers_rows:
                travelling = batch.x if batch.row_part is None else batch.row_part.rows
                assert travelling is not None
                accelerator.count_rows(len(travelling), travelling.nbytes)
            self._context.count_travelling(batch)
            if self._rows is not None:
                self._rows.complete(batch)
        return batch

    def free(self, batch: MiniBatch) -> None:
        """Free the batch's device memory."""
        self._accelerator.free_memory(batch)


@register("model", "emulated")
class EmulatedModel:
    """The model stage, which holds the compute units for ``T_model`` or for the caller's step if longer."""

    def __init__(self, context: Context) -> None:
        self._accelerator = _accelerator(context)
        self._until = 0.0

    def begin(self, batch: MiniBatch) -> MiniBatch:
        """Acquire the compute units."""
        self._accelerator.compute.acquire()
        self._until = time.perf_counter() + self._accelerator.seconds("model")
        return batch

    def end(self, batch: MiniBatch) -> None:
        """Wait until the emulated step has ended and release the compute units."""
        try:
            sleep_until(self._until)
        finally:
            self._accelerator.compute.release()


def _accelerator(context: Context) -> EmulatedAccelerator:
    assert isinstance(context.device, EmulatedAccelerator)
    return context.device


def weight_bytes_read(sampled: Sampled, sampler: SamplerConfig, csc: Csc) -> int:
    """Return the bytes of weights that a device reads to draw a batch of lists that all lie on the host.

    Args:
        sampled: the sample, on the CPU.
        sampler: its options; uniform draws read no weights.
        csc: the graph's edges.
    """
    if not sampler.weighted or csc.weight is None:
        return 0
    total, begin, end = 0, 0, 0
    for fanout, found in zip(sampler.fanouts, sampled.nodes_per_hop, strict=False):
        begin, end = 0 if sampler.layout == "blocks" else end, end + found
        nodes = sampled.n_id[begin:end]
        first, degrees = csc.indptr[nodes], csc.indptr[nodes + 1] - csc.indptr[nodes]
        drawable = _num_drawable(csc.weight, first, degrees)
        read = weight_bytes(degrees, drawable, fanout, replace=sampler.replace)
        total += int(read.sum()) if fanout else 0
    return total


def _num_drawable(weight: Tensor, first: Tensor, degrees: Tensor) -> Tensor:
    """Return how many edges of each list have a weight above 0; reads only these lists."""
    lists = torch.arange(len(degrees)).repeat_interleave(degrees)
    return torch.zeros_like(degrees).index_add_(0, lists, (weight[ranges(first, degrees)] > 0).long())
