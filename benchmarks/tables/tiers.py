"""Tables and pictures of tiers: how well scores predict reads, and what travels to a device."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from benchmarks.common.rows import Row, read_rows
from benchmarks.tables.markdown import table, where

LABELS = {
    "degree": "out-degree",
    "reverse_pagerank": "reverse PageRank",
    "weighted_reverse_pagerank": "weighted reverse PageRank",
    "inclusion": "inclusion",
    "presampled": "presampled",
    "lookahead": "look-ahead",
}
COLOURS = {
    "degree": "#9467bd",
    "reverse_pagerank": "#8c564b",
    "weighted_reverse_pagerank": "#1f77b4",
    "inclusion": "#2ca02c",
    "presampled": "#ff7f0e",
    "lookahead": "#d62728",
    "best": "#000000",
}
COMMAND = "benchmarks.tiers.prediction"


def prediction(sampler: str) -> str:
    """Share of reads by the top rows of each score, beside the best that there is."""
    rows = [row for row in read_rows("tiers_prediction") if row["sampler"] == sampler]
    lines = []
    for row in rows:
        for place, share in enumerate(row["shares"]):
            best = row["best"][place]
            served = [_percent(row["served"][kind][place], row["auto"] == kind) for kind in LABELS]
            name = row["graph"] if place == 0 else ""
            lines.append([name, f"{share:.0%}", *served, _percent(best), _percent(row["belady"][place])])
    heads = ("% of reads", "rows kept", *LABELS.values(), "best fixed choice", "Belady")
    config = rows[0]["config"]
    fanouts, _, batch_size = sampler.partition("x")
    note = (
        f"{config['epochs']} epochs of batches of {batch_size} seeds, fanouts {fanouts}. Bold: what "
        "`auto` takes for these epochs where it does not look ahead."
    )
    return "\n\n".join([table(heads, lines), note, where(rows, COMMAND)])


def _percent(share: float, is_chosen: bool = False) -> str:
    return f"**{100 * share:.1f}**" if is_chosen else f"{100 * share:.1f}"


TRAFFIC_WAYS = {"copies": "copies", "look-ahead": "copies with look-ahead", "device": "the device samples"}


def traffic() -> str:
    """Bytes of features that travel to a device by the share of rows that it keeps."""
    rows = read_rows("tiers_traffic")
    lines = []
    for row in rows:
        for place, share in enumerate(row["shares"]):
            found = [row[f"{name}_bytes"][place] / 1e6 for name in ("foretold", *TRAFFIC_WAYS)]
            name = row["graph"] if place == 0 else ""
            lines.append([name, f"{share:.0%}", *(f"{megabytes:,.1f}" for megabytes in found)])
    config = rows[0]["config"]
    fanouts = ",".join(map(str, config["fanouts"]))
    note = (
        f"Batches of {config['batch_size']} seeds, fanouts {fanouts}, rows of {config['width']} float32 "
        "numbers, one epoch. Foretold by the score that looks ahead."
    )
    heads = ("MB an epoch", "rows hot", "foretold", *TRAFFIC_WAYS.values())
    return "\n\n".join([table(heads, lines), note, where(rows, "benchmarks.tiers.traffic")])


WIDTH, HEIGHT, COLUMNS = 200, 150, 4
"""A panel of the picture, in pixels, and how many stand side by side."""
HEAD, LEFT, TOP, GAP, LEGEND = 20, 36, 30, 34, 30


def curves() -> str:
    """The picture, as SVG: for each graph, the share of reads over the share of rows kept, by score."""
    return curves_of(read_rows("tiers_prediction"))


def curves_of(rows: Sequence[Row]) -> str:
    """The same, of rows."""
    lines_of_panels = -(-len(rows) // COLUMNS)
    width = LEFT + COLUMNS * (WIDTH + GAP)
    height = HEAD + lines_of_panels * (HEIGHT + TOP + GAP) + LEGEND
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="sans-serif" font-size="11">',
        "<title>Share of reads served by the top rows of each score</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="{HEAD - 6}">% of reads over % of rows kept</text>',
    ]
    for number, row in enumerate(rows):
        x = LEFT + number % COLUMNS * (WIDTH + GAP)
        y = HEAD + TOP + number // COLUMNS * (HEIGHT + TOP + GAP)
        parts += _panel(row, x, y)
    parts += _legend(height - LEGEND / 2)
    return "\n".join([*parts, "</svg>", ""])


def _panel(row: Row, x: int, y: int) -> list[str]:
    title = f"{row['graph']}, {row['sampler']}"
    parts = [
        f'<text x="{x + WIDTH / 2:g}" y="{y - 8}" text-anchor="middle">{escape(title)}</text>',
        f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#bbbbbb"/>',
    ]
    for percent in (0, 25, 50, 75, 100):
        at_x, at_y = x + WIDTH * percent / 100, y + HEIGHT * (100 - percent) / 100
        parts.append(f'<path d="M{x} {at_y:g}h{WIDTH}M{at_x:g} {y}v{HEIGHT}" stroke="#eeeeee"/>')
        parts.append(f'<text x="{x - 4}" y="{at_y + 4:g}" text-anchor="end" font-size="9">{percent}</text>')
        parts.append(
            f'<text x="{at_x:g}" y="{y + HEIGHT + 12}" text-anchor="middle" font-size="9">{percent}</text>'
        )
    for kind, colour in COLOURS.items():
        points = " ".join(
            f"{x + WIDTH * share:.1f},{y + HEIGHT * (1 - served):.1f}"
            for share, served in zip(row["grid"], row["curves"][kind], strict=True)
        )
        dashes = ' stroke-dasharray="2 3"' if kind == "best" else ""
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.3"{dashes}/>'
        )
    return parts


def _legend(y: float) -> list[str]:
    parts, x = [], LEFT
    for kind, colour in COLOURS.items():
        label = LABELS.get(kind, "best fixed choice")
        dashes = ' stroke-dasharray="2 3"' if kind == "best" else ""
        parts.append(f'<path d="M{x} {y:g}h18" stroke="{colour}" stroke-width="2"{dashes}/>')
        parts.append(f'<text x="{x + 22}" y="{y + 4:g}">{label}</text>')
        x += 40 + 6 * len(label)
    return parts
