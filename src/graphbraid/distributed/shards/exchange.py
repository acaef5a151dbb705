"""Questions to the owners of nodes, and their answers: one round of collective operations for all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from graphbraid import native
from graphbraid.distributed.parts.rows import JoinedRows, PartRows
from graphbraid.distributed.ranks.communicator import Communicator
from graphbraid.graph.csc import index_dtype, indptr_of, ranges
from graphbraid.graph.types import Relation
from graphbraid.sampling.reference import relabel
from graphbraid.sampling.sample import Sampled

if TYPE_CHECKING:
    from graphbraid.distributed.shards.sharded_graph import TypeShards


NO_IDS = torch.empty(0, dtype=torch.int64)


class Routed:
    """Ids on the way to their owners, and answers on the way back. All ranks call its methods together.

    Ids of one owner keep their order.
    """

    def __init__(self, comm: Communicator, owners: Tensor) -> None:
        by_owner = owners.numpy().astype(np.uint16).argsort(kind="stable")  # of 16 bits: a radix sort
        self._comm, self.order = comm, torch.from_numpy(by_owner)
        """``(num_ids,)`` int64: in the order of the owners, the i-th id stood at ``order[i]``."""
        self.counts: list[int] = torch.bincount(owners, minlength=comm.size).tolist()
        """Number of ids that each rank owns."""
        self.asked: list[int]
        """Number of ids that each rank sends here, as :meth:`ask` or another message tells."""

    def ask(self, ids: Tensor) -> Tensor:
        """Send ids, of one dtype on all ranks, to their owners; return those that were sent here, by rank."""
        self.asked = self._comm.counts(self.counts)
        return self.send(ids)

    def send(self, rows: Tensor) -> Tensor:
        """Send the row of each id to its owner; return the rows received, those of rank 0 first."""
        return self._comm.all_to_all(rows[self.order], self.counts, self.asked).wait()

    def answers(self, rows: Tensor) -> Tensor:
        """Send each rank the rows of the ids that it sent; return those of this rank's ids, as they stood."""
        received = self._comm.all_to_all(rows, self.asked, self.counts).wait()
        out = torch.empty_like(received)
        out[self.order] = received
        return out

    def lists(self, tables: Sequence[Tensor]) -> list[Tensor]:
        """Send each rank a list for each id that it sent; return the lists of this rank's ids, as they stood.

        Lists are numbers of entries, int64, those for rank 0 first, and tables with a row for each entry.
        """
        sent = [int(part.sum()) for part in torch.split(tables[0], self.asked)]
        counts = self.answers(tables[0]).long()
        lengths = counts[self.order]
        begins = torch.empty_like(counts)
        begins[self.order] = lengths.cumsum(0) - lengths
        received = [int(part.sum()) for part in torch.split(lengths, self.counts)]
        at = ranges(begins, counts)
        return [counts, *(self._comm.all_to_all(one, sent, received).wait()[at] for one in tables[1:])]


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


class RowsOfEdges:
    """Weights, features and ids of edges into own nodes, and those of batches, sent by destinations' owners.

    Only the thread that gathers uses ``comm``.
    """

    def __init__(
        self, comm: Communicator, own: Sequence[PartRows], num_edges: int, by_type: Sequence[TypeShards]
    ) -> None:
        self._comm, self._by_type, self._ids = comm, by_type, index_dtype(max(num_edges, 1))
        self.tables = dict[str, tuple[JoinedRows, Tensor, Tensor]]()
        """Rows by name; where each list begins in the whole graph; what to add to a position for its row."""
        numbers = {f"edge{one.number}_attr": one.number for one in own[0].relations}
        for name in {"weight", "edge_attr", "edge_id", *numbers} & own[0].arrays.keys():
            lists = [part.lists_of(numbers.get(name)) for part in own]
            begins = torch.cat([first for first, _ in lists])
            counts = torch.cat([offsets.diff() for _, offsets in lists])
            held = counts.nonzero().squeeze(1)  # an empty list begins where another does
            begins, order = begins[held].sort()
            rows = JoinedRows([part.arrays[name] for part in own])
            self.tables[name] = rows, begins, indptr_of(counts)[held[order]] - begins

    def own_rows(self, name: str, positions: Tensor) -> Tensor:
        """Return the rows of edges into own nodes, by the array's name and positions in the whole graph."""
        rows, begins, ahead = self.tables[name]
        return rows.gather(positions + ahead[torch.searchsorted(begins, positions, right=True) - 1])

    def gather(
        self, batches: Sequence[Sampled], names: Sequence[str], relation: Relation
    ) -> list[list[Tensor]]:
        """Return the rows of each batch's edges of a relation, hop by hop; all ranks call it together.

        Names of the arrays are the same on all ranks; batches keep positions of edges, and there may be none.
        """
        kept = [NO_IDS if (found := one.positions(relation.number)) is None else found for one in batches]
        positions, places = torch.unique(torch.cat([*kept, NO_IDS]), return_inverse=True)
        owners = torch.empty_like(positions)
        owners[places] = torch.cat([*(self._owners_of(one, relation) for one in batches), NO_IDS])
        routed = Routed(self._comm, owners)
        given = routed.ask(positions.to(self._ids)).long()
        tables = [routed.answers(self.own_rows(name, given))[places] for name in names]
        by_table = [torch.split(rows, [*map(len, kept)]) for rows in tables]
        return [list(rows) for rows in zip(*by_table, strict=True)]

    def _owners_of(self, batch: Sampled, relation: Relation) -> Tensor:
        """Return the rank of each edge of a relation in a batch, hop by hop: that of its destination."""
        ranks = self._by_type[relation.destination].owners(batch.n_id_by_type[relation.destination])
        edges = batch.edges_by_relation[relation.number]
        return torch.cat([ranks[: len(one.indptr) - 1].repeat_interleave(one.indptr.diff()) for one in edges])
