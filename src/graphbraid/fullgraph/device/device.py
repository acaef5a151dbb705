"""Device: the interface between the engine and the hardware that it runs on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch

from graphbraid.fullgraph.device.limits import DeviceLimits

Run = Callable[[], object]


class NotRecordedError(RuntimeError):
    """Raised when a device cannot record a run; the message says why, as a sentence."""


class Device(ABC):
    """Hardware that an engine runs on."""

    place: torch.device
    is_host: bool
    """Whether this is the host: the graph is already there, and starting a kernel is a function call."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Description of all that the speed depends on; measured rates are stored under it."""

    @abstractmethod
    def free_bytes(self) -> int | None:
        """Return the bytes that can be allocated now; None if that is unknown."""

    @abstractmethod
    def seconds(self, run: Run) -> float:
        """Return the least seconds that ``run`` takes over several repeats after a warm-up.

        Raises:
            NotRecordedError: the device records what it times, and cannot record ``run``.
        """

    def wait(self) -> None:
        """Wait until all work given to the device is done; return at once if calls are synchronous."""
        return

    def limits(self) -> DeviceLimits | None:
        """Return what its multiprocessors hold; None where it has none, or does not tell."""
        return None

    @abstractmethod
    def record(self, run: Run) -> Run:
        """Record what ``run`` does and return a call that repeats it on the same addresses.

        Raises:
            NotRecordedError: the device cannot record something that ``run`` does.
        """
