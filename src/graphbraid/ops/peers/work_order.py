"""The order in which warps work through neighbour partitions: local and remote ones in turns, or apart.

After section 3.3 of Wang et al., "MGG": a warp that waits for rows of another device holds nothing up if it,
or its neighbour on the multiprocessor, has rows of its own device to sum meanwhile.
"""

from __future__ import annotations

import torch
from torch import Tensor

from graphbraid.arguments import as_count

NOTHING = -1
"""Stands where a warp has no partition."""


def interleaved(num_local: int, num_remote: int, dist: int) -> Tensor:
    """Deal local and remote partitions to warps, ``dist`` of each to every warp, in their order.

    Warp ``i`` has the local partitions ``[i * dist, (i + 1) * dist)`` and then the remote ones of the same
    range; so the list of all work has ``dist`` local partitions, ``dist`` remote ones, and so on, until one
    kind is used up. There are ``ceil(max(num_local, num_remote) / dist)`` warps, equation 2 of the paper.

    Args:
        num_local: Number of partitions of own rows, numbered from 0.
        num_remote: Number of partitions of peers' rows, numbered from ``num_local``.
        dist: The interleaving distance, at least 1.

    Returns:
        ``(num_warps, 2 * dist)`` int32 numbers of partitions, :data:`NOTHING` where there is none. The pair
        in columns ``j`` and ``dist + j`` is worked on at the same time.

    Raises:
        ConfigError: ``dist`` is less than 1, or a count is negative.
    """
    _check(num_local, num_remote, dist)
    num_warps = -(-max(num_local, num_remote) // dist)
    return torch.cat(
        [_dealt(0, num_local, num_warps, dist), _dealt(num_local, num_remote, num_warps, dist)], 1
    )


def apart(num_local: int, num_remote: int, dist: int) -> Tensor:
    """Deal the same partitions without interleaving: all local ones come before all remote ones.

    A warp has ``2 * dist`` partitions that follow each other, as many as in :func:`interleaved`, with which
    it is compared; arguments, errors and what is returned are the same.
    """
    _check(num_local, num_remote, dist)
    count = num_local + num_remote
    return _dealt(0, count, -(-count // (2 * dist)), 2 * dist)


def _check(num_local: int, num_remote: int, dist: int) -> None:
    as_count(num_local, "num_local")
    as_count(num_remote, "num_remote")
    as_count(dist, "dist", least=1)


def _dealt(first: int, count: int, num_warps: int, each: int) -> Tensor:
    work = torch.full((num_warps * each,), NOTHING, dtype=torch.int32)
    work[:count] = torch.arange(first, first + count, dtype=torch.int32)
    return work.view(num_warps, each)


__all__ = ["NOTHING", "apart", "interleaved"]
