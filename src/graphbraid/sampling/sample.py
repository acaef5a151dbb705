"""The records that samplers and pipelines return, of a graph of one type and of one with types."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class SampledEdges:
    """Edges between the nodes of a sample, as a CSC over local ids."""

    indptr: Tensor
    """Offsets of the rows in ``indices``, ``(num_rows + 1,)`` int64."""
    indices: Tensor
    """Local ids of the sources, ``(num_edges,)`` int32."""
    positions: Tensor | None
    """Position of each edge in the graph, ``(num_edges,)`` int64; None unless the sampler keeps them."""

    def apply(self, change: Callable[[Tensor], Tensor]) -> SampledEdges:
        """Return the edges with ``change`` applied to ``indptr`` and ``indices``; ``positions`` stay."""
        return dataclasses.replace(self, indptr=change(self.indptr), indices=change(self.indices))


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Sampled:
    """A sample before features are gathered: the record that every sampler returns."""

    n_id: Tensor
    """Global ids, ``(num_nodes,)`` int64: the seeds, then the other nodes in order of first appearance."""
    edges: list[SampledEdges]
    """Edges of the sample: in layout ``subgraph`` one record for all hops, in ``blocks`` one per hop, the hop
    nearest the seeds first."""
    nodes_per_hop: list[int]
    """Number of seeds, then of new nodes per hop."""
    edges_per_hop: list[int]
    trees: Tensor | None = None
    """Tree of each node, as the number of its seed, ``(num_nodes,)`` int64; None unless disjoint."""
    by_hop: bool = True
    """Whether edges are those drawn, hop by hop. Otherwise they join any of the nodes, as
    :mod:`graphbraid.sampling.subgraph` makes them, and there are no blocks."""

    @property
    def positions_are_kept(self) -> bool:
        """Whether the sampler kept each edge's position in the graph."""
        return self.edges[0].positions is not None

    @property
    def positions(self) -> Tensor | None:
        """Position of each edge in the graph, ``(num_edges,)`` int64, by hop; None if they are not kept."""
        kept = [edges.positions for edges in self.edges if edges.positions is not None]
        return torch.cat(kept) if kept else None

    def positions_by_layer(self, layout: str) -> list[Tensor]:
        """Return the position in the graph of each block's edges, outermost first, where they are kept.

        Args:
            layout: ``subgraph``, whose blocks are prefixes of one record, or ``blocks``.
        """
        found = []
        for hop in reversed(range(len(self.edges_per_hop))):
            positions = self.edges[hop if layout == "blocks" else 0].positions
            assert positions is not None, "asked for where they are kept"
            found.append(positions if layout == "blocks" else positions[: sum(self.edges_per_hop[: hop + 1])])
        return found


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class TypedSampled:
    """A sample of a graph with types; lists are in the order of the graph's types and relations."""

    n_id: list[Tensor]
    """Ids of each node type, ``(num_nodes,)`` int64: the seeds, then the other nodes by first appearance."""
    edges: list[list[SampledEdges]]
    """Edges of each relation between local ids of its two types: in layout ``subgraph`` one record for all
    hops, in ``blocks`` one per hop. ``positions`` are in the graph's edges, of all relations."""
    nodes_per_hop: list[list[int]]
    """Number of seeds, then of new nodes per hop, of each node type."""
    edges_per_hop: list[list[int]]
    """Number of edges per hop, of each relation."""
    trees: list[Tensor] | None = None
    """Tree of each node by node type, as the number of its seed among all, ``(num_nodes,)`` int64; None
    unless disjoint."""


class PreparedBatch(NamedTuple):
    """The contents of a mini-batch: the record that every pipeline yields."""

    step: int
    input_id: Tensor
    """Positions of the seeds in the schedule, ``(batch_size,)`` int64."""
    sampled: Sampled
    x: Tensor | None
    """Gathered feature rows, ``(num_nodes, F)``; None if the pipeline does not gather."""


class TypedPreparedBatch(NamedTuple):
    """The contents of a mini-batch of a graph with types."""

    step: int
    input_id: Tensor
    """Positions of the seeds in the schedule, ``(batch_size,)`` int64."""
    sampled: TypedSampled
    x: list[Tensor | None]
    """Gathered feature rows of each node type, ``(num_nodes, F)``; None where the pipeline gathers none."""
