"""Messages: how tensors and plain values become the bytes that a transport moves."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from graphbraid.arguments import check_tensor
from graphbraid.errors import ConfigError


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
