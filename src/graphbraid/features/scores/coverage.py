"""Coverage: the share of reads that falls on the top rows of a score, and so on a fixed choice of rows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from graphbraid.arguments import as_number, check_tensor
from graphbraid.errors import DataError
from graphbraid.signatures import typed

SHARES = (0.05, 0.10, 0.25)
"""Shares of the rows at which scores are compared."""


@typed
def coverage(values: Tensor, reads: Tensor, shares: Sequence[float] = SHARES) -> tuple[float, ...]:
    """The share of reads that the rows of the highest scores serve.

    Equal scores stand in the order of the nodes. With ``values`` being the reads themselves this is the best
    that any fixed choice of so many rows can do.

    Args:
        values: ``(num_nodes,)`` scores, higher for rows that are to be kept first.
        reads: ``(num_nodes,)`` how often each row was read.
        shares: of the rows that are kept, each in [0, 1]; the number of rows is rounded down.

    Returns:
        For each of ``shares``, the share of the reads; 1 where nothing was read.

    Raises:
        ConfigError: a share outside [0, 1].
        DataError: scores and reads are not 1-d of the same length, or reads are no finite counts.
    """
    check_tensor(values, "values", ndim=1)
    if check_tensor(reads, "reads", ndim=1).shape != values.shape:
        raise DataError(f"reads must be of {values.numel()} nodes, as the scores are; got {reads.numel()}")
    if reads.is_complex() or not bool(torch.isfinite(reads).all()):
        raise DataError("reads must be finite counts; some are NaN, infinite or complex")
    reads = reads.double() if reads.is_floating_point() else reads.long()  # also of unsigned counts
    kept = [int(as_number(share, "a share of rows", least=0.0, most=1.0) * reads.numel()) for share in shares]
    order = torch.argsort(values, descending=True, stable=True)
    served = torch.cat([reads.new_zeros(1), reads[order].cumsum(0)])
    total = served[-1].item()
    return tuple(served[rows].item() / total if total else 1.0 for rows in kept)
