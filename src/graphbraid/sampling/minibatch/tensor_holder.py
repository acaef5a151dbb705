"""TensorHolder: a record of tensors, at any depth, that can be moved and pinned as a tensor can."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor

from graphbraid.arguments import as_device, as_flag, as_present_device
from graphbraid.errors import ConfigError
from graphbraid.graph.csc import Csc
from graphbraid.sampling.rows.by_id import tensor_bytes

Change = Callable[[Tensor], Tensor]
"""Function applied to each tensor, such as a copy to another device."""


def apply_nested(value: Any, change: Change) -> Any:
    """Return ``value`` with ``change`` applied to each tensor in it; all else is returned as it is."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Csc):
        return _changed_csc(value, change)
    if isinstance(value, tuple) and hasattr(value, "_fields"):  # named tuples take separate fields
        return type(value)(*(apply_nested(part, change) for part in value))
    if isinstance(value, list | tuple):
        return type(value)(apply_nested(part, change) for part in value)
    if isinstance(value, dict):
        return {name: apply_nested(part, change) for name, part in value.items()}
    return value


def _changed_csc(csc: Csc, change: Change) -> Csc:
    weight, degree, loop = (
        None if array is None else change(array) for array in (csc.weight, csc.src_degree, csc.src_loop)
    )
    return Csc(
        change(csc.indptr),
        change(csc.indices),
        csc.num_src,
        weight,
        src_degree=degree,
        src_loop=loop,
        trusted=True,
    )


class TensorHolder(ABC):
    """Base class that gives a record ``to``, ``pin_memory`` and ``record_stream``, built on :meth:`apply`."""

    _device: torch.device
    """Device of its tensors."""

    @abstractmethod
    def apply(self, change: Change) -> Self:
        """Return a record in which ``change`` has replaced each tensor that this one holds."""

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Self:
        """Return the record with its tensors on ``device``; returns itself if they are there already.

        Args:
            device: a torch device; attributes computed later are computed there.
            non_blocking: whether to return before copies from page-locked memory have ended; they end in the
                order of the current stream.

        Raises:
            ConfigError: ``device`` is not available, or ``non_blocking`` is not a bool.
        """
        non_blocking = as_flag(non_blocking, "non_blocking")
        named = device if isinstance(device, torch.device) else as_device(device)
        if named == self._device:
            return self
        target = as_present_device(device)
        return self.apply(lambda t: t.to(target, non_blocking=non_blocking))

    def pin_memory(self) -> Self:
        """Return a record whose dense CPU tensors are copies in page-locked memory; it shares all others.

        Raises:
            ConfigError: there is no accelerator, whose driver would lock the pages.
        """
        if not torch.accelerator.is_available():
            raise ConfigError("pin_memory() needs an accelerator, and torch finds none here; leave it out")
        return self.apply(_pinned)

    def record_stream(self, stream: torch.Stream) -> None:
        """Keep the memory of the record's CUDA tensors from being reused before ``stream`` has read them."""
        for tensor in self.tensors():
            if tensor.is_cuda:
                tensor.record_stream(stream)

    def tensors(self) -> list[Tensor]:
        """Return the tensors held now, which :meth:`apply` would replace."""
        held: list[Tensor] = []

        def keep(tensor: Tensor) -> Tensor:
            held.append(tensor)
            return tensor

        self.apply(keep)
        return held

    @property
    def travelling_bytes(self) -> int:
        """Bytes of a copy to another device now: ids, edges, and the attributes computed so far."""
        return sum(map(tensor_bytes, self.tensors()))


def _pinned(tensor: Tensor) -> Tensor:
    can_be = tensor.device.type == "cpu" and tensor.layout == torch.strided
    return tensor.pin_memory() if can_be else tensor
