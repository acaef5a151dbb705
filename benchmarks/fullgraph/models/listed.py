"""What the lists of models share: the sizes that a model is made for, and an entry of a list."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What a model is made for: the graph's sizes, and those that its author would choose."""

    nodes: int = 40
    channels: int = 12
    classes: int = 5
    edge_channels: int = 3
    relations: int = 3
    hidden: int = 8
    layers: int = 3
    dropout: float = 0.5


@dataclass(frozen=True)
class Listed:
    """One model of a list.

    Attributes:
        family: its layers, as the lists are divided.
        name: what it is, in a few words.
        make: builds it.
        data: the data that it is called with: ``nodes`` (features and edges), ``weights``, ``edges`` (edge
            features), ``relations`` (an ``edge_type``), ``points`` (positions), ``normalised`` (weights that
            ``gcn_norm`` made), ``simple`` (no loops and repeated edges, for a sparse matrix), ``matrix`` or
            ``weighted matrix`` (a sparse ``adj_t`` in the place of the edges), or ``types``.
        tolerance: factor of the usual tolerance, for a model whose float32 results are worse conditioned.
    """

    family: str
    name: str
    make: Callable[[Sizes], nn.Module]
    data: str = "nodes"
    tolerance: float = 1.0
