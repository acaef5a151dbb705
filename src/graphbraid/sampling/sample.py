"""The records that samplers and pipelines give, whichever they are: Adjacency, Sampled, Prepared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Adjacency:
    """One CSC over local ids."""

    indptr: Tensor
    """``(num_rows + 1,)`` int64."""
    indices: Tensor
    """``(num_edges,)`` int32 local source ids."""
    edges: Tensor | None
    """``(num_edges,)`` int64 position of each edge in the graph."""


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Sampled:
    """What sampling gives, before features: the record every sampler returns."""

    n_id: Tensor
    """``(num_nodes,)`` int64 global ids: the seeds, then by first appearance."""
    adjacencies: list[Adjacency]
    """Layout ``subgraph``: one that all hops extend; ``blocks``: one per hop, from the seeds."""
    nodes_per_hop: list[int]
    """New nodes: the seeds, then per hop."""
    edges_per_hop: list[int]


class Prepared(NamedTuple):
    """What a mini-batch consists of: the record every pipeline gives."""

    step: int
    input_id: Tensor
    """``(batch_size,)`` int64 positions of the seeds in the schedule."""
    sampled: Sampled
    x: Tensor | None
    """``(num_nodes, F)`` gathered feature rows, where the pipeline gathers."""
