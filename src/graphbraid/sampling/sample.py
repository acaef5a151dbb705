"""The records that samplers and pipelines return."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from graphbraid.sampling.batch_seeds import BatchSeeds


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
    """A sample before features are gathered: the record that every sampler returns.

    Lists are in the order of the graph's node types and relations. A graph of one type has one entry in each
    list: :attr:`n_id`, :attr:`edges`, :attr:`nodes_per_hop`, :attr:`edges_per_hop` and :attr:`trees`.
    """

    n_id_by_type: list[Tensor]
    """Ids of each node type, ``(num_nodes,)`` int64: the seeds, then the other nodes by first appearance."""
    edges_by_relation: list[list[SampledEdges]]
    """Edges of each relation between local ids of its two types: in layout ``subgraph`` one record for all
    hops, in ``blocks`` one per hop, the hop nearest the seeds first."""
    nodes_by_type: list[list[int]]
    """Number of seeds, then of new nodes per hop, of each node type."""
    counts_by_relation: list[list[int]]
    """Number of edges per hop, of each relation."""
    trees_by_type: list[Tensor] | None = None
    """Tree of each node by node type, numbered as its seed among all seeds, ``(num_nodes,)`` int64; None
    unless disjoint."""
    by_hop: bool = True
    """Whether edges are the drawn ones, hop by hop. Otherwise :mod:`graphbraid.sampling.subgraph` made them
    between any nodes, and there are no blocks."""

    @property
    def n_id(self) -> Tensor:
        """``(num_nodes,)`` int64 global ids, in a graph of one type."""
        [n_id] = self.n_id_by_type
        return n_id

    @property
    def edges(self) -> list[SampledEdges]:
        """The edges, in a graph of one relation."""
        [edges] = self.edges_by_relation
        return edges

    @property
    def nodes_per_hop(self) -> list[int]:
        """Number of seeds, then of new nodes per hop, in a graph of one type."""
        [counts] = self.nodes_by_type
        return counts

    @property
    def edges_per_hop(self) -> list[int]:
        """Number of edges per hop, in a graph of one relation."""
        [counts] = self.counts_by_relation
        return counts

    @property
    def trees(self) -> Tensor | None:
        """Tree of each node, in a graph of one type; None unless disjoint."""
        return None if self.trees_by_type is None else self.trees_by_type[0]

    @property
    def positions_are_kept(self) -> bool:
        """Whether the sampler kept each edge's position in the graph."""
        return self.edges_by_relation[0][0].positions is not None

    def positions(self, relation: int = 0) -> Tensor | None:
        """Return the position of each edge of a relation in the graph's edges, of all relations.

        They are ``(num_edges,)`` int64, hop by hop; None if they are not kept.
        """
        kept = [edges.positions for edges in self.edges_by_relation[relation] if edges.positions is not None]
        return torch.cat(kept) if kept else None

    def positions_by_layer(self, layout: str) -> list[Tensor]:
        """Return the position in the graph of each block's edges, outermost first; they must be kept.

        Args:
            layout: ``subgraph``, whose blocks are prefixes of one record, or ``blocks``.
        """
        found = []
        for hop in reversed(range(len(self.edges_per_hop))):
            positions = self.edges[hop if layout == "blocks" else 0].positions
            assert positions is not None, "asked for where they are kept"
            found.append(positions if layout == "blocks" else positions[: sum(self.edges_per_hop[: hop + 1])])
        return found


X_BY_TYPE = "x_by_type"
"""Attribute of a batch whose nodes are of several types, numbered as in the whole graph: feature rows of each
type, in the order of its nodes; None for a type without features."""


class PreparedBatch(NamedTuple):
    """The contents of a mini-batch: the record that every pipeline yields."""

    step: int
    input_id: Tensor
    """Positions of the seeds in the schedule, ``(batch_size,)`` int64."""
    sampled: Sampled
    x: list[Tensor | None]
    """Gathered feature rows of each node type, ``(num_nodes, F)``; None where the pipeline gathers none."""
    edge_rows: Mapping[Any, Tensor] | None = None
    """Rows of edge attributes by name, or by relation and name, hop by hop; no others can be read. None: they
    are read from the graph."""
    seeds: BatchSeeds | None = None
    """Seeds that are more than plain nodes, such as the ends of links."""
