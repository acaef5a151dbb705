"""Probes: what ranks find out about the ways between them, and what these cost the cores that compute."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from graphbraid.distributed import Communicator
from graphbraid.distributed.ranks.handle import Handle

WARM = 3
"""Calls before the clock starts: memory is taken, kernels' arguments are bound."""
PROBE_BYTES = 4 << 20
REPEATS = 5
WORK_WIDTH = 128
"""Rows and columns of the products that are computed while bytes travel; one takes about 0.1 ms."""


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
        mine = median_seconds(lambda: begun(comm, num_bytes).wait(), REPEATS)
        return float(max(comm.gather(mine)))

    empty, full = exchange(1), exchange(PROBE_BYTES)
    return empty / (comm.size - 1), PROBE_BYTES * (comm.size - 1) / (full - empty)


def moving_seconds(comm: Communicator) -> float:
    """Processor seconds of a rank that one byte sent and one received take while it computes.

    A rank computes products until an exchange is over, and then as many without any; what the process took
    more of its processors for the former is what the bytes cost, in its own threads, in the system's, and by
    interruptions. On a slow link that is more a byte: few packets wait for each time that their reader wakes.
    Other programs change processor seconds less than time, but do. The costliest rank counts.
    """
    matrix = torch.randn(WORK_WIDTH, WORK_WIDTH)
    out = torch.empty_like(matrix)

    def moved() -> float:
        comm.barrier()
        began, products = time.process_time(), 0
        handle = begun(comm, PROBE_BYTES)
        while not handle.done():
            torch.mm(matrix, matrix, out=out)
            products += 1
        handle.wait()
        taken = time.process_time() - began
        comm.barrier()
        began = time.process_time()
        for _ in range(products):
            handle.done()
            torch.mm(matrix, matrix, out=out)
        return taken - (time.process_time() - began)

    mine = statistics.median([moved() for _ in range(WARM + REPEATS)][WARM:])
    return max(0.0, *comm.gather(mine)) / (PROBE_BYTES * (comm.size - 1))


def begun(comm: Communicator, num_bytes: int) -> Handle[torch.Tensor]:
    """Begin to send so many bytes to each other rank, and to receive as many."""
    others = [0 if rank == comm.rank else num_bytes for rank in range(comm.size)]
    return comm.all_to_all(torch.zeros(sum(others), dtype=torch.uint8), others, others)


__all__ = ["measured_link", "median_seconds", "moving_seconds"]
