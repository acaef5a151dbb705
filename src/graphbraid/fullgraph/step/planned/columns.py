"""Batch normalisation of rows that are divided among ranks: sums over the columns of all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from graphbraid.ops.kernels import backend, recorded_whole
from graphbraid.ops.norm import Moments, column_moments

if TYPE_CHECKING:
    from graphbraid.distributed.ranks.communicator import Communicator


class RankColumns:
    """The columns of a matrix of which each rank holds some rows.

    Args:
        comm: the ranks.
    """

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self._num_rows = 0

    def moments(self, x: Tensor) -> Moments:
        """Return the mean and biased variance of each column, and the number of rows, over all ranks."""
        width = x.shape[1]
        table = torch.zeros(self._comm.size, 2 * width + 1, dtype=torch.float64)
        if x.shape[0]:
            mean, var, num_rows = column_moments(x)
            columns = torch.cat((mean.double(), var.double()))
            table[self._comm.rank, :-1], table[self._comm.rank, -1] = columns.cpu(), num_rows
        self._comm.all_reduce(table).wait()  # each rank fills its own line
        means, variances, counts = table[:, :width], table[:, width:-1], table[:, -1:]
        self._num_rows = int(counts.sum())
        share = counts / max(self._num_rows, 1)
        mean = (share * means).sum(0)
        var = (share * (variances + (means - mean).square())).sum(0)
        return mean.to(x), var.to(x), self._num_rows

    @recorded_whole
    def couple(
        self,
        grad_x: Tensor,
        x: Tensor,
        *,
        statistics: tuple[Tensor, Tensor],
        weight: Tensor | None,
        sums: tuple[Tensor, Tensor],
        scratch: Tensor,
    ) -> None:
        """Complete the gradient of the rows, which depend on each other through their statistics.

        ``grad_x`` becomes ``rstd (h - average(h) - y average(h y))``, with ``h = weight grad``, normalised
        rows ``y`` and averages over all ranks' rows; see ``csrc/rowwise/norm.inl``. All ranks call it.

        Args:
            grad_x: ``(num_rows, width)``: ``rstd h``; written.
            x: ``(num_rows, width)`` rows before they were normalised.
            statistics: ``(width,)`` mean and ``rstd`` of each column, by :meth:`moments`.
            weight: ``(width,)``. If None, ones.
            sums: ``(width,)`` sums of ``grad y`` and of ``grad`` over this rank's rows.
            scratch: ``(num_rows, width)``, written.
        """
        mean, rstd = statistics
        averages = torch.stack(sums).double().cpu()
        self._comm.all_reduce(averages).wait()
        averages /= max(self._num_rows, 1)
        scale = rstd if weight is None else rstd * weight
        along, average = (scale * part.to(rstd) for part in averages)
        if x.shape[0]:
            backend(x).batch_norm(x, mean, rstd, along, average, scratch)  # y along + average
            grad_x.sub_(scratch)


__all__ = ["RankColumns"]
