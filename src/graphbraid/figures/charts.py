"""Charts as inline SVG. They take the page's colours, so they are readable in light and in dark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from math import ceil, floor, log10

import numpy as np

Points = Sequence[tuple[float, float]]

COLOURS = ("#0a9588", "#d0742b", "#7a63c7", "#c2406a", "#4c78a8", "#8a8f3a", "#a05195", "#607080")
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 460, 240, 52, 14, 34
MOST_POINTS = 200
"""Points of a line that are drawn; of more, evenly spaced ones are."""
LARGEST = 1e300
"""Bound of the numbers that are drawn: the range of two such numbers is finite."""


def line_chart(
    lines: Mapping[str, Points], *, x: str, y: str, diagonal: bool = False, named: bool = False
) -> str:
    """Draw lines over common axes.

    Args:
        lines: points of each line by its name. Those with NaN, or a number beyond LARGEST, are left out.
        x: name of the horizontal axis.
        y: name of the vertical axis.
        diagonal: whether to draw the line from (0, 0) to (1, 1). Both axes then go from 0 to 1.
        named: whether a single line is named, too.
    """
    known = {
        name: thinned([p for p in points if abs(p[0]) < LARGEST and abs(p[1]) < LARGEST])
        for name, points in lines.items()
    }
    known = {name: points for name, points in known.items() if points}
    if not known:
        return ""
    xs, ys = (np.array([p[axis] for points in known.values() for p in points]) for axis in (0, 1))
    x_ticks, y_ticks = [ticks(0, 1) if diagonal else ticks(v.min(), v.max()) for v in (xs, ys)]
    right, bottom = WIDTH - 10, HEIGHT - BOTTOM

    def place(point: tuple[float, float]) -> str:
        across = (point[0] - x_ticks[0]) / (x_ticks[-1] - x_ticks[0])
        down = (y_ticks[-1] - point[1]) / (y_ticks[-1] - y_ticks[0])
        return f"{LEFT + across * (right - LEFT):.1f},{TOP + down * (bottom - TOP):.1f}"

    parts = []
    for tick in y_ticks:
        at = float(place((x_ticks[0], tick)).split(",")[1])
        parts.append(f'<path class="grid" d="M{LEFT} {at:.1f}H{right}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for tick in x_ticks:
        at = float(place((tick, y_ticks[0])).split(",")[0])
        parts.append(f'<text x="{at:.1f}" y="{bottom + 15}" text-anchor="middle">{tick:g}</text>')
    if diagonal:
        ends = [place((x_ticks[0], y_ticks[0])), place((x_ticks[-1], y_ticks[-1]))]
        parts.append(f'<polyline class="grid" points="{" ".join(ends)}"/>')
    for number, points in enumerate(known.values()):
        colour = COLOURS[number % len(COLOURS)]
        drawn = " ".join(map(place, points))
        parts.append(f'<polyline points="{drawn}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
    parts.append(f'<text x="{(LEFT + right) / 2}" y="{HEIGHT - 4}" text-anchor="middle">{escape(x)}</text>')
    return figure("".join(parts), y, known if named or len(known) > 1 else {}, WIDTH, HEIGHT)


def bar_chart(values: Mapping[str, float], *, title: str, unit: str = "") -> str:
    """Draw horizontal bars, a row each."""
    most = max(values.values(), default=0.0)
    if most <= 0:
        return ""
    parts, left, row = [], 150, 20
    for number, (name, value) in enumerate(values.items()):
        shown = f"{value:,.0f}" if value == int(value) else f"{value:.3g}"
        y, long = TOP + number * row, value / most * (WIDTH - left - 80)
        parts.append(f'<text x="{left - 6}" y="{y + 12}" text-anchor="end">{escape(name)}</text>')
        parts.append(
            f'<rect x="{left}" y="{y + 2}" width="{long:.1f}" height="{row - 6}" fill="{COLOURS[0]}"/>'
        )
        parts.append(f'<text x="{left + long + 5:.1f}" y="{y + 12}">{shown}{escape(unit)}</text>')
    return figure("".join(parts), title, {}, WIDTH, TOP + row * len(values) + 6)


def heat_map(
    counts: np.ndarray[tuple[int, int], np.dtype[np.int64]], names: Sequence[str], *, title: str
) -> str:
    """Draw a confusion matrix: a row per true class, coloured by its share of the row."""
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    size, left, top = max(16, min(44, 420 // len(names))), 110, 30
    parts = []
    for row, name in enumerate(names):
        y = top + row * size
        short = name if len(name) <= 16 else name[:15] + "…"
        parts.append(f'<text x="{left - 6}" y="{y + size / 2 + 4}" text-anchor="end">{escape(short)}</text>')
        for column in range(len(names)):
            x, share = left + column * size, shares[row, column]
            told = f"{name} taken for {names[column]}: {counts[row, column]:,}, {share:.1%} of the row"
            parts.append(
                f'<rect x="{x}" y="{y}" width="{size - 1}" height="{size - 1}" fill="{COLOURS[0]}" '
                f'fill-opacity="{0.06 + 0.94 * share:.3f}"><title>{escape(told)}</title></rect>'
            )
            if size >= 28:
                text = f"{counts[row, column]:,}" if counts[row, column] < 10_000 else f"{share:.0%}"
                parts.append(
                    f'<text x="{x + size / 2}" y="{y + size / 2 + 4}" text-anchor="middle">{text}</text>'
                )
    parts.append(f'<text x="{left}" y="{top - 8}">predicted, in the same order</text>')
    return figure("".join(parts), title, {}, left + size * len(names) + 10, top + size * len(names) + 6)


def figure(drawn: str, title: str, names: Mapping[str, object], width: int, height: int) -> str:
    """Put a title and the names of lines around a drawing."""
    keys = "".join(
        f'<span><i style="background:{COLOURS[number % len(COLOURS)]}"></i>{escape(name)}</span>'
        for number, name in enumerate(names)
    )
    legend = f'<div class="legend">{keys}</div>' if names else ""
    return (
        f"<figure><figcaption>{escape(title)}</figcaption>{legend}"
        f'<svg viewBox="0 0 {width} {height}" style="max-width:{width}px" role="img">{drawn}</svg></figure>'
    )


def ticks(low: float, high: float) -> list[float]:
    """Return three to seven round numbers that cover a range."""
    if high - low < max(1e-12 * max(abs(low), abs(high)), 1e-200):
        half = max(abs(low), abs(high)) / 2
        half = half if half > 1e-200 else 0.5  # so that the powers of ten below stay floats
        low, high = low - half, high + half
    step = 10 ** floor(log10((high - low) / 3))
    digits = 2 - floor(log10(step))
    step *= next(factor for factor in (1, 2, 5, 10) if (high - low) / (step * factor) <= 5)
    return [round(step * n, digits) for n in range(floor(low / step + 1e-9), ceil(high / step - 1e-9) + 1)]


def thinned(points: Points) -> Points:
    """Return at most MOST_POINTS of the points, the first and the last among them."""
    if len(points) <= MOST_POINTS:
        return points
    return [points[round(i * (len(points) - 1) / (MOST_POINTS - 1))] for i in range(MOST_POINTS)]
