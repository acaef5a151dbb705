"""The operations that read rows along edges: sums, maxima and attention over in-neighbours."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from graphbraid.fullgraph.program.maps import AdjacencyMatrix
from graphbraid.fullgraph.program.operations import Following, Operation
from graphbraid.ops.spmm_max import Ties

FILLS = ("mean", "add", "sum", "min", "max", "mul")
"""How the features of the edges into a node become those of the self-loop that PyG adds to it."""
_TIES: dict[Ties, str] = {
    "first": "the first of equals has the gradient",
    "shared": "",
    "shared with zero": "an initial zero has a share of a zero's gradient",
}


@dataclass(frozen=True, kw_only=True)
class Aggregate(Following):
    """``out[v] = sum over in-neighbours u of a[v, u] x[u]``, plus the second input where one is given."""

    adjacency: AdjacencyMatrix
    rows: torch.dtype = torch.float32
    """What the rows are rounded to before they are read; sums are float32."""
    symbol = "aggregate"
    moves = True

    def details(self) -> str:
        """What to print after the inputs."""
        rounded = "" if self.rows == torch.float32 else f", {str(self.rows).removeprefix('torch.')} rows"
        return f"{self.adjacency}{rounded}{super().details()}"


@dataclass(frozen=True, kw_only=True)
class Maximum(Operation):
    """``out[v] = max over in-neighbours u of x[u]``, column by column; 0 where there are none."""

    ties: Ties = "shared"
    """Which of equal largest elements the gradient goes to."""
    symbol = "maximum"
    moves = True

    def details(self) -> str:
        """What to print after the inputs."""
        return _TIES[self.ties]


@dataclass(frozen=True, kw_only=True)
class Gine(Operation):
    """``out[v] = loop_scale x[v] + sum over in-neighbours u of relu(x[u] + e)``: GINE's sum.

    ``e`` is the edge's row of the graph's edge features, or of their linear map where there is a weight.
    """

    edge_channels: int
    """Columns of the edges' features."""
    weight: nn.Parameter | None = None
    """``(width, edge_channels)``."""
    bias: nn.Parameter | None = None
    """``(width,)``."""
    loop_scale: float = 0.0
    symbol = "rectified sum"
    moves = True

    @property
    def reads_edges(self) -> bool:
        """Whether it reads the edges' features."""
        return True

    def parameters(self) -> tuple[nn.Parameter, ...]:
        """What it learns."""
        return tuple(p for p in (self.weight, self.bias) if p is not None)

    def details(self) -> str:
        """What to print after the inputs."""
        loops = f" + {self.loop_scale:g} I" if self.loop_scale else ""
        made = "edge features" if self.weight is None else f"{self.edge_channels} edge features, mapped"
        return f"{made}{loops}"


@dataclass(frozen=True, kw_only=True)
class Attention(Operation):
    """Attention over in-neighbours of rows that are transformed already: GAT's and GATv2's middle.

    Inputs are the sources' rows and, for GATv2, the destinations' own rows; for GAT the rows that the
    coefficients come from, where those that are summed are others.
    """

    kind: str
    """``gat`` or ``gatv2``."""
    heads: int
    channels: int
    """Of one head."""
    concat: bool
    """Whether heads stand side by side; if not, their mean is the result."""
    negative_slope: float
    self_loops: bool
    dropout: float
    vectors: tuple[nn.Parameter, ...]
    """GAT: of the source and of the destination, ``(1, heads, channels)`` each; GATv2: one."""
    edge_weight: nn.Parameter | None = None
    """``(heads * channels, num_edge_features)``, of the edges' part of a logit (GAT), or of what the leaky
    ReLU is applied to (GATv2); None: they have none."""
    edge_vector: nn.Parameter | None = None
    """GAT: ``(1, heads, channels)``, with ``edge_weight``."""
    fill: float | str | Tensor = field(default="mean", compare=False)
    """The features of a self-loop that is added: numbers, or how those of the edges into its node are joined.
    """
    symbol = "attention"
    moves = True

    @property
    def reads_edges(self) -> bool:
        """Whether it reads the edges' features."""
        return self.edge_weight is not None

    @property
    def averages(self) -> bool:
        """Whether the result is a mean over several heads, and not their rows themselves."""
        return not self.concat and self.heads > 1

    def parameters(self) -> tuple[nn.Parameter, ...]:
        """What it learns."""
        return (*self.vectors, *(p for p in (self.edge_weight, self.edge_vector) if p is not None))

    def details(self) -> str:
        """What to print after the inputs."""
        joined = "side by side" if self.concat else "mean"
        edges = "" if self.edge_weight is None else f", {self.edge_weight.shape[1]} edge features"
        return f"{self.kind}, {self.heads} heads of {self.channels} ({joined}){edges}"
