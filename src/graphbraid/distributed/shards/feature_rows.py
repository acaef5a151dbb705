"""FeatureRows: the features of batches, read where they are: own rows here, the others' from their owners."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from graphbraid.distributed.shards.exchange import Routed

if TYPE_CHECKING:
    from graphbraid.distributed.shards.sharded_graph import Shards


class FeatureRows:
    """The feature rows of several batches at a time, each row once, from their owners.

    Args:
        shards: the parts that this rank holds.
    """

    def __init__(self, shards: Shards) -> None:
        self._shards = shards

    def gather(self, batches: Sequence[Tensor]) -> list[Tensor]:
        """Return the rows of each batch, ``(num_ids, num_features)``; all ranks must call it together.

        Args:
            batches: ``(num_ids,)`` int64 ids in the whole graph of each batch, the batch to be used next
                first. There may be none, and a batch may have none.
        """
        shards, comm = self._shards, self._shards.comm
        everything = torch.cat([*batches, torch.empty(0, dtype=torch.int64)])
        wanted, places = torch.unique(everything, return_inverse=True)
        routed = Routed.by_owner(shards.owners(wanted), comm.size)
        sorted_ids = wanted[routed.order]
        asked = comm.counts(routed.counts)
        answers = shards.own_rows(comm.all_to_all(sorted_ids, routed.counts, asked).wait())
        received = comm.all_to_all(answers, asked, routed.counts).wait()
        rows = torch.empty_like(received)
        rows[routed.order] = received
        return [rows[at] for at in torch.split(places, [ids.numel() for ids in batches])]
