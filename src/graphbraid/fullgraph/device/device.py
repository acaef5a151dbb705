"""Device: what the engine asks of the place it runs on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch

Run = Callable[[], object]


class NotRecordedError(RuntimeError):
    """What a device could not record, as a sentence."""


class Device(ABC):
    """A place that an engine runs on."""

    place: torch.device
    is_host: bool
    """Whether the graph is there already, and kernels take no more than a call to start."""

    @property
    @abstractmethod
    def name(self) -> str:
        """What its speed depends on, in words: rates measured under one name are kept for it."""

    @abstractmethod
    def free_bytes(self) -> int | None:
        """Memory that can be taken now; None where that is not known."""

    @abstractmethod
    def seconds(self, run: Run) -> float:
        """The least time that ``run`` takes, over some repeats after it has warmed up.

        Raises:
            NotRecordedError: the device records what it times, and cannot record this.
        """

    def wait(self) -> None:
        """Until it has done what it was given; at once where a call returns when it is done."""
        return

    @abstractmethod
    def record(self, run: Run) -> Run:
        """What ``run`` does on the device, as one call that does it again on the same addresses.

        Raises:
            NotRecordedError: the device cannot record something that ``run`` does.
        """
