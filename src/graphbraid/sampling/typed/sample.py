"""TypedSampled and TypedPreparedBatch: what samplers and pipelines of a graph with types return."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from graphbraid.sampling.sample import SampledEdges


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class TypedSampled:
    """A sample before features are gathered; lists are in the order of the graph's types and relations."""

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


class TypedPreparedBatch(NamedTuple):
    """The contents of a mini-batch."""

    step: int
    input_id: Tensor
    """Positions of the seeds in the schedule, ``(batch_size,)`` int64."""
    sampled: TypedSampled
    x: list[Tensor | None]
    """Gathered feature rows of each node type, ``(num_nodes, F)``; None where the pipeline gathers none."""
