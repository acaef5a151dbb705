"""The network formula of all predictions for many ranks, the cluster it reads, and the records it fills.

A message takes ``latency_seconds``, and each of its bytes ``1 / bandwidth_bytes`` (the alpha-beta model).
What a rank computes while something travels hides it: both together take the longer of the two.

What messages and bytes cost this machine's processors is measured once and kept, while a core gathers rows,
as in a training step: what computes and what sends share the caches and the memory. Processor seconds are
read instead of the time, which other programs change more. For bytes, two threads send and receive by TCP
within the machine. For messages, two ranks of Gloo in this process add up a number again and again, and what
the process takes more than for as many rows alone is their cost.
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
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from typing import Any, ClassVar, NamedTuple

import torch

from graphbraid.errors import ConfigError
from graphbraid.files.schema import SavedRecord
from graphbraid.fullgraph.device import HOST
from graphbraid.machine.measurements import NOT_KEPT, Kept


class Sending(NamedTuple):
    """What a rank sends, one message after the other; it receives as much at the same time."""

    messages: int
    nbytes: float


def exchange(num_ranks: int, nbytes: float) -> Sending:
    """Return the transfer of rows from each rank to each other one.

    Args:
        num_ranks: number of ranks.
        nbytes: bytes that the busiest rank sends or receives, whichever are more.
    """
    return Sending(num_ranks - 1, nbytes)


def ring_sum(num_ranks: int, nbytes: float) -> Sending:
    """Return the transfer of a sum over all ranks along a ring, which all bytes pass twice."""
    return Sending(2 * (num_ranks - 1), 2 * (num_ranks - 1) / num_ranks * nbytes)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster(SavedRecord):
    """Ranks that are alike, and a network on which each reaches every other at the same rate.

    The defaults are those of 10 Gbit/s Ethernet. A file names what differs:
    ``{"graphbraid": "cluster", "bandwidth_bytes": 1.25e8}``.

    Raises:
        ConfigError: a field is out of range.
    """

    KIND: ClassVar[str] = "cluster"

    latency_seconds: float = 5e-5
    """Seconds that a message takes whatever its size (alpha)."""
    bandwidth_bytes: float = 1.25e9
    """Bytes per second that a rank can send, and receive at the same time (1 / beta)."""
    byte_processor_seconds: float | None = None
    """Seconds of all of a rank's processors that one byte sent and one received take from computing. If None,
    the command measures it on this machine; elsewhere it is 0."""
    byte_processor_range: tuple[float, float] | None = None
    """Seconds between which that lies. If None, it is exact."""
    message_processor_seconds: float | None = None
    """Seconds of all of a rank's processors that one message sent and one received take, whatever their size:
    threads wake up for it and call the system. If None, as for ``byte_processor_seconds``."""
    speed: float = 1.0
    """Speed of a rank as a multiple of that of the process that was measured."""
    memory_bytes: int | None = None
    """Memory of a rank. If None, the forecast does not say whether a graph fits."""

    def __post_init__(self) -> None:
        for name in ("bandwidth_bytes", "speed"):
            _check(name, getattr(self, name), getattr(self, name) > 0, "a positive number")
        for name in ("latency_seconds", "byte_processor_seconds", "message_processor_seconds"):
            value = getattr(self, name)
            if value is not None:
                _check(name, value, value >= 0, "0 or more")
        for value in self.byte_processor_range or ():
            _check("byte_processor_range", value, value >= 0, "two numbers of 0 or more")
        if self.memory_bytes is not None and self.memory_bytes < 1:
            raise ConfigError(f"memory_bytes must be at least 1; got {self.memory_bytes}")

    def extremes(self) -> list[Cluster]:
        """Return the cluster with the lower and with the upper cost of moving a byte."""
        costs = self.byte_processor_range or (self.byte_processor_seconds,) * 2
        return [replace(self, byte_processor_seconds=cost) for cost in costs]

    def moving_seconds(self, transfer: Sending) -> float:
        """Return the seconds of a rank's cores that a transfer takes, in which they do not compute."""
        messages = (self.message_processor_seconds or 0.0) * transfer.messages
        return (messages + (self.byte_processor_seconds or 0.0) * transfer.nbytes) / self.speed

    def link_seconds(self, transfer: Sending) -> float:
        """Return the seconds of a transfer on the link, which is no faster than the cores move the bytes."""
        sent = transfer.messages * self.latency_seconds + transfer.nbytes / self.bandwidth_bytes
        return max(sent, self.moving_seconds(transfer))


