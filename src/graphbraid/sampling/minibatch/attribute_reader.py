"""AttributeReader: the attributes of one mini-batch, read from its source, and the forms of its edges."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from graphbraid.errors import ConfigError
from graphbraid.graph import SparseFeatures
from graphbraid.graph.csc import Csc
from graphbraid.sampling.rows.by_id import take_rows
from graphbraid.sampling.rows.transfer_counter import sent
from graphbraid.sampling.sample import Sampled, SampledEdges
from graphbraid.sampling.source import ADJ_VALUES, BatchSource


def edge_index_of(edges: SampledEdges) -> Tensor:
    """Return the edges as ``(2, num_edges)`` int64 local ids: sources in row 0, destinations in row 1."""
    rows = torch.arange(edges.indptr.numel() - 1, device=edges.indptr.device)
    out = torch.empty((2, edges.indices.numel()), dtype=torch.int64, device=rows.device)
    out[0] = edges.indices
    out[1] = torch.repeat_interleave(rows, edges.indptr.diff(), output_size=out.shape[1])
    return out


def adj_t_of(like: Any, edge_index: Tensor, values: Tensor | None, num_nodes: int) -> Any:
    """Return the transposed adjacency matrix of a sample: a row per destination, a column per source.

    Args:
        like: the matrix of the whole graph, whose kind the result has: a torch sparse tensor in layout CSR,
            CSC or COO, or a ``torch_sparse.SparseTensor``; or one of these layouts, with ``values``.
        edge_index: ``(2, num_edges)`` int64, sorted by destination.
        values: ``(num_edges,)`` values. If None, all are 1, or the matrix has none if its kind allows that.
        num_nodes: number of nodes of the sample.
    """
    src, dst = edge_index
    layout = like if isinstance(like, torch.layout) else getattr(like, "layout", None)
    if layout is None:
        sizes = (num_nodes, num_nodes)
        return type(like)(
            row=dst, col=src, value=values, sparse_sizes=sizes, is_sorted=False, trust_data=True
        )
    if values is None:
        stored = like._values() if layout == torch.sparse_coo else like.values()
        values = stored.new_ones(src.numel())
    size = (num_nodes, num_nodes)
    if layout == torch.sparse_coo:
        return torch.sparse_coo_tensor(edge_index.flip(0), values, size, check_invariants=False)
    by_row = layout == torch.sparse_csr
    outer, inner = (dst, src) if by_row else (src, dst)
    order = torch.argsort(outer * num_nodes + inner, stable=True)
    ends = torch.zeros(num_nodes + 1, dtype=torch.int64, device=src.device)
    torch.cumsum(torch.bincount(outer, minlength=num_nodes), 0, out=ends[1:])
    make = torch.sparse_csr_tensor if by_row else torch.sparse_csc_tensor
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CS. tensor support is in beta state")
        return make(ends, inner[order], values[order], size, check_invariants=False)


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class AttributeReader:
    """Reader of a mini-batch's attributes from its source.

    Nothing is cached: each call computes its attribute anew. Results are on the sample's device, except for
    those of methods that take a ``device``.
    """

    source: BatchSource
    sampled: Sampled
    layout: str
    """``subgraph`` or ``blocks``."""

    def keys(self) -> list[str]:
        """Return the names of the attributes that can be read, in the batch's order."""
        return self.source.keys(self.layout, by_edge=self.sampled.positions_are_kept)

    def x(self) -> Tensor | None:
        """Return the dense feature rows, ``(num_nodes, F)``."""
        return self.source.x_rows(self.sampled.n_id)

    def sparse_features(self) -> SparseFeatures | None:
        """Return the feature rows in CSR on the CPU, ``(num_nodes, F)``; None if the graph's are dense."""
        x = self.source.graph.x
        return x.rows(self.sampled.n_id.cpu()) if isinstance(x, SparseFeatures) else None

    def y(self, num_nodes: int | None = None) -> Tensor | None:
        """Return the labels of the first ``num_nodes`` nodes, one row each; of all nodes if None."""
        return self.source.y_rows(self.sampled.n_id[:num_nodes])

    def e_id(self) -> Tensor:
        """Return each edge's index in the graph's original edge list: ``(num_edges,)`` int64, hop by hop."""
        return self.source.edge_ids(self._positions("e_id"))

    def attribute(self, name: str) -> Tensor:
        """Return the batch's rows of one of the source's node or edge attributes."""
        if name in self.source.node_attrs:
            return self.source.node_rows(name, self.sampled.n_id)
        return self.source.edge_rows(name, self._positions(name))

    def edge_weight(self) -> Tensor:
        """Return the edge weights, ``(num_edges,)`` float32."""
        return self.source.edge_weights(self._positions("edge_weight"))

    def edge_attr(self) -> Tensor:
        """Return the edge features, ``(num_edges, num_edge_features)``."""
        return self.source.edge_features(self._positions("edge_attr"))

    def adj_t(self, edge_index: Tensor, device: torch.device) -> Any:
        """Return the edges as a sparse matrix of the same kind as the source's ``adj_t``."""
        values = None
        if ADJ_VALUES in self.source.edge_attrs:
            values = self._sent(self.source.edge_rows(ADJ_VALUES, self._positions("adj_t")), device)
        return adj_t_of(self.source.adj_t, edge_index, values, self.sampled.n_id.numel())

    def blocks(self, edges: Sequence[SampledEdges], device: torch.device) -> list[Csc]:
        """Return one block per layer, outermost first, on ``device``.

        Args:
            edges: the sample's edges, on ``device``.
            device: device that weights and degrees are copied to.
        """
        num_hops = len(self.sampled.edges_per_hop)
        return [self._block(hop, edges, device) for hop in reversed(range(num_hops))]

    def _block(self, hop: int, edges: Sequence[SampledEdges], device: torch.device) -> Csc:
        """Return the block whose destinations are the nodes found before ``hop``."""
        num_dst = sum(self.sampled.nodes_per_hop[: hop + 1])
        num_src = num_dst + self.sampled.nodes_per_hop[hop + 1]
        index = hop if self.layout == "blocks" else 0
        num_edges = sum(self.sampled.edges_per_hop[: hop + 1]) if self.layout == "subgraph" else None
        weight = self.source.graph.csc.weight
        if weight is not None:
            positions = self.sampled.edges[index].positions
            assert positions is not None, "a weighted graph's edges keep their positions"
            weight = self._sent(take_rows(weight, positions[:num_edges]), device)
        sources = self.sampled.n_id[:num_src]
        degree, loop = (
            None if values is None else self._sent(take_rows(values, sources), device)
            for values in (self.source.src_degree, self.source.src_loop)
        )
        return Csc(
            edges[index].indptr[: num_dst + 1],
            edges[index].indices[:num_edges],
            num_src,
            weight,
            src_degree=degree,
            src_loop=loop,
            trusted=True,
        )

    def _sent(self, values: Tensor, device: torch.device) -> Tensor:
        return sent(values, device, "blocks", self.source.link)

    def _positions(self, name: str) -> Tensor:
        positions = self.sampled.positions
        if positions is None:
            raise ConfigError(f"batch.{name} needs edge ids; make the loader with return_edge_id=True")
        return positions
