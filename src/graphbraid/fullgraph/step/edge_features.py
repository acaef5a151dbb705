"""The features of the edges as a program reads them: in the order of the edges that it walks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from graphbraid.fullgraph.lowering.levels import Block
from graphbraid.fullgraph.program import Program
from graphbraid.fullgraph.step.device_copies import DeviceCopies
from graphbraid.graph import Graph
from graphbraid.graph.csc import Csc
from graphbraid.ops.aggregation import row_contiguous


class EdgeFeatures:
    """One matrix, whose first rows are each block's edges: a later block's are the first of an earlier one's.

    Args:
        program: lowered.
        graph: its edge features stay in place where all edges are walked and they are float32.
        blocks: from each level to the next, where the graph is.
        copies: brings the matrix to a device; None: it stays where the graph is.
    """

    def __init__(
        self, program: Program, graph: Graph, blocks: Sequence[Block], copies: DeviceCopies | None
    ) -> None:
        self._graph, self._blocks, self._copies = graph, blocks, copies
        levels = [program.level(op.inputs[0]) for op in program.ops if op.reads_edges]
        self._first = min(levels, default=None)
        self._rows: Tensor | None = None
        self._loops: dict[tuple[int, str], Tensor | None] = {}

    @property
    def nbytes(self) -> int:
        """Bytes that the matrix takes beside the graph."""
        attr = self._graph.edge_attr
        if self._first is None or attr is None:
            return 0
        of_loops = sum(4 * self._blocks[level].csc.num_dst * attr.shape[1] for level, _ in self._loops)
        in_place = attr.dtype == torch.float32 and attr.is_contiguous() and self._copies is None
        block = self._blocks[self._first]
        if in_place and block.edges is None:
            return of_loops
        return of_loops + 4 * block.csc.num_edges * attr.shape[1]

    def allocate(self) -> None:
        """Make the matrix."""
        if self._first is None:
            return
        attr, edges = self._graph.edge_attr, self._blocks[self._first].edges
        assert attr is not None
        rows = attr.detach() if edges is None else attr.detach().index_select(0, edges)
        rows = row_contiguous(rows.to(torch.float32))
        self._rows = rows if self._copies is None else self._copies.matrix(rows)
        for level, fill in self._loops:
            nodes = self._blocks[level].destinations
            joined = joined_by_node(self._graph.csc, attr.detach(), fill)
            self._loops[level, fill] = joined if nodes is None else joined.index_select(0, nodes)

    def rows(self, level: int) -> Tensor:
        """``(num_edges, num_edge_features)`` of the edges that lead on from a level, once allocated."""
        assert self._rows is not None
        return self._rows[: self._blocks[level].csc.num_edges]

    def plan_loops(self, level: int, fill: str) -> Callable[[], Tensor]:
        """Have features of self-loops made: gives, once allocated, ``(num_dst, num_edge_features)``."""
        self._loops[level, fill] = None

        def loops() -> Tensor:
            rows = self._loops[level, fill]
            assert rows is not None
            return rows

        return loops


def joined_by_node(csc: Csc, attr: Tensor, fill: str) -> Tensor:
    """``(num_dst, num_edge_features)`` float32: the features of the edges into each node, joined; no loops'.

    As PyG's ``scatter``: 0 where there are none, 1 of a product.
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
