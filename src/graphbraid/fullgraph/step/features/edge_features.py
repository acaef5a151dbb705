"""The edge features as a program reads them, in the order of the edges that it walks."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from graphbraid.fullgraph.lowering.levels import Blocks
from graphbraid.fullgraph.program import Program
from graphbraid.fullgraph.step.calls.device_copies import DeviceCopies
from graphbraid.graph import Graph
from graphbraid.graph.csc import Csc
from graphbraid.ops.kernels import row_contiguous


class EdgeFeatures:
    """The edge features of all blocks in one matrix; each block's edges are a prefix of its rows.

    Args:
        program: a lowered program.
        graph: the graph; its edge features are used in place if all edges are walked and they are float32.
        blocks: the edges from each level to the next, on the host.
        copies: copies the matrix to a device. If None, it stays where the graph is.
    """

    def __init__(self, program: Program, graph: Graph, blocks: Blocks, copies: DeviceCopies | None) -> None:
        self._graph, self._blocks, self._copies = graph, blocks, copies
        levels = [program.level(op.inputs[0]) for op in program.ops if op.reads_edges]
        self._first = min(levels, default=None)
        self._rows: Tensor | None = None
        self._loops: dict[tuple[int, str], Tensor | None] = {}

    @property
    def nbytes(self) -> int:
        """Bytes that the matrix takes in addition to the graph."""
        attr = self._graph.edge_attr
        if self._first is None or attr is None:
            return 0
        loops = sum(self._blocks[level].num_destinations() for level, _ in self._loops)
        of_loops = 4 * loops * attr.shape[1]
        in_place = attr.dtype == torch.float32 and attr.is_contiguous() and self._copies is None
        block = self._blocks[self._first].of(None)
        if in_place and block.edges is None:
            return of_loops
        return of_loops + 4 * block.csc.num_edges * attr.shape[1]

    def allocate(self) -> None:
        """Make the matrix, and the features of self-loops."""
        if self._first is None:
            return
        attr, edges = self._graph.edge_attr, self._blocks[self._first].of(None).edges
        assert attr is not None
        rows = attr.detach() if edges is None else attr.detach().index_select(0, edges)
        rows = row_contiguous(rows.to(torch.float32))
        self._rows = rows if self._copies is None else self._copies.matrix(rows)
        for level, fill in self._loops:
            nodes = self._blocks[level].destination_nodes()
            joined = joined_by_node(self._graph.csc, attr.detach(), fill)
            self._loops[level, fill] = joined if nodes is None else joined.index_select(0, nodes)

    def rows(self, level: int) -> Tensor:
        """Return the ``(num_edges, num_edge_features)`` features of a level's edges to the next level."""
        assert self._rows is not None
        return self._rows[: self._blocks[level].of(None).csc.num_edges]

    def plan_loops(self, level: int, fill: str) -> Callable[[], Tensor]:
        """Plan the ``(num_dst, num_edge_features)`` of self-loops; return a getter, valid once allocated."""
        self._loops[level, fill] = None

        def loops() -> Tensor:
            rows = self._loops[level, fill]
            assert rows is not None
            return rows

        return loops


def joined_by_node(csc: Csc, attr: Tensor, fill: str) -> Tensor:
    """Reduce the features of each node's in-edges, without self-loops, to ``(num_dst, num_edge_features)``.

    The result is float32. Like PyG's ``scatter``, it is 0 for nodes without such edges, or 1 for a product.
    """
    dst = csc.destinations().long()
    kept = csc.indices.long() != dst
    dst, rows = dst[kept], attr[kept].to(torch.float32)
    how = {"mean": "sum", "add": "sum", "sum": "sum", "min": "amin", "max": "amax", "mul": "prod"}[fill]
    out = torch.full((csc.num_dst, attr.shape[1]), float(fill == "mul"))
    out.scatter_reduce_(0, dst[:, None].expand_as(rows), rows, how, include_self=fill == "mul")
    if fill == "mean":
        out /= torch.bincount(dst, minlength=csc.num_dst).clamp(min=1)[:, None]
    return out


__all__ = ["EdgeFeatures", "joined_by_node"]
