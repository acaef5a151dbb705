"""The sizes of a run's mini-batches, found by sampling some of them: a batch is a pure function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from graphbraid.graph import Graph
from graphbraid.graph.scaled_features import given_row_bytes
from graphbraid.loader import BatchLoader, LoaderSettings
from graphbraid.sampling import MiniBatch
from graphbraid.train.config import TrainConfig

SAMPLED = 6
"""Batches that are sampled, spread over the first epoch."""
_SCRATCH_BYTES = 48
"""Bytes per node of a batch that a sampling thread works in: its table of ids, and its draws of a hop."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchSizes:
    """Sizes of the mini-batches of an epoch."""

    num_batches: int
    """Batches in an epoch."""
    nodes: int
    """Nodes of the largest batch of those sampled."""
    edges: int
    """Edges of the one with most."""
    mean_nodes: float
    seeds: int
    row_bytes: int
    """Bytes of a gathered feature row; 0 where rows are gathered in another form or not at all."""

    @property
    def index_bytes(self) -> int:
        """Bytes of a batch without features: ids of nodes and seeds, edges and their lists."""
        return 16 * self.nodes + 4 * self.edges + 8 * self.seeds

    @property
    def feature_bytes(self) -> int:
        """Bytes of a batch's feature rows."""
        return self.nodes * self.row_bytes

    @property
    def nbytes(self) -> int:
        """Bytes of a batch."""
        return self.index_bytes + self.feature_bytes

    def in_flight(self, workers: int, ahead: int) -> int:
        """Return the bytes of the batches prepared ahead, the one in use, and what the threads work in."""
        return min(ahead + 1, self.num_batches) * self.nbytes + workers * _SCRATCH_BYTES * self.nodes


def batch_sizes(
    graph: Graph,
    config: TrainConfig,
    nodes: Tensor,
    *,
    fanouts: Sequence[int] | None = None,
    batch_size: int | None = None,
    loader_of: Callable[[LoaderSettings], BatchLoader] | None = None,
    rows_bytes: Callable[[MiniBatch], int] | None = None,
) -> BatchSizes:
    """Sample some batches over ``nodes`` without their features, and return the sizes.

    Args:
        graph: what is sampled.
        config: options of the sampling.
        nodes: ``(n,)`` int64 seeds.
        fanouts: in place of those of ``config``.
        batch_size: in place of that of ``config``.
        loader_of: makes the loader, as of links. If None, one of the graph's nodes.
        rows_bytes: bytes of a batch's feature rows, where nodes have types. If None, those of
            the graph's rows.
    """
    settings = LoaderSettings(
        num_neighbors=fanouts or config.fanouts,
        batch_size=batch_size or config.batch_size,
        input_nodes=nodes,
        shuffle=True,
        replace=config.replace,
        layout=config.layout,
        seed=config.seed,
        return_edge_id=False,
        gather=False,
    )
    found, by_type = [], 0
    with BatchLoader(graph, settings) if loader_of is None else loader_of(settings) as loader:
        steps, seeds = len(loader), min(nodes.numel(), loader.schedule.batch_size)
        # Full batches only: the last of an epoch may be small.
        full = max(nodes.numel() // loader.schedule.batch_size, 1)
        count = min(SAMPLED, full)
        for part in range(count):
            first = full * part // count
            for batch in loader.batches(0, first, first + 1):
                found.append((batch.num_nodes, batch.num_edges))
                if rows_bytes is not None:
                    by_type = max(by_type, rows_bytes(batch) // max(batch.num_nodes, 1))
                del batch
    return BatchSizes(
        num_batches=steps,
        nodes=max(size[0] for size in found),
        edges=max(size[1] for size in found),
        mean_nodes=sum(size[0] for size in found) / len(found),
        seeds=seeds,
        row_bytes=row_bytes(graph) if rows_bytes is None else by_type,
    )


def row_bytes(graph: Graph) -> int:
    """Return the bytes of a feature row as batches hold it; of sparse features a mean row's."""
    return given_row_bytes(graph.x)
