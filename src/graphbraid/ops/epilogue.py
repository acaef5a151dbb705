"""bias_act_dropout: what follows a layer's matrix product, in one pass over its rows."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from graphbraid.errors import ConfigError

ACTIVATIONS = {
    "none": lambda x: x,
    "relu": torch.relu,
    "elu": F.elu,
    "leaky_relu": F.leaky_relu,
    "gelu": F.gelu,
}


def bias_act_dropout(x: Tensor, bias: Tensor | None, act: str = "relu", p: float = 0.0) -> Tensor:
    """``dropout(act(x + bias), p)``.

    Args:
        x: ``(num_rows, channels)``.
        bias: ``(channels,)`` or None.
        act: one of ``none``, ``relu``, ``elu``, ``leaky_relu``, ``gelu``.
        p: probability of dropping an element; 0 when not training.

    Raises:
        ConfigError: ``act`` is unknown.
    """
    if act not in ACTIVATIONS:
        raise ConfigError(f"act must be one of {', '.join(ACTIVATIONS)}; got {act!r}")
    out = ACTIVATIONS[act](x if bias is None else x + bias)
    return F.dropout(out, p) if p > 0 else out
