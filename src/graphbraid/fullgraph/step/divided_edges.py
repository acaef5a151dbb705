"""DividedEdges: the edges of a step of several ranks, divided by where their rows come from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from graphbraid.distributed.peers.peer_sum import PeerMap
    from graphbraid.fullgraph.program import AdjacencyMatrix
    from graphbraid.fullgraph.step.calls import kernels
    from graphbraid.fullgraph.step.planned.exchanges.peer_reads import LazyMap
    from graphbraid.fullgraph.step.planned.exchanges.source_split import SourceSplit


@dataclass(slots=True)
class DividedEdges:
    """The divisions made so far: each when an operation first needs it, once for all over the same edges."""

    maps: dict[tuple[AdjacencyMatrix, int], tuple[kernels.Map, kernels.Map]] = field(default_factory=dict)
    """The linear maps over edges from own rows and over those from the halo."""
    source_splits: dict[int, SourceSplit] = field(default_factory=dict)
    """The edges by source: those from own rows and those from the halo."""
    peer_maps: dict[tuple[AdjacencyMatrix, int], LazyMap] = field(default_factory=dict)
    """The linear maps whose rows are read where peers keep them, by this rank's edges."""
    made_maps: list[tuple[LazyMap, PeerMap]] = field(default_factory=list)
    """The maps that were made, in the order in which all ranks have made them."""
    nbytes: int = 0
    """Bytes of the edges that these hold in addition to the blocks."""


__all__ = ["DividedEdges"]
