"""Neighbour sampling: a mini-batch is a pure function of (graph, config, seed, epoch, step)."""

from graphbraid.sampling.config import SamplerConfig, SeedSchedule
from graphbraid.sampling.links.negatives import NegativeSampling
from graphbraid.sampling.minibatch.mini_batch import MiniBatch
from graphbraid.sampling.reference import sample_batch

__all__ = ["MiniBatch", "NegativeSampling", "SamplerConfig", "SeedSchedule", "sample_batch"]
