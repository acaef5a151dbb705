"""The network formula of all predictions for many ranks, the cluster it reads, and the records it fills.

A message takes ``latency_seconds``, and each of its bytes ``1 / bandwidth_bytes`` (the alpha-beta model).
Computing hides transfers: both at once take the longer of the two times.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, NamedTuple

from graphbraid.errors import ConfigError
from graphbraid.files.schema import SavedRecord

TYPICAL_MESSAGE_SECONDS, TYPICAL_BYTE_SECONDS = 1e-4, 5e-10
"""Seconds of one core for a message, and for a byte, sent and received by TCP."""


class Sending(NamedTuple):
    """The messages that a rank sends, one after the other. It receives as much at the same time."""

    messages: int
    nbytes: float


def exchange(num_ranks: int, nbytes: float) -> Sending:
    """Return the transfer of rows from each rank to each other one.

    Args:
        num_ranks: number of ranks.
        nbytes: the larger of the bytes that the busiest rank sends and receives.
    """
    return Sending(num_ranks - 1, nbytes)


def ring_sum(num_ranks: int, nbytes: float) -> Sending:
    """Return the transfer of a sum over all ranks along a ring; all bytes go round twice."""
    return Sending(2 * (num_ranks - 1), 2 * (num_ranks - 1) / num_ranks * nbytes)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster(SavedRecord):
    """Equal ranks, and a network with the same rate between any two of them.

    The defaults are those of 10 Gbit/s Ethernet. A file has the fields that differ: ``{"graphbraid":
    "cluster", "bandwidth_bytes": 1.25e8}``.

    Raises:
        ConfigError: a field is out of range.
    """

    KIND: ClassVar[str] = "cluster"

    latency_seconds: float = 5e-5
    """Seconds of a message beside its bytes (alpha)."""
    bandwidth_bytes: float = 1.25e9
    """Bytes per second that a rank can send while it receives as many (1 / beta)."""
    byte_processor_seconds: float | None = None
    """Seconds of all of a rank's processors for one byte sent and one received, lost to computing. If None,
    the command takes a typical cost of TCP, divided by this machine's number of cores. Elsewhere, None is
    0."""
    message_processor_seconds: float | None = None
    """Seconds of all of a rank's processors for one message sent and one received, beside their bytes:
    threads wake up and call the system. If None, as for ``byte_processor_seconds``."""
    speed: float = 1.0
    """Speed of a rank as a multiple of the measured process's."""
    memory_bytes: int | None = None
    """Memory of a rank. If None, the forecast does not say whether a graph fits."""

    def __post_init__(self) -> None:
        for name in ("bandwidth_bytes", "speed"):
            _check(name, getattr(self, name), getattr(self, name) > 0, "a positive number")
        for name in ("latency_seconds", "byte_processor_seconds", "message_processor_seconds"):
            value = getattr(self, name)
            if value is not None:
                _check(name, value, value >= 0, "0 or more")
        if self.memory_bytes is not None and self.memory_bytes < 1:
            raise ConfigError(f"memory_bytes must be at least 1; got {self.memory_bytes}")

    def moving_seconds(self, transfer: Sending) -> float:
        """Return the seconds in which a rank's cores move a transfer's bytes and do not compute."""
        messages = (self.message_processor_seconds or 0.0) * transfer.messages
        return (messages + (self.byte_processor_seconds or 0.0) * transfer.nbytes) / self.speed

    def link_seconds(self, transfer: Sending) -> float:
        """Return the seconds of a transfer on the link, at least the time of the cores for it."""
        sent = transfer.messages * self.latency_seconds + transfer.nbytes / self.bandwidth_bytes
        return max(sent, self.moving_seconds(transfer))


def _check(name: str, value: float, is_in_range: bool, needed: str) -> None:
    if not (math.isfinite(value) and is_in_range):
        raise ConfigError(f"{name} must be {needed}; got {value!r}")


@dataclass(kw_only=True, slots=True)
class RankEpoch:
    """A predicted epoch on some ranks; times and bytes are those of the busiest rank."""

    num_ranks: int
    memory_bytes: float
    """Peak memory."""
    compute_seconds: float = 0.0
    moving_seconds: float = 0.0
    """Seconds in which its cores send and receive and do not compute."""
    link_seconds: float = 0.0
    """Seconds in which its link is busy."""
    waiting_seconds: float = 0.0
    """Seconds in which its cores neither compute nor move bytes."""
    sent_bytes: float = 0.0
    """The larger of the bytes sent and received."""
    most_seconds: float | None = None
    """Seconds if nodes have random owners; None if a partition into as many parts was made."""
    details: dict[str, Any] = field(default_factory=dict)
    """Further fields of predictions of mini-batches; empty for whole graphs."""

    def run(
        self,
        cluster: Cluster,
        compute: float,
        *transfers: Sending,
        hiding: float | None = None,
        times: float = 1,
    ) -> None:
        """Run an operation: compute while transfers go one after the other.

        Args:
            cluster: the ranks and their network.
            compute: measured seconds of computing.
            transfers: the transfers.
            hiding: the part of ``compute`` that can run during transfers. If None, all.
            times: number of such operations.
        """
        moving = sum(map(cluster.moving_seconds, transfers))
        link = sum(map(cluster.link_seconds, transfers))
        busy = (compute if hiding is None else hiding) / cluster.speed + moving
        self.compute_seconds += times * compute / cluster.speed
        self.moving_seconds += times * moving
        self.link_seconds += times * link
        self.waiting_seconds += times * max(0.0, link - busy)
        self.sent_bytes += times * sum(transfer.nbytes for transfer in transfers)

    @property
    def seconds(self) -> float:
        """Seconds of computing, moving bytes, and waiting for the rest of the transfers."""
        return self.compute_seconds + self.moving_seconds + self.waiting_seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class RanksForecast:
    """Predicted epochs of one graph on numbers of ranks."""

    name: str
    num_nodes: int
    num_edges: int
    epochs: tuple[RankEpoch, ...]
    """By ascending number of ranks; the first is for one rank."""
    assumptions: tuple[str, ...]
    """Assumptions of the predictions, a sentence each."""
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
            plain.update(plain.pop("details"), seconds=epoch.seconds, speedup=self.speedup(epoch))
        return found
