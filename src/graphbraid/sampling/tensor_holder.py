"""TensorHolder: what moves as a tensor does, by a change of each tensor that it holds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self

import torch
from torch import Tensor

from graphbraid.arguments import as_device, as_flag, as_present_device
from graphbraid.errors import ConfigError
from graphbraid.sampling.nested import Change


class TensorHolder(ABC):
    """The tensor interface of a record whose :meth:`apply` reaches every tensor that it holds."""

    _device: torch.device
    """Where its tensors are."""

    @abstractmethod
    def apply(self, change: Change) -> Self:
        """One with ``change`` of each tensor that this one holds.

        Args:
            change: is called with each tensor and gives the one to hold in its place.
        """

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Self:
        """This with its tensors on ``device``; itself where they already are.

        Args:
            device: a torch device; what is made later is made there.
            non_blocking: return before copies from page-locked memory have ended; they end in the order of
                the current stream.

        Raises:
            ConfigError: ``device`` names none that is here, or ``non_blocking`` is no flag.
        """
        non_blocking = as_flag(non_blocking, "non_blocking")
        if as_device(device) == self._device:
            return self
        target = as_present_device(device)
        return self.apply(lambda t: t.to(target, non_blocking=non_blocking))

    def pin_memory(self) -> Self:
        """One whose dense tensors on the CPU are copies in page-locked memory; the others are shared.

        Raises:
            ConfigError: there is no accelerator, whose driver locks pages.
        """
        if not torch.accelerator.is_available():
            raise ConfigError("pin_memory() needs an accelerator, and torch finds none here; leave it out")
        return self.apply(_pinned)

    def record_stream(self, stream: torch.Stream) -> None:
        """Keep the memory of the tensors that it holds on a CUDA device until ``stream`` has read them."""
        for tensor in self.tensors():
            if tensor.is_cuda:
                tensor.record_stream(stream)

    def tensors(self) -> list[Tensor]:
        """The tensors that it holds now: those that :meth:`apply` changes."""
        held: list[Tensor] = []

        def keep(tensor: Tensor) -> Tensor:
            held.append(tensor)
            return tensor

        self.apply(keep)
        return held

    @property
    def travelling_bytes(self) -> int:
        """Bytes that a copy to another device takes now: ids, edges, features and labels made so far."""
        return sum(t.nbytes for t in self.tensors())


def _pinned(tensor: Tensor) -> Tensor:
    can_be = tensor.device.type == "cpu" and tensor.layout == torch.strided
    return tensor.pin_memory() if can_be else tensor
