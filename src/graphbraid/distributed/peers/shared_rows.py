"""SharedRows: a matrix of rows on every rank, shared once, which all write and then all read."""

from __future__ import annotations

import torch
from torch import Tensor

from graphbraid.arguments import as_count
from graphbraid.distributed.peers.group import Peers
from graphbraid.ops.peers.peer_rows import PeerTable
from graphbraid.signatures import typed


@typed
class SharedRows:
    """Memory for rows that are written, published and read, again and again.

    All ranks make it, and call its methods, together. Between writing and reading stands a meeting of all
    ranks, and between reading and writing again stands one, too: another exchange's will do, so that an
    engine with two of them meets once for each.

    Args:
        peers: the ranks.
        num_rows: number of this rank's rows; 0 where it owns none.
        width: number of columns, the same on all ranks.
        dtype: dtype of the rows, the same on all ranks.

    Raises:
        ConfigError: ranks cannot read each other's memory.
        RankError: a rank was lost.
    """

    def __init__(self, peers: Peers, num_rows: int, width: int, dtype: torch.dtype = torch.float32) -> None:
        num_rows, width = as_count(num_rows, "num_rows"), as_count(width, "width")
        peers.check()
        self._peers, self._read_at, self._is_published = peers, -1, False
        counts = [num_rows] if peers.comm.size == 1 else peers.comm.gather(num_rows)
        memory = torch.zeros(max(1, num_rows * width), dtype=dtype, device=peers.device)  # none is not shared
        parts = [
            part[: count * width].view(count, width)
            for part, count in zip(peers.shared(memory), counts, strict=True)
        ]
        self._table: PeerTable | None = PeerTable(parts, peers.comm.rank)

    @property
    def nbytes(self) -> int:
        """Bytes of this rank's rows."""
        return 0 if self._table is None else self._table.rows.nbytes

    def writable(self) -> Tensor:
        """Return this rank's rows to write into, once no rank reads any more what was there.

        Raises:
            RankError: a rank was lost.
        """
        if self._read_at == self._peers.num_meetings:
            self._peers.meet()
        self._is_published = False
        return self._open_table().rows

    def publish(self) -> None:
        """Wait until all ranks have written.

        Raises:
            RankError: a rank was lost.
        """
        self._peers.meet()
        self._is_published = True

    def readable(self) -> PeerTable:
        """Return the rows of all ranks, to be read before the ranks meet again."""
        assert self._is_published, "rows are read that were not published"
        self._read_at = self._peers.num_meetings
        return self._open_table()

    def close(self) -> None:
        """Let go of the rows once no rank reads them any more; all ranks do so together.

        Raises:
            RankError: a rank was lost.
        """
        if self._table is None:
            return
        self._peers.meet()
        self._table = None
        self._peers.meet()  # owners let go of memory that the others have closed

    def _open_table(self) -> PeerTable:
        assert self._table is not None, "rows were closed"
        return self._table


__all__ = ["SharedRows"]
