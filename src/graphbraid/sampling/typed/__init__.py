"""Sampling where nodes and edges have types: a fanout for each relation and hop, local ids within types."""

from graphbraid.sampling.typed.config import TypedConfig
from graphbraid.sampling.typed.reference import sample_typed
from graphbraid.sampling.typed.sample import TypedPreparedBatch, TypedSampled

__all__ = ["TypedConfig", "TypedPreparedBatch", "TypedSampled", "sample_typed"]
