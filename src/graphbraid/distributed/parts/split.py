"""split(): cuts a graph into its parts' local and remote graphs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from graphbraid import native
from graphbraid.arguments import as_count
from graphbraid.distributed.partitioning.records import Partition
from graphbraid.distributed.parts import reference
from graphbraid.distributed.parts.records import Part
from graphbraid.errors import ConfigError, DataError
from graphbraid.graph import Graph
from graphbraid.graph.csc import Csc
from graphbraid.graph.identity import check_made_for
from graphbraid.signatures import typed


@dataclass(frozen=True, eq=False, slots=True)
class Outline:
    """What a part holds, without its edges."""

    owned: Tensor
    """``(num_owned,)`` int64 global ids, ascending."""
    halo: Tensor
    """``(num_halo,)`` int64 global ids, by owner and then ascending."""
    halo_indptr: Tensor
    """``(num_parts + 1,)`` int64."""
    local_indptr: Tensor
    """``(num_owned + 1,)`` int64, of the in-edges from owned nodes."""
    remote_indptr: Tensor
    """``(num_owned + 1,)`` int64, of those from others' nodes."""


@typed
def split(graph: Graph | Csc, partition: Partition, *, keep_edges: bool = False) -> list[Part]:
    """Cut a graph into parts.

    Every edge is in one part, that of its destination, and in one of its two graphs. Edges of a row keep
    their order; edge weights go along.

    Args:
        graph: The graph, on the CPU.
        partition: Its partition.
        keep_edges: Also keep each edge's position in the whole graph (8 bytes per edge), which says where
            its features are.

    Raises:
        DataError: The partition is of another graph.
    """
    division = Division(graph, partition)
    return [division.part(part, keep_edges=keep_edges) for part in range(partition.num_parts)]


class Division:
    """A graph and its partition, of which parts are cut one at a time.

    Attributes:
        outlines: What each part holds, without its edges.
    """

    @typed
    def __init__(self, graph: Graph | Csc, partition: Partition) -> None:
        """Find every part's nodes and halo, which reads all edges once.

        Raises:
            DataError: The partition is of another graph, or the graph is not square or has several types.
        """
        if isinstance(graph, Graph):
            graph.check_one_type("a partition")
        csc = graph.csc if isinstance(graph, Graph) else graph
        if csc.num_src != csc.num_dst or csc.num_dst != partition.num_nodes:
            raise DataError(
                f"the partition is of {partition.num_nodes:,} nodes; the graph has {csc.num_dst:,}"
                f"{'' if csc.num_src == csc.num_dst else f' and {csc.num_src:,} sources'}. Partition this one"
            )
        check_made_for(partition, csc, "the partition was")
        self._csc, self._partition = csc, partition
        self._rows = torch.empty(csc.num_dst, dtype=csc.indices.dtype)  # of each node, with its owner
        self.outlines = list(self._outlined())

    @typed
    def part(self, part: int, *, keep_edges: bool = False) -> Part:
        """Cut one part.

        Args:
            part: Its number.
            keep_edges: Also keep each edge's position in the whole graph.

        Raises:
            ConfigError: There is no such part.
        """
        num_parts = self._partition.num_parts
        as_count(part, "part", most=num_parts - 1, error=ConfigError)
        outline = self.outlines[part]
        local, remote, edges = self._cut(part, outline, keep_edges)
        sends = [self.sent(part, to) for to in range(num_parts)]
        return Part(
            part=part,
            num_parts=num_parts,
            owned=outline.owned,
            halo=outline.halo,
            halo_indptr=outline.halo_indptr,
            send=torch.cat(sends),
            send_indptr=_ends(torch.tensor([rows.numel() for rows in sends])),
            local=local,
            remote=remote,
            local_edge=edges[0],
            remote_edge=edges[1],
        )

    @typed
    def sent(self, part: int, to: int) -> Tensor:
        """Return the local rows of one part that are in the halo of another, ``(num_rows,)`` int64."""
        receiver = self.outlines[to]
        begin, end = receiver.halo_indptr[part : part + 2].tolist()
        return self._rows[receiver.halo[begin:end]].long()

    def _outlined(self) -> Iterator[Outline]:
        csc, part_of, num_parts = self._csc, self._partition.part_of, self._partition.num_parts
        is_halo = torch.zeros(csc.num_dst, dtype=torch.uint8)
        for part in range(num_parts):
            owned = self._partition.owned(part)
            self._rows[owned] = torch.arange(owned.numel(), dtype=self._rows.dtype)
            local, remote = (torch.empty(owned.numel() + 1, dtype=torch.int64) for _ in range(2))
            _backend().count_split(csc.indptr, csc.indices, part_of, owned, part, local, remote, is_halo)
            halo = is_halo.nonzero().squeeze(1)
            is_halo[halo] = 0
            owner = part_of[halo]
            by_owner = owner.argsort(stable=True)
            counts = torch.bincount(owner, minlength=num_parts)
            yield Outline(owned, halo[by_owner], _ends(counts), local, remote)

    def _cut(
        self, part: int, outline: Outline, keep_edges: bool
    ) -> tuple[Csc, Csc, tuple[Tensor | None, Tensor | None]]:
        csc = self._csc
        column = self._rows.clone()
        column[outline.halo] = torch.arange(outline.halo.numel(), dtype=column.dtype)
        indptrs = (outline.local_indptr, outline.remote_indptr)
        local, remote = (csc.indices.new_empty(int(indptr[-1])) for indptr in indptrs)
        edges: tuple[Tensor | None, Tensor | None] = (None, None)
        if keep_edges or csc.weight is not None:
            edges = (
                torch.empty(local.numel(), dtype=torch.int64),
                torch.empty(remote.numel(), dtype=torch.int64),
            )
        _backend().write_split(
            csc.indptr,
            csc.indices,
            self._partition.part_of,
            outline.owned,
            part,
            column,
            *indptrs,
            local,
            remote,
            *edges,
        )
        weights = [None if csc.weight is None or edge is None else csc.weight[edge] for edge in edges]
        near = Csc(indptrs[0], local, outline.owned.numel(), weights[0], trusted=True)
        far = Csc(indptrs[1], remote, outline.halo.numel(), weights[1], trusted=True)
        return near, far, edges if keep_edges else (None, None)


def _ends(counts: Tensor) -> Tensor:
    """Return the indptr of lists of these lengths."""
    indptr = torch.zeros(counts.numel() + 1, dtype=torch.int64)
    torch.cumsum(counts, 0, out=indptr[1:])
    return indptr


def _backend() -> Any:
    return native.kernels() or reference
