"""The sampler on a CUDA device, in Triton; importing this package imports triton.

Each step of a batch has a module of its own: the rows that draw and where their lists are (``topology``), the
draws of each hop (``draw``, with the random numbers of ``rng``), seeds and local ids (``relabel``), and sizes
and layouts (``batch``). ``sampler`` puts them together; feature rows come by
``ops.triton.gather``.
"""

from graphbraid.sampling.triton.sampler import TritonPipeline

__all__ = ["TritonPipeline"]
