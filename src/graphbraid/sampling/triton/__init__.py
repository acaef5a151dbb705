"""The sampler on a CUDA device, in Triton; importing this package imports triton.

Each step of a batch has a module of its own: its seeds (``seeds``), the draws of each hop (``draw`` and
``weighted``, with the random numbers of ``rng``), local ids (``relabel``), the batch's layout (``layouts``)
and feature rows (``ops.triton.gather``); ``sampler`` puts them together.
"""

from graphbraid.sampling.triton.sampler import TritonPipeline

__all__ = ["TritonPipeline"]
