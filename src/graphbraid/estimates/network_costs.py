"""What messages and bytes between ranks cost this machine's processors, measured once and kept.

Both are measured while a core gathers rows, as in a training step: what computes and what sends share the
caches and the memory. Processor seconds are read instead of the time, which other programs change more. For
bytes, two threads send and receive by TCP within the machine. For messages, two ranks of Gloo in this process
add up a number again and again, and what the process takes more than for as many rows alone is their cost.
"""

from __future__ import annotations

import functools
import logging
import math
import socket
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

import torch

from graphbraid.fullgraph.device import HOST
from graphbraid.machine.measurements import NOT_KEPT, Kept

_RANKS, _SUMS, _WINDOWS = 2, 50, 7
_MESSAGES = 2
"""Messages that each of two ranks sends for a sum."""
_PROBE_BYTES, _CALL_BYTES = 16 << 20, 1 << 18
"""Bytes that are sent in a window, and in a call."""
_ROWS, _GATHERED, _WIDTH = 1 << 17, 1 << 10, 64
"""Rows of the table that is gathered from, more than caches hold; rows of a call; and numbers in a row."""
_PATIENCE = timedelta(seconds=10)
_VERSION = "1"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkCosts:
    """Processor seconds of a rank. The defaults are typical ones.

    Raises:
        ValueError: one is not a finite number of 0 or more, or the costs of a byte are not in order.
    """

    message: float = 1e-4
    """A message sent and one received, whatever their size."""
    byte: float = 5e-10
    """A byte sent and one received: the median of all windows."""
    byte_low: float = 5e-10
    """First quartile of the windows."""
    byte_high: float = 5e-10
    """Third quartile."""

    def __post_init__(self) -> None:
        found = [float(seconds) for seconds in (self.message, self.byte_low, self.byte, self.byte_high)]
        if not (min(found) >= 0 and all(map(math.isfinite, found)) and found[1:] == sorted(found[1:])):
            raise ValueError("the costs of a message and of a byte are not numbers of 0 or more in order")


@functools.cache
def network_costs() -> NetworkCosts:
    """Return what messages and bytes cost. Only the first call on a machine measures.

    Where ranks cannot meet, or nothing can be kept, the costs are typical ones.
    """
    file = _KEPT.file(f"{_VERSION} {HOST.name}")
    kept = _KEPT.read(file)
    if kept is not None:
        return kept
    try:
        found = _measured()
        _KEPT.write(file, found)
    except (RuntimeError, *NOT_KEPT) as error:
        _log.warning("what messages and bytes cost could not be measured and kept: %s", error)
        return NetworkCosts()
    return found


def _measured() -> NetworkCosts:
    """Measure some windows of both.

    Raises:
        RuntimeError: the ranks have not met.
        OSError: nothing can be sent.
    """
    table, ids = torch.zeros(_ROWS, _WIDTH), torch.randint(_ROWS, (_GATHERED,))
    rows, groups = torch.empty(_GATHERED, _WIDTH), _groups()
    gather = functools.partial(torch.index_select, table, 0, ids, out=rows)
    moved = [_moved(gather) for _ in range(_WINDOWS)]
    low, middle, high = statistics.quantiles(moved, n=4, method="inclusive")
    _summed(groups, gather)  # connections are warm, memory is taken
    message = statistics.median(_summed(groups, gather) for _ in range(_WINDOWS))
    return NetworkCosts(message=message, byte=middle, byte_low=low, byte_high=high)


# ---- bytes


def _moved(compute: Callable[[], object]) -> float:
    """Return the processor seconds of a byte sent and received, in a window."""
    with (
        ThreadPoolExecutor(2) as threads,
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket() as sender,
    ):
        sender.connect(server.getsockname())
        receiver, _ = server.accept()
        ends = [threads.submit(_receive, receiver), threads.submit(_send, sender)]
        while not all(end.done() for end in ends):
            compute()
    return sum(end.result() for end in ends) / _PROBE_BYTES


def _send(end: socket.socket) -> float:
    """Send a window's bytes and close; return this thread's processor seconds."""
    began, data = time.thread_time(), bytes(_CALL_BYTES)
    with end:  # closed after an error, too, or the other end would wait
        for _ in range(_PROBE_BYTES // len(data)):
            end.sendall(data)
    return time.thread_time() - began


def _receive(end: socket.socket) -> float:
    """Receive a window's bytes and close; return this thread's processor seconds."""
    began, received, left = time.thread_time(), bytearray(_CALL_BYTES), _PROBE_BYTES
    with end:
        while left:
            count = end.recv_into(received, min(left, _CALL_BYTES))
            if count == 0:
                raise OSError("a connection within the machine has ended early")
            left -= count
    return time.thread_time() - began


# ---- messages


def _summed(groups: Sequence[Any], compute: Callable[[], object]) -> float:
    """Return the processor seconds of a message sent and received, in a window."""
    numbers, computed = [torch.zeros(1) for _ in groups], 0
    began = time.process_time()
    for _ in range(_SUMS):
        works = [group.allreduce([number]) for group, number in zip(groups, numbers, strict=True)]
        while not all(work.is_completed() for work in works):
            compute()
            computed += 1
        for work in works:
            work.wait()
    both = time.process_time()
    for _ in range(computed):
        compute()
    alone = time.process_time() - both
    return max(0.0, both - began - alone) / (_SUMS * _RANKS * _MESSAGES)


def _groups() -> Sequence[Any]:
    """Return two ranks of Gloo that have met within this process.

    Raises:
        RuntimeError: they have not.
    """
    import torch.distributed as dist

    store = dist.HashStore()  # type: ignore[attr-defined]
    with ThreadPoolExecutor(_RANKS) as threads:
        joining = [
            threads.submit(dist.ProcessGroupGloo, store, rank, _RANKS, _PATIENCE) for rank in range(_RANKS)
        ]
    try:
        return [group.result() for group in joining]
    except Exception as error:
        raise RuntimeError(f"ranks within this process have not met: {error}") from error


_KEPT: Kept[NetworkCosts] = Kept("network_costs", asdict, lambda content: NetworkCosts(**content))

__all__ = ["NetworkCosts", "network_costs"]
