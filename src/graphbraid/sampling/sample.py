"""The records that samplers and pipelines give, whichever they are: SampledEdges, Sampled, Prepared."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class SampledEdges:
    """Edges between nodes of a sample: one CSC over local ids."""

    indptr: Tensor
    """``(num_rows + 1,)`` int64."""
    indices: Tensor
    """``(num_edges,)`` int32 local source ids."""
    positions: Tensor | None
    """``(num_edges,)`` int64 position of each edge in the graph; None unless the sampler keeps them."""

    def apply(self, change: Callable[[Tensor], Tensor]) -> SampledEdges:
        """These with ``change`` of their local ids; positions stay with the graph they are looked up in."""
        return dataclasses.replace(self, indptr=change(self.indptr), indices=change(self.indices))


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Sampled:
    """What sampling gives, before features: the record every sampler returns."""

    n_id: Tensor
    """``(num_nodes,)`` int64 global ids: the seeds, then by first appearance."""
    edges: list[SampledEdges]
    """Layout ``subgraph``: one that all hops extend; ``blocks``: one per hop, from the seeds."""
    nodes_per_hop: list[int]
    """New nodes: the seeds, then per hop."""
    edges_per_hop: list[int]

    @property
    def positions_are_kept(self) -> bool:
        """Whether the sampler kept each edge's position in the graph."""
        return self.edges[0].positions is not None

    @property
    def positions(self) -> Tensor | None:
        """``(num_edges,)`` int64 position of each edge in the graph, hop by hop; None where not kept."""
        kept = [edges.positions for edges in self.edges if edges.positions is not None]
        return torch.cat(kept) if kept else None


class Prepared(NamedTuple):
    """What a mini-batch consists of: the record every pipeline gives."""

    step: int
    input_id: Tensor
    """``(batch_size,)`` int64 positions of the seeds in the schedule."""
    sampled: Sampled
    x: Tensor | None
    """``(num_nodes, F)`` gathered feature rows, where the pipeline gathers."""
