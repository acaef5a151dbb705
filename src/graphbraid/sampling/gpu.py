"""Sampling on a CUDA device; Triton is imported only when a pipeline is made."""

from __future__ import annotations

import importlib.util
from typing import Any, Protocol

import torch
from torch import Tensor

from graphbraid.errors import ConfigError, MissingPackageError
from graphbraid.graph.csc import Csc
from graphbraid.ops.gather import TierTable
from graphbraid.sampling.config import SamplerConfig
from graphbraid.sampling.cpu import BatchPipeline
from graphbraid.sampling.lists import ListReads
from graphbraid.sampling.sample import PreparedBatch
from graphbraid.sampling.schedule import SeedSchedule


class GpuPipeline(BatchPipeline, Protocol):
    """A pipeline whose batches can be requested in two calls, so that sampling overlaps with other work."""

    def launch(self, schedule: SeedSchedule, epoch: int, step: int) -> Any:
        """Launch the sampling of a step's batch on the device without waiting for it."""
        ...

    def finish(self, launched: Any) -> PreparedBatch:
        """Return the batch that :meth:`launch` started; waits only until its sizes are known."""
        ...

    @property
    def list_counts(self) -> Tensor | None:
        """The sums that :meth:`list_reads` reads, ``(4,)`` int64 on the device; None if no list is hot."""
        ...

    @property
    def weight_bytes(self) -> Tensor | None:
        """Bytes of weights that draws have read over the link so far, ``()`` int64 on the device.

        None where the weights are there, or draws go by none.
        """
        ...

    def list_reads(self) -> ListReads | None:
        """Return what was read of lists since the start; waits for the device. None if none is hot."""
        ...


def make_gpu_pipeline(
    csc: Csc,
    config: SamplerConfig,
    x: Tensor | TierTable | None,
    *,
    device: torch.device | str = "cuda",
    topology: str = "device",
    features: str = "device",
    hot_lists: Tensor | None = None,
) -> GpuPipeline:
    """Make a pipeline on a CUDA device whose batches equal those of the CPU pipeline bit for bit.

    The CPU pipeline is that of :func:`graphbraid.sampling.cpu.make_pipeline`. The tensors of a batch are on
    the device and ready in the order of its current stream.

    Args:
        csc: the graph, on the CPU.
        config: options of the sampler.
        x: ``(num_nodes, F)`` contiguous feature rows to gather, or a table of those that the device reads in
            several memories. If None, only nodes and edges are sampled.
        device: a CUDA device.
        topology: ``device`` copies the graph to the device; ``host`` leaves it in page-locked host memory,
            which the device reads over the link.
        features: the same for an ``x`` that is a tensor.
        hot_lists: ``(num_hot,)`` int64 nodes whose adjacency lists are on the device although the topology is
            on the host. If None, none.

    Raises:
        ConfigError: there is no CUDA device, or a placement is unknown.
        MissingPackageError: triton is not installed.
        DataError: ``config.weighted`` is set and the graph has no weights, or ``x`` does not fit the graph.
    """
    device = torch.device(device)
    if device.type != "cuda":
        raise ConfigError(f"the Triton sampler runs on CUDA devices; got device {str(device)!r}")
    if not torch.cuda.is_available():
        raise ConfigError("the Triton sampler needs a CUDA device, and torch finds none here")
    if importlib.util.find_spec("triton") is None:
        raise MissingPackageError("sampling on a CUDA device needs triton: pip install 'graphbraid[triton]'")
    from graphbraid.sampling.triton import TritonPipeline

    return TritonPipeline(
        csc, config, x, device=device, topology=topology, features=features, hot_lists=hot_lists
    )
