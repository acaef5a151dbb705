"""PartitionReport: what a partition cuts, what its parts exchange and how evenly they are loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from graphbraid.distributed.partitioning.loads import PER_EDGE_AND_NODE, imbalance
from graphbraid.distributed.partitioning.records import Attempt, Balance, Partition
from graphbraid.distributed.parts.split import Outline
from graphbraid.signatures import typed


@dataclass(frozen=True, kw_only=True, slots=True)
class PartSize:
    """What one part holds and exchanges."""

    nodes: int
    """Nodes that it owns."""
    edges: int
    """Their in-edges."""
    local_edges: int
    """In-edges that come from nodes of the part."""
    work: int
    """``edges`` and four times ``nodes``."""
    halo_rows: int
    """Rows of others that it reads: received before each aggregation."""
    sent_rows: int
    """Its rows that others read, once for each of them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PartitionReport:
    """A partition in numbers."""

    num_nodes: int
    """Number of nodes of the graph."""
    num_edges: int
    """Number of edges of the graph."""
    num_parts: int
    """Number of parts, empty ones included."""
    strategy: str
    """What gave the partition."""
    balance: Balance
    """What was balanced."""
    attempts: tuple[Attempt, ...]
    """What was considered, in order."""
    parts: tuple[PartSize, ...]
    """One entry per part."""
    halo: tuple[tuple[int, ...], ...]
    """``halo[p][q]``: rows that part p receives from part q."""

    @property
    def edge_cut(self) -> int:
        """Number of edges between two parts."""
        return self.num_edges - sum(part.local_edges for part in self.parts)

    @property
    def edge_cut_share(self) -> float:
        """Edges between two parts, by all edges; 0 for a graph without edges."""
        return self.edge_cut / self.num_edges if self.num_edges else 0.0

    @property
    def halo_rows(self) -> int:
        """Rows that all parts together receive for one aggregation."""
        return sum(part.halo_rows for part in self.parts)

    def imbalance(self, of: Balance) -> float:
        """Return the largest part's edges, nodes or work by the parts' mean."""
        return imbalance(torch.tensor([getattr(part, of) for part in self.parts]))

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON holds it."""
        balances: tuple[Balance, ...] = ("nodes", "edges", "work")
        return asdict(self) | {
            "edge_cut": self.edge_cut,
            "edge_cut_share": self.edge_cut_share,
            "halo_rows": self.halo_rows,
            "imbalance": {name: self.imbalance(name) for name in balances},
        }


@typed
def report_of(partition: Partition, outlines: Sequence[Outline]) -> PartitionReport:
    """Report a partition.

    Args:
        partition: The partition.
        outlines: Its parts' (:attr:`.split.Division.outlines`).
    """
    received = torch.stack([outline.halo_indptr.diff() for outline in outlines])
    sent = received.sum(0).tolist()
    sizes = tuple(_size(outline, rows) for outline, rows in zip(outlines, sent, strict=True))
    return PartitionReport(
        num_nodes=partition.num_nodes,
        num_edges=sum(size.edges for size in sizes),
        num_parts=partition.num_parts,
        strategy=partition.strategy,
        balance=partition.balance,
        attempts=partition.attempts,
        parts=sizes,
        halo=tuple(tuple(row) for row in received.tolist()),
    )


def _size(outline: Outline, sent_rows: int) -> PartSize:
    nodes, local, remote = outline.owned.numel(), _last(outline.local_indptr), _last(outline.remote_indptr)
    per_edge, per_node = PER_EDGE_AND_NODE["work"]
    return PartSize(
        nodes=nodes,
        edges=local + remote,
        local_edges=local,
        work=per_edge * (local + remote) + per_node * nodes,
        halo_rows=outline.halo.numel(),
        sent_rows=sent_rows,
    )


def _last(indptr: Tensor) -> int:
    return int(indptr[-1])
