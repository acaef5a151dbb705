"""Cluster: the ranks and the network that an epoch is predicted for."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import ClassVar

from pydantic import ConfigDict

from graphbraid.collective.plan.records import STRICT, load_record, save_record
from graphbraid.errors import ConfigError
from graphbraid.machine.rates import Rates


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """Ranks that are alike, and a network on which each reaches every other at the same rate.

    A message takes ``latency_seconds`` and its bytes by ``bandwidth_bytes`` (the alpha-beta model). A rank
    sends and receives at the same time; its processors begin messages, ``message_processor_seconds`` each,
    and copy bytes, ``byte_processor_seconds`` each, for which they do not compute. The defaults are those
    of 10 Gbit/s Ethernet.

    Raises:
        ConfigError: a field is out of range.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    latency_seconds: float = 5e-5
    """Seconds that a message takes whatever its size (alpha)."""
    bandwidth_bytes: float = 1.25e9
    """Bytes per second that a rank can send, and receive at the same time (1 / beta)."""
    byte_processor_seconds: float | None = None
    """Seconds of all of a rank's processors that one byte sent and one received take from computing. If None,
    what :func:`.byte_cost` measures on this machine in a forecast, and nothing in a bare simulation."""
    message_processor_seconds: float | None = None
    """Seconds of all of a rank's processors that one message sent and one received take from computing,
    whatever their sizes: threads that wake up, and what they call. If None, what :func:`.message_cost`
    measures on this machine in a forecast, and nothing in a bare simulation."""
    speed: float = 1.0
    """Speed of a rank as a multiple of that of the process that was measured."""
    memory_bytes: int | None = None
    """Memory of a rank. If None, whether a graph fits is not said."""
    rates: Rates | None = None
    """Rates of a rank's memory and arithmetic, for graphs that are not at hand. If None, this machine's."""

    def __post_init__(self) -> None:
        for name in ("bandwidth_bytes", "speed"):
            _check(name, getattr(self, name), getattr(self, name) > 0, "a positive number")
        _check("latency_seconds", self.latency_seconds, self.latency_seconds >= 0, "0 or more")
        for name in ("byte_processor_seconds", "message_processor_seconds"):
            taken = getattr(self, name)
            if taken is not None:
                _check(name, taken, taken >= 0, "0 or more")
        if self.memory_bytes is not None and self.memory_bytes < 1:
            raise ConfigError(f"memory_bytes must be at least 1; got {self.memory_bytes}")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the cluster to a JSON file."""
        save_record(self, "cluster", path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Cluster:
        """Read a JSON file ``{"graphbraid": "cluster", "bandwidth_bytes": 1.25e9, ...}``; see the defaults.

        Raises:
            DataError: the file does not exist or does not hold a valid cluster.
        """
        return load_record(cls, "cluster", path)

    def exchange_seconds(self, num_ranks: int, most_bytes: float) -> float:
        """Return the time of an exchange of rows, in which each rank sends to each other one.

        Args:
            num_ranks: number of ranks.
            most_bytes: bytes that the busiest rank sends or receives, whichever are more.
        """
        return (num_ranks - 1) * self.latency_seconds + most_bytes / self.bandwidth_bytes

    def moving_seconds(self, num_bytes: float, num_messages: int) -> float:
        """Return the time that a rank's processors take to send so many bytes and to receive as many."""
        messages = (self.message_processor_seconds or 0.0) * num_messages
        return (messages + (self.byte_processor_seconds or 0.0) * num_bytes) / self.speed

    def summing_seconds(self, num_ranks: int, num_bytes: float) -> float:
        """Return the time that a rank's processors take for their part of a sum by a ring."""
        return self.moving_seconds(ring_bytes(num_ranks, num_bytes), ring_steps(num_ranks))

    def all_reduce_seconds(self, num_ranks: int, num_bytes: float) -> float:
        """Return the time of a sum over all ranks by a ring, in which all bytes go round twice."""
        latency = ring_steps(num_ranks) * self.latency_seconds
        return latency + ring_bytes(num_ranks, num_bytes) / self.bandwidth_bytes


def ring_steps(num_ranks: int) -> int:
    """Return the messages that each rank sends, one after the other, in a sum over all by a ring."""
    return 2 * (num_ranks - 1)


def ring_bytes(num_ranks: int, num_bytes: float) -> float:
    """Return the bytes that each rank sends and receives in a sum over all by a ring."""
    return ring_steps(num_ranks) * num_bytes / num_ranks


def _check(name: str, value: float, is_in_range: bool, needed: str) -> None:
    if not (math.isfinite(value) and is_in_range):
        raise ConfigError(f"{name} must be {needed}; got {value!r}")


__all__ = ["Cluster", "ring_bytes", "ring_steps"]
