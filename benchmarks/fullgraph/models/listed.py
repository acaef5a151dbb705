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
class Batched:
    """What a model that is for one whole graph, as it stands, needs to be right on mini-batches.

    Attributes:
        option: argument of :attr:`Listed.make` with which it is made for them.
        value: its value.
        why: what it is, and what would be wrong without.
    """

    option: str
    value: bool
    why: str


CACHED = Batched("cached", False, "with cached=False: PyG would keep what it computed from the first batch")
EMBEDDED = Batched("by_id", True, "with the rows of n_id: row i of its embedding is for node i of one graph")


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
        batched: why its author must write it in another way for mini-batches; None if not.
        tolerance: factor of the usual tolerance, for a model whose float32 results are worse conditioned.
    """

    family: str
    name: str
    make: Callable[..., nn.Module]
    data: str = "nodes"
    batched: Batched | None = None
    tolerance: float = 1.0
