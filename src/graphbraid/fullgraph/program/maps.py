"""What linear operations multiply by: an adjacency, or a view of a parameter."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class AdjacencyMatrix:
    """Which linear map of rows an aggregation is; the graph's edges and weights make it a matrix."""

    kind: str
    """``sum``, ``mean``, ``gcn``: symmetrically normalised by degrees; or ``laplacian``, ``laplacian sym`` or
    ``laplacian rw``: scaled to eigenvalues between -1 and 1, as Chebyshev polynomials need it."""
    loop_scale: float = 0.0
    """Factor of a node's own row: ``1 + eps`` in GIN; 1, or 2 where ``improved``, in GCN; 0: none."""
    weighted: bool = False
    """Whether the graph's edge weights count."""
    scale: float = 1.0
    """Factor of the whole map."""

    def __str__(self) -> str:
        loops = f" + {self.loop_scale:g} I" if self.loop_scale else ""
        name = f"{self.kind}{' weighted' if self.weighted else ''}{loops}"
        return name if self.scale == 1 else f"{self.scale:g} ({name})"


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """Which matrix a parameter stands for in a linear map: ``identity I + scale P``, with P a part of it."""

    at: tuple[int, ...] = ()
    """Indices of its first dimensions, which leave a matrix."""
    turned: bool = False
    """Whether the parameter holds ``(in_channels, out_channels)``."""
    columns: tuple[int, int] | None = None
    """The input channels that are taken, of a map of several values side by side; None: all."""
    scale: float = 1.0
    identity: float = 0.0

    def matrix(self, parameter: Tensor) -> Tensor:
        """``(out_channels, in_channels)``, without history; in the parameter's own memory where it can be."""
        part = self._part(parameter.detach())
        if self.scale != 1:
            part = part * self.scale
        if self.identity:
            part = part + self.identity * torch.eye(len(part), dtype=part.dtype, device=part.device)
        return part.contiguous()

    def gradient(self, grad: Tensor, parameter: Tensor) -> Tensor:
        """The parameter's gradient from that of :meth:`matrix`."""
        whole = torch.zeros_like(parameter, memory_format=torch.contiguous_format)
        self._part(whole).copy_(grad).mul_(self.scale)
        return whole

    def shape(self, parameter: Tensor) -> tuple[int, int]:
        """Of :meth:`matrix`."""
        rows, columns = parameter.shape[-2:]
        if self.turned:
            rows, columns = columns, rows
        first, last = self.columns or (0, columns)
        return int(rows), int(last - first)

    def _part(self, parameter: Tensor) -> Tensor:
        part = parameter[self.at] if self.at else parameter
        part = part.t() if self.turned else part
        return part if self.columns is None else part[:, slice(*self.columns)]


WHOLE = View()
"""A parameter as it is."""


__all__ = ["WHOLE", "AdjacencyMatrix", "View"]
