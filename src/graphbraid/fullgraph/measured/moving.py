"""What sending and receiving bytes costs this machine's processors, stored between runs.

A rank's bytes are copied and checked by its own cores, which do not compute meanwhile. Processor seconds of
the threads that move them are measured, not time, which other programs change more, and while all cores
gather rows, as they do in a step: what computes and what copies share the caches and the memory. Of several
windows the middle counts; half of them lie between the quartiles, by which the cost swings from run to run.
"""

from __future__ import annotations

import functools
import logging
import math
import socket
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from graphbraid.fullgraph.device import HOST
from graphbraid.machine.measurements import NOT_KEPT, Kept

TYPICAL_SECONDS = 5e-10
"""Processor seconds for a byte sent and one received where they cannot be measured."""
_PROBE_BYTES = 16 << 20
_CALL_BYTES = 1 << 18
_WINDOWS = 7
_ROWS, _GATHERED, _WIDTH = 1 << 17, 1 << 12, 64
"""Rows of the table that is gathered from meanwhile, more than caches hold, those of a call, and numbers in
one."""
_VERSION = "2"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class ByteCost:
    """Processor seconds that sending one byte and receiving one take."""

    seconds: float
    """The middle of all windows."""
    low: float
    """First quartile."""
    high: float
    """Third quartile."""

    @classmethod
    def of(cls, windows: list[float]) -> ByteCost:
        """Return the cost that at least two windows have found."""
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
    """Return the processor seconds that sending one byte and receiving one take, by TCP within this machine.

    The first call measures; later ones, also of other processes, read what is kept.
    """
    file = _KEPT.file(f"{_VERSION} {HOST.name}")
    kept = _KEPT.read(file)
    if kept is not None:
        return kept
    try:
        found = ByteCost.of(_measured())
        _KEPT.write(file, found)
    except NOT_KEPT as error:
        _log.warning("what moving bytes costs could not be measured and kept: %s", error)
        return ByteCost(seconds=TYPICAL_SECONDS, low=TYPICAL_SECONDS, high=TYPICAL_SECONDS)
    return found


def _measured() -> list[float]:
    """Return the processor seconds of a byte in each window, while this thread gathers rows."""
    table, ids = torch.zeros(_ROWS, _WIDTH), torch.randint(_ROWS, (_GATHERED,))
    rows = table.new_empty(_GATHERED, _WIDTH)
    return [_moved(functools.partial(torch.index_select, table, 0, ids, out=rows)) for _ in range(_WINDOWS)]


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
    """A thread that moves bytes by one end of a connection, and how long its processor worked for that."""

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


_KEPT: Kept[ByteCost] = Kept("moving", asdict, ByteCost.from_json)

__all__ = ["TYPICAL_SECONDS", "ByteCost", "byte_cost"]
