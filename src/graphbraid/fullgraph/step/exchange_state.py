"""ExchangeState: what the exchanges of a step of several ranks share while they are planned and run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from graphbraid.ops.peers.pipeline_plan import PipelineConfig

if TYPE_CHECKING:
    from graphbraid.distributed.peers.peer_sum import PeerMap
    from graphbraid.fullgraph.program import AdjacencyMatrix
    from graphbraid.fullgraph.step.arena import FirstRows
    from graphbraid.fullgraph.step.maps import Map
    from graphbraid.fullgraph.step.operations.overlap import Overlapped
    from graphbraid.fullgraph.step.operations.peer_reads import LazyMap, PeerReads
    from graphbraid.fullgraph.step.operations.row_exchange import RowExchange
    from graphbraid.fullgraph.step.operations.source_split import SourceSplit


@dataclass(slots=True)
class ExchangeState:
    """The exchanges of a step, and its splits of edges. Operations over the same edges share a split."""

    pipeline: PipelineConfig = field(default_factory=PipelineConfig)
    """How the kernel that reads peers' rows divides its work; alike on all ranks."""
    nbytes: int = 0
    """Bytes of the splits, and of rows that are rounded before they are sent."""
    travels: dict[str, RowExchange] = field(default_factory=dict)
    """What moves the rows of each exchange, by the value's name."""
    overlapped: dict[str, Overlapped | PeerReads] = field(default_factory=dict)
    """The exchanges whose only reader is an aggregation, which begins early or reads peers' memory."""
    returning: dict[str, FirstRows] = field(default_factory=dict)
    """Memory that receives gradients from others, for exchanges that have sent the halo's gradients."""
    gone_back: set[str] = field(default_factory=set)
    """Linear maps whose gradients are computed while the gradients of the halo travel."""
    first_back: set[str] = field(default_factory=set)
    """Linear maps of constants just before those, with gradients that are computed at the same time."""
    maps: dict[tuple[AdjacencyMatrix, int], tuple[Map, Map]] = field(default_factory=dict)
    """The linear maps over edges from own rows and over those from the halo."""
    source_splits: dict[int, SourceSplit] = field(default_factory=dict)
    """The edges by source: those from own rows and those from the halo."""
    peer_maps: dict[tuple[AdjacencyMatrix, int], LazyMap] = field(default_factory=dict)
    """The linear maps whose rows are read where peers keep them, by this rank's edges."""
    made_maps: list[tuple[LazyMap, PeerMap]] = field(default_factory=list)
    """The maps that were made, in the order in which all ranks have made them."""
