"""split(): cuts a graph into parts, each with its local and remote graph and the rows that it exchanges."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import xxhash
from torch import Tensor

from graphbraid import native
from graphbraid.arguments import as_count
from graphbraid.distributed.partitioning import reference
from graphbraid.distributed.partitioning.records import Partition
from graphbraid.errors import ConfigError, DataError
from graphbraid.graph import Graph
from graphbraid.graph.csc import Csc, indptr_of
from graphbraid.graph.identity import check_made_for
from graphbraid.graph.scans import check_ids
from graphbraid.signatures import typed


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Part:
    """One part of a divided graph: owned rows ``[0, num_owned)``, halo rows after them.

    A node's in-edges stand with its owner, so that its sum is computed in one place. Those from owned nodes
    make the local graph, those from others' the remote one, so that the first can be aggregated while rows
    for the second travel. Halo rows are grouped by their owners: what a part receives from another is one
    range of rows, in the order in which the other has them in its list of rows to send.
    """

    part: int
    """The part's number."""
    num_parts: int
    owned: Tensor
    """``(num_owned,)`` int64 global ids, ascending: local row i is node ``owned[i]``."""
    halo: Tensor
    """``(num_halo,)`` int64 global ids, by owner and then ascending: local row ``num_owned + i``."""
    halo_indptr: Tensor
    """``(num_parts + 1,)`` int64: ``halo[halo_indptr[p]:halo_indptr[p + 1]]`` come from part ``p``."""
    send: Tensor
    """``(num_sent,)`` int64 local rows that others have in their halo, by receiver and then ascending."""
    send_indptr: Tensor
    """``(num_parts + 1,)`` int64: ``send[send_indptr[p]:send_indptr[p + 1]]`` go to part ``p``."""
    local: Csc
    """In-edges of the owned rows from owned rows: ``num_owned`` destinations and sources."""
    remote: Csc
    """In-edges of the owned rows from halo rows; column i is local row ``num_owned + i``."""
    local_edge: Tensor | None = None
    """``(num_local_edges,)`` int64 position of each local edge in the whole graph; None if not kept."""
    remote_edge: Tensor | None = None
    """``(num_remote_edges,)`` int64, the same of the remote edges."""

    @property
    def num_owned(self) -> int:
        """Number of nodes that the part owns."""
        return self.owned.numel()

    @property
    def num_halo(self) -> int:
        """Number of nodes of others whose rows the part reads."""
        return self.halo.numel()

    @property
    def num_edges(self) -> int:
        """Number of in-edges of the owned nodes."""
        return self.local.num_edges + self.remote.num_edges

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        ids = (self.owned, self.halo, self.halo_indptr, self.send, self.send_indptr)
        edges = (self.local_edge, self.remote_edge)
        tensors = [*ids, *(edge for edge in edges if edge is not None)]
        return self.local.nbytes + self.remote.nbytes + sum(tensor.nbytes for tensor in tensors)

    def check_lists(self, partition: Partition) -> None:
        """Check every list of nodes against the owners of all nodes, and the graphs against the lists.

        Raises:
            DataError: one does not fit; names it.
        """
        part_of, where = partition.part_of, f"part {self.part}"
        if not torch.equal(self.owned, partition.owned(self.part)):
            raise DataError(f"owned must be the nodes of {where} by part_of, ascending")
        for name, ids, indptr, bound in (
            ("halo", self.halo, self.halo_indptr, part_of.numel()),
            ("send", self.send, self.send_indptr, self.num_owned),
        ):
            check_ids(ids, bound, name)
            lists = Csc(indptr, ids, bound)
            other = lists.destinations()
            rises = (ids[1:] > ids[:-1]) | (other[1:] != other[:-1])
            if lists.num_dst != self.num_parts or not bool(rises.all()) or int(lists.degrees()[self.part]):
                raise DataError(f"{name} must have an ascending list for each part but {where} itself")
            if name == "halo" and not torch.equal(part_of[ids].long(), other.long()):
                raise DataError("halo must list nodes with their owners by part_of")
        for name, edges, kept in (
            ("local", self.local, self.local_edge),
            ("remote", self.remote, self.remote_edge),
        ):
            if edges.num_dst != self.num_owned or (kept is not None and kept.shape != edges.indices.shape):
                raise DataError(f"the {name} graph must have a row for each of {self.num_owned} owned nodes")

    def joined(self) -> Csc:
        """Return both graphs as one: ``num_owned`` destinations, ``num_owned + num_halo`` sources.

        Each row holds its local edges before its remote ones.
        """
        num_columns = self.num_owned + self.num_halo
        indptr = self.local.indptr + self.remote.indptr
        row = self.local.destinations(), self.remote.destinations()
        # An edge moves by the edges of the other graph before it: those of earlier rows, or of its own too.
        at_local = torch.arange(self.local.num_edges) + self.remote.indptr[row[0].long()]
        at_remote = torch.arange(self.remote.num_edges) + self.local.indptr[row[1].long() + 1]
        indices = torch.empty(self.num_edges, dtype=self.local.indices.dtype)
        indices[at_local] = self.local.indices
        indices[at_remote] = self.remote.indices + self.num_owned
        weight = None
        if self.local.weight is not None and self.remote.weight is not None:
            weight = torch.empty(self.num_edges)
            weight[at_local], weight[at_remote] = self.local.weight, self.remote.weight
        return Csc(indptr, indices, num_columns, weight, trusted=True)


def list_sums(ids: Tensor, lengths: Iterable[int]) -> Tensor:
    """Return a checksum of each of the lists that follow each other in ``ids``: ``(num_lists,)`` int64.

    What part A sends to part B, as global ids, is what B has from A in its halo: both checksums are equal.
    """
    lists = torch.split(ids, list(lengths))
    return torch.tensor([xxhash.xxh3_64_intdigest(one.numpy().tobytes()) >> 1 for one in lists])


@dataclass(frozen=True, eq=False, slots=True)
class Outline:
    """The contents of a part without its edges."""

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
    """A graph and its partition, which is cut into parts one at a time.

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
            graph.check_whole("a partition")
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
            send_indptr=indptr_of(torch.tensor([rows.numel() for rows in sends])),
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
            yield Outline(owned, halo[by_owner], indptr_of(counts), local, remote)

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


def _backend() -> Any:
    return native.kernels() or reference
