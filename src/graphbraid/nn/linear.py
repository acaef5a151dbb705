"""Linear layers with PyTorch Geometric's initialisation, so that the same seed gives the same layer."""

import math

import torch
from torch import Tensor, nn

from graphbraid.arguments import MOST_WIDTH, as_count, check_choice
from graphbraid.errors import ConfigError
from graphbraid.ops.linear import dense_linear

MOST_WEIGHTS = 1 << 34
"""Largest number of elements of one weight, 64 GiB in float32."""


def glorot(weight: Tensor | None) -> None:
    """Fill a weight uniformly in ±sqrt(6 / (rows + columns)), by its last two dimensions."""
    if weight is not None:
        bound = math.sqrt(6.0 / (weight.shape[-2] + weight.shape[-1]))
        with torch.no_grad():
            weight.uniform_(-bound, bound)


def kaiming(weight: Tensor | None) -> None:
    """Fill a weight uniformly in ±1 / sqrt(columns), like ``torch.nn.Linear``."""
    if weight is not None:
        bound = 1.0 / math.sqrt(weight.shape[-1])
        with torch.no_grad():
            weight.uniform_(-bound, bound)


def as_widths(in_channels: int, out_channels: int) -> tuple[int, int]:
    """Return the two widths of a layer; ConfigError if one is not positive or the weight too large."""
    rows = as_count(in_channels, "in_channels", least=1, most=MOST_WIDTH)
    columns = as_count(out_channels, "out_channels", least=1, most=MOST_WIDTH)
    if rows * columns > MOST_WEIGHTS:
        raise ConfigError(
            f"in_channels={rows} by out_channels={columns} make a weight of {rows * columns:,} numbers; "
            f"at most {MOST_WEIGHTS:,} are taken"
        )
    return rows, columns


class Linear(nn.Linear):
    """A ``torch.nn.Linear`` with a choice of initialisation, run by graphbraid's kernels where possible.

    Args:
        in_channels: width of the input.
        out_channels: width of the output.
        bias: whether to learn an additive bias.
        init: ``"kaiming"`` or ``"glorot"``.

    Raises:
        ConfigError: a width is invalid, or ``init`` is unknown.
    """

    def __init__(self, in_channels: int, out_channels: int, *, bias: bool = True, init: str = "kaiming"):
        check_choice(init, "init", ("kaiming", "glorot"))
        in_channels, out_channels = as_widths(in_channels, out_channels)
        self.init = init
        super().__init__(in_channels, out_channels, bias=bias)

    def reset_parameters(self) -> None:
        """Draw the weight anew, and then the bias, uniformly in ±1 / sqrt(in_channels)."""
        (glorot if self.init == "glorot" else kaiming)(self.weight)
        if self.bias is not None:
            bound = 1.0 / math.sqrt(self.in_features)
            nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the map to ``(num_rows, in_channels)``, or any other shape that PyTorch's layer accepts."""
        return dense_linear(x, self.weight, self.bias) if x.dim() == 2 else super().forward(x)
