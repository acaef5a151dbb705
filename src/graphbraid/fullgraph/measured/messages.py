"""What a message between ranks costs this machine's processors, whatever its size, stored between runs.

Threads wake up for it and call the system, on cores that do not compute meanwhile. Two ranks of Gloo within
this process add up one number again and again while a core gathers rows, as it does in a step; what the
process takes more of its processors than for as many rows alone is that of the messages.
"""

from __future__ import annotations

import functools
import logging
import math
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch

from graphbraid.fullgraph.device import HOST
from graphbraid.machine.measurements import NOT_KEPT, Kept

TYPICAL_SECONDS = 1e-4
"""Processor seconds of a message where they cannot be measured."""
_RANKS, _SUMS, _WINDOWS = 2, 50, 7
_MESSAGES = 2
"""Messages that each of two ranks sends for a sum."""
_ROWS, _GATHERED, _WIDTH = 1 << 17, 1 << 10, 64
"""Rows of the table that is gathered from meanwhile, more than caches hold, those of a call, and numbers in
one."""
_PATIENCE = timedelta(seconds=10)
_VERSION = "1"

_log = logging.getLogger(__name__)


@functools.cache
def message_cost() -> float:
    """Return the processor seconds that sending one message and receiving one take, within this machine.

    The first call measures; later ones, also of other processes, read what is kept.
    """
    file = _KEPT.file(f"{_VERSION} {HOST.name}")
    kept = _KEPT.read(file)
    if kept is not None:
        return kept
    try:
        found = statistics.median(_measured())
        _KEPT.write(file, found)
    except (RuntimeError, *NOT_KEPT) as error:
        _log.warning("what a message costs could not be measured and kept: %s", error)
        return TYPICAL_SECONDS
    return found


def _measured() -> list[float]:
    """Return the processor seconds of a message in each window."""
    groups, ids = _groups(), torch.randint(_ROWS, (_GATHERED,))
    table, rows = torch.zeros(_ROWS, _WIDTH), torch.empty(_GATHERED, _WIDTH)
    gather = functools.partial(torch.index_select, table, 0, ids, out=rows)
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
        except Exception as error:  # told by the thread that asked
            errors.append(error)

    threads = [threading.Thread(target=join, args=(rank,), daemon=True) for rank in range(_RANKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise RuntimeError(f"ranks within this process have not met: {errors[0]}") from errors[0]
    return [found[rank] for rank in range(_RANKS)]


def _read(content: dict[str, float]) -> float:
    seconds = float(content["seconds"])
    if not (math.isfinite(seconds) and seconds >= 0):
        raise ValueError("the cost of a message is not a number of 0 or more")
    return seconds


_KEPT: Kept[float] = Kept("messages", lambda seconds: {"seconds": seconds}, _read)

__all__ = ["TYPICAL_SECONDS", "message_cost"]
