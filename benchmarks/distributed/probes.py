"""Probes: what ranks find out about the ways between them, and what these cost the cores that compute."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from graphbraid.distributed import Communicator
from graphbraid.distributed.ranks.communicator import Handle
from graphbraid.estimates.ranks import ring_sum

WARM = 3
"""Calls before the clock starts: memory is taken, kernels' arguments are bound."""
PROBE_BYTES = 4 << 20
REPEATS = 5
ROWS, GATHERED, WIDTH = 1 << 17, 1 << 10, 64
"""Rows of the table that is gathered from while bytes travel, more than caches hold, rows of a call, which
takes about 0.1 ms, and numbers in one."""
WINDOWS = 3
"""Windows in which moving bytes is measured at a time."""
SUMS = 50
"""Sums of one number in a window."""


def median_seconds(run: Callable[[], object], repeats: int) -> float:
    """The median time of a call, after some calls to warm up."""
    seconds = []
    for _ in range(WARM + repeats):
        started = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds[WARM:])


def measured_link(comm: Communicator) -> tuple[float, float]:
    """Latency in seconds and rate in bytes per second of exchanges between all ranks."""

    def exchange(num_bytes: int) -> float:
        once = ProbeExchange(comm, num_bytes)
        mine = median_seconds(lambda: once.begin().wait(), REPEATS)
        return float(max(comm.gather(mine)))

    empty, full = exchange(1), exchange(PROBE_BYTES)
    return empty / (comm.size - 1), PROBE_BYTES * (comm.size - 1) / (full - empty)


def measured_sums(comm: Communicator) -> tuple[float, float]:
    """Latency in seconds and rate in bytes per second by which sums over all ranks go round a ring."""

    def summed(num_bytes: int) -> float:
        values = torch.zeros(num_bytes // 4)
        mine = median_seconds(lambda: comm.all_reduce(values).wait(), REPEATS)
        return float(max(comm.gather(mine)))

    empty, full = summed(4), summed(PROBE_BYTES)
    messages, nbytes = ring_sum(comm.size, PROBE_BYTES)
    return empty / messages, nbytes / (full - empty)


def moving_seconds(comm: Communicator) -> list[float]:
    """Processor seconds of a rank that one byte sent and one received take while it computes, by windows.

    A rank gathers rows, as a step does, until an exchange is over, and then as many without any; what the
    process took more of its processors for the former is what the bytes cost, in its own threads, in the
    system's, by interruptions and of the caches. On a slow link that is more a byte: few packets wait for
    each time that their reader wakes. Other programs change processor seconds less than time, but do. In each
    window the costliest rank counts; all ranks return the same.
    """
    table, ids = torch.zeros(ROWS, WIDTH), torch.randint(ROWS, (GATHERED,))
    rows, exchange = torch.empty(GATHERED, WIDTH), ProbeExchange(comm, PROBE_BYTES)

    def moved() -> float:
        comm.barrier()
        began, gathered = time.process_time(), 0
        handle = exchange.begin()
        while not handle.done():
            torch.index_select(table, 0, ids, out=rows)
            gathered += 1
        handle.wait()
        taken = time.process_time() - began
        comm.barrier()
        began = time.process_time()
        for _ in range(gathered):
            handle.done()
            torch.index_select(table, 0, ids, out=rows)
        return taken - (time.process_time() - began)

    windows = [max(0.0, *comm.gather(moved())) for _ in range(1 + WINDOWS)]
    return [window / (PROBE_BYTES * (comm.size - 1)) for window in windows[1:]]


def message_seconds(comm: Communicator) -> float:
    """Processor seconds of a rank that a message of a sum takes while it computes, whatever its bytes.

    Measured as :func:`moving_seconds` is, over many sums of one number; of the windows the middle counts.
    """
    table, ids = torch.zeros(ROWS, WIDTH), torch.randint(ROWS, (GATHERED,))
    rows, number = torch.empty(GATHERED, WIDTH), torch.zeros(1)

    def summed() -> float:
        comm.barrier()
        began, gathered = time.process_time(), 0
        for _ in range(SUMS):
            handle = comm.all_reduce(number)
            while not handle.done():
                torch.index_select(table, 0, ids, out=rows)
                gathered += 1
            handle.wait()
        taken = time.process_time() - began
        comm.barrier()
        began = time.process_time()
        for _ in range(gathered):
            torch.index_select(table, 0, ids, out=rows)
        return taken - (time.process_time() - began)

    windows = [max(0.0, *comm.gather(summed())) for _ in range(1 + WINDOWS)]
    return statistics.median(windows[1:]) / (SUMS * ring_sum(comm.size, 4).messages)


class ProbeExchange:
    """So many bytes to each other rank and as many from it, in memory that is there before a clock starts."""

    def __init__(self, comm: Communicator, num_bytes: int) -> None:
        self._comm = comm
        self._sizes = [0 if rank == comm.rank else num_bytes for rank in range(comm.size)]
        self._sent, self._received = torch.zeros(2, sum(self._sizes), dtype=torch.uint8)

    def begin(self) -> Handle[torch.Tensor]:
        """Begin to send and to receive."""
        return self._comm.all_to_all(self._sent, self._sizes, self._sizes, out=self._received)


__all__ = ["measured_link", "measured_sums", "median_seconds", "message_seconds", "moving_seconds"]
