"""Parameter initialisation as PyTorch Geometric does it, so that the same seed gives the same layer."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from graphbraid.ops.dense import dense_linear


def glorot(weight: Tensor | None) -> None:
    """Uniform in ±sqrt(6 / (rows + columns)) of the last two dimensions."""
    if weight is not None:
        bound = math.sqrt(6.0 / (weight.shape[-2] + weight.shape[-1]))
        with torch.no_grad():
            weight.uniform_(-bound, bound)


def kaiming(weight: Tensor | None) -> None:
    """Uniform in ±1 / sqrt(columns): what ``torch.nn.Linear`` starts from."""
    if weight is not None:
        bound = 1.0 / math.sqrt(weight.shape[-1])
        with torch.no_grad():
            weight.uniform_(-bound, bound)


class Linear(nn.Linear):
    """``torch.nn.Linear`` with a choice of initialisation, by graphbraid's kernels where they can run.

    Args:
        in_channels: width of the input.
        out_channels: width of the output.
        bias: whether to learn an additive bias.
        init: ``"kaiming"`` or ``"glorot"``.
    """

    def __init__(self, in_channels: int, out_channels: int, *, bias: bool = True, init: str = "kaiming"):
        self.init = init
        super().__init__(in_channels, out_channels, bias=bias)

    def reset_parameters(self) -> None:
        """Draw the weight anew, then the bias (uniform in ±1 / sqrt(in_channels))."""
        (glorot if self.init == "glorot" else kaiming)(self.weight)
        if self.bias is not None:
            bound = 1.0 / math.sqrt(self.in_features)
            nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the map to ``(num_rows, in_channels)`` or any other shape PyTorch takes."""
        return dense_linear(x, self.weight, self.bias) if x.dim() == 2 else super().forward(x)
