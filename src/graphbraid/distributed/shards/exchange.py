"""Questions to the owners of nodes, and their answers: one round of collective operations for all ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from graphbraid import native
from graphbraid.distributed.parts.rows import PartRows
from graphbraid.distributed.ranks.communicator import Communicator
from graphbraid.graph.csc import index_dtype, ranges
from graphbraid.sampling.reference import relabel
from graphbraid.sampling.rows.by_id import take_rows
from graphbraid.sampling.sample import Sampled


@dataclass(frozen=True, eq=False, slots=True)
class Routed:
    """Ids in the order of their owners."""

    order: Tensor
    """``(num_ids,)`` int64: the i-th id of this order stood at ``order[i]``."""
    counts: list[int]
    """Number of ids that each rank owns."""

    @classmethod
    def by_owner(cls, owners: Tensor, num_ranks: int) -> Routed:
        """Sort ids by their owners, ``(num_ids,)`` ranks; ids of one owner keep their order."""
        return cls(owners.argsort(stable=True), torch.bincount(owners, minlength=num_ranks).tolist())

    def ask(self, comm: Communicator, ids: Tensor) -> tuple[Tensor, list[int]]:
        """Send ids to their owners; all ranks call it together.

        Args:
            comm: the ranks.
            ids: ``(num_ids,)`` integers, of the same dtype on all ranks.

        Returns:
            The ids that this rank was sent, those of rank 0 first, and how many each rank sent.
        """
        asked = comm.counts(self.counts)
        return self.send(comm, ids, asked), asked

    def send(self, comm: Communicator, rows: Tensor, asked: list[int]) -> Tensor:
        """Send the row of each id to its owner; return the rows received, those of rank 0 first."""
        return comm.all_to_all(rows[self.order], self.counts, asked).wait()

    def answers(self, comm: Communicator, rows: Tensor, asked: list[int]) -> Tensor:
        """Send each rank the rows of the ids that it sent; return those of this rank's ids, as they stood."""
        received = comm.all_to_all(rows, asked, self.counts).wait()
        out = torch.empty_like(received)
        out[self.order] = received
        return out

    def lists(
        self, comm: Communicator, tables: Sequence[Tensor], sent: list[int], counts: Tensor
    ) -> list[Tensor]:
        """Send each rank a list for each id that it sent; return the lists of this rank's ids, as they stood.

        Args:
            comm: the ranks.
            tables: values of the lists, several for each entry; those for rank 0 first.
            sent: number of entries for each rank.
            counts: ``(num_ids,)`` int64 entries of the list of each of this rank's ids.
        """
        lengths = counts[self.order]
        begins = torch.empty_like(counts)
        begins[self.order] = lengths.cumsum(0) - lengths
        received = [int(part.sum()) for part in torch.split(lengths, self.counts)]
        at = ranges(begins, counts)
        return [comm.all_to_all(table, sent, received).wait()[at] for table in tables]


def swap(comm: Communicator, table: Tensor) -> Tensor:
    """Give row r of ``table``, ``(num_ranks, ...)``, to rank r; return the rows that are for this rank."""
    ones = [1] * comm.size
    return comm.all_to_all(table.contiguous(), ones, ones).wait()


def numbered(known: Tensor, found: Tensor) -> tuple[Tensor, Tensor]:
    """Return ids with the new ones among ``found`` behind them, and the place of each of ``found``."""
    if (kernels := native.kernels()) is None:
        ids, places = relabel(known.numpy(), found.numpy())
        return torch.from_numpy(ids), torch.from_numpy(places)
    return kernels.relabel(known, found)  # type: ignore[no-any-return]


class EdgeRowExchange:
    """Attributes of the edges of batches, sent by the ranks that own the edges' destinations.

    Args:
        comm: the ranks. Only the thread that gathers uses it.
        own: this rank's parts.
        num_edges: number of edges of the whole graph.
        owners: gives the rank of each of some nodes, by the number of their type.
    """

    def __init__(
        self,
        comm: Communicator,
        own: Sequence[PartRows],
        num_edges: int,
        owners: Sequence[Callable[[Tensor], Tensor]],
    ) -> None:
        self._comm, self._own, self._owners = comm, own, owners
        self._lists = [
            {
                one.number: part.lists_of(one)
                for one in part.relations
                if f"edge{one.number}_attr" in part.arrays
            }
            for part in own
        ]
        self._ids = index_dtype(max(num_edges, 1))

    def gather(
        self, batches: Sequence[Sampled], tables: Sequence[str], relation: tuple[int, int] = (0, 0)
    ) -> list[list[Tensor]]:
        """Return the rows of each batch's edges in some tables, hop by hop; all ranks call it together.

        Args:
            batches: they keep positions of edges. There may be none.
            tables: ``"weight"``, ``"edge_attr"`` or both, the same on all ranks.
            relation: numbers of the edges' relation and of its destinations' type.
        """
        comm, no_ids = self._comm, torch.empty(0, dtype=torch.int64)
        kept = [no_ids if (found := one.positions(relation[0])) is None else found for one in batches]
        positions, places = torch.unique(torch.cat([*kept, no_ids]), return_inverse=True)
        owners = torch.empty_like(positions)
        owners[places] = torch.cat([*(self._owners_of(one, *relation) for one in batches), no_ids])
        routed = Routed.by_owner(owners, comm.size)
        given, asked = routed.ask(comm, positions.to(self._ids))
        by_table = []
        for table in tables:
            own = self.own_rows(table, given.long(), relation)
            rows = routed.answers(comm, own, asked)
            by_table.append(torch.split(rows[places], [one.numel() for one in kept]))
        return [list(rows) for rows in zip(*by_table, strict=True)]

    def _owners_of(self, batch: Sampled, relation: int, destination: int) -> Tensor:
        """Return the rank of each edge of a relation in a batch, hop by hop: that of its destination."""
        ranks = self._owners[destination](batch.n_id_by_type[destination])
        edges = batch.edges_by_relation[relation]
        return torch.cat([ranks[: len(one.indptr) - 1].repeat_interleave(one.indptr.diff()) for one in edges])

    def own_rows(self, table: str, positions: Tensor, relation: tuple[int, int] = (0, 0)) -> Tensor:
        """Return the rows of edges into own nodes, by their positions in the whole graph."""
        number, destination = relation
        by_relation = table == "edge_attr" and bool(self._own[0].relations)
        name = f"edge{number}_attr" if by_relation else table
        first = self._own[0].arrays[name]
        out = first.new_empty(positions.numel(), *first.shape[1:])
        for part, lists in zip(self._own, self._lists, strict=True):
            if not part.owned.numel():
                continue
            first_edge, indptr = part.arrays["first_edge"], part.arrays["indptr"]
            # Of nodes with the same first edge, only the last has edges.
            node = (torch.searchsorted(first_edge, positions, right=True) - 1).clamp(min=0)
            place = positions - first_edge[node]
            here = ((place >= 0) & (place < indptr[node + 1] - indptr[node])).nonzero().squeeze(1)
            at = (indptr[node] + place)[here]
            if by_relation:  # from the place among all edges to that among the relation's
                of_type = node[here] - sum(map(len, part.by_type[:destination]))
                begins, offsets = lists[number]
                at = offsets[of_type] + (at - begins[of_type])
            out[here] = take_rows(part.arrays[name], at)
        return out
