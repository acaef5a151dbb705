"""What sending and receiving bytes costs this machine's processors, stored between runs.

A rank's bytes are copied and checked by its own cores, which do not compute meanwhile. Processor seconds are
measured, not time, which other programs change more.
"""

from __future__ import annotations

import functools
import logging
import math
import socket
import threading
import time
from typing import Any

from graphbraid.fullgraph.device.host import HOST
from graphbraid.machine.measurements import NOT_KEPT, Kept

TYPICAL_SECONDS = 5e-10
"""Processor seconds for a byte sent and one received where they cannot be measured."""
_PROBE_BYTES = 16 << 20
_CALL_BYTES = 1 << 18
_REPEATS = 3
_VERSION = "1"

_log = logging.getLogger(__name__)


@functools.cache
def byte_seconds() -> float:
    """Return the processor seconds that sending one byte and receiving one take, by TCP within this machine.

    The first call measures; later ones, also of other processes, read what is kept.
    """
    file = _KEPT.file(f"{_VERSION} {HOST.name}")
    kept = _KEPT.read(file)
    if kept is not None:
        return kept
    try:
        found = min(_measured() for _ in range(_REPEATS))
        _KEPT.write(file, found)
    except NOT_KEPT as error:
        _log.warning("what moving bytes costs could not be measured and kept: %s", error)
        return TYPICAL_SECONDS
    return found


def _measured() -> float:
    data, received = bytes(_CALL_BYTES), bytearray(_CALL_BYTES)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as sender:
        sender.connect(server.getsockname())
        receiver, _ = server.accept()
        with receiver:
            thread = threading.Thread(target=_send, args=(sender, data), daemon=True)
            began, left = time.process_time(), _PROBE_BYTES
            thread.start()
            while left and (count := receiver.recv_into(received, min(left, _CALL_BYTES))):
                left -= count
            thread.join()
            seconds = time.process_time() - began
    if left:
        raise OSError("a connection within the machine has ended early")
    return seconds / _PROBE_BYTES


def _send(sender: socket.socket, data: bytes) -> None:
    for _ in range(_PROBE_BYTES // len(data)):
        sender.sendall(data)


def _from_json(content: dict[str, Any]) -> float:
    found = float(content["byte_processor_seconds"])
    if not (math.isfinite(found) and found > 0):
        raise ValueError("byte_processor_seconds is not a positive number")
    return found


_KEPT: Kept[float] = Kept("moving", lambda found: {"byte_processor_seconds": found}, _from_json)

__all__ = ["TYPICAL_SECONDS", "byte_seconds"]
