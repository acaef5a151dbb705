"""The picture of a partition, as SVG: the rows that each pair of parts exchanges, and the parts' loads."""

from __future__ import annotations

from collections.abc import Sequence

from graphbraid.distributed.parts.report import PartitionReport

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
