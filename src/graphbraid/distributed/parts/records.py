"""Part: what one rank holds of a graph's topology, and the rows that it sends and receives."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import xxhash
from torch import Tensor

from graphbraid.distributed.partitioning.records import Partition
from graphbraid.errors import DataError
from graphbraid.graph.csc import Csc
from graphbraid.graph.scans import check_ids


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
    """Number of parts."""
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

    def received_from(self, part: int) -> slice:
        """Return the range of halo rows that come from another part."""
        return slice(int(self.halo_indptr[part]), int(self.halo_indptr[part + 1]))

    def sent_to(self, part: int) -> Tensor:
        """Return the local rows that go to another part, ``(num_rows,)`` int64, ascending."""
        return self.send[int(self.send_indptr[part]) : int(self.send_indptr[part + 1])]

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
