"""PlacedWeights: the edge weights where a device reads them, and the draws by them."""

from __future__ import annotations

import torch
from torch import Tensor

from graphbraid.graph.csc import Csc
from graphbraid.ops.triton.partition import on_device_of
from graphbraid.sampling.config import SamplerConfig
from graphbraid.sampling.rows.link_weights import weight_bytes
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
        self._lists, self._replace = lists, config.replace
        self.read_bytes = torch.zeros((), dtype=torch.int64, device=device) if topology == "host" else None
        """Bytes that draws have read of the host so far, ``()`` int64; None where the device has all."""
        self._running = None if running is None else lists.by_place(running)
        self._weight = lists.by_place(weight) if running is None else None

    def draw_edges(self, rows: HopRows, edges: RowEdges, positions: Tensor) -> None:
        """Write the positions of a hop's edges."""
        if self.read_bytes is not None:
            with on_device_of(self.read_bytes):
                self.read_bytes.add_(self._read_of(rows, edges))
        if self._weight is not None:
            weighted.draw_by_race(rows, edges, self._weight, self.available, positions)
        else:
            assert self._running is not None
            weighted.draw_by_inversion(
                rows, edges, self._running, self.available, positions, max_degree=self._max_degree
            )

    def _read_of(self, rows: HopRows, edges: RowEdges) -> Tensor:
        """Return the bytes that a hop's draws read of the host, ``()`` int64; waits for nothing."""
        first = rows.node_bounds[0 if rows.blocks else rows.hop]
        place = torch.arange(rows.capacity, device=first.device)
        is_row = place < rows.node_bounds[rows.hop + 1] - first
        nodes = rows.n_id[torch.where(is_row, place + first, 0)]
        on_host = is_row & (edges.starts >= self._lists.num_hot)
        degrees = torch.where(on_host, edges.degrees, 0)
        drawable = self.available[torch.where(is_row, nodes, 0)]
        return weight_bytes(degrees, drawable, rows.fanout, replace=self._replace).sum()
