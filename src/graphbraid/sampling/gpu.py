"""Sampling on a CUDA device; Triton is imported only when a pipeline is made."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from graphbraid.errors import ConfigError, MissingPackageError
from graphbraid.graph.csc import Csc
from graphbraid.ops.gather import TierTable
from graphbraid.sampling.config import SamplerConfig

if TYPE_CHECKING:
    from graphbraid.sampling.triton import TritonPipeline


def make_gpu_pipeline(
    csc: Csc,
    config: SamplerConfig,
    x: Tensor | TierTable | None,
    *,
    device: torch.device | str = "cuda",
    topology: str = "device",
    features: str = "device",
    hot_lists: Tensor | None = None,
) -> TritonPipeline:
    """Make a pipeline on a CUDA device whose batches equal those of the CPU pipeline bit for bit.

    Arguments are those of :class:`graphbraid.sampling.triton.TritonPipeline`.

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
