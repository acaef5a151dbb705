"""Questions to the owners of nodes, and their answers: one round of collective operations for all ranks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from graphbraid.distributed.ranks.communicator import Communicator


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


def swap(comm: Communicator, table: Tensor) -> Tensor:
    """Give row r of ``table``, ``(num_ranks, ...)``, to rank r; return the rows that are for this rank."""
    ones = [1] * comm.size
    return comm.all_to_all(table.contiguous(), ones, ones).wait()
