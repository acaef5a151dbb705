"""PeerRows: rows that the devices of several processes of one machine keep between them, each reading all."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from graphbraid.arguments import as_count, check_tensor
from graphbraid.machine.shared_tensors import check_reads, handle_of, opened
from graphbraid.ops.gather.gather_tiered import Tier

AllGather = Callable[[bytes], Sequence[bytes]]
"""Gives every process what each of them gave, by rank: an all-gather, which waits for all."""


class PeerRows:
    """Rows interleaved over the devices of a group of processes, so that each row is there once.

    Process ``r`` of ``g`` keeps every ``g``-th row from the ``r``-th on. The processes exchange handles of
    their parts (CUDA's inter-process memory handles; on the CPU, shared memory) and read each other's without
    copies; devices must be able to read each other's memory, or be the same one. The call waits for all of
    the group. A part must live as long as another process reads it: end with :meth:`close` in all of them.

    Args:
        ids: ``(num_rows,)`` int64 rows, in the same order in every process.
        source: gives the rows of ids; asked for this process's part only.
        rank: this process's place in the group.
        num_peers: processes of the group.
        device: this process's.
        exchange: of the group.

    Raises:
        ConfigError: there is no such rank, or the device cannot read that of another.
    """

    def __init__(
        self,
        ids: Tensor,
        source: Callable[[Tensor], Tensor],
        *,
        rank: int,
        num_peers: int,
        device: torch.device,
        exchange: AllGather,
    ) -> None:
        check_tensor(ids, "ids", ndim=1)
        num_peers = as_count(num_peers, "num_peers", least=1)
        rank = as_count(rank, "rank", most=num_peers - 1)
        self.ids, self._exchange = ids, exchange
        own = source(ids[rank::num_peers]).contiguous().to(device)
        if own.device.type == "cuda":
            torch.cuda.current_stream(own.device).synchronize()  # the others read it by streams of their own
        handles = exchange(handle_of(own))
        parts = [own if of == rank else opened(handle) for of, handle in enumerate(handles)]
        for part in parts:
            check_reads(own.device, part.device, "let each keep its own hot rows")
        self.tier = Tier(tuple(parts))
        """The rows of all processes, as a table of tiers takes them."""

    @property
    def nbytes(self) -> int:
        """Bytes on all devices together."""
        return self.tier.nbytes

    def close(self) -> None:
        """Wait until all processes are done with the rows, and let go of them."""
        self._exchange(b"")
        self.tier = Tier(tuple(part[:0].clone() for part in self.tier.parts))
        self._exchange(b"")
