"""Transport: the few operations that a library of communication must give a :class:`Communicator`."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from graphbraid.arguments import check_tensor
from graphbraid.errors import ConfigError

Reduction = Literal["sum", "max", "min"]
REDUCED = (torch.float32, torch.float64, torch.int32, torch.int64)
"""Dtypes that every transport reduces; of other dtypes, bytes are moved."""

_SPIN_SECONDS = 5e-4
_LONGEST_PAUSE_SECONDS = 1e-3


def pause(waited_seconds: float, shortest: float = 0.0) -> None:
    """Sleep before an operation is asked again whether it has ended, longer the longer it was waited for.

    Args:
        waited_seconds: time for which it was waited so far.
        shortest: least seconds; 0 keeps the core, for operations that make progress as they are asked. Where
            another thread makes progress, which may have no core but this one, it must be more.
    """
    growing = 0.0 if waited_seconds < _SPIN_SECONDS else min(waited_seconds / 10, _LONGEST_PAUSE_SECONDS)
    time.sleep(max(growing, shortest))


class Pending(Protocol):
    """An operation that has begun; its tensors must stay as they are until it is finished."""

    def done(self) -> bool:
        """Return whether the operation has ended, well or not, and make progress on it."""
        ...

    def rest(self, waited_seconds: float) -> None:
        """Pause before :meth:`done` is called again, after a wait of so many seconds; never for long."""
        ...

    def finish(self) -> None:
        """Complete an operation that is done.

        Raises:
            RuntimeError: it failed.
        """
        ...


class Finished:
    """An operation that ended when it began."""

    def done(self) -> bool:
        """Return True."""
        return True

    def rest(self, waited_seconds: float) -> None:
        """Do nothing."""

    def finish(self) -> None:
        """Do nothing."""


class Transport(Protocol):
    """The ranks of a job and their connection. Every operation begins at once and never waits.

    Collective operations must be begun in the same order on all ranks. Tensors are contiguous; those of
    bytes have one dimension and dtype uint8.
    """

    name: str
    """Name of the library, for messages."""
    rank: int
    """Number of this rank, from 0."""
    size: int
    """Number of ranks."""

    def all_reduce(self, tensor: Tensor, op: Reduction) -> Pending:
        """Replace ``tensor``, of a dtype in ``REDUCED``, by its reduction, of the same bits on all ranks."""
        ...

    def all_to_all(
        self, send: Tensor, send_bytes: Sequence[int], receive: Tensor, receive_bytes: Sequence[int]
    ) -> Pending:
        """Send the next ``send_bytes[r]`` bytes to each rank r, and receive ``receive_bytes[r]`` from it."""
        ...

    def broadcast(self, data: Tensor, root: int) -> Pending:
        """Replace the bytes ``data`` by those of rank ``root``."""
        ...

    def twin(self) -> Transport:
        """Make another transport of the same ranks, whose operations have an order of their own.

        All ranks must call it together. It ends with this one.
        """
        ...

    def close(self) -> None:
        """Close the transport. All ranks must have finished all operations."""
        ...

    def abort(self) -> None:
        """Close the transport after a failure, without waiting for other ranks."""
        ...


class Alone:
    """The transport of a single rank, which reaches itself only."""

    name = "none"
    rank = 0
    size = 1

    def all_reduce(self, tensor: Tensor, op: Reduction) -> Pending:
        """Leave ``tensor`` as it is."""
        return Finished()

    def all_to_all(
        self, send: Tensor, send_bytes: Sequence[int], receive: Tensor, receive_bytes: Sequence[int]
    ) -> Pending:
        """Copy the bytes."""
        receive.copy_(send)
        return Finished()

    def broadcast(self, data: Tensor, root: int) -> Pending:
        """Leave ``data`` as it is."""
        return Finished()

    def twin(self) -> Alone:
        """Return another transport of the single rank."""
        return Alone()

    def close(self) -> None:
        """Do nothing."""

    def abort(self) -> None:
        """Do nothing."""


def check_contiguous(tensor: Tensor, name: str) -> None:
    """Check that the memory of a tensor can be sent as it is.

    Raises:
        ConfigError: it is not contiguous.
    """
    check_tensor(tensor, name)
    if not tensor.is_contiguous():
        raise ConfigError(
            f"{name} must be contiguous, since its memory is sent as it is; got strides {tensor.stride()} of "
            f"shape {tuple(tensor.shape)}. Call .contiguous() first."
        )


def check_sent(send: Tensor, send_rows: Sequence[int]) -> None:
    """Check that ``send`` has the rows that are sent.

    Raises:
        ConfigError: it has others, or none of its dimensions counts rows.
    """
    check_contiguous(send, "send")
    if send.ndim == 0:
        raise ConfigError("send must have rows, at least one dimension; got a scalar.")
    if sum(send_rows) != send.shape[0]:
        raise ConfigError(
            f"send_rows must add up to the rows of send ({send.shape[0]}); {send_rows} add up to "
            f"{sum(send_rows)}."
        )


def check_received(out: Tensor, send: Tensor, num_rows: int) -> None:
    """Check that ``out`` has room for ``num_rows`` rows like those of ``send``.

    Raises:
        ConfigError: its shape or dtype is another.
    """
    check_contiguous(out, "out")
    if out.shape != (num_rows, *send.shape[1:]) or out.dtype != send.dtype:
        raise ConfigError(
            f"out must be {send.dtype} of {[num_rows, *send.shape[1:]]}; got {out.dtype} of "
            f"{list(out.shape)}."
        )


def row_bytes(tensor: Tensor) -> int:
    """Return the bytes of a row of a tensor, which may have none."""
    return tensor.element_size() * math.prod(tensor.shape[1:])


def as_bytes(tensor: Tensor) -> Tensor:
    """Return the memory of a contiguous tensor as ``(num_bytes,)`` uint8."""
    # Not view(-1), which keeps any stride of a single element.
    return tensor.detach().as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def packed(value: Any) -> Tensor:
    """Return a plain value as ``(num_bytes,)`` uint8 of JSON."""
    return torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)


def unpacked(data: Tensor) -> Any:
    """Return the plain value of :func:`packed`."""
    return json.loads(data.numpy().tobytes())
