"""The sampler on a CUDA device, in Triton; importing this package imports triton.

A batch goes through one file per job: its seeds (``seeds``), the draws of each hop (``draw``, ``weighted``)
with the counter's numbers (``rng``), local ids (``relabel``), the batch's layout (``layouts``), feature rows
(``ops.triton.gather``); ``sampler`` puts them together.
"""

from graphbraid.sampling.triton.sampler import TritonPipeline

__all__ = ["TritonPipeline"]
