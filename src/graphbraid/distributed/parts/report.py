"""The cuts and exchanges of a partition, as numbers and as a picture in SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from graphbraid.distributed.partitioning.records import (
    BALANCES,
    PER_EDGE_AND_NODE,
    Attempt,
    Balance,
    Partition,
    imbalance,
)
from graphbraid.distributed.parts.split import Outline
from graphbraid.signatures import typed


@dataclass(frozen=True, kw_only=True, slots=True)
class PartSize:
    """Contents and exchanges of one part."""

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
    num_edges: int
    num_parts: int
    """Number of parts, empty ones included."""
    strategy: str
    """Method of the partition."""
    balance: Balance
    """Balanced quantity."""
    attempts: tuple[Attempt, ...]
    """Considered methods, in order."""
    parts: tuple[PartSize, ...]
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
        return asdict(self) | {
            "edge_cut": self.edge_cut,
            "edge_cut_share": self.edge_cut_share,
            "halo_rows": self.halo_rows,
            "imbalance": {name: self.imbalance(name) for name in BALANCES},
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


SIDE, BARS, BAR = 360, 260, 8
"""Pixels: of the matrix, of the longest bar, least thickness of a bar."""
LEFT, TOP, GAP = 40, 56, 40
_COLOURS = {"edges": "#1f77b4", "nodes": "#9467bd", "halo_rows": "#ff7f0e"}
_LABELS = {"edges": "in-edges", "nodes": "nodes", "halo_rows": "halo rows"}
_MOST_LABELS = 16


def picture_of(report: PartitionReport) -> str:
    """Draw a partition: at the left who receives how many rows from whom, at the right each part's load.

    Bars of a kind are drawn by the largest of that kind; a line marks the mean of the in-edges.
    """
    side = max(SIDE, BAR * report.num_parts)
    width, height = LEFT + side + GAP + BARS + GAP, TOP + side + GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="sans-serif" font-size="11">',
        f"<title>{report.num_nodes:,} nodes in {report.num_parts} parts by {report.strategy}</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="16">{report.num_nodes:,} nodes, {report.num_edges:,} edges in '
        f"{report.num_parts} parts by {report.strategy}: {report.edge_cut_share:.2%} of the edges cut</text>",
        f'<text x="{LEFT}" y="{TOP - 20}">rows that a part (line) receives from a part (column)</text>',
        *_matrix(report.halo, side),
        *_bars(report, LEFT + side + GAP, side),
    ]
    return "\n".join([*parts, "</svg>", ""])


def _matrix(halo: Sequence[Sequence[int]], side: int) -> list[str]:
    most = max((rows for line in halo for rows in line), default=0) or 1
    cell = side / len(halo)
    parts = []
    for to, line in enumerate(halo):
        for source, rows in enumerate(line):
            if rows:
                parts.append(
                    f'<rect x="{LEFT + source * cell:.2f}" y="{TOP + to * cell:.2f}" width="{cell:.2f}" '
                    f'height="{cell:.2f}" fill="#d62728" fill-opacity="{0.08 + 0.92 * rows / most:.3f}">'
                    f"<title>part {to} receives {rows:,} rows from part {source}</title></rect>"
                )
    parts.append(f'<rect x="{LEFT}" y="{TOP}" width="{side}" height="{side}" fill="none" stroke="#bbbbbb"/>')
    for part in range(0, len(halo), max(1, len(halo) // _MOST_LABELS)):
        at = (part + 0.5) * cell
        parts.append(
            f'<text x="{LEFT + at:.1f}" y="{TOP - 4}" text-anchor="middle" font-size="9">{part}</text>'
        )
        parts.append(
            f'<text x="{LEFT - 4}" y="{TOP + at + 3:.1f}" text-anchor="end" font-size="9">{part}</text>'
        )
    return parts


def _bars(report: PartitionReport, left: int, side: int) -> list[str]:
    line = side / report.num_parts
    thickness = line * 0.8 / len(_COLOURS)
    parts, x = [], left
    for kind, colour in _COLOURS.items():
        parts.append(f'<rect x="{x}" y="{TOP - 29}" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{x + 14}" y="{TOP - 20}">{_LABELS[kind]}</text>')
        x += 85
    for place, (kind, colour) in enumerate(_COLOURS.items()):
        values = [getattr(part, kind) for part in report.parts]
        most = max(values) or 1
        for part, value in enumerate(values):
            y = TOP + part * line + 0.1 * line + place * thickness
            parts.append(
                f'<rect x="{left}" y="{y:.2f}" width="{BARS * value / most:.1f}" height="{thickness:.2f}" '
                f'fill="{colour}"><title>part {part}: {value:,} {_LABELS[kind]}</title></rect>'
            )
    mean = BARS / report.imbalance("edges") if report.num_edges else 0
    parts.append(f'<path d="M{left + mean:.1f} {TOP}v{side}" stroke="#1f77b4" stroke-dasharray="2 3"/>')
    return parts
