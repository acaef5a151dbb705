"""PlacedWeights: the edge weights where a device reads them, and the draws by them."""

from __future__ import annotations

import torch
from torch import Tensor

from graphbraid.graph.csc import Csc
from graphbraid.ops.triton.partition import on_device_of
from graphbraid.sampling.config import SamplerConfig
from graphbraid.sampling.triton import weighted
from graphbraid.sampling.triton.hop_rows import HopRows, RowEdges
from graphbraid.sampling.triton.hot_lists import PlacedTopology
from graphbraid.sampling.triton.placement import empty, place


class PlacedWeights:
    """The arrays that draws by weight read in addition to the topology."""

    def __init__(
        self, lists: PlacedTopology, csc: Csc, config: SamplerConfig, topology: str, device: torch.device
    ) -> None:
        assert csc.weight is not None
        weight = place(csc.weight, topology, device)
        self._max_degree = int(csc.degrees().max()) if csc.num_dst else 0
        self.available = torch.empty(csc.num_dst, dtype=torch.int32, device=device)
        """Number of in-neighbours that can be drawn, ``(num_nodes,)`` int32."""
        running = empty(csc.num_edges, torch.float64, topology, device) if config.replace else None
        with on_device_of(self.available):
            weighted.weigh(lists.indptr, weight, self.available, running)
        self._running = None if running is None else lists.by_place(running)
        self._weight = lists.by_place(weight) if running is None else None

    def draw_edges(self, rows: HopRows, edges: RowEdges, positions: Tensor) -> None:
        """Write the positions of a hop's edges."""
        if self._weight is not None:
            weighted.draw_by_race(rows, edges, self._weight, self.available, positions)
        else:
            assert self._running is not None
            weighted.draw_by_inversion(
                rows, edges, self._running, self.available, positions, max_degree=self._max_degree
            )
