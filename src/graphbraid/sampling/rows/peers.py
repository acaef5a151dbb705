"""PeerRows: rows that the devices of several processes of one machine keep between them, each reading all."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from graphbraid.arguments import as_count, check_tensor
from graphbraid.machine.shared_tensors import check_reads, handle_of, opened
from graphbraid.ops.gather import Tier, gather_rows
from graphbraid.sampling.rows.hot_copies import Gather, copied_rows

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
        exchange: of the group; called twice here, and twice to close.
        scale: ``(num_nodes,)`` float32 where rows of int8 are that many times their numbers. If None, they
            are what ``source`` gives.

    Raises:
        ConfigError: there is no such rank, or the device cannot read that of another.
        ResourceError: the device does not have the memory of its part.
    """

    def __init__(
        self,
        ids: Tensor,
        source: Gather,
        *,
        rank: int,
        num_peers: int,
        device: torch.device,
        exchange: AllGather,
        scale: Tensor | None = None,
    ) -> None:
        check_tensor(ids, "ids", ndim=1)
        num_peers = as_count(num_peers, "num_peers", least=1)
        self.rank = as_count(rank, "rank", most=num_peers - 1)
        self.ids, self._exchange = ids, exchange
        own_ids = ids[self.rank :: num_peers]
        own = copied_rows(own_ids, source, device)
        scales: tuple[Tensor, ...] = ()
        if scale is not None:
            own_scale = copied_rows(own_ids, functools.partial(gather_rows, scale.view(-1, 1)), device)
        parts = self._read_by_all(own)
        if scale is not None:
            scales = tuple(part.view(-1) for part in self._read_by_all(own_scale))
        else:
            exchange(b"")
        self.tier = Tier(parts, scales)
        """The rows of all processes, as a table of tiers takes them."""

    @property
    def nbytes(self) -> int:
        """Bytes on all devices together."""
        return self.tier.nbytes

    @property
    def own_rows(self) -> int:
        """Rows that this process's device keeps."""
        return len(self.tier.parts[self.rank])

    def close(self) -> None:
        """Wait until all processes are done with the rows, and let go of them."""
        device = self.tier.parts[self.rank].device
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # what is queued may read the others' rows
        self._exchange(b"")
        self.abandon()
        self._exchange(b"")

    def abandon(self) -> None:
        """Let go of the rows without a word to the others, as where one of them was lost."""
        parts, scales = self.tier.parts, self.tier.scales
        self.tier = Tier(tuple(part[:0].clone() for part in parts), tuple(s[:0].clone() for s in scales))

    def _read_by_all(self, own: Tensor) -> tuple[Tensor, ...]:
        """Return the parts of all processes, each on its own device."""
        handles = self._exchange(handle_of(own) if len(own) else b"")  # memory of no rows is not shared
        parts = []
        for rank, handle in enumerate(handles):
            part = own if rank == self.rank else opened(handle) if handle else own[:0].clone()
            check_reads(own.device, part.device, "let each keep its own hot rows")
            parts.append(part)
        return tuple(parts)
