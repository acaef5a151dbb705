"""ByType: a mini-batch of nodes of the whole graph, by node type and relation, as typed encoders take it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from graphbraid.graph import EdgeType, Graph
from graphbraid.graph.csc import Csc
from graphbraid.sampling.minibatch.mini_batch import MiniBatch
from graphbraid.sampling.source import TypedBatchSource

_Edges = tuple[Tensor, Tensor, Tensor]
"""A relation's sources and destinations by their places within their types, and positions in the graph."""


class ByType:
    """The nodes and edges of a mini-batch by type.

    Nodes of a type keep their order, so that those of the first hops come first in each type, too.

    Args:
        batch: a mini-batch whose ids are those of the whole graph, with positions of its edges.
        graph: the graph with types that it was drawn from.
        relation: ``(num_edges,)`` int64 relation of each edge, in the order that ``batch`` was drawn from.
        weight: ``(num_edges,)`` weights in that order; None if there are none.
    """

    def __init__(self, batch: MiniBatch, graph: Graph, relation: Tensor, weight: Tensor | None) -> None:
        assert graph.types is not None, "made for graphs with types"
        self._sampled, self._layout = batch.sampled, batch.layout
        self._graph, self._relation, self._weight = graph, relation, weight
        first = torch.tensor(graph.types.first_ids)
        n_id = self._sampled.n_id
        self._type = torch.bucketize(n_id, first[1:], right=True)
        num_types = len(graph.node_types)
        order, counts = self._type.argsort(stable=True), torch.bincount(self._type, minlength=num_types)
        begins = torch.repeat_interleave(counts.cumsum(0) - counts, counts)
        self._local = torch.empty_like(n_id)
        self._local[order] = torch.arange(n_id.numel()) - begins
        self.places: Mapping[str, Tensor] = dict(
            zip(graph.node_types, torch.split(order, counts.tolist()), strict=True)
        )
        """Where the nodes of a type stand in the batch, by node type, rising."""
        self.n_id: Mapping[str, Tensor] = {
            name: n_id[places] - int(first[number])
            for number, (name, places) in enumerate(self.places.items())
        }
        """Ids of the nodes within their type, by node type."""

    def features(self, source: TypedBatchSource) -> dict[str, Tensor]:
        """Return the dense feature rows of the types that have features."""
        return {
            name: source.node_rows(name, "x", ids)
            for name, ids in self.n_id.items()
            if "x" in source.node_attrs[name]
        }

    def edge_lists(self) -> tuple[dict[EdgeType, Tensor], dict[EdgeType, Tensor]]:
        """Return by relation ``(2, num_edges)`` int64 places within its types, and positions in the graph."""
        num_nodes = self._sampled.n_id.numel()
        lists = self._by_relation(0, num_nodes)
        return (
            {one: torch.stack([src, dst]) for one, (src, dst, _) in lists.items()},
            {one: positions for one, (_, _, positions) in lists.items()},
        )

    def blocks(self) -> list[dict[EdgeType, Csc]]:
        """Return by layer, outermost first, the edges of each relation into the nodes that it computes."""
        return [self._block(hop) for hop in reversed(range(len(self._sampled.edges_per_hop)))]

    def _block(self, hop: int) -> dict[EdgeType, Csc]:
        nodes_per_hop = self._sampled.nodes_per_hop
        num_dst, num_src = sum(nodes_per_hop[: hop + 1]), sum(nodes_per_hop[: hop + 2])
        of_dst, of_src = self._counts(num_dst), self._counts(num_src)
        found = {}
        lists = self._by_relation(hop if self._layout == "blocks" else 0, num_dst)
        for one, (src, dst, positions) in lists.items():
            indptr = torch.zeros(of_dst[one[2]] + 1, dtype=torch.int64)
            torch.cumsum(torch.bincount(dst, minlength=of_dst[one[2]]), 0, out=indptr[1:])
            found[one] = Csc(indptr, src.int(), of_src[one[0]], self.weights(one, positions), trusted=True)
        return found

    def weights(self, edge_type: EdgeType, positions: Tensor) -> Tensor | None:
        """Return the weights of edges of a relation; None if it was given none."""
        if self._weight is None or not self._graph.edges_of(edge_type).weighted:
            return None
        return self._weight[positions]

    def _counts(self, num_nodes: int) -> dict[str, int]:
        """Return how many of the first nodes of the batch are of each type."""
        counts = torch.bincount(self._type[:num_nodes], minlength=len(self._graph.node_types)).tolist()
        return dict(zip(self._graph.node_types, counts, strict=True))

    def _by_relation(self, record: int, num_dst: int) -> dict[EdgeType, _Edges]:
        """Return the edges into the first ``num_dst`` nodes by relation, each by destination."""
        edges = self._sampled.edges[record]
        assert edges.positions is not None, "kept by the loaders of typed encoders"
        num_dst = min(num_dst, edges.indptr.numel() - 1)
        indptr = edges.indptr[: num_dst + 1]
        num_edges = int(indptr[-1])
        positions = edges.positions[:num_edges]
        src = self._local[edges.indices[:num_edges].long()]
        dst = self._local[torch.repeat_interleave(torch.arange(num_dst), indptr.diff())]
        kind = self._relation[positions]
        names = self._graph.edge_types
        order = kind.argsort(stable=True)
        parts = torch.split(order, torch.bincount(kind, minlength=len(names)).tolist())
        return {one: (src[part], dst[part], positions[part]) for one, part in zip(names, parts, strict=True)}
