"""The matrices of linear operations: an adjacency, or a view of a parameter."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from graphbraid.graph.types import ONLY_NODE_TYPE, Relation


@dataclass(frozen=True, kw_only=True, slots=True)
class AdjacencyMatrix:
    """The kind of an aggregation; together with the graph's edges and weights it is a matrix."""

    kind: str
    """``sum``; ``mean``; ``gcn``, symmetrically normalised by degrees; or ``laplacian``, ``laplacian sym`` or
    ``laplacian rw``, scaled to eigenvalues between -1 and 1 for Chebyshev polynomials."""
    loop_scale: float = 0.0
    """Factor of a node's own row: ``1 + eps`` in GIN; 1 in GCN, or 2 if ``improved``; 0 for no self-loops."""
    weighted: bool = False
    """Whether the graph's edge weights are used."""
    scale: float = 1.0
    """Factor of the whole map."""
    relation: Relation | None = None
    """The relation whose edges it has, in a graph with types; None for all edges of a graph of one."""

    def __str__(self) -> str:
        loops = f" + {self.loop_scale:g} I" if self.loop_scale else ""
        over = "" if self.relation is None else f" over {name_of(self.relation)}"
        name = f"{self.kind}{' weighted' if self.weighted else ''}{loops}{over}"
        return name if self.scale == 1 else f"{self.scale:g} ({name})"


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """The matrix of a linear map made from a parameter: ``identity I + scale P``, with P a part of it."""

    at: tuple[int, ...] = ()
    """Indices into the parameter's first dimensions that select a matrix."""
    turned: bool = False
    """Whether the parameter is stored transposed, as ``(in_channels, out_channels)``."""
    columns: tuple[int, int] | None = None
    """Range of input channels that belong to one of several concatenated values; None for all."""
    scale: float = 1.0
    identity: float = 0.0

    def matrix(self, parameter: Tensor) -> Tensor:
        """Return the detached ``(out_channels, in_channels)`` matrix, in the parameter's memory if it can."""
        part = self._part(parameter.detach())
        if self.scale != 1:
            part = part * self.scale
        if self.identity:
            part = part + self.identity * torch.eye(len(part), dtype=part.dtype, device=part.device)
        return part.contiguous()

    def add_gradient(self, grad: Tensor, whole: Tensor) -> None:
        """Add the parameter's gradient, from ``grad``, that of :meth:`matrix`, to the part it belongs to."""
        self._part(whole).add_(grad, alpha=self.scale)

    def shape(self, parameter: Tensor) -> tuple[int, int]:
        """Return the shape of :meth:`matrix`."""
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
"""The view of a parameter as it is."""


def name_of(relation: Relation) -> str:
    """Return a relation's name for people; the ends' types are left out where nodes have only one."""
    source, name, destination = relation.edge_type
    return name if source == destination == ONLY_NODE_TYPE else f"{source} {name} {destination}"


__all__ = ["WHOLE", "AdjacencyMatrix", "View", "name_of"]
