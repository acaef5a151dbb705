"""The sizes of a run's mini-batches, found by sampling some of them: a batch is a pure function."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from graphbraid.graph.scaled_features import given_row_bytes
from graphbraid.loader import LoaderSettings
from graphbraid.train.config import TrainConfig
from graphbraid.train.step.links.runner import LinkRunner
from graphbraid.train.step.runner import ModelRunner
from graphbraid.train.step.typed_runner import TypedRunner

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


def batch_sizes(runner: ModelRunner, config: TrainConfig, nodes: Tensor) -> BatchSizes:
    """Sample some batches without their features, and return the sizes.

    Args:
        runner: makes the loader: of nodes, of nodes of one type, or of links.
        config: options of the sampling.
        nodes: ``(n,)`` int64 seeds, or positions of links.
    """
    settings = LoaderSettings(
        num_neighbors=config.fanouts,
        batch_size=config.batch_size,
        input_nodes=nodes,
        shuffle=True,
        replace=config.replace,
        layout=config.layout,
        seed=config.seed,
        return_edge_id=False,
        gather=False,
    )
    encoder = runner.encoder_runner() if isinstance(runner, LinkRunner) else runner
    has_types = isinstance(encoder, TypedRunner)  # whose rows differ in width
    found, row_bytes = [], 0 if has_types else given_row_bytes(runner.graph.x)
    with runner.loader(settings) as loader:
        steps, seeds = len(loader), min(nodes.numel(), loader.schedule.batch_size)
        # Full batches only: the last of an epoch may be small.
        full = max(nodes.numel() // loader.schedule.batch_size, 1)
        count = min(SAMPLED, full)
        for part in range(count):
            first = full * part // count
            for batch in loader.batches(0, first, first + 1):
                found.append((batch.num_nodes, batch.num_edges))
                if has_types:
                    row_bytes = max(row_bytes, encoder.rows_bytes(batch) // max(batch.num_nodes, 1))
                del batch
    return BatchSizes(
        num_batches=steps,
        nodes=max(size[0] for size in found),
        edges=max(size[1] for size in found),
        seeds=seeds,
        row_bytes=row_bytes,
    )
