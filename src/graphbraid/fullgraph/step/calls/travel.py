"""Travel: rows on their way between ranks, to the halos that read them and, as gradients, back."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from graphbraid.fullgraph.lowering.route import Route
from graphbraid.graph.csc import Csc, index_dtype
from graphbraid.ops.aggregation import Aggregation, aggregated
from graphbraid.ops.kernels import recorded_whole

if TYPE_CHECKING:
    from graphbraid.distributed.ranks.communicator import Communicator, Handle

HOST = torch.device("cpu")


class Travel:
    """The rows of one exchange. What is begun is waited for before it is begun again.

    Args:
        comm: the ranks.
        route: the rows that travel.
        num_own: number of rows that this rank owns.
        width: number of columns.
        wire: dtype to which rows are rounded, to nearest, for the way.
        place: where the rows are.
        by_host: whether rows of a device go by way of the host's memory.
    """

    def __init__(
        self,
        comm: Communicator,
        route: Route,
        num_own: int,
        width: int,
        wire: torch.dtype = torch.float32,
        *,
        place: torch.device = HOST,
        by_host: bool = False,
    ) -> None:
        self._comm, self._num_own, self._width, self._wire = comm, num_own, width, wire
        self._place, self._by_host = place, by_host
        self._is_direct = wire == torch.float32 and not by_host
        self.route = route
        """The rows that travel."""
        self._handle: Handle[Tensor] | None = None
        self._receiver: Tensor | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the rounded rows, which it holds, where the rows are, from the first journey on."""
        if self._wire == torch.float32 or self._by_host:
            return 0
        return (self.route.num_sent + self.route.num_received) * self._width * self._wire.itemsize

    @recorded_whole
    def begin(self, own: Tensor, packed: Tensor, halo: Tensor) -> None:
        """Begin to send ``own`` rows, by way of ``packed``, and to receive the halo's."""
        torch.index_select(own, 0, self._send, out=packed)
        self.begin_packed(packed, halo)

    def begin_packed(self, packed: Tensor, halo: Tensor) -> None:
        """Begin to send rows in the order in which they go, and to receive the halo's."""
        sent, received = (packed, halo) if self._is_direct else self._between
        self._depart(packed, sent, received, halo, back=False)

    @recorded_whole
    def begin_back(self, halo: Tensor, returned: Tensor) -> None:
        """Begin to send the gradients of the halo's rows, and to receive those of the rows sent."""
        received, sent = (returned, halo) if self._is_direct else self._between
        self._depart(halo, sent, received, returned, back=True)

    @recorded_whole
    def wait(self) -> None:
        """Wait for what was begun.

        Raises:
            RankError: a rank was lost, has stalled or has failed.
        """
        assert self._handle is not None
        arrived = self._handle.wait()
        if self._receiver is not None and self._receiver is not arrived:
            self._receiver.copy_(arrived)
        self._handle = self._receiver = None

    def _depart(self, rows: Tensor, sent: Tensor, received: Tensor, receiver: Tensor, *, back: bool) -> None:
        """Begin to send ``rows`` by way of ``sent``; what comes goes through ``received`` to ``receiver``."""
        if sent is not rows:
            sent.copy_(rows)
        counts = (self.route.send_rows, self.route.receive_rows)
        self._receiver = receiver
        self._handle = self._comm.all_to_all(sent, *(counts[::-1] if back else counts), received)

    @cached_property
    def _send(self) -> Tensor:
        """The own rows to send, where they are."""
        return self.route.send.to(self._place)

    @cached_property
    def _between(self) -> tuple[Tensor, Tensor]:
        """The rows as they are sent to the halos, and those of the own halo; backward the other way.

        They are rounded, or on the host, or both.
        """
        route, place = self.route, HOST if self._by_host else self._place
        count, pins = route.num_sent + route.num_received, self._by_host and self._place.type == "cuda"
        rows = torch.empty(count, self._width, dtype=self._wire, device=place, pin_memory=pins)
        return rows[: route.num_sent], rows[route.num_sent :]

    @cached_property
    def _adding(self) -> Aggregation:
        """The map that adds returned row i to own row ``send[i]``, in order."""
        rows, num_rows = self.route.send, self._num_own
        indptr = torch.zeros(num_rows + 1, dtype=torch.int64)
        torch.cumsum(torch.bincount(rows, minlength=num_rows), 0, out=indptr[1:])
        indices = rows.argsort(stable=True).to(index_dtype(max(rows.numel(), 1)))
        place = self._place
        return Aggregation(csc=Csc(indptr.to(place), indices.to(place), rows.numel(), trusted=True))

    def add(self, returned: Tensor, own: Tensor) -> None:
        """Add the gradients that came back to those of the own rows, in the order of the ranks."""
        if self.route.num_sent:
            aggregated(self._adding, returned, addend=own, out=own)


__all__ = ["Travel"]