def _check(name: str, value: float, is_in_range: bool, needed: str) -> None:
    if not (math.isfinite(value) and is_in_range):
        raise ConfigError(f"{name} must be {needed}; got {value!r}")


class EpochClock:
    """Adds up an epoch of the busiest rank: what it computes, what it sends, and how long it waits."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._sums = dict.fromkeys(
            ("compute_seconds", "moving_seconds", "link_seconds", "waiting_seconds"), 0.0
        )
        self._sent = 0.0

    def run(self, compute: float, *transfers: Sending, hiding: float | None = None, times: float = 1) -> None:
        """Compute, and send one thing after the other meanwhile.

        Args:
            compute: measured seconds of all that the rank computes.
            transfers: what travels.
            hiding: the part of ``compute`` that can run while they travel. If None, all.
            times: how often this happens.
        """
        moving = sum(map(self._cluster.moving_seconds, transfers))
        link = sum(map(self._cluster.link_seconds, transfers))
        busy = (compute if hiding is None else hiding) / self._cluster.speed + moving
        seconds = (compute / self._cluster.speed, moving, link, max(0.0, link - busy))
        for name, each in zip(self._sums, seconds, strict=True):
            self._sums[name] += times * each
        self._sent += times * sum(transfer.nbytes for transfer in transfers)

    @property
    def seconds(self) -> float:
        """Seconds of all: computing, moving bytes, and waiting for what neither hides."""
        return math.fsum(seconds for name, seconds in self._sums.items() if name != "link_seconds")

    def epoch(self, num_ranks: int, between: Sequence[float], **more: Any) -> RankEpoch:
        """Return what was added up as a prediction.

        Args:
            num_ranks: number of ranks.
            between: seconds by the lower and by the upper value of what is not known exactly.
            more: other fields of the prediction, some in place of what was added up.
        """
        least, most = min(*between, self.seconds), max(*between, self.seconds)
        added = {"seconds": self.seconds, "sent_bytes": self._sent} | self._sums
        return RankEpoch(num_ranks=num_ranks, range_seconds=(least, most), **(added | more))


@dataclass(frozen=True, kw_only=True, slots=True)
class RankEpoch:
    """A predicted epoch on some ranks; times and bytes are those of the busiest rank."""

    num_ranks: int
    seconds: float
    range_seconds: tuple[float, float]
    """Seconds of the epoch by the lower and by the upper value of what is not known exactly."""
    compute_seconds: float
    moving_seconds: float
    """Seconds in which its cores send and receive, while they compute nothing."""
    link_seconds: float
    """Seconds in which its link is busy."""
    waiting_seconds: float
    """Seconds in which its cores neither compute nor move bytes."""
    sent_bytes: float
    """Bytes that it sends, or receives, if more."""
    memory_bytes: float
    """Bytes that it holds at its peak."""
    details: dict[str, Any] = field(default_factory=dict)
    """What only predictions of mini-batches have."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RanksForecast:
    """Predicted epochs of one graph on numbers of ranks."""

    name: str
    num_nodes: int
    num_edges: int
    epochs: tuple[RankEpoch, ...]
    """By ascending number of ranks; the first is for one rank."""
    assumptions: tuple[str, ...]
    """What the predictions rest on, a sentence each."""
    epoch: dict[str, int] | None = None
    """Training nodes, batch size and batches of a step; None for whole-graph training."""

    def speedup(self, epoch: RankEpoch) -> float:
        """Return how many times as fast as one rank it is."""
        return self.epochs[0].seconds / epoch.seconds

    def to_json(self) -> dict[str, Any]:
        """Return the forecast as JSON holds it."""
        found = asdict(self)
        found["predictions"] = found.pop("epochs")
        for plain, epoch in zip(found["predictions"], self.epochs, strict=True):
            plain.update(plain.pop("details"), speedup=self.speedup(epoch))
        return found


# ---- what messages and bytes cost

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
