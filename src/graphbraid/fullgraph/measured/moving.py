"""What a byte and a message between ranks cost this machine's processors, measured once and stored.

A rank's own cores copy and check its bytes, and its threads wake up for each message; meanwhile they do not
compute. Processor seconds are measured, not time, which other programs change more, and while a core gathers
rows, as it does in a step: computing and copying share the caches and the memory.

A byte is sent and received by TCP within this machine. For a message, two ranks of Gloo within this process
add up one number again and again. What the process then needs beyond the rows that it gathers is the cost of
the messages. The median of several windows counts.
"""

from __future__ import annotations

import functools
import logging
import math
import socket
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch

from graphbraid.fullgraph.device import HOST
from graphbraid.machine.measurements import NOT_KEPT, Kept

T = TypeVar("T")

TYPICAL_BYTE_SECONDS = 5e-10
"""Processor seconds for a byte sent and one received where they cannot be measured."""
TYPICAL_MESSAGE_SECONDS = 1e-4
"""Processor seconds of a message where they cannot be measured."""
_WINDOWS = 7
_ROWS, _WIDTH = 1 << 17, 64
"""Rows and columns of the table that is gathered from meanwhile; it is larger than caches."""
_PROBE_BYTES = 16 << 20
_CALL_BYTES = 1 << 18
_RANKS, _SUMS = 2, 50
_MESSAGES = 2
"""Messages that each of two ranks sends for a sum."""
_PATIENCE = timedelta(seconds=10)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class ByteCost:
    """Processor seconds that sending one byte and receiving one take."""

    seconds: float
    """The median of all windows."""
    low: float
    """First quartile."""
    high: float
    """Third quartile."""

    @classmethod
    def of(cls, windows: list[float]) -> ByteCost:
        """Return the cost by at least two windows."""
        low, middle, high = statistics.quantiles(windows, n=4, method="inclusive")
        return cls(seconds=middle, low=low, high=high)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> ByteCost:
        """Return what :func:`dataclasses.asdict` gave.

        Raises:
            ValueError, TypeError, KeyError: it is something else.
        """
        low, middle, high = (float(content[name]) for name in ("low", "seconds", "high"))
        if not (math.isfinite(high) and 0 < low <= middle <= high):
            raise ValueError("the costs of a byte are not positive numbers in ascending order")
        return cls(seconds=middle, low=low, high=high)


@functools.cache
def byte_cost() -> ByteCost:
    """Return the processor seconds that sending one byte and receiving one take.

    The first call measures; later ones, also of other processes, read the stored result.
    """
    typical = TYPICAL_BYTE_SECONDS
    typical_cost = ByteCost(seconds=typical, low=typical, high=typical)
    return _kept_or_measured(_BYTES, "2", lambda: ByteCost.of(_byte_windows()), typical_cost, "a byte")


@functools.cache
def message_cost() -> float:
    """Return the processor seconds that sending one message and receiving one take, whatever its size.

    The first call measures; later ones, also of other processes, read the stored result.
    """
    measure = lambda: statistics.median(_message_windows())  # noqa: E731
    return _kept_or_measured(_MESSAGE, "1", measure, TYPICAL_MESSAGE_SECONDS, "a message")


def _kept_or_measured(kept: Kept[T], version: str, measure: Callable[[], T], typical: T, what: str) -> T:
    file = kept.file(f"{version} {HOST.name}")
    found = kept.read(file)
    if found is not None:
        return found
    try:
        found = measure()
        kept.write(file, found)
    except (RuntimeError, *NOT_KEPT) as error:
        _log.warning("what %s costs could not be measured and kept: %s", what, error)
        return typical
    return found


def _gathering(count: int) -> Callable[[], object]:
    """Return a call that gathers ``count`` rows of a table."""
    table, ids = torch.zeros(_ROWS, _WIDTH), torch.randint(_ROWS, (count,))
    return functools.partial(torch.index_select, table, 0, ids, out=table.new_empty(count, _WIDTH))


# ---- bytes


def _byte_windows() -> list[float]:
    """Return the processor seconds of a byte in each window, while this thread gathers rows."""
    gather = _gathering(1 << 12)
    return [_moved(gather) for _ in range(_WINDOWS)]


def _moved(compute: Callable[[], object]) -> float:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as sender:
        sender.connect(server.getsockname())
        receiver, _ = server.accept()
        with receiver:
            threads = _Mover(_send, sender), _Mover(_receive, receiver)
            for thread in threads:
                thread.start()
            while any(thread.is_alive() for thread in threads):
                compute()
    for thread in threads:
        if thread.error is not None:
            raise thread.error
    return sum(thread.seconds for thread in threads) / _PROBE_BYTES


class _Mover(threading.Thread):
    """A thread that moves bytes at one end of a connection, and how long its processor worked for that."""

    def __init__(self, move: Callable[[socket.socket], None], end: socket.socket) -> None:
        super().__init__(daemon=True)
        self._move, self._end = move, end
        self.seconds = 0.0
        self.error: OSError | None = None

    def run(self) -> None:
        began = time.thread_time()
        try:
            self._move(self._end)
        except OSError as error:
            self.error = error
            self._end.close()  # or the other end would wait
        self.seconds = time.thread_time() - began


def _send(end: socket.socket) -> None:
    data = bytes(_CALL_BYTES)
    for _ in range(_PROBE_BYTES // len(data)):
        end.sendall(data)


def _receive(end: socket.socket) -> None:
    received, left = bytearray(_CALL_BYTES), _PROBE_BYTES
    while left:
        count = end.recv_into(received, min(left, _CALL_BYTES))
        if count == 0:
            raise OSError("a connection within the machine has ended early")
        left -= count


# ---- messages


def _message_windows() -> list[float]:
    """Return the processor seconds of a message in each window."""
    groups, gather = _groups(), _gathering(1 << 10)
    _window(groups, gather)  # connections are warm, memory is taken
    return [_window(groups, gather) for _ in range(_WINDOWS)]


def _window(groups: Sequence[Any], compute: Callable[[], object]) -> float:
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


def _groups() -> list[Any]:
    """Return two ranks of Gloo that have met within this process.

    Raises:
        RuntimeError: they have not.
    """
    import torch.distributed as dist

    store = dist.HashStore()  # type: ignore[attr-defined]
    found, errors = dict[int, Any](), list[Exception]()

    def join(rank: int) -> None:
        try:
            found[rank] = dist.ProcessGroupGloo(store, rank, _RANKS, _PATIENCE)
        except Exception as error:  # raised again by the thread that asked
            errors.append(error)

    threads = [threading.Thread(target=join, args=(rank,), daemon=True) for rank in range(_RANKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise RuntimeError(f"ranks within this process have not met: {errors[0]}") from errors[0]
    return [found[rank] for rank in range(_RANKS)]


def _seconds_of(content: dict[str, float]) -> float:
    seconds = float(content["seconds"])
    if not (math.isfinite(seconds) and seconds >= 0):
        raise ValueError("the cost of a message is not a number of 0 or more")
    return seconds


_BYTES: Kept[ByteCost] = Kept("moving", asdict, ByteCost.from_json)
_MESSAGE: Kept[float] = Kept("messages", lambda seconds: {"seconds": seconds}, _seconds_of)

__all__ = ["TYPICAL_BYTE_SECONDS", "TYPICAL_MESSAGE_SECONDS", "ByteCost", "byte_cost", "message_cost"]
