"""PeerSum: an aggregation over the rows of several ranks and its gradient, read where the rows are."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from graphbraid.distributed.peers.group import Peers
from graphbraid.distributed.peers.reversing import reversed_edges
from graphbraid.distributed.peers.shared_rows import SharedRows
from graphbraid.errors import DataError
from graphbraid.ops.peer_edges import PeerEdges
from graphbraid.ops.pipeline_plan import Knobs, PipelinePlan
from graphbraid.ops.pipelined_sum import pipelined_sum
from graphbraid.signatures import typed


@typed
class PeerSum:
    """A linear map from the rows that ranks keep to this rank's, without a copy of any peer's row.

    Forward, each rank writes its rows where all can read them and, when all have, sums what it needs by
    :func:`.pipelined_sum`; backward, the same over the reversed edges, so that a rank computes the gradients
    of its own rows alone. All ranks make it, and call it and its methods, together.

    Args:
        peers: the ranks.
        edges: this rank's.
        width: number of columns of the rows.
        dtype: of the rows.
        knobs: of the kernel.
        learns: whether gradients are asked for.

    Raises:
        ConfigError: ranks cannot read each other's memory.
        DataError: the edges are of another rank.
        RankError: a rank was lost.
    """

    def __init__(
        self,
        peers: Peers,
        edges: PeerEdges,
        width: int,
        *,
        dtype: torch.dtype = torch.float32,
        knobs: Knobs | None = None,
        learns: bool = True,
    ) -> None:
        if (edges.rank, edges.num_ranks) != (peers.comm.rank, peers.comm.size):
            raise DataError(
                f"the edges are of rank {edges.rank} of {edges.num_ranks}; this is rank {peers.comm.rank} of "
                f"{peers.comm.size}"
            )
        self._device, self._knobs = peers.device, knobs or Knobs()
        self._forward = _Way(peers, edges, edges.local.num_src, width, dtype)
        self._backward = None
        if learns:
            self._backward = _Way(peers, reversed_edges(peers.comm, edges), edges.num_rows, width, dtype)

    @property
    def knobs(self) -> Knobs:
        """The knobs of the kernel; setting them cuts the edges anew when a sum next needs them."""
        return self._knobs

    @knobs.setter
    def knobs(self, knobs: Knobs) -> None:
        self._knobs = knobs

    def __call__(self, x: Tensor) -> Tensor:
        """Return the sums of ``x``, ``(num_own, width)``, under autograd.

        Raises:
            DataError: ``x`` does not fit.
            RankError: a rank was lost.
        """
        out: Tensor = _Sum.apply(x, self)  # type: ignore[no-untyped-call]
        return out

    def forward(self, x: Tensor, *, addend: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        """Sum up without recording anything for autograd; see :func:`.pipelined_sum` and :meth:`__call__`."""
        return self._forward.run(x, self._knobs, addend, out)

    def backward(self, grad: Tensor, *, addend: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        """Return the gradients of this rank's rows by those of all sums, ``(num_rows, width)`` of each rank.

        Arguments and errors are as those of :meth:`forward`.
        """
        assert self._backward is not None, "made without a gradient"
        return self._backward.run(grad, self._knobs, addend, out)

    def close(self) -> None:
        """Let go of the memory that is shared; all ranks do so together."""
        self._forward.rows.close()
        if self._backward is not None:
            self._backward.rows.close()


class _Way:
    """One direction of a sum: its edges, cut as knobs say, and the rows that it reads."""

    def __init__(self, peers: Peers, edges: PeerEdges, num_rows: int, width: int, dtype: torch.dtype) -> None:
        self._edges, self._device = edges, peers.device
        self._plan: PipelinePlan | None = None
        self.rows = SharedRows(peers, num_rows, width, dtype)
        """The rows that are read."""

    def run(self, x: Tensor, knobs: Knobs, addend: Tensor | None, out: Tensor | None) -> Tensor:
        """Publish ``x`` and sum up."""
        rows = self.rows.writable()
        if x.shape != rows.shape or x.dtype != rows.dtype:
            raise DataError(
                f"rows must be {rows.dtype} of shape {tuple(rows.shape)}; got {x.dtype} of {tuple(x.shape)}"
            )
        rows.copy_(x.detach())
        self.rows.publish()
        if self._plan is None or self._plan.knobs != knobs:
            self._plan = PipelinePlan.of(self._edges, knobs).to(self._device)
        return pipelined_sum(self._plan, self.rows.readable(), addend=addend, out=out)


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, how: PeerSum) -> Tensor:
        ctx.how = how
        return how.forward(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.how.backward(grad) if ctx.needs_input_grad[0] else None, None


__all__ = ["PeerSum"]
