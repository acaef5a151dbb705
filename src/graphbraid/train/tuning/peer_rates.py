"""The rates at which a rank's device reads its peers and the host, by which hot rows are divided."""

from __future__ import annotations

import time
from statistics import median
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from graphbraid.collective.run.protocols import SharesMemory
from graphbraid.distributed.peers.group import ReadingGroup
from graphbraid.features.tiers.peer_split import ReadRates
from graphbraid.machine.shared_tensors import handle_of, opened
from graphbraid.train.tuning.device_memory import COPIED_BYTES, link_rate

if TYPE_CHECKING:
    from graphbraid.collective.run.protocols import Accelerator

_COPIES = 4  # of which the first one, by which access is enabled, does not count


def read_rates(
    group: ReadingGroup, device: torch.device | None, accelerator: Accelerator | None
) -> ReadRates:
    """Return the lowest rates of a group, the same on all of its ranks; all of the job call it together.

    An accelerator says its own; CUDA devices are measured by a few copies, all at the same time.

    Args:
        group: this rank's.
        device: this rank's. If None, nothing is measured here.
        accelerator: what prepares and transfers mini-batches. If None, the device.

    Raises:
        RankError: a rank was lost.
    """
    peer, host = None, None
    measures = device is not None and device.type == "cuda" and len(group.ranks) > 1
    rows = torch.ones(COPIED_BYTES, dtype=torch.uint8, device=device) if measures else None
    handles = group.exchange(b"" if rows is None else handle_of(rows))
    if rows is not None and device is not None:
        source = opened(handles[(group.place + 1) % len(handles)])
        peer, host = _copy_rate(source, device), link_rate(device)
        del source
    elif isinstance(accelerator, SharesMemory):
        peer, host = accelerator.peer_bytes_per_second, accelerator.link_bytes_per_second
    given = cast("list[list[float | None]]", group.gather([peer, host]))  # all have read by then
    peers, hosts = ([rates[place] for rates in given] for place in (0, 1))
    return ReadRates(peer=_least(peers), host=_least(hosts))


def _least(rates: list[float | None]) -> float | None:
    """Return the lowest of the rates; None if one is not known."""
    known = [rate for rate in rates if rate is not None]
    return min(known) if len(known) == len(rates) else None


def _copy_rate(source: Tensor, device: torch.device) -> float:
    """Return the bytes per second at which a device copies a peer's memory to its own."""
    target, taken = torch.empty(source.shape, dtype=source.dtype, device=device), list[float]()
    for _ in range(_COPIES):
        started = time.perf_counter()
        target.copy_(source)
        torch.cuda.synchronize(device)
        taken.append(time.perf_counter() - started)
    return source.nbytes / max(median(taken[1:]), 1e-9)


__all__ = ["read_rates"]
