"""PeerMap and PeerSum: aggregations over rows of several ranks and their gradients, read where they are."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from graphbraid.distributed.peers.group import Peers
from graphbraid.distributed.peers.reversing import reversed_edges
from graphbraid.distributed.peers.shared_rows import SharedRows
from graphbraid.errors import DataError
from graphbraid.ops.library import once_differentiable
from graphbraid.ops.peers.peer_rows import PeerEdges
from graphbraid.ops.peers.pipeline_plan import PipelineConfig, PipelinePlan
from graphbraid.ops.peers.pipelined_sum import pipelined_sum
from graphbraid.signatures import typed


@typed
class PeerMap:
    """A linear map from the rows that ranks keep to this rank's, and the map back.

    All ranks make it together.

    Args:
        peers: the ranks.
        edges: this rank's.
        config: how the kernel divides the work.
        learns: whether gradients are asked for.

    Raises:
        DataError: the edges are of another rank.
        RankError: a rank was lost.
    """

    def __init__(
        self, peers: Peers, edges: PeerEdges, *, config: PipelineConfig | None = None, learns: bool = True
    ) -> None:
        if (edges.rank, edges.num_ranks) != (peers.comm.rank, peers.comm.size):
            raise DataError(
                f"the edges are of rank {edges.rank} of {edges.num_ranks}; this is rank {peers.comm.rank} of "
                f"{peers.comm.size}"
            )
        self.peers, self.edges = peers, edges
        self.reverse = reversed_edges(peers.comm, edges) if learns else None
        """The edges back; None if no gradient is asked for."""
        self._config = config or PipelineConfig()
        self._plans: dict[bool, PipelinePlan] = {}

    @property
    def config(self) -> PipelineConfig:
        """The kernel's configuration; setting another cuts the edges anew when a sum next needs them."""
        return self._config

    @config.setter
    def config(self, config: PipelineConfig) -> None:
        if config != self._config:
            self._plans.clear()
        self._config = config

    def plan(self, *, back: bool) -> PipelinePlan:
        """Return the edges of one direction as the kernel reads them."""
        if back not in self._plans:
            edges = self.reverse if back else self.edges
            assert edges is not None, "made without a gradient"
            self._plans[back] = PipelinePlan.of(edges, self._config).to(self.peers.device)
        return self._plans[back]


@typed
class PeerSum:
    """The sums of a :class:`PeerMap` over rows of one width, without a copy of any peer's row.

    Forward, each rank writes its rows where all can read them and, when all have, sums what it needs by
    :func:`.pipelined_sum`; backward, the same over the reversed edges, so that a rank computes the gradients
    of its own rows alone. All ranks make it, and call it and its methods, together.

    Args:
        mapped: the map.
        width: number of columns of the rows.
        dtype: of the rows.

    Raises:
        ConfigError: ranks cannot read each other's memory.
        RankError: a rank was lost.
    """

    def __init__(self, mapped: PeerMap, width: int, dtype: torch.dtype = torch.float32) -> None:
        self._mapped, edges = mapped, mapped.edges
        self._rows = SharedRows(mapped.peers, edges.local.num_src, width, dtype)
        self._grads = None
        if mapped.reverse is not None:
            self._grads = SharedRows(mapped.peers, edges.num_rows, width, dtype)

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
        return self._run(self._rows, x, addend, out, back=False)

    def backward(self, grad: Tensor, *, addend: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        """Return the gradients of this rank's rows by those of all sums, ``(num_rows, width)`` of each rank.

        Arguments and errors are as those of :meth:`forward`.
        """
        assert self._grads is not None, "made without a gradient"
        return self._run(self._grads, grad, addend, out, back=True)

    def close(self) -> None:
        """Let go of the memory that is shared; all ranks do so together."""
        self._rows.close()
        if self._grads is not None:
            self._grads.close()

    def _run(
        self, shared: SharedRows, x: Tensor, addend: Tensor | None, out: Tensor | None, *, back: bool
    ) -> Tensor:
        """Publish ``x`` and sum up."""
        rows = shared.writable()
        if x.shape != rows.shape or x.dtype != rows.dtype:
            raise DataError(
                f"rows must be {rows.dtype} of shape {tuple(rows.shape)}; got {x.dtype} of {tuple(x.shape)}"
            )
        rows.copy_(x.detach())
        shared.publish()
        return pipelined_sum(self._mapped.plan(back=back), shared.readable(), addend=addend, out=out)


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, how: PeerSum) -> Tensor:
        ctx.how = how
        return how.forward(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.how.backward(grad) if ctx.needs_input_grad[0] else None, None


__all__ = ["PeerMap", "PeerSum"]
