"""Figures: charts as SVG, tables and pages as HTML, for reports and notebooks.

Charts stand in the page as SVG and take its colours, so they are readable in light and in dark.
"""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from math import ceil, floor, log10
from typing import Any

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


Epochs = Sequence[Mapping[str, float]]
"""A row per epoch, with the columns of ``metrics.csv``; a column that an epoch lacks is missing."""

STAGES = ("sample", "gather", "wait", "forward", "backward", "evaluate", "checkpoint")
"""Stages whose seconds the rows have."""


def result_rows(result: Mapping[str, Any]) -> list[tuple[str, object]]:
    """Return how a run ended, from the content of ``result.json``."""
    rows: list[tuple[str, object]] = [
        ("status", result["status"]),
        ("epochs, steps", f"{result['num_epochs']:,}, {result['global_step']:,}"),
        ("seconds", result["seconds"]),
        (f"best epoch by {result['monitor']}", result["best_epoch"]),
        (f"validation {result['monitor']}", result["best_value"]),
        ("threshold", result.get("threshold")),
    ]
    rows += [(f"test {name}", value) for name, value in result["test"].items()]
    return [(name, value) for name, value in rows if value is not None]


def line(epochs: Epochs, column: str) -> Points:
    """Return the points of a column over the epochs."""
    return [(row["epoch"], row[column]) for row in epochs if column in row]


def metric_names(epochs: Epochs) -> list[str]:
    """Return the columns of validation metrics."""
    names = dict.fromkeys(name for row in epochs for name in row if name.startswith("val_"))
    return [name for name in names if name != "val_loss"]


def epoch_charts(epochs: Epochs) -> list[str]:
    """Draw curves of losses, of each validation metric, and of the learning rate if it changes."""
    losses = {"training": line(epochs, "train_loss"), "validation": line(epochs, "val_loss")}
    charts = [line_chart(losses, x="epoch", y="Loss")]
    charts += [
        line_chart({name: line(epochs, name)}, x="epoch", y=f"Validation {name[4:]}")
        for name in metric_names(epochs)
    ]
    rate = line(epochs, "learning_rate")
    if len({y for _, y in rate}) > 1:
        charts.append(line_chart({"learning rate": rate}, x="epoch", y="Learning rate"))
    return charts


def stage_chart(epochs: Epochs) -> str:
    """Draw the seconds of each stage; sampling and gathering run beside the model."""
    sums = {stage: sum(row.get(f"{stage}_seconds", 0.0) for row in epochs) for stage in STAGES}
    total = sum(row.get("epoch_seconds", 0.0) for row in epochs)
    title = f"Seconds of each stage ({total:.3g} s in all epochs)"
    return bar_chart(
        {stage: seconds for stage, seconds in sums.items() if seconds > 0}, title=title, unit=" s"
    )


PARTS = """
.scroll{overflow-x:auto}table{border-collapse:collapse}th,td{padding:.2rem .8rem .2rem 0;text-align:left;
border-bottom:1px solid #8884;white-space:nowrap}
@media(max-width:600px){tr:not(:has(td:nth-child(3)))>td{white-space:normal}}
pre{background:#8881;padding:.7rem;overflow-x:auto;font-size:.85em}@media(min-width:800px){pre{white-space:pre-wrap}}
.figures{display:flex;flex-wrap:wrap;gap:1rem}figure{margin:0;flex:1 1 300px;max-width:100%}
figcaption{font-weight:600}svg{width:100%;height:auto;font-size:11px;fill:currentColor}
.grid{stroke:currentColor;stroke-opacity:.15;fill:none}.legend span{margin-right:1rem;white-space:nowrap}
.legend i{display:inline-block;width:.8em;height:.8em;margin-right:.3em}
"""
"""Style of tables, text and charts. Their colours are translucent or the text's, to suit light and dark."""
STYLE = """
:root{color-scheme:light dark}
body{font:15px/1.5 system-ui,sans-serif;margin:0 auto;padding:1rem;max-width:1080px}
h1{font-size:1.5rem;margin:.2rem 0}
h2{font-size:1.15rem;margin:2rem 0 .5rem;border-bottom:1px solid #8884}
"""


def page(title: str, sections: Iterable[tuple[str, str]]) -> str:
    """Return the page; sections without content are left out."""
    body = "".join(f"<section><h2>{escape(name)}</h2>{text}</section>" for name, text in sections if text)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}{PARTS}</style></head>"
        f"<body><h1>{escape(title)}</h1>{body}</body></html>\n"
    )


def notebook(head: str, *parts: str) -> str:
    """Return an object's display in a notebook: a line, and tables, text or charts under it.

    The style is nested, so that it leaves the rest of the notebook as it is.
    """
    style = f"<style>.graphbraid{{{PARTS}}}</style>"
    return f'<div class="graphbraid">{style}<p><b>{escape(head)}</b></p>{"".join(parts)}</div>'


def preformatted(text: object) -> str:
    """Return text as it is printed."""
    return f"<pre>{escape(str(text))}</pre>"


def table(rows: Iterable[Sequence[object]], heads: Sequence[str] = ()) -> str:
    """Return a table that scrolls by itself where the screen is narrow."""
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    lines = ("".join(f"<td>{escape(cell_text(cell))}</td>" for cell in row) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return (
        f'<div class="scroll"><table>{f"<tr>{head}</tr>" if head else ""}{body}</table></div>' if body else ""
    )


def figures(drawn: Iterable[str]) -> str:
    """Place charts side by side where the screen is wide."""
    found = "".join(drawn)
    return f'<div class="figures">{found}</div>' if found else ""


def cell_text(cell: object) -> str:
    """Return a value as a table shows it."""
    if isinstance(cell, float):
        return f"{cell:.4g}"
    return f"{cell:,}" if isinstance(cell, int) and not isinstance(cell, bool) else str(cell)
