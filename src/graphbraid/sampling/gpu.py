"""The way to the sampler on a CUDA device, which is imported only when it is asked for."""

from __future__ import annotations

import importlib.util
from typing import Any, Protocol

import torch
from torch import Tensor

from graphbraid.errors import ConfigError, MissingPackageError
from graphbraid.graph.csc import Csc
from graphbraid.sampling.config import SamplerConfig
from graphbraid.sampling.cpu import Pipeline
from graphbraid.sampling.sample import Prepared
from graphbraid.sampling.schedule import SeedSchedule


class GpuPipeline(Pipeline, Protocol):
    """A pipeline of which a batch can be asked in two parts, so that sampling runs beside other work."""

    def launch(self, schedule: SeedSchedule, epoch: int, step: int) -> Any:
        """Have the device sample the batch of a step, without waiting for it."""
        ...

    def finish(self, launched: Any) -> Prepared:
        """The batch that :meth:`launch` began: waits for its sizes only."""
        ...


def make_gpu_pipeline(
    csc: Csc,
    config: SamplerConfig,
    x: Tensor | None,
    *,
    device: torch.device | str = "cuda",
    topology: str = "device",
    features: str = "device",
) -> GpuPipeline:
    """A pipeline whose batches have the bits of :func:`graphbraid.sampling.cpu.make_pipeline`'s.

    Their tensors lie on the device, ready in the order of its current stream.

    Args:
        csc: the graph, on the CPU.
        config: how to sample.
        x: ``(num_nodes, F)`` contiguous rows to gather, or None.
        device: a CUDA device.
        topology: ``device`` copies the graph there; ``host`` leaves it in page-locked host memory that the
            device reads over the link.
        features: the same for ``x``.

    Raises:
        ConfigError: no CUDA device, or an unknown placement.
        MissingPackageError: triton is not installed.
        DataError: ``config.weighted`` without weights, or ``x`` of another form.
    """
    device = torch.device(device)
    if device.type != "cuda":
        raise ConfigError(f"the Triton sampler runs on CUDA devices; got device {str(device)!r}")
    if not torch.cuda.is_available():
        raise ConfigError("the Triton sampler needs a CUDA device, and torch finds none here")
    if importlib.util.find_spec("triton") is None:
        raise MissingPackageError("sampling on a CUDA device needs triton: pip install 'graphbraid[triton]'")
    from graphbraid.sampling.triton import TritonPipeline

    return TritonPipeline(csc, config, x, device=device, topology=topology, features=features)
